"""Many heads trained together: the same weights as one by one, and no effect of one head on another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import BenchError
from bench.data.splits import partition
from bench.methods.pate.head_training import Heads, HeadTraining
from bench.methods.shared.settings_checks import HeadSettings
from bench.models.frozen_backbone import DenseHead
from bench.training.processes import one_thread
from helpers.heads import by_autograd

FEW = HeadSettings(hidden=8, epochs=3, batch_size=4, lr=0.05)


def records(count: int, width: int, classes: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    centres = torch.randn(classes, width, generator=generator)
    return centres[labels] + torch.randn(count, width, generator=generator), labels


def trained(
    features: torch.Tensor, labels: torch.Tensor, parts: list[np.ndarray], fitting: HeadSettings, seed: int = 5
) -> list[Heads]:
    return list(HeadTraining(features, labels, parts, 3, fitting, torch.Generator().manual_seed(seed)).heads())


def answered(features: torch.Tensor, labels: torch.Tensor, parts: list[np.ndarray], threads: int = 1) -> np.ndarray:
    training = HeadTraining(features, labels, parts, 3, FEW, torch.Generator().manual_seed(0))
    return training.labels_of(features, threads)


@pytest.mark.parametrize("width", [40, 6], ids=["more features than records", "more records than features"])
def test_weights_are_those_of_ordinary_training(width: int) -> None:
    features, labels = records(30, width)
    parts = [np.arange(15), np.arange(15, 30)]
    (heads,) = trained(features, labels, parts, FEW)
    for number, part in enumerate(parts):
        expected = by_autograd(features[part], labels[part], 3, FEW, 5)
        found = DenseHead(width, FEW.hidden, 3)
        heads.write(number, found)
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(found.state_dict()[name], value, atol=2e-5, rtol=1e-4)


@settings(max_examples=15, deadline=None)
@given(teachers=st.integers(2, 14), spare=st.integers(0, 5), wide=st.booleans(), at=st.integers(0, 10_000))
def test_one_record_changes_one_head(teachers: int, spare: int, wide: bool, at: int) -> None:
    """To the byte: parts of unequal sizes are filled up, and what fills them must be nobody's record."""
    count = 5 * teachers + spare
    features, labels = records(count, 40 if wide else 3)
    parts = partition(count, teachers, "heads")
    before = trained(features, labels, parts, FEW)
    changed, other = features.clone(), labels.clone()
    changed[at % count] = 1e3
    other[at % count] = (labels[at % count] + 1) % 3
    after = trained(changed, other, parts, FEW)
    names = ("first", "first_bias", "last", "last_bias")
    differ = [
        any(not torch.equal(getattr(a, name)[k], getattr(b, name)[k]) for name in names)
        for a, b in zip(before, after, strict=True)
        for k in range(len(a))
    ]
    owner = next(number for number, part in enumerate(parts) if at % count in part)
    assert [number for number, one in enumerate(differ) if one] == [owner]


def test_a_head_that_diverges_harms_no_other() -> None:
    features, labels = records(39, 50)
    # The second part is filled up, by the very record that is not finite.
    parts = [np.arange(20), np.arange(20, 39)]
    calm = answered(features, labels, parts)
    features[0] = float("inf")
    wild = answered(features, labels, parts)
    assert np.array_equal(calm[1, 20:], wild[1, 20:])
    assert wild.shape == (2, 39)


def test_labels_do_not_depend_on_how_many_heads_there_are_beside() -> None:
    features, labels = records(120, 60)
    parts = partition(120, 12, "heads")
    every = answered(features, labels, parts)
    assert every.shape == (12, 120)
    first = answered(features, labels, parts[:10])
    assert np.array_equal(every[:10], first)


def test_heads_are_the_same_for_every_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.methods.pate.head_training.TOGETHER", 20)
    features, labels = records(120, 60)
    parts = partition(120, 12, "heads")
    with one_thread():
        alone, several = (
            list(HeadTraining(features, labels, parts, 3, FEW, torch.Generator().manual_seed(0)).heads(threads))
            for threads in (1, 3)
        )
        asked = [answered(features, labels, parts, threads) for threads in (1, 3)]
    assert len(alone) == len(several) == 6
    for one, other in zip(alone, several, strict=True):
        assert torch.equal(one.first, other.first)
        assert torch.equal(one.last, other.last)
    assert np.array_equal(*asked)


def test_heads_learn() -> None:
    features, labels = records(200, 30)
    (heads,) = trained(features, labels, [np.arange(200)], HeadSettings(hidden=16, epochs=20, lr=0.05))
    assert (heads.logits(features)[0].argmax(1) == labels).float().mean() > 0.95


def test_overlapping_parts_are_refused() -> None:
    features, labels = records(10, 4)
    with pytest.raises(BenchError, match="overlap"):
        HeadTraining(features, labels, [np.arange(6), np.arange(5, 10)], 3, FEW, torch.Generator())
