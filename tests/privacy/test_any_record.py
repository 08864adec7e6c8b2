"""The content of one record never makes a mechanism raise or not raise: an error is a release without noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.dpsgd.clipping import Flat
from bench.privacy.dpsgd.dp_sgd import DPSGDRun
from bench.privacy.mechanisms import mechanisms
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import PRIVATE, Ledger
from bench.privacy.mechanisms.noise import ZeroNoise
from helpers.ledgers import seeded_ledger

RECORDS, CLASSES = 6, 3
SAMPLED = {"max_norm": 1.0, "sampling_rate": 0.5, "noise_multiplier": 1.0}

VALUES = st.one_of(
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 1e200, 1e20, -1e20, 0.0, 5e-324]), st.floats()
)
NUMBERS = st.one_of(st.sampled_from([-1, -100, CLASSES, 2**62, -(2**63)]), st.integers(-(2**63), 2**63 - 1))


def book(unit: PrivacyUnit = PrivacyUnit.RECORD, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> Ledger:
    return seeded_ledger(unit, adjacency, np.random.default_rng(0))


def a_set(value: float, label: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (records, 4) and labels; one record holds `value` and has the label `label`."""
    rows, labels = np.linspace(0, 1, 4 * RECORDS).reshape(RECORDS, 4), np.arange(RECORDS) % CLASSES
    rows[2], labels[2] = value, label
    return rows, labels


def dp_sgd(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES))
    run = DPSGDRun(lambda weights: torch.optim.SGD(weights, 0.1), cross_entropy, 1.0, Flat(1.0), 3, 2, RECORDS)
    with np.errstate(over="ignore"):
        book().dp_sgd(net, torch.from_numpy(rows).float(), torch.from_numpy(labels), run)
    return torch.cat([weight.detach().flatten() for weight in net.parameters()]).numpy()


def loss_change(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    torch.manual_seed(0)
    nets = [nn.Linear(4, CLASSES) for _ in range(2)]
    with np.errstate(over="ignore"):
        given = torch.from_numpy(rows).float(), torch.from_numpy(labels)
    return book().sampled_loss_change(*nets, *given, bound=1.0, sampling_rate=1.0, noise_multiplier=1.0)


def of_labels(name: str, **options: Any) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    ledger = book(PrivacyUnit.LABEL, Adjacency.REPLACE)
    return lambda rows, labels: getattr(ledger, name)(labels, **options)


SHAPE, SETS = (RECORDS, CLASSES), np.tile([0, 2], (RECORDS, 1))
MECHANISMS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "gaussian": lambda rows, labels: book().gaussian(rows, sensitivity=1.0, noise_multiplier=1.0),
    "laplace": lambda rows, labels: book(adjacency=Adjacency.REPLACE).laplace(
        rows, sensitivity=1.0, noise_multiplier=1.0
    ),
    "tree_sum": lambda rows, labels: book().tree_sum(
        rows, step=0, steps=3, sensitivity=1.0, noise_multiplier=1.0
    ),
    "banded_sum": lambda rows, labels: book().banded_sum(
        rows, step=0, steps=3, bands=2, separation=2, sensitivity=1.0, noise_multiplier=1.0
    ),
    "exponential_mechanism": lambda rows, labels: book().exponential_mechanism(rows, sensitivity=1.0, epsilon=1.0),
    "permute_and_flip": lambda rows, labels: book().permute_and_flip(rows, sensitivity=1.0, epsilon=1.0),
    "sampled_noisy_max": lambda rows, labels: book().sampled_noisy_max(
        rows.T, labels, classes=CLASSES, neighbours=2, sampling_rate=0.9, sigma=1.0
    ),
    "sampled_gaussian": lambda rows, labels: book().sampled_gaussian(rows[None], **SAMPLED),
    "sampled_updates": lambda rows, labels: book(PrivacyUnit.CLIENT).sampled_updates(
        lambda number: rows[number], RECORDS, entries=4, **SAMPLED
    ),
    "sampled_function": lambda rows, labels: book().sampled_function(
        lambda images, _: images.sum(0).numpy(), torch.from_numpy(rows), torch.from_numpy(labels), entries=4, **SAMPLED
    ),
    "randomized_response": of_labels("randomized_response", epsilon=1.0, classes=CLASSES),
    "top_k_randomized_response": of_labels(
        "top_k_randomized_response", candidates=SETS, epsilon=1.0, classes=CLASSES
    ),
    "the printed top_k_randomized_response": of_labels(
        "top_k_randomized_response", candidates=SETS, epsilon=1.0, classes=CLASSES, outside="printed"
    ),
    "prior_randomized_response": of_labels(
        "prior_randomized_response", prior=np.full(SHAPE, 1 / CLASSES), rows=np.arange(RECORDS), epsilon=1.0
    ),
    "dp_sgd": dp_sgd,
    "sampled_loss_change": loss_change,
}  # fmt: skip


@pytest.mark.few(5)
@pytest.mark.parametrize("name", MECHANISMS)
@settings(max_examples=30, deadline=None)
@given(value=VALUES, label=NUMBERS)
def test_one_record_of_any_content_raises_nothing(name: str, value: float, label: int) -> None:
    """The student also gets only finite numbers."""
    for of_record in ((value, 1), (0.5, label), (value, label)):
        assert np.isfinite(MECHANISMS[name](*a_set(*of_record))).all()


def test_no_mechanism_of_the_ledger_is_left_out() -> None:
    """Vote counts are not values of records: see the mechanisms' module."""
    of_votes = {"noisy_max", "noisy_max_gaussian", "confident_noisy_max"}
    assert set(PRIVATE) - of_votes == {name for name in MECHANISMS if " " not in name}


@pytest.mark.parametrize("name", ["sampled_noisy_max", "sampled_function", "dp_sgd", "sampled_loss_change"])
def test_the_last_record_may_leave(name: str) -> None:
    rows, labels = a_set(0.5, 1)
    assert np.isfinite(MECHANISMS[name](rows[:0], labels[:0])).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_record_that_cannot_be_used_moves_a_mechanism_no_more_than_another(value: float) -> None:
    """Only its own part is left out."""
    rows, labels = a_set(value, 1)
    without = np.delete(rows, 2, axis=0)
    silent = Ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, Noisy(ZeroNoise(exact=False)))
    everyone = {**SAMPLED, "sampling_rate": 1.0}
    assert np.array_equal(
        silent.sampled_gaussian(rows[None], **everyone), silent.sampled_gaussian(without[None], **everyone)
    )
    sampled = np.ones((4, RECORDS), dtype=bool)
    sampled[:, 0] = False
    votes = [
        mechanisms.nearest_votes(given.T, classes, present, CLASSES, RECORDS - 1)
        for given, classes, present in (
            (rows, labels, sampled), (without, np.delete(labels, 2), np.delete(sampled, 2, axis=1))
        )
    ]  # fmt: skip
    # It votes as the farthest record, and the unsampled record does not take its place.
    assert np.array_equal(votes[0] - votes[1], np.tile([0, 1, 0], (4, 1)))


# ------------------------------------------------------------------------------------------------ the probe of DP-SGD


class Kink(nn.Module):
    """Examples are independent, but rounding decides the gradient of a record with a layer output of about 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.layer(x)
        return torch.where(z > 0, z, 1000 * z)


def trained(net: nn.Module, images: Tensor, loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy) -> None:
    run = DPSGDRun(
        lambda weights: torch.optim.SGD(weights, 0.1), loss, 1.0, Flat(1.0), len(images) or 1, 2, len(images) or 1
    )
    book().dp_sgd(net, images, torch.arange(len(images)) % CLASSES, run)


@pytest.mark.parametrize("count", range(2, 8))
def test_a_record_whose_gradient_rounding_decides_does_not_stop_a_training(count: int) -> None:
    for seed in range(15):
        torch.manual_seed(seed)
        images, net = torch.rand(count, 64), Kink()
        weight, bias = net.layer.weight[0].detach().double(), net.layer.bias[0].detach().double()
        on_kink = images[0].double() - weight * (weight @ images[0].double() + bias) / (weight @ weight)
        images[0] = on_kink.float()
        trained(net, images)


def centred(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits - logits.mean(0), labels)


class Scaled(nn.Module):
    """Its hook hides the layer's own output, so its per-example gradients are wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, CLASSES)
        self.layer.register_forward_hook(lambda layer, given, output: 3 * output)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


SETS_OF_RECORDS = {
    "none": torch.zeros(0, 64), "one": torch.rand(1, 64), "usual": torch.rand(6, 64), "dark": torch.zeros(6, 64),
    "one lost": torch.cat([torch.full((1, 64), math.nan), torch.rand(5, 64)]),
    "one huge": torch.cat([torch.full((1, 64), 1e38), torch.rand(5, 64)]),
}  # fmt: skip


@pytest.mark.parametrize("name", SETS_OF_RECORDS)
@pytest.mark.parametrize(("make", "loss"), [(lambda: nn.Linear(64, CLASSES), centred), (Scaled, cross_entropy)])
def test_no_records_hide_gradients_that_are_not_those_of_an_example_alone(
    make: Callable[[], nn.Module], loss: Callable[[Tensor, Tensor], Tensor], name: str
) -> None:
    with pytest.raises(BenchError, match="gradient differs between its batch and alone"):
        trained(make(), SETS_OF_RECORDS[name], loss)


class Remembering(nn.Module):
    """Sums the inputs above `least` and adds the sum to its output."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least, self.layer = least, nn.Linear(64, CLASSES)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + x.detach()[x > self.least].sum()
        return self.layer(x) + self.seen


@pytest.mark.parametrize("name", SETS_OF_RECORDS)
def test_no_record_decides_whether_statistics_in_buffers_are_refused_nor_stays_in_them(name: str) -> None:
    with pytest.raises(BenchError, match="a pass changed the"):
        trained(Remembering(0.5), SETS_OF_RECORDS[name])
    net = Remembering(2.0)  # larger than any value of the random examples
    trained(net, SETS_OF_RECORDS[name])
    assert float(net.seen) == 0
