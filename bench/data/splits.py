"""Splits into private, public and test records, by index alone and never by the content of a record.

Indices are *pooled*: 0..n_train-1 are the official training records, n_train.. the official test records. A split
depends on the data set's name, its record counts and the rule, so no record affects the place of another.

The rules, and the papers that state them:

=========  ===========================================================================================================
pate       PATE (Papernot et al., ICLR 2017, section 4): private is the official training set. Public, without labels,
           is the beginning of the official test set, 9,000 of MNIST's (and Fashion-MNIST's) 10,000 and 10,000 of
           SVHN's 26,032; the student is tested on the rest. SVHN's ``extra`` file, which the paper's teachers also
           use, is not part of this data set here.
trpate     TrPATE (IEEE Access 2019, table 1): CIFAR-10 as 40,000 private, 10,000 public, 10,000 test. The paper does
           not say which; here the 50,000 training records are divided by index hash and the official test set is the
           test set. CIFAR-100 likewise. STL-10's 13,000 labelled images, pooled, as 10,000 private, 1,000 public and
           2,000 test, by index hash; Movie Review's 10,662 sentences as 8,000, 1,000 and 1,662. Of the 8,530 sentences
           of the set movie-review, 6,400 are private (80 teachers with 80 each, where the paper's have 100), 1,000
           public and 1,130 for testing.
official   DGD and DPSD: no public data; private is the official training set, the test set the official one.
hash       For sets that no paper of these divides. Where the official test set has 1,000 records or more: private is
           the training set, half of the test set (at most 10,000) is public. Below that the training set is divided
           instead: 2 of 7 records are public (digits: 400 of 1,400), so that there is something left to test on.
=========  ===========================================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.core.errors import BenchError, UnknownNameError
from bench.data.index_hash import ranks
from bench.data.spec import DatasetSpec, Loaded

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from bench.core.types import Facts, PrivateData, PublicData

    Indices = NDArray[np.int64]

RULES = ("pate", "trpate", "official", "hash")

PATE_PUBLIC = {"mnist": 9_000, "fmnist": 9_000, "svhn": 10_000}
"""How many of the first official test records are public."""
TRPATE_PUBLIC = {"cifar10": 10_000, "cifar100": 10_000}
"""How many of the official training records are public."""
TRPATE_POOLED = {
    "stl10": (10_000, 1_000, 2_000),
    "movie-review": (6_400, 1_000, 1_130),
    "movie-review-sst": (8_000, 1_000, 1_662),
}
"""Private, public and test records out of all labelled ones."""


@dataclass(frozen=True, slots=True)
class Split:
    """A division of a data set's records into disjoint pooled indices, int64, sorted."""

    dataset: str
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
    """Held back from methods; used afterwards to score the teachers' answers."""
    test_images: torch.Tensor
    test_labels: torch.Tensor


def split(loaded: Loaded, rule: str | None = None, private_records: int | None = None) -> Split:
    """Divide the records of a data set.

    Args:
        loaded: the data set, of which only the name, the record counts and the default rule are used.
        rule: one of `RULES`; left out, the data set's own.
        private_records: the maximum number of private records, chosen by index hash; left out, all.

    Raises:
        UnknownNameError: where no rule has this name.
        BenchError: where the rule does not cover this data set, or a number is out of its range.

    """
    spec = loaded.spec
    # The split does not depend on a folder's path.
    name = "folder" if spec.name.startswith("folder:") else spec.name
    rule = rule or spec.split_rule
    private, public, test = _divide(name, rule, len(loaded.train), len(loaded.test))
    if private_records is not None:
        if private_records < 1:
            raise BenchError(f"private records must be 1 or more, not {private_records}.")
        private = private[ranks(name, len(private), "fewer private records")[:private_records]]
    return Split(spec.name, rule, np.sort(private), np.sort(public), np.sort(test))


def _divide(name: str, rule: str, train: int, test: int) -> tuple[Indices, Indices, Indices]:
    """Return the private, public and test indices of a rule, pooled."""
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
                f"the split rule {rule!r} says nothing of {name!r} with {train} training and {test} test records. "
                "Use the rule 'hash' or 'official'."
            )
        case _:
            raise UnknownNameError("split rule", rule, RULES)


def partition(count: int, parts: int, seed_name: str) -> list[Indices]:
    """Assign each of `count` records to exactly one of `parts` teachers, by a hash of its index and `seed_name`.

    Returns one sorted int64 array of positions in 0..count-1 for each teacher; sizes differ by one record at most.

    Raises:
        BenchError: where there are more teachers than records, or no teacher.

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
    """Return the public facts of a divided data set."""
    from bench.core.types import Facts
    from bench.data.image_folder import parse

    spec = loaded.spec
    # A record names a user's folder, never the path to it.
    own = spec.name.startswith("folder:")
    return Facts(
        dataset=f"folder:{parse(spec.name)[0].resolve().name}" if own else spec.name,
        private_records=len(split.private),
        public_records=len(split.public),
        test_records=len(split.test),
        classes=spec.classes,
        shape=spec.shape,
        public_benchmark=spec.public_benchmark,
    )


def materialise(loaded: Loaded, split: Split) -> Materialised:
    """Return a split as tensors.

    Raises:
        BenchError: where a class has no private record, naming it; where the images do not fit into memory.

    """
    import torch

    from bench.core.types import LabelledSource, PrivateData, PublicData

    spec = loaded.spec
    _check_memory(spec, split)
    known = facts(loaded, split)
    labels = np.concatenate([loaded.train.labels, loaded.test.labels])
    _check_classes(spec, labels[split.private])

    def images(which: Indices) -> torch.Tensor:
        return torch.from_numpy(pooled_images(loaded, which))

    origin = "official training records" if np.all(split.public < len(loaded.train)) else "official test records"
    if split.rule == "trpate" and spec.name in TRPATE_POOLED:
        origin = "labelled records"
    source = f"{len(split.public)} {origin} of {known.dataset}, without labels" if len(split.public) else "none"
    labelled, about = None, spec.labelled
    if about is not None and (records := loaded.labelled) is not None:
        pair = torch.from_numpy(records.images(slice(None))), torch.from_numpy(np.array(records.labels))
        labelled = LabelledSource(*pair, about.name, about.overlap)
    return Materialised(
        private=PrivateData(images(split.private), torch.from_numpy(labels[split.private]), known),
        public=PublicData(images(split.public), source, labelled),
        public_labels=torch.from_numpy(labels[split.public]),
        test_images=images(split.test),
        test_labels=torch.from_numpy(labels[split.test]),
    )


def pooled_images(loaded: Loaded, which: Indices) -> NDArray[np.uint8]:
    """Return the images at the pooled indices `which`, uint8 (k, channels, height, width)."""
    border = len(loaded.train)
    from_train = which < border
    if from_train.all() or not from_train.any():  # without a second copy
        return loaded.train.images(which) if from_train.all() else loaded.test.images(which - border)
    out = np.empty((len(which), *loaded.train.shape), dtype=np.uint8)
    out[from_train] = loaded.train.images(which[from_train])
    out[~from_train] = loaded.test.images(which[~from_train] - border)
    return out


def _check_classes(spec: DatasetSpec, labels: Indices) -> None:
    missing = np.flatnonzero(np.bincount(labels, minlength=spec.classes)[: spec.classes] == 0)
    if len(missing):
        names = ", ".join(repr(spec.class_names[i]) for i in missing[:8]) + (", ..." if len(missing) > 8 else "")
        raise BenchError(
            f"the private set of {spec.name!r} has no record of class {names}: no student can learn it. "
            "Use more private records, add images of it, or leave the class out of the data set."
        )


def _check_memory(spec: DatasetSpec, split: Split) -> None:
    """Refuse images that do not fit into memory before hours of decoding, where its size is known."""
    import os

    images = len(split.private) + len(split.public) + len(split.test)
    need = images * int(np.prod(spec.shape))
    if spec.labelled is not None:
        need += (spec.labelled.records or 0) * int(np.prod(spec.labelled.shape))
    try:
        have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return
    if need > have:
        raise BenchError(
            f"the {images:,} images of {spec.name!r} need {need / 2**30:.0f} GiB of memory, this machine has "
            f"{have / 2**30:.0f}. Use fewer private records."
        )
