"""Small private and public sets for tests of single methods."""

from __future__ import annotations

import numpy as np
import torch

from bench.core.types import Facts, LabelledSource, PrivateData, PublicData

SMALL = Facts(dataset="small", private_records=240, public_records=80, test_records=40, classes=10, shape=(1, 28, 28))


def private_pair(facts: Facts = SMALL) -> tuple[PrivateData, PrivateData]:
    """Return two private sets of `facts` that differ in images, value range and class counts; both hold every class."""

    generator = np.random.default_rng(0)
    size = facts.private_records
    patterns = generator.integers(0, 256, (facts.classes, *facts.shape))
    even = np.arange(size) % facts.classes
    noisy = np.clip(patterns[even] + generator.normal(0, 40, (size, *facts.shape)), 0, 255)
    skewed = np.concatenate([np.arange(facts.classes), generator.integers(0, 2, size - facts.classes)])
    dark = generator.integers(0, 60, (size, *facts.shape))
    return (
        PrivateData(torch.from_numpy(noisy.astype(np.uint8)), torch.from_numpy(even.astype(np.int64)), facts),
        PrivateData(torch.from_numpy(dark.astype(np.uint8)), torch.from_numpy(skewed.astype(np.int64)), facts),
    )


def public_set(facts: Facts = SMALL, *, labelled: bool = False) -> PublicData:
    """Return the public images of both runs, with a labelled source if `labelled`."""

    generator = np.random.default_rng(1)
    size = facts.public_records

    def images() -> torch.Tensor:
        return torch.from_numpy(generator.integers(0, 256, (size, *facts.shape)).astype(np.uint8))

    unlabelled, said = images(), "random images"
    if not labelled:
        return PublicData(unlabelled, said)
    labels = torch.arange(size) % facts.classes
    return PublicData(unlabelled, said, LabelledSource(images(), labels, "small", "nothing"))
