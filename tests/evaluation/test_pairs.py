"""Worst-case pairs: adjacent in the sense of each method's proof, at the row's cost, with all reductions stated."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.config import Preset, as_dict, build_config
from bench.core.errors import BenchError
from bench.core.types import Adjacency, Basis, Budget, Claim, Facts, PrivacyUnit, PrivateData, Released
from bench.evaluation.audit.pairs import WorstPair, full_size_pair, worst_pairs
from bench.evaluation.check.check_data import generated
from bench.interface.method import Method
from bench.interface.registry import METHODS
from bench.methods.pate.naive_bayes import Ints, group_counts, log_means, record_groups, word_votes
from bench.privacy.events.base_event import Event
from bench.privacy.events.events import GNMax

DELTA = 1e-5
FACTS = {
    "mnist": Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28)),
    "digits": Facts("digits", 1_000, 400, 397, 10, (1, 8, 8)),
    "sentences": Facts("movie-review", 8_000, 1_000, 1_000, 2, (2, 1, 64)),
}
NAMES = [name for name in METHODS.names() if METHODS.get(name).private]
ROWS = [pytest.param((name, "mnist"), marks=pytest.mark.slow, id=f"{name}-mnist") for name in NAMES]
ROWS += [(name, "digits") for name in NAMES]
ROWS += [(name, "sentences") for name in NAMES if name.startswith("trpate") or name == "pate-bayes"]
PRIVACY = {
    "gamma", "sigma", "sigma1", "sigma2", "threshold", "noise_scale", "noise_multiplier", "max_grad_norm", "queries",
    "synthetic_queries", "label_queries", "epsilon", "top_k", "clients",
}  # fmt: skip
"""Settings of mechanisms; steps and batches are in the events."""


@functools.cache
def pairs_of(name: str, facts: str) -> tuple[type[Method], Any, list[WorstPair]]:
    """The pairs of a row with the quick preset, at a claimed 10."""
    method = METHODS.get(name)
    config, _ = build_config(method, Preset.QUICK, FACTS[facts])
    config = method(config, FACTS[facts]).calibrate(Budget(10.0, DELTA, Basis.CLAIMED))
    return method, config, worst_pairs(method, config, FACTS[facts], DELTA)


def test_a_smaller_setting_that_does_not_fit_the_row_is_not_taken() -> None:
    """97% random images leave no generated one in the tiny preset's batch of 16."""
    method = METHODS.get("dpsd")
    config, _ = build_config(method, Preset.QUICK, FACTS["digits"], {"random_share": 0.97})
    config = method(config, FACTS["digits"]).calibrate(Budget(10.0, DELTA, Basis.CLAIMED))
    assert [pair.config["random_share"] for pair in worst_pairs(method, config, FACTS["digits"], DELTA)] == [0.97] * 3


@pytest.fixture(params=ROWS, ids="-".join)
def row(request: pytest.FixtureRequest) -> tuple[type[Method], Any, Facts, list[WorstPair]]:
    method, config, pairs = pairs_of(*request.param)
    return method, config, FACTS[request.param[1]], pairs


Row = tuple[type[Method], Any, Facts, list[WorstPair]]


@pytest.mark.few(3)
def test_the_sets_differ_in_one_unit_as_the_methods_proof_says(row: Row) -> None:
    method, _, facts, pairs = row
    assert pairs
    assert len({pair.name for pair in pairs}) == len(pairs), "the cache would mix them"
    for pair in pairs:
        first, second = pair.first, pair.second
        assert first.facts == second.facts == pair.facts
        if method.adjacency is Adjacency.ADD_REMOVE:
            assert pair.facts.private_records == facts.private_records, "the public number is that of the row"
            assert torch.equal(first.images[1:], second.images)
            assert torch.equal(first.labels[1:], second.labels)
        else:
            assert len(first) == pair.facts.private_records
            other = (first.images != second.images).flatten(1).any(1) | (first.labels != second.labels)
            assert other.nonzero().flatten().tolist() == [0]
        if method.unit is PrivacyUnit.LABEL:
            assert torch.equal(first.images, second.images)


@pytest.mark.few(8)
def test_a_pair_costs_what_the_row_costs(row: Row) -> None:
    method, config, facts, pairs = row
    for pair in pairs:
        smaller = method.Config(**pair.config)
        claims = [method(config, facts).claimed(DELTA), method(smaller, pair.facts).claimed(DELTA)]
        assert claims[1].epsilon == pytest.approx(claims[0].epsilon, rel=1e-9)
        charged = [method(config, facts).charges() or (), method(smaller, pair.facts).charges() or ()]
        # Answers for labels of different records cost as much as one.
        one, other = ([{**event.as_dict(), "answers": 1} for event in events] for events in charged)
        assert one == other


@pytest.mark.few(16)
def test_what_is_smaller_is_said_and_is_no_setting_of_a_mechanism(row: Row) -> None:
    method, config, facts, pairs = row
    for pair in pairs:
        smaller = method.Config(**pair.config)
        fields = [field.name for field in dataclasses.fields(config)]
        other = {name for name in fields if getattr(config, name) != getattr(smaller, name)}
        other |= {name for name in ("public_records", "shape") if getattr(facts, name) != getattr(pair.facts, name)}
        other |= {"records"} if len(pair.first) < facts.private_records else set()
        assert {change.field for change in pair.reduced} == other
        free = {"queries"} if method.name == "pate-ridge" else set()  # one release of all answers costs the same
        assert not other & (PRIVACY - free)
        assert pair.facts.classes == facts.classes
        asked = min(getattr(config, "queries", 0), facts.public_records)  # the others are of synthetic images
        assert len(pair.material.public.images) == pair.facts.public_records >= asked


def test_an_ensembles_pairs_are_one_record_alone_and_one_of_a_vote() -> None:
    _, config, pairs = pairs_of("pate-gnmax", "mnist")
    alone, votes = pairs[:3], pairs[3:]
    assert {(pair.config["teachers"], pair.facts.private_records) for pair in alone} == {(1, 1)}
    assert {(pair.config["teachers"], pair.facts.private_records) for pair in votes} == {(config.teachers,) * 2}
    for pair, lead in zip(votes, (0, *sorted(lead_of(pair) for pair in votes[1:])), strict=True):
        assert lead_of(pair) == lead
        assert lead % 2 == 0
        assert set(pair.first.labels.tolist()) == {0, 1}
    assert 0 < lead_of(votes[1]) <= config.sigma


@pytest.mark.parametrize("name", ["pate-bayes", "trpate-bayes"])
def test_the_words_of_a_pair_of_sentences_move_votes(name: str) -> None:
    pairs = pairs_of(name, "sentences")[2]
    flips = [pair for pair in pairs if pair.name.endswith("its label flips") or "the vote tied" in pair.name]
    assert len(flips) == 2
    for pair in flips:
        parts = [np.array([number]) for number in range(len(pair.first))]

        def votes(held: PrivateData, parts: list[Ints] = parts, pair: WorstPair = pair) -> Ints:
            groups = record_groups(held.labels.numpy(), 2, parts)
            counts = group_counts(held.images.numpy(), groups, 2 * len(parts)).reshape(len(parts), 2, -1)
            return word_votes(pair.material.public.images.numpy(), log_means(1 + counts))

        first, second = votes(pair.first), votes(pair.second)
        assert (np.abs(first - second).sum(1) == 2).all()  # one vote moves in each query
        assert (first.sum(1) == len(parts)).all()


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "net"), [("scatter-linear", "scatter_linear"), ("dp-sgd", "softmax_regression")])
def test_a_head_on_fixed_features_stays_that(name: str, net: str) -> None:
    assert {pair.config["student"] for pair in pairs_of(name, "mnist")[2]} == {net}


def lead_of(pair: WorstPair) -> int:
    counts = pair.first.labels.bincount()
    return int(counts[0] - counts[1])


# ------------------------------------------------------------------------------------------------- a method's own pairs


@dataclass(frozen=True)
class Config:
    queries: int = 5
    sigma: float = 20.0
    records_in_cost: bool = False


SMALL = Facts("small", 2, 10, 10, 3, (1, 4, 4))


class Own(Method):
    name = "own-pairs"
    unit = PrivacyUnit.LABEL
    Config = Config

    @classmethod
    def presets(cls, facts: Facts) -> dict[str, dict[str, Any]]:
        return {"tiny": {}}

    def calibrate(self, budget: Budget) -> Config:
        return self.config

    def claimed(self, delta: float) -> Claim:
        return Claim(self.facts.private_records / 10 if self.config.records_in_cost else 1.0, delta, "this test")

    def charges(self) -> list[Event]:
        return [GNMax(self.config.sigma, self.config.queries)]

    def worst_pairs(self) -> list[tuple[str, PrivateData, PrivateData]]:
        images, labels = torch.full((2, 1, 4, 4), 7, dtype=torch.uint8), torch.tensor([0, 1])
        return [("the second label", PrivateData(images, labels, SMALL), PrivateData(images, labels * 2, SMALL))]

    def train_student(self, *given: Any) -> Released:
        raise AssertionError("no test trains it")


def test_a_methods_own_pair_is_tried_after_those_of_all() -> None:
    *others, own = worst_pairs(Own, Config(), FACTS["digits"], DELTA)
    assert own.name == "the second label"
    assert own.facts == SMALL
    assert (own.first.labels.tolist(), own.second.labels.tolist()) == ([0, 1], [0, 2])
    assert {change.field for change in own.reduced} == {"records", "public_records", "shape"}
    assert others, "the library's pairs too"
    for pair in others:
        assert torch.equal(pair.first.images, pair.second.images), "of the unit label, whose images are public"


def test_a_pair_that_costs_otherwise_is_refused() -> None:
    with pytest.raises(
        BenchError, match=r"own-pairs on 1 records does not cost .* claimed 0\.1 against 100; .*worst_pairs"
    ):
        worst_pairs(Own, Config(records_in_cost=True), FACTS["digits"], DELTA)


def test_equal_settings_are_no_change() -> None:
    pair = worst_pairs(Own, Config(), FACTS["digits"], DELTA)[0]
    assert pair.config == as_dict(Config())


def test_at_full_size_a_whole_client_has_other_images() -> None:
    method, config, _ = pairs_of("fed-dpsd", "digits")
    material = generated(FACTS["digits"])
    pair = full_size_pair(method, config, material, seed=3)
    assert pair is not None
    changed = (pair.first.images != pair.second.images).flatten(1).any(1)
    assert torch.equal(pair.first.labels, pair.second.labels)
    assert changed[0]
    who = f"the {int(changed.sum())} records of one client of {config.clients}"
    assert pair.name == f"the row's own data, {who}, other images"
    for one, other in ((pair.first, pair.second), (pair.second, pair.first)):
        assert torch.equal(one.images[changed], 255 - other.images[changed])
    assert full_size_pair(METHODS.get("dp-fedavg"), None, material, seed=3) is None
