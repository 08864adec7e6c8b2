"""Split data sets into private, public and test records by index, never by the content of a record.

Indices are *pooled*: 0..n_train-1 are the official training records, n_train.. the official test records. A split
depends on the data set's name, its record counts and the rule, so no record affects where another one goes. The rules:

pate: PATE (Papernot et al., ICLR 2017, section 4). The official training set is private, without SVHN's ``extra`` file,
    which the paper's teachers also use. The first official test records are public, without labels: 9,000 of 10,000
    for MNIST and Fashion-MNIST, 10,000 of 26,032 for SVHN. The student is tested on the rest.
trpate: TrPATE (IEEE Access 2019, table 1). The paper does not state which records; here the index hash decides.
    CIFAR-10 and CIFAR-100: 40,000 private and 10,000 public training records, and the official test set. Others divide
    all labelled records (private, public, test): STL-10 10,000, 1,000, 2,000; movie-review-sst 8,000, 1,000, 1,662;
    movie-review 6,400 (80 teachers with 80 each, the paper's have 100), 1,000, 1,130.
official: DGD and DPSD. No public data; the official training set is private, the official test set is for testing.
hash: other data sets. With 1,000 official test records or more, the training set is private and half of the test set
    (at most 10,000) is public; otherwise 2 of 7 training records are public, so that enough test records remain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.core.errors import BenchError, UnknownNameError
from bench.core.fetch_progress import Progress, silent
from bench.core.lazy_libraries import torch
from bench.core.processes import memory_bytes
from bench.core.types import Facts, LabelledSource, PrivateData, PublicData
from bench.data.image_files import FileRecords
from bench.data.image_map import MappedRecords, mapped
from bench.data.index_hash import ranks
from bench.data.own_name import parse
from bench.data.spec import DatasetSpec, Loaded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]

RULES = ("pate", "trpate", "official", "hash")

PATE_PUBLIC = {"mnist": 9_000, "fmnist": 9_000, "svhn": 10_000}
"""How many of the first official test records are public."""
TRPATE_PUBLIC = {"cifar10": 10_000, "cifar100": 10_000}
"""Number of official training records that are public."""
TRPATE_POOLED = {
    "stl10": (10_000, 1_000, 2_000),
    "movie-review": (6_400, 1_000, 1_130),
    "movie-review-sst": (8_000, 1_000, 1_662),
}
"""Private, public and test records out of all labelled ones."""


@dataclass(frozen=True, slots=True)
class Split:
    """A division of a data set's records into disjoint pooled indices, int64, sorted."""

    rule: str
    private: Indices
    public: Indices
    test: Indices


@dataclass(frozen=True, slots=True)
class Materialised:
    """A split as tensors: images uint8 (n, channels, height, width), labels int64 (n,)."""

    private: PrivateData
    public: PublicData
    public_labels: torch.Tensor
    """Hidden from methods; used afterwards to score the teachers' answers."""
    test_images: torch.Tensor
    test_labels: torch.Tensor
    public_from_test: bool = False
    """Whether public and test records together form the official test set."""


def split(loaded: Loaded, rule: str | None = None) -> Split:
    """Divide the records of a data set by `rule`, one of `RULES`, by default the data set's own.

    Raise UnknownNameError, or BenchError if it does not apply.
    """
    spec = loaded.spec
    # The split must not depend on a folder's path.
    name = "folder" if spec.name.startswith("folder:") else spec.name
    rule = rule or spec.split_rule
    private, public, test = _divide(name, rule, len(loaded.train), len(loaded.test))
    return Split(rule, np.sort(private), np.sort(public), np.sort(test))


def _divide(name: str, rule: str, train: int, test: int) -> tuple[Indices, Indices, Indices]:
    everything = np.arange(train + test, dtype=np.int64)
    trained, tested = everything[:train], everything[train:]
    match rule:
        case "official":
            return trained, everything[:0], tested
        case "pate" if name in PATE_PUBLIC and test > PATE_PUBLIC[name]:
            return trained, tested[: PATE_PUBLIC[name]], tested[PATE_PUBLIC[name] :]
        case "trpate" if name in TRPATE_PUBLIC and train > TRPATE_PUBLIC[name]:
            order = ranks(name, train, "trpate")
            return order[TRPATE_PUBLIC[name] :], order[: TRPATE_PUBLIC[name]], tested
        case "trpate" if name in TRPATE_POOLED and train + test >= sum(TRPATE_POOLED[name]):
            private, public, kept = TRPATE_POOLED[name]
            order = ranks(name, train + test, "trpate")
            return order[:private], order[private : private + public], order[private + public :][:kept]
        case "hash" if test >= 1_000:
            order = ranks(name, test, "hash") + train
            half = min(test // 2, 10_000)
            return trained, order[:half], order[half:]
        case "hash":
            order = ranks(name, train, "hash")
            return order[train * 2 // 7 :], order[: train * 2 // 7], tested
        case "pate" | "trpate":
            raise BenchError(
                f"the split rule {rule!r} does not cover {name!r} with {train} training and {test} test records. "
                "Use the rule 'hash' or 'official'."
            )
        case _:
            raise UnknownNameError("split rule", rule, RULES)


def partition(count: int, parts: int, seed_name: str) -> list[Indices]:
    """Assign each of `count` records to exactly one of `parts` teachers, by a hash of its index and `seed_name`.

    Return sorted int64 positions by teacher; sizes differ by at most 1. Raise BenchError unless 1 <= parts <= count.
    """
    if parts < 1:
        raise BenchError(f"the number of teachers must be 1 or more, not {parts}.")
    if parts > count:
        raise BenchError(
            f"more teachers than records: {parts} teachers cannot share {count} private records without one of them "
            f"seeing none. Use at most {count} teachers, or more private records."
        )
    order = ranks(seed_name, count, f"partition into {parts}")
    return [np.sort(order[part::parts]) for part in range(parts)]


def facts(loaded: Loaded, split: Split) -> Facts:
    """Return the public facts of a data set after splitting."""
    spec = loaded.spec
    # Records state the name of a user's folder, never its path.
    own = spec.name.startswith("folder:")
    return Facts(
        dataset=f"folder:{parse(spec.name).path.resolve().name}" if own else spec.name,
        private_records=len(split.private),
        public_records=len(split.public),
        test_records=len(split.test),
        classes=spec.classes,
        shape=spec.shape,
        public_benchmark=spec.public_benchmark,
    )


def materialise(loaded: Loaded, split: Split) -> Materialised:
    """Return a split as tensors, views if the images are mapped; raise BenchError if they exceed the memory.

    A class without private records is not an error: its absence is private, and there is no ledger yet.
    """
    spec = loaded.spec
    if not isinstance(loaded.train, MappedRecords):
        _check_memory(spec, split)
    known = facts(loaded, split)
    labels = np.concatenate([loaded.train.labels, loaded.test.labels])

    def images(which: Indices) -> torch.Tensor:
        piece = _mapped_piece(loaded, which)
        return torch.from_numpy(pooled_images(loaded, which)) if piece is None else piece

    origin = "official training records" if np.all(split.public < len(loaded.train)) else "official test records"
    if split.rule == "trpate" and spec.name in TRPATE_POOLED:
        origin = "labelled records"
    source = f"{len(split.public)} {origin} of {known.dataset}, without labels" if len(split.public) else "none"
    labelled, about = None, spec.labelled
    if about is not None and (records := loaded.labelled) is not None:
        pair = torch.from_numpy(records.images(slice(None))), torch.from_numpy(np.array(records.labels))
        labelled = LabelledSource(*pair, about.name, about.overlap)
    tests = len(split.public) + len(split.test) == len(loaded.test)
    return Materialised(
        private=PrivateData(images(split.private), torch.from_numpy(labels[split.private]), known),
        public=PublicData(images(split.public), source, labelled), public_labels=torch.from_numpy(labels[split.public]),
        test_images=images(split.test), test_labels=torch.from_numpy(labels[split.test]),
        public_from_test=len(split.public) > 0 and min(split.public) >= len(loaded.train) and tests,
    )  # fmt: skip


def map_images(loaded: Loaded, progress: Progress = silent) -> Loaded:
    """Return `loaded`; a set of image files becomes a mapping, with each part of the usual split contiguous.

    Raises what :func:`bench.data.image_map.mapped` raises.
    """
    if not isinstance(loaded.train, FileRecords):
        return loaded
    usual = split(loaded)
    chosen = np.concatenate([usual.private, usual.public, usual.test])
    left = np.setdiff1d(np.arange(len(loaded.train) + len(loaded.test)), chosen)
    return mapped(loaded, np.concatenate([chosen, left]), progress)


def _mapped_piece(loaded: Loaded, which: Indices) -> torch.Tensor | None:
    """Return the images at the pooled indices `which` as a view if they are contiguous in a mapped file."""
    train, test = loaded.train, loaded.test
    if not isinstance(train, MappedRecords) or not isinstance(test, MappedRecords) or not len(which):
        return None
    border = len(train)
    rows = np.concatenate([train.rows[which[which < border]], test.rows[which[which >= border] - border]])
    if not np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return None
    return train.mapping.tensor()[int(rows[0]) : int(rows[0]) + len(rows)]


def pooled_images(loaded: Loaded, which: Indices) -> NDArray[np.uint8]:
    """Return the images at the pooled indices `which`, uint8 (k, channels, height, width)."""
    border = len(loaded.train)
    from_train = which < border
    if from_train.all() or not from_train.any():  # avoid a second copy
        return loaded.train.images(which) if from_train.all() else loaded.test.images(which - border)
    out = np.empty((len(which), *loaded.train.shape), dtype=np.uint8)
    out[from_train] = loaded.train.images(which[from_train])
    out[~from_train] = loaded.test.images(which[~from_train] - border)
    return out


def _check_memory(spec: DatasetSpec, split: Split) -> None:
    """Raise BenchError, before hours of decoding, if the images exceed the memory (if its size is known)."""
    images = len(split.private) + len(split.public) + len(split.test)
    need = images * int(np.prod(spec.shape))
    if spec.labelled is not None:
        need += (spec.labelled.records or 0) * int(np.prod(spec.labelled.shape))
    if need > memory_bytes():
        raise BenchError(
            f"the {images:,} images of {spec.name!r} need {need / 2**30:.0f} GiB of memory, but this machine has "
            f"{memory_bytes() / 2**30:.0f}. Use fewer private records."
        )
