from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.data import datasets, text
from bench.data.splits import facts, materialise, split
from bench.evaluation.audit.canaries import CanaryPlan, draw_canaries, place
from bench.experiments.release import save_image_grid
from bench.storage.download import RouteError
from helpers.data import quiet, request

GOOD, BAD = "a truly wonderful film", "a truly dreadful film"


def small(name: str) -> Any:
    """A data set without its record counts, so that a few records suffice."""
    spec = datasets.DATASETS[name]
    assert spec.labelled is not None
    return replace(spec, train_records=None, test_records=None, labelled=replace(spec.labelled, records=None))


def write_reviews(folder: Path, rows: list[tuple[str, str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / text.REVIEWS).open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([("text", "label", "source"), *rows])


def reviews(count: int = 40) -> list[tuple[str, str, str]]:
    imdb = [("Wonderful!<br />Wonderful, a FILM", "1", "imdb"), ("dreadful, 'dreadful' film: don't", "0", "imdb")]
    ours = [(f"{GOOD if i % 2 else BAD} {i}", str(i % 2), "rotten_tomatoes") for i in range(count)]
    return [*imdb, *ours]


def write_polarity(folder: Path, count: int = 20) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rt-polarity.pos").write_bytes(f"{GOOD} caf\xe9 \x85 it\x92s\r\n".encode("latin-1") * count)
    (folder / "rt-polarity.neg").write_bytes(f"{BAD} \n".encode("latin-1") * count)
    trees = ["(4 (2 Wonderful) (2 film))", "(0 (1 dreadful) (2 (2 do) (2 n't)))", "(2 (2 A) (2 film))"]
    for name in text.TREES:
        (folder / name).write_text("\n".join(trees) + "\n", encoding="utf-8")


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_text", "words"),
    [
        ("It's GOOD<br /><br />really", ["it's", "good", "really"]),
        ("the 90\u2019s _rock_ 'n' roll...", ["the", "90's", "rock", "n", "roll"]),
        ("low-key caf\u00e9 \x96 don\x92t", ["low", "key", "caf\u00e9", "don't"]),
        (" -- !", []),
    ],
)
def test_tokeniser(given_text: str, words: list[str]) -> None:
    assert text.tokenise(given_text) == words


def test_vocabulary_is_by_frequency_then_alphabet() -> None:
    assert text.build_vocabulary([["b", "c", "a"], ["c", "b"], ["d", "a"]], 3) == ["a", "b", "c"]
    assert text.build_vocabulary([["z", "z", "a"]], 5) == ["z", "a"]


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=12), max_size=6), st.integers(1, 9))
def test_words_survive_the_two_bytes(texts: list[list[str]], length: int) -> None:
    vocabulary = [*(f"w{i}" for i in range(300)), "a", "b", "c"]
    images = text.encode(texts, vocabulary, length)
    assert images.shape == (len(texts), 2, 1, length)
    assert images.dtype == np.uint8
    for words, numbers in zip(texts, text.word_numbers(images), strict=True):
        expected = [302 + "abc".index(word) if word in "abc" else text.UNKNOWN for word in words[:length]]
        assert numbers.tolist() == expected + [text.PADDING] * (length - len(expected))


@given(st.lists(st.integers(0, 14), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 4))
def test_windows_hold_every_long_piece_once(sizes: list[int], length: int, least: int) -> None:
    images = text.encode([["a"] * size for size in sizes], ["a"], 14)
    labels = np.arange(len(sizes), dtype=np.int64)
    pieces, kept = text.windows(images, labels, length, least)
    assert pieces.shape == (len(kept), 2, 1, length)
    expected = [
        (label, min(length, size - start))
        for start in range(0, 14, length)
        for label, size in enumerate(sizes)
        if not start or size - start >= min(least, length)
    ]
    found = (text.word_numbers(pieces) != text.PADDING).sum(axis=1)
    assert list(zip(kept.tolist(), found.tolist(), strict=True)) == expected


def test_trees_are_read_as_the_tokeniser_reads_sentences() -> None:
    line = "(3 (2 (2 -LRB-) (2 It)) (4 (3 's) (2 (2 ca) (2 (1 n't) (2 1\\/2)))))"
    assert text.read_tree(line, "x") == (3, ["it's", "can't", "1", "2"])
    for bad in ("no tree", "(5 (2 a))", "(3 (2 a)", "(3 ())"):
        with pytest.raises(ValueError, match="train is bad: a line is not a tree"):
            text.read_tree(bad, "train is bad")


# --- the sets ---------------------------------------------------------------------------------------------------------


def load_small(tmp_path: Path, name: str) -> Any:
    spec = small(name)
    return replace(spec.loader, pinned=None)(request(spec, tmp_path))


def test_reviews_become_records_and_source(tmp_path: Path) -> None:
    write_reviews(tmp_path / "raw" / "movie-review", reviews())
    loaded = load_small(tmp_path, "movie-review")
    assert (len(loaded.train), len(loaded.test)) == (35, 5)
    assert loaded.train.shape == (2, 1, 64)
    assert loaded.labelled.shape == (2, 1, 1024)
    assert loaded.labelled.labels.tolist() == [1, 0]
    # By frequency: dreadful, film, wonderful (2), then a, don't; "truly" and the numbers are unknown.
    assert text.word_numbers(loaded.labelled.images([0]))[0, :5].tolist() == [4, 4, 5, 3, 0]
    seen = text.word_numbers(loaded.train.images(slice(None)))
    assert {tuple(row[:6]) for row in seen.tolist()} == {(5, 1, 4, 3, 1, 0), (5, 1, 2, 3, 1, 0)}
    for row, label in zip(seen, loaded.train.labels, strict=True):
        assert row[2] == (4 if label else 2)


def test_the_same_words_whoever_is_private(tmp_path: Path) -> None:
    """The vocabulary comes only from the source, so changing a private sentence changes no other one."""
    first, rows = tmp_path / "a", reviews()
    write_reviews(first / "raw" / "movie-review", rows)
    rows[5] = ("zebra " * 50, "1", "rotten_tomatoes")
    second = tmp_path / "b"
    write_reviews(second / "raw" / "movie-review", rows)
    one, two = (load_small(folder, "movie-review") for folder in (first, second))
    moved = sum(
        int((a.images(slice(None)) != b.images(slice(None))).any(axis=(1, 2, 3)).sum())
        for a, b in ((one.train, two.train), (one.test, two.test))
    )
    assert moved == 1


def test_polarity_and_trees(tmp_path: Path) -> None:
    write_polarity(tmp_path / "raw" / "movie-review-sst")
    loaded = load_small(tmp_path, "movie-review-sst")
    assert len(loaded.train) + len(loaded.test) == 40
    assert int(loaded.train.labels.sum()) + int(loaded.test.labels.sum()) == 20
    # Neutral trees count for the vocabulary (film 6, a 3, don't 3, dreadful 3, wonderful 3) and are no source.
    assert loaded.labelled.labels.tolist() == [1, 0] * 3
    assert text.word_numbers(loaded.labelled.images([0, 1]))[:, :3].tolist() == [[6, 2, 0], [5, 4, 0]]
    positive = loaded.train.images(np.flatnonzero(loaded.train.labels == 1))
    assert text.word_numbers(positive)[0, :7].tolist() == [3, 1, 6, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("x", "2", "imdb")], "label '2'"),
        ([("x", "1", "elsewhere")], "source 'elsewhere'"),
        ([("x", "1", "imdb")], "no row of rotten_tomatoes"),
        ([("x",)], "damaged or not the expected table"),
    ],
)
def test_another_table_is_refused(tmp_path: Path, rows: Any, reason: str) -> None:
    write_reviews(tmp_path, rows)
    with pytest.raises(ValueError, match=reason):
        text.decode_reviews(tmp_path)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=text.REVIEWS):
        text.decode_reviews(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"rt-polarity\.neg"):
        text.decode_sst(tmp_path)
    write_polarity(tmp_path)
    (tmp_path / "dev.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"dev\.txt is damaged"):
        text.decode_sst(tmp_path)
    for name in text.TREES:
        (tmp_path / name).write_text("(2 (2 a))\n")
    with pytest.raises(ValueError, match="none with a label"):
        text.decode_sst(tmp_path)


def test_a_set_that_cannot_be_fetched_says_what_to_do(tmp_path: Path) -> None:
    spec = datasets.DATASETS["movie-review-sst"]
    with pytest.raises(BenchError, match=r"rt-polarity\.neg, rt-polarity\.pos and the treebank's train\.txt"):
        spec.loader(request(spec, tmp_path))


def test_specs_say_what_the_source_shares() -> None:
    spec = datasets.DATASETS["movie-review"]
    assert spec.revision == "sha256:379850a3b3ae4557"
    assert spec.public_benchmark
    assert spec.labelled is not None
    assert "62 of" in spec.labelled.overlap
    paper = datasets.DATASETS["movie-review-sst"]
    assert paper.revision is None
    assert paper.labelled is not None
    assert "protects nobody" in paper.labelled.overlap
    assert [name for name, each in datasets.DATASETS.items() if each.labelled] == ["movie-review", "movie-review-sst"]


def test_source_of_another_shape_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_reviews(tmp_path / "raw" / "movie-review", reviews())
    spec = small("movie-review")
    for way in spec.loader.ways:
        monkeypatch.setattr(type(way.route), "fetch", mock.Mock(side_effect=RouteError("no network here")))
    wrong = replace(spec, labelled=replace(spec.labelled, records=3))
    with pytest.raises(BenchError, match="2 source records were found, 3 are expected"):
        replace(spec.loader, pinned=None)(request(wrong, tmp_path))


# --- splits, tensors, canaries, pictures ------------------------------------------------------------------------------


@pytest.fixture
def loaded(tmp_path: Path) -> Any:
    write_reviews(tmp_path / "raw" / "movie-review", reviews())
    return load_small(tmp_path, "movie-review")


def test_materialised_with_its_source(loaded: Any) -> None:
    whole = materialise(loaded, split(loaded, rule="hash"))
    assert whole.public.labelled is not None
    assert len(whole.public.labelled) == 2
    assert whole.public.labelled.name == "imdb"
    assert whole.public.labelled.labels.tolist() == [1, 0]
    assert tuple(whole.public.labelled.images.shape[1:]) == (2, 1, 1024)
    assert text.is_text(whole.private.facts.shape)
    assert not text.is_text((3, 32, 32))
    assert not text.is_text((1, 1, 64))


def test_canaries_and_image_grids_take_sentences(loaded: Any, tmp_path: Path) -> None:
    whole = materialise(loaded, split(loaded, rule="hash"))
    plan = CanaryPlan(outlier=2, natural=1, mislabelled=2)
    canaries = draw_canaries(whole.private, plan, PrivacyUnit.RECORD, Adjacency.REPLACE)
    changed = place(whole.private, canaries, canaries.coins(0, 0))
    assert changed.images.shape[1:] == (2, 1, 64)
    assert save_image_grid({"synthetic_images": whole.public.images}, tmp_path / "grid.png") is None


def test_inversion_attacks_refuse_sentences(loaded: Any) -> None:
    from bench.evaluation.attack.inversion import check_images

    known = facts(loaded, split(loaded, rule="hash"))
    with pytest.raises(BenchError, match=r"mi-face reconstructs images, and movie-review holds sentences"):
        check_images("mi-face", known)
    check_images("mi-face", replace(known, shape=(1, 28, 28)))


def test_trpate_divides_as_table_1_does() -> None:
    from bench.data.spec import ArrayRecords, Loaded

    for name, sizes in (("movie-review", (6_400, 1_000, 1_130)), ("movie-review-sst", (8_000, 1_000, 1_662))):
        train, test = text.PARTS[name]
        halves = [ArrayRecords(np.zeros((n, 2, 1, 64), np.uint8), np.arange(n) % 2) for n in (train, test)]
        loaded = Loaded(datasets.DATASETS[name], halves[0], halves[1], "test")
        divided = split(loaded)
        assert (len(divided.private), len(divided.public), len(divided.test)) == sizes
        assert facts(loaded, divided).shape == (2, 1, 64)
        assert sum(sizes) == train + test


def test_list_tells_of_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    from bench.cli.data import list_

    list_(json_=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["datasets"]}
    assert rows["movie-review"]["labelled_source"]["name"] == "imdb"
    assert rows["mnist"]["labelled_source"] is None


# --- the real thing ---------------------------------------------------------------------------------------------------


@pytest.mark.network
def test_movie_review_is_what_is_pinned_and_shares_stock_phrases_with_imdb(tmp_path: Path) -> None:
    loaded = datasets.load("movie-review", root=tmp_path, progress=quiet)
    assert loaded.revision == datasets.DATASETS["movie-review"].revision
    assert loaded.labelled is not None
    route = datasets.DATASETS["movie-review"].loader.ways[0].route  # type: ignore[attr-defined]
    route.fetch(tmp_path / "raw", quiet)
    with (tmp_path / "raw" / text.REVIEWS).open(encoding="utf-8", newline="") as handle:
        rows = [(row["source"], " ".join(text.tokenise(row["text"]))) for row in csv.DictReader(handle)]
    theirs = "\n".join(f" {words} " for source, words in rows if source == "imdb")
    shared = [words for source, words in rows if source != "imdb" and f" {words} " in theirs]
    assert len(shared) == 62
    assert max(len(words.split()) for words in shared) == 7
