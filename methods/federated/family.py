"""Shared by the federated methods: assignment of records to clients, local training, model averaging.

The federation is simulated. Each class has a Dirichlet distribution over the clients, from which each of its records
draws its client, so assignment never depends on other records. All clients start from the same weights, which averaging
requires (McMahan et al. 2017, figure 1).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.interface import (
    BenchError,
    Budget,
    Claim,
    Context,
    Facts,
    FitSettings,
    Method,
    PrivacyUnit,
    PrivateData,
    fit,
    make_student,
    setting,
)
from bench.storage.cache import digest_of

State = dict[str, Tensor]
Parts = list[NDArray[np.int64]]
"""The positions of each client's records."""

CODE = "DENSE (NeurIPS 2022, arXiv:2112.12371), the authors' code zj-jayzhang/DENSE: "
"""DPSD's Table V has DENSE's numbers for these methods."""


@dataclass(frozen=True)
class FederatedConfig:
    """Settings of the clients."""

    clients: int = setting(5, f"DPSD, section IV-A: m; {CODE}README.md", ge=1)
    concentration: float = setting(
        0.5, f"DPSD, section IV-E; {CODE}README.md: beta of the Dirichlet distribution", gt=0
    )
    student: str = setting("small_cnn_bn", "ours; clients and student have the same net, as in DENSE's loop_df_fl.py")
    local_epochs: float = setting(400.0, f"{CODE}README.md: local_ep", gt=0)
    local_batch: int = setting(128, f"{CODE}loop_df_fl.py: local_bs", ge=1)
    local_lr: float = setting(0.01, f"{CODE}README.md", gt=0)
    local_momentum: float = setting(0.9, f"{CODE}README.md", ge=0, lt=1)

    def local(self) -> FitSettings:
        """Return how a client trains."""
        return FitSettings(
            epochs=self.local_epochs, batch_size=self.local_batch, lr=self.local_lr, momentum=self.local_momentum,
            schedule="constant",
        )  # fmt: skip


@dataclass(frozen=True)
class ServerConfig(FederatedConfig):
    """Settings of a server's distillation."""

    epochs: int = setting(200, f"{CODE}README.md", ge=1)
    batch: int = setting(256, f"{CODE}README.md: batch_size and synthesis_batch_size", ge=1)
    student_steps: int | None = setting(None, f"{CODE}loop_df_fl.py: a pass over all images in each epoch", ge=1)
    student_lr: float = setting(0.005, f"{CODE}README.md: lr of kd_train", gt=0)
    student_momentum: float = setting(0.9, f"{CODE}loop_df_fl.py", ge=0, lt=1)
    student_optimizer: Literal["sgd", "adam"] = setting("sgd", f"{CODE}loop_df_fl.py")
    temperature: float = setting(20.0, f"{CODE}README.md: T", gt=0)


class Federated(Method):
    """A federation without privacy: its server gets the clients' exact models."""

    unit = PrivacyUnit.CLIENT
    groups = ("federated",)
    bypass = "the clients send their models to the server without noise"
    private: ClassVar[bool] = False

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` unchanged; raise BenchError for more clients than records."""
        check_clients(self.config.clients, self.facts.private_records)
        return self.config

    def claimed(self, delta: float) -> Claim:
        return Claim(math.inf, delta, "no privacy is claimed")

    def shares(self, seed: int) -> tuple[str, ...]:
        """Return the clients' first-round models, which all these methods share."""
        return (f"local models of {self.facts.dataset}, seed {seed}, {digest_of(local_depends(self.config))}",)


def quick_clients(facts: Facts) -> dict[str, Any]:
    """Return the changes of ``quick`` for the clients."""
    return {"local_epochs": 3.0 if facts.private_records > 10_000 else 30.0, "local_lr": 0.05}


def check_clients(clients: int, records: int) -> None:
    """Raise :class:`BenchError` if there are more clients than private records."""
    if clients > records:
        raise BenchError(f"{clients} clients need as many private records; there are {records}.")


def client_parts(clients: int, concentration: float, private: PrivateData, context: Context) -> Parts:
    """Return the positions of each client's records, at least one. Private."""
    check_clients(clients, len(private))
    shares = context.streams.numpy("clients").dirichlet(np.full(clients, concentration), private.facts.classes)
    return deal(private.labels.numpy(), shares, context.streams.numpy("clients/records"))


def deal(labels: NDArray[np.int64], shares: NDArray[np.float64], generator: np.random.Generator) -> Parts:
    """Return each client's positions; `shares` (classes, clients) are the probabilities of a class's clients.

    A record's client depends only on its position and label. One position per client, drawn without the labels, is
    dealt first so that no client is empty. Only the simulation uses the labels.
    """
    clients = shares.shape[1]
    first, draws = generator.permutation(len(labels))[:clients], generator.random(len(labels))
    client = np.minimum((draws[:, None] >= shares.cumsum(axis=1)[labels]).sum(axis=1), clients - 1)
    client[first] = np.arange(clients)
    return [np.flatnonzero(client == number) for number in range(clients)]


def local_depends(config: FederatedConfig) -> dict[str, Any]:
    """Return what the clients' first models depend on, besides data set, seed and device."""
    return {
        "clients": config.clients, "concentration": config.concentration, "net": config.student,
        "settings": repr(config.local()),
    }  # fmt: skip


def first_models(config: FederatedConfig, private: PrivateData, parts: Parts, context: Context) -> list[State]:
    """Return the clients' models after one local training from a common start, cached. Private."""
    depends = {**local_depends(config), "seed": context.streams.seed, "device": context.device.type}

    def make() -> dict[str, NDArray[Any]]:
        start = make_student(config.student, private.facts, context.streams.torch("federated/start"))[0]
        states = local_models(start, config, private, parts, context, 0)
        return {f"{n}/{key}": value.numpy() for n, state in enumerate(states) for key, value in state.items()}

    arrays = context.cache.get("clients", depends, make)
    found: list[State] = [{} for _ in parts]
    for name, value in arrays.items():
        number, _, key = name.partition("/")
        found[int(number)][key] = torch.from_numpy(value)
    return found


def local_models(
    start: nn.Module, config: FederatedConfig, private: PrivateData, parts: Parts, context: Context, done: int
) -> list[State]:
    """Return each client's model on the CPU, trained from `start` in the round after `done` rounds. Private."""
    streams, states = context.streams.child(f"round {done}"), []
    with context.progress.stage("clients", len(parts)) as stage:
        for number, part in enumerate(parts):
            rows, net = torch.from_numpy(part), copy.deepcopy(start)
            fit(
                net, private.images[rows], private.labels[rows], config.local(), streams.torch(f"client {number}"),
                device=context.device,
            )  # fmt: skip
            states.append({key: value.cpu().contiguous() for key, value in net.state_dict().items()})
            stage.advance()
    return states


def average(states: Sequence[State], weights: Sequence[float]) -> State:
    """Return the mean of models, weighted by `weights`, e.g. their record counts (McMahan et al. 2017)."""
    total = sum(weights)
    mean: State = {}
    for key, first in states[0].items():
        parts = (weight / total * state[key].double() for weight, state in zip(weights, states, strict=True))
        mean[key] = sum(parts, first.new_zeros(first.shape).double()).to(first.dtype)
    return mean


def net_of(config: FederatedConfig, facts: Facts, state: Mapping[str, Tensor], context: Context) -> nn.Module:
    """Return the clients' net with the weights `state`, in evaluation mode."""
    net, _ = make_student(config.student, facts, context.streams.torch("federated/start"))
    net.load_state_dict(state)
    return net.to(context.device).eval().requires_grad_(False)
