"""FedDPSD's simulated federation: who gets which record, and what its charges protect."""

from __future__ import annotations

import numpy as np
import pytest

from bench.core.config import Preset, build_config
from bench.core.types import Budget, Facts, PrivacyUnit
from bench.interface.registry import METHODS
from bench.methods.federated.family import deal


def dealt(labels: np.ndarray, clients: int, concentration: float, seed: int) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return deal(labels, generator.dirichlet(np.full(clients, concentration), 10), generator)


def test_every_client_gets_records_and_every_record_one_client() -> None:
    labels = np.repeat(np.arange(10), 6)
    for seed in range(20):
        parts = dealt(labels, 20, 0.1, seed)
        assert min(len(part) for part in parts) >= 1
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(60))


def test_a_class_is_dealt_by_its_dirichlet_shares() -> None:
    shares = np.array([[0.1, 0.9], [0.75, 0.25]])
    labels = np.repeat([0, 1], 20_000)
    parts = deal(labels, shares, np.random.default_rng(0))
    counts = np.stack([np.bincount(labels[part], minlength=2) for part in parts], axis=1)
    assert counts / 20_000 == pytest.approx(shares, abs=0.02)


def test_a_changed_label_moves_no_other_record() -> None:
    labels = np.random.default_rng(1).integers(0, 10, 6000)
    client = np.empty((2, len(labels)), dtype=int)
    moved = 0
    for position in range(0, 6000, 60):
        changed = labels.copy()
        changed[position] = (changed[position] + 1) % 10
        for row, given in enumerate((labels, changed)):
            for number, part in enumerate(dealt(given, 5, 0.5, 0)):
                client[row, part] = number
        others = np.arange(6000) != position
        assert np.array_equal(client[0, others], client[1, others])
        moved += int(client[0, position] != client[1, position])
    assert moved > 20, "the changed records themselves do move"


def test_charges_are_for_a_client_as_in_its_ledger() -> None:
    method, facts = METHODS.get("fed-dpsd"), Facts("digits", 1000, 0, 397, 10, (1, 8, 8), public_benchmark=True)
    config = method(build_config(method, Preset.TINY, facts)[0], facts).calibrate(Budget(10.0, 1e-5))
    assert {event.unit for event in method(config, facts).charges()} == {PrivacyUnit.CLIENT}
