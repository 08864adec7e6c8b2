"""Sets with a record unlike all others, on which a stated sensitivity is tested."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from bench.core.types import Adjacency, PrivacyUnit
from bench.evaluation.check.check_data import CHECK_FACTS, Lone, generated, lone_sets, variant_of


@pytest.mark.parametrize("which", lone_sets(100))
def test_sets_with_a_lone_record_differ_from_their_neighbours_in_it_alone(which: Lone) -> None:
    data = generated(dataclasses.replace(CHECK_FACTS, private_records=100)).private
    alone = dataclasses.replace(which, present=False)
    for adjacency, records in ((Adjacency.ADD_REMOVE, 99), (Adjacency.REPLACE, 100)):
        first, second = (variant_of(data, one, PrivacyUnit.RECORD, adjacency, 3) for one in (which, alone))
        assert (len(first), len(second)) == (100, records)
        images, copies = first.images.unique(dim=0, return_counts=True)
        assert sorted(copies.tolist()) == [1, 99]
        (place,) = torch.nonzero((first.images == images[copies.argmin()]).flatten(1).all(1))[0].tolist()
        kept = torch.arange(100) != place
        images, labels = (second.images, second.labels) if records == 99 else (second.images[kept], second.labels[kept])
        assert torch.equal(first.images[kept], images)
        assert torch.equal(first.labels[kept], labels)
        mates = int((labels == first.labels[place]).sum())
        assert mates in ((0,) if which.apart else (which.copies - 1, which.copies) if which.copies else (99,))
