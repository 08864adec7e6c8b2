"""Every registered method on n records and on n - 1, or with another in its place, for n = 1 to 9, most of them copies.

No value of one record may depend on how many others there are: the labels and features that a mechanism takes of every
other record are equal to the bit, and sums and votes move by their charge at most. ``pytest -m slow -rP`` names
the sizes that a method refuses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from bench.core.config import Preset
from bench.core.errors import BenchError
from bench.core.transforms import as_float
from bench.core.types import PrivateData
from bench.evaluation.check.check_data import CHECK_FACTS
from bench.evaluation.check.check_runs import MethodPlace
from bench.evaluation.check.confined_runs import Processes
from bench.evaluation.check.noninterference import FEW, Rejected, check_few
from bench.evaluation.check.trials import trial_for
from bench.interface.method import Method
from bench.interface.registry import METHODS
from bench.methods.generative.sim_pe import SimPE
from bench.methods.pate.knn_pate import KNNPATE

FAST = {"dp-prototypes"}


MORE = (17, 33, 51, 101, 201)
"""For methods that refuse one to nine records."""


def few(method: type[Method], records: int) -> None:
    # A class without a place in a module runs in this process, where the test may have changed something.
    local = type(method.__name__, (method,), {"__qualname__": "few.<locals>"})
    facts = dataclasses.replace(CHECK_FACTS, private_records=records)
    tiny = method.presets(facts).get("tiny", {})
    alone = {"batch_size": 1} if int(tiny.get("batch_size", 0)) > records else {}
    check_few(trial_for(MethodPlace.of(local) or local, Preset.TINY, 0, facts, alone), Processes())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST)) for name in METHODS.names()]
)
def test_one_record_of_few_changes_nothing_of_the_others(name: str) -> None:
    refused: dict[int, str] = {}

    def taken(sizes: Iterable[int]) -> int:
        count = 0
        for records in sizes:
            try:
                few(METHODS.get(name), records)
            except BenchError as error:
                refused[records] = str(error).splitlines()[0]
            else:
                count += 1
        return count

    assert taken(range(1, 10)) or taken(MORE), f"refused at every size: {refused}"
    if refused:
        print(f"{name} refuses {refused}")


Distances = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def by_product(images: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    return own.square().sum(1) - 2 * images @ own.T


def voting_by(distances: Distances) -> Callable[..., torch.Tensor]:
    """Return Sim-PE's votes with `distances`, (images, candidates), in float32."""

    def votes_for(features: torch.Tensor, classes: torch.Tensor, private: PrivateData, device: Any) -> torch.Tensor:
        votes = torch.zeros(len(features), dtype=torch.float64)
        for label in range(private.facts.classes):
            stand, voters = (classes == label).nonzero()[:, 0], (private.labels == label).nonzero()[:, 0]
            found = distances(as_float(private.images[voters]).flatten(1), features[stand]).argmin(1)
            votes[stand] += found.bincount(minlength=len(stand))
        return votes

    return votes_for


def found_by_few(method: type[Method]) -> str:
    for records in FEW:
        try:
            few(method, records)
        except Rejected as error:
            return str(error)
    return ""


@pytest.mark.few(1)
@pytest.mark.parametrize("distances", [by_product, torch.cdist], ids=["product", "cdist"])
def test_distances_in_float32_are_found(distances: Distances, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is what Sim-PE had: BLAS takes another kernel for fewer rows, and near-ties of other records flip."""
    monkeypatch.setattr("bench.methods.generative.sim_pe.votes_for", voting_by(distances))
    assert "which is charged for 1" in found_by_few(SimPE)


def test_features_in_batches_of_other_sizes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As kNN's were, whose last batch was shorter."""

    def shorter(function: Any, rows: torch.Tensor, size: int) -> Any:
        return (function(batch) for batch in torch.split(rows, size))

    monkeypatch.setattr("bench.training.features.in_equal_batches", shorter)
    assert "others. Libraries round differently" in found_by_few(KNNPATE)
