"""Federated methods: odd splits, the average, the ensemble, what the servers' images aim at, a client's update."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Budget, PrivateData, Released
from bench.interface.registry import METHODS
from bench.methods.federated.dp_fedavg import DPFedAvg, DPFedAvgConfig
from bench.methods.federated.family import average, client_parts
from bench.methods.federated.fed_adi import agreement, total_variation
from bench.methods.federated.server_distillation import BatchStatistics, Ensemble, softened_divergence
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import Noise, SeededNoise, Silence
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair, public_set

BARE = ["fedavg", "feddf", "fed-dafl", "fed-adi", "dense"]
EVERY = [*BARE, "dp-fedavg"]
BUDGET = Budget(10.0, 1e-5)


def context() -> Context:
    return Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())


def run(
    name: str, private: PrivateData | None = None, noise: Noise | None = None, **changes: Any
) -> tuple[Released, Ledger]:
    method = METHODS.get(name)
    config = method.Config(**{**method.presets(SMALL)["tiny"], **changes})
    ledger = Ledger(method.unit, method.adjacency, Noisy(noise or SeededNoise(np.random.default_rng(0))))
    private = private or private_pair()[0]
    return method(config, private.facts).train_student(private, public_set(), ledger, context()), ledger


def weights(released: Released) -> torch.Tensor:
    return torch.cat([part.flatten().double() for part in released.student.state_dict().values()])


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("name", EVERY)
def test_one_client_is_a_federation(name: str) -> None:
    released, ledger = run(name, clients=1, **({"sampled": 1.0} if name == "dp-fedavg" else {}))
    assert weights(released).isfinite().all()
    assert (ledger.bypasses != []) == (name in BARE)


@pytest.mark.parametrize("name", EVERY)
def test_more_clients_than_records_are_refused(name: str) -> None:
    method = METHODS.get(name)
    with pytest.raises(BenchError, match="241 clients need as many private records; there are 240"):
        method(method.Config(clients=241, **({"sampled": 1.0} if name == "dp-fedavg" else {})), SMALL).calibrate(BUDGET)


@pytest.mark.parametrize("concentration", [1e-6, 1e6])
def test_every_client_has_a_record_though_a_class_lies_with_one(concentration: float) -> None:
    private = private_pair()[0]
    parts = client_parts(30, concentration, private, context())
    assert min(map(len, parts)) >= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(private)))
    if concentration < 1:
        # One client has nearly all records of a class; only those dealt first lie elsewhere.
        counts = np.stack([np.bincount(private.labels.numpy()[part], minlength=10) for part in parts])
        assert (counts.max(axis=0) >= counts.sum(axis=0) - 30).all()
        assert np.median(counts.max(axis=0) / counts.sum(axis=0)) > 0.7


@pytest.mark.parametrize("name", ["fedavg", "dense"])
def test_clients_of_one_class_or_one_record_train(name: str) -> None:
    assert weights(run(name, clients=20, concentration=1e-6)[0]).isfinite().all()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("fedavg", {"clients": 0}, "clients must be at least 1"),
        ("fedavg", {"rounds": 0}, "rounds must be at least 1"),
        ("fedavg", {"concentration": 0.0}, "concentration must be positive"),
        ("fedavg", {"local_momentum": 1.0}, "at least 0 and below 1"),
        ("fed-adi", {"iterations": 0}, "iterations must be at least 1"),
        ("dense", {"student_steps": 0}, "student_steps must be at least 1"),
        ("fed-dafl", {"latent_size": 0}, "latent_size"),
        ("dp-fedavg", {"max_norm": 0.0}, "max_norm must be positive"),
    ],
)
def test_settings_are_checked(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        configured(name, changes)


@pytest.mark.parametrize("name", ["dense", "fed-adi"])
def test_statistics_need_batch_normalisation(name: str) -> None:
    with pytest.raises(BenchError, match="no batch normalisation"):
        run(name, student="small_cnn")


def test_noise_needs_a_net_without_running_statistics() -> None:
    with pytest.raises(BenchError, match="has batch normalisation"):
        run("dp-fedavg", student="small_cnn_bn")


def test_feddf_needs_public_images() -> None:
    method = METHODS.get("feddf")
    with pytest.raises(BenchError, match="has none"):
        method(method.Config(), dataclasses.replace(SMALL, public_records=0)).calibrate(BUDGET)


# ------------------------------------------------------------------------------------------------------------- servers


def test_models_are_averaged_by_their_records() -> None:
    states = [
        {"w": torch.tensor([0.0, 4.0]), "n": torch.tensor(2)},
        {"w": torch.tensor([3.0, 1.0]), "n": torch.tensor(5)},
    ]
    found = average(states, [2, 1])
    assert found["w"].tolist() == [1.0, 3.0]
    assert found["n"].item() == 3


def test_a_second_round_starts_from_the_average() -> None:
    one, two = (weights(run("fedavg", rounds=rounds)[0]) for rounds in (1, 2))
    assert not torch.equal(one, two)
    assert torch.equal(two, weights(run("fedavg", rounds=2)[0]))


class Fixed(nn.Module):
    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([logits]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(images), -1)


def test_an_ensemble_gives_the_mean_logits() -> None:
    found = Ensemble([Fixed([1.0, 3.0]), Fixed([3.0, -1.0])])(torch.zeros(4, 1, 2, 2))
    assert found.tolist() == [[2.0, 1.0]] * 4


def test_statistics_are_the_distance_to_the_running_ones() -> None:
    net = nn.Sequential(nn.BatchNorm2d(1)).eval()
    layer = net[0]
    assert isinstance(layer, nn.BatchNorm2d)
    layer.running_mean, layer.running_var = torch.tensor([1.0]), torch.tensor([4.0])
    statistics, ensemble = BatchStatistics(Ensemble([net, net])), Ensemble([net, net])
    images = torch.tensor([2.0, 4.0]).view(2, 1, 1, 1)  # mean 3, variance 1
    with torch.no_grad():
        ensemble(images)
    ensemble(images)
    assert float(statistics.take()) == pytest.approx(2.0 + 3.0)


def test_divergences_and_variation() -> None:
    logits, other = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1e3]])
    assert float(softened_divergence(logits, logits)) == 0.0
    assert float(softened_divergence(logits, other)) == pytest.approx(np.log(2))
    assert float(agreement(logits, logits)) == pytest.approx(1.0)
    assert float(agreement(torch.tensor([[-1e3, 1e3]]), -torch.tensor([[-1e3, 1e3]]))) == pytest.approx(
        1 - np.log(2), abs=1e-4
    )
    assert float(total_variation(torch.ones(1, 1, 3, 3))) == 0.0
    assert float(total_variation(torch.tensor([[[[0.0, 1.0]]]]))) == 1.0


# ----------------------------------------------------------------------------------------------------------- dp-fedavg


def test_few_records_are_a_client_each_and_an_absent_first_one_moves_no_other() -> None:
    private, config = private_pair()[0], DPFedAvgConfig(clients=7, sampled=1.0)
    held = []
    for start in (0, 1):
        few = dataclasses.replace(private, images=private.images[start:5], labels=private.labels[start:5])
        held.append(
            [[start + int(row) for row in part] for part in DPFedAvg(config, few.facts).clients(few, context())]
        )
    assert held[0] == [[4], [3], [2], [1], [0], [], []]
    assert held[1] == [[4], [3], [2], [1], [], [], []]


def test_without_noise_and_bound_all_clients_in_every_round_are_plain_averaging() -> None:
    class Whole(Silence):
        def uniform(self, shape: tuple[int, ...], count: int) -> np.ndarray:
            return np.zeros(shape, dtype=np.int64)

    noise = Whole(np.random.default_rng(0))
    changes: dict[str, Any] = {"clients": 4, "sampled": 4.0, "rounds": 1, "student": "softmax_regression"}
    released, _ = run("dp-fedavg", noise=noise, max_norm=1e6, **changes)
    clipped, _ = run("dp-fedavg", noise=noise, max_norm=1e-3, **changes)
    assert float(weights(clipped).norm()) <= 1e-3  # it starts at 0
    assert float(weights(released).norm()) > 0.01
    doubled, _ = run("dp-fedavg", noise=noise, max_norm=1e6, **{**changes, "clients": 8})
    assert not torch.equal(weights(released), weights(doubled))


def test_few_clients_pay_with_noise() -> None:
    method, noise = METHODS.get("dp-fedavg"), {}
    for clients in (1000, 5):
        facts = dataclasses.replace(SMALL, private_records=60_000)
        config = method(method.Config(clients=clients, sampled=clients / 10, rounds=60), facts).calibrate(BUDGET)
        noise[clients] = config.noise_multiplier * config.max_norm / config.sampled
    assert noise[5] == pytest.approx(200 * noise[1000], rel=1e-3), "the noise on the mean"
    with pytest.raises(BenchError, match="at most the 5 clients"):
        method(method.Config(clients=5), SMALL).calibrate(BUDGET)
