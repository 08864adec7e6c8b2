"""Sim-PE: votes for rendered characters, their sensitivity and noise; what the simulator draws."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Budget, Facts, PrivateData, PublicData
from bench.evaluation.audit.pairs import worst_pairs
from bench.methods.generative import sim_pe
from bench.methods.generative.sim_pe import SimPE, SimPEConfig, parents, simulator_of, votes_for
from bench.methods.generative.text_render import (
    ANGLES,
    FONTS,
    SIZES,
    STROKES,
    Degrees,
    random_parameters,
    rendered,
    varied,
)
from bench.methods.shared import shape_render
from bench.privacy.accounting.accountants import proven
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.settings import configured
from helpers.small_sets import SMALL

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))
CPU = torch.device("cpu")
DIGITS = "0123456789"
NOTHING = PublicData(torch.empty(0, 1, 28, 28, dtype=torch.uint8), "none")


def ledger(seed: int = 0) -> Ledger:
    return seeded_ledger(SimPE.unit, SimPE.adjacency, np.random.default_rng(seed))


def upright(texts: list[int], font: int = 3, size: int = 22) -> torch.Tensor:
    return torch.tensor([[text, font, size, 0, 0] for text in texts])


# ------------------------------------------------------------------------------------------------------- what it costs


@pytest.mark.parametrize(
    ("epsilon", "iterations", "noise"), [(1.0, 5, 8.342), (10.0, 5, 1.118), (1.0, 4, 7.4614), (10.0, 4, 1.0)]
)
def test_noise_is_that_of_one_gaussian_release_times_the_root_of_the_iterations(
    epsilon: float, iterations: int, noise: float
) -> None:
    config = SimPE(SimPEConfig(iterations=iterations), MNIST).calibrate(Budget(epsilon, 1e-5))
    assert config.noise_multiplier == pytest.approx(noise, abs=1e-3)
    assert proven(SimPE(config, MNIST).charges(), 1e-5).epsilon <= epsilon
    assert SimPE(config, MNIST).claimed(1e-5).epsilon == proven(SimPE(config, MNIST).charges(), 1e-5).epsilon


@given(features=st.integers(1, 6), records=st.integers(1, 8), seed=st.integers(0, 2**31), removed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_an_absent_record_takes_one_vote_away(features: int, records: int, seed: int, removed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (records, 1, 3, 3), generator=draws).byte()
    labels, classes = (torch.randint(0, 3, (count,), generator=draws) for count in (records, features))
    candidates, facts = torch.rand(features, 9, generator=draws), dataclasses.replace(SMALL, classes=3)
    kept = torch.arange(records) != removed % records
    votes = votes_for(candidates, classes, PrivateData(images, labels, facts), CPU)
    fewer = votes_for(candidates, classes, PrivateData(images[kept], labels[kept], facts), CPU)
    moved = (votes - fewer).abs()
    assert float(moved.norm()) <= 1
    assert float(moved.sum()) == float(labels[removed % records] in classes)


def test_votes_go_to_the_nearest_candidate_of_the_class() -> None:
    images = torch.tensor([0, 40, 250, 250]).byte().view(4, 1, 1, 1)
    labels = torch.tensor([0, 0, 0, 1])
    candidates, classes = torch.tensor([[0.1], [0.9], [0.0], [1.0]]), torch.tensor([0, 0, 1, 2])
    assert votes_for(candidates, classes, PrivateData(images, labels, SMALL), CPU).tolist() == [2, 1, 1, 0]


@pytest.mark.slow
def test_votes_have_the_noise_that_they_are_charged_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On adjacent sets, through the method: differences have the data's mean and the variance of twice the noise."""
    seen: list[np.ndarray] = []

    def heard(weights: torch.Tensor, *others: Any) -> torch.Tensor:
        seen.append((weights + config.threshold).numpy())
        return parents(weights, *others)

    monkeypatch.setattr(sim_pe, "parents", heard)
    # A threshold below all votes shows the noise on each.
    config = SimPEConfig(candidates=10, iterations=2, lookahead=1, threshold=-50.0, noise_multiplier=2.0)
    facts = dataclasses.replace(SMALL, private_records=2)
    images = (rendered(upright([1, 7]), DIGITS, SMALL.shape) * 255).byte()
    sets = [PrivateData(images[kept:], torch.arange(2)[kept:], facts) for kept in (0, 1)]
    book = ledger()
    for _ in range(60):
        for private in sets:
            context = Context(CPU, Streams(0), Cache(None, {}), Progress(), note=lambda text: None)
            SimPE(config, private.facts).fit_generator(private, None, book, context)  # type: ignore[arg-type]
    # The only candidate of class 0 lacks a vote.
    votes = np.array(seen).reshape(60, 2, 10)
    gap = votes[:, 0] - votes[:, 1]
    assert gap.mean(0)[0] == pytest.approx(1, abs=5 * math.sqrt(8 / 60))
    assert gap[:, 1:].mean() == pytest.approx(0, abs=5 * math.sqrt(8 / 540))
    assert gap.std(0).mean() == pytest.approx(math.sqrt(2) * 2.0, rel=0.1)
    assert {event.noise_multiplier for event in book.events} == {2.0}  # type: ignore[attr-defined]


# -------------------------------------------------------------------------------------------------------- how it learns


@pytest.mark.slow
def test_votes_find_which_text_a_class_shows() -> None:
    """No candidate is told: here class c shows the digit 9 - c."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 10
    shown = random_parameters(200, DIGITS, draws)
    shown[:, 0], shown[:, 3] = 9 - labels, 0
    images = (rendered(shown, DIGITS, (1, 28, 28)) * 255).byte()
    config = SimPEConfig(candidates=1000, lookahead=2, noise_multiplier=0.1)
    context = Context(CPU, Streams(0), Cache(None, {}), Progress(), note=lambda text: None)
    private = PrivateData(images, labels, dataclasses.replace(SMALL, private_records=200))
    source = SimPE(config, private.facts).fit_generator(private, None, ledger(), context)  # type: ignore[arg-type]
    made, classes = source.draw(300, torch.Generator().manual_seed(0))
    assert classes.bincount().tolist() == [30] * 10
    many = random_parameters(4000, DIGITS, draws)
    nearest = torch.cdist(made.flatten(1), rendered(many, DIGITS, (1, 28, 28)).flatten(1)).argmin(1)
    assert float((many[nearest, 0] == 9 - classes).float().mean()) > 0.6, "0.1 by chance"


def test_a_class_without_votes_draws_evenly_and_others_by_weight() -> None:
    weights = torch.tensor([0.0, 3.0, 0.0, 0.0], dtype=torch.float64)
    classes, wanted = torch.tensor([0, 0, 1, 1]), torch.arange(400) % 2
    found = parents(weights, classes, wanted, torch.Generator().manual_seed(0))
    assert found[wanted == 0].unique().tolist() == [1]
    assert found[wanted == 1].bincount().tolist()[2:] == pytest.approx([100, 100], abs=40)


# -------------------------------------------------------------------------------------------------------- what is drawn


@given(
    seed=st.integers(0, 2**31), font=st.sampled_from([0.0, 1.0]), size=st.integers(0, 8), stroke=st.integers(0, 2),
    angle=st.integers(0, 40),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_variations_stay_in_their_ranges(seed: int, font: float, size: int, stroke: int, angle: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    before = random_parameters(40, DIGITS, draws)
    after = varied(before, Degrees(font, size, stroke, angle), draws)
    assert torch.equal(after[:, 0], before[:, 0]), "the text stays"
    assert font or torch.equal(after[:, 1], before[:, 1])
    apart = (after - before).abs()
    for column, degree, allowed in ((2, size, SIZES), (3, stroke, STROKES), (4, angle, ANGLES)):
        assert int(apart[:, column].max()) <= degree
        assert set(after[:, column].tolist()) <= set(allowed)


def test_all_characters_of_all_fonts_are_drawn_apart() -> None:
    images = torch.stack([rendered(upright([*range(10)], font), DIGITS, SMALL.shape) for font in range(len(FONTS))])
    flat = images.flatten(2)
    assert float(flat.sum(2).min()) > 10, "none is blank"
    assert float(torch.cdist(flat, flat)[:, ~torch.eye(10, dtype=torch.bool)].min()) > 1, "nor like another"
    assert float(torch.cdist(flat[:, 4], flat[:, 4]).fill_diagonal_(9).min()) > 0.1, "nor two fonts"


def test_characters_stand_in_the_middle_at_their_angle() -> None:
    place = torch.arange(28.0)
    images = rendered(upright([0, 8]), DIGITS, SMALL.shape)[:, 0]
    middle = [(images.sum((0, side)) * place).sum() / images.sum() for side in (1, 2)]
    assert [float(value) for value in middle] == pytest.approx([13.5, 13.5], abs=0.75)
    tilted = upright([1, 1])
    tilted[:, 4] = torch.tensor([30, -30])
    left, right = rendered(tilted, DIGITS, SMALL.shape)[:, 0, 4:9]  # the upper part of a one
    assert float((left.sum(0) * place).sum() / left.sum()) < 12  # counter-clockwise, as in PIL
    assert float((right.sum(0) * place).sum() / right.sum()) > 14


def test_images_take_the_shape_of_the_data() -> None:
    images = rendered(upright([3]), DIGITS, (3, 8, 8))
    assert images.shape == (1, 3, 8, 8)
    assert 0 < float(images.max()) <= 1


def test_later_iterations_are_as_the_last() -> None:
    simulator = simulator_of(SimPEConfig())
    start = simulator.random(50, torch.Generator().manual_seed(0))
    last, later = (simulator.varied(start, turn, torch.Generator().manual_seed(1)) for turn in (3, 9))
    assert torch.equal(last, later)


@given(
    seed=st.integers(0, 2**31), degree=st.floats(0.0, 1.0), shape=st.sampled_from([(1, 28, 28), (3, 32, 32), (1, 5, 9)])
)
@settings(deadline=None, max_examples=30)
def test_shapes_and_their_variations_are_images(seed: int, degree: float, shape: tuple[int, int, int]) -> None:
    draws = torch.Generator().manual_seed(seed)
    parameters = shape_render.varied(shape_render.random_parameters(7, draws), degree, draws)
    assert 0 <= float(parameters.min()) <= float(parameters.max()) <= 1
    images = shape_render.rendered(parameters, shape)
    assert images.shape == (7, *shape)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    torch.testing.assert_close(shape_render.rendered(parameters[2:3], shape)[0], images[2])  # by its own parameters


def test_a_shape_stands_where_its_parameters_say() -> None:
    parameters = torch.zeros(1, shape_render.PARTS + 1, shape_render.FIELDS)  # all shapes are invisible
    parameters[0, 1] = torch.tensor([0.75, 0.25, 0.2, 0.2, 0.5, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    image = shape_render.rendered(parameters, (1, 28, 28))[0, 0]
    place = torch.arange(28.0)
    assert float((image.sum(1) * place).sum() / image.sum()) == pytest.approx(0.75 * 27, abs=0.2)
    assert float((image.sum(0) * place).sum() / image.sum()) == pytest.approx(0.25 * 27, abs=0.2)
    parameters[0, 1, 9] = 0.0
    mirrored = shape_render.rendered(parameters, (1, 28, 28))[0, 0]
    assert torch.equal(mirrored, torch.maximum(image, image.flip(1)))


def test_later_iterations_move_shapes_less() -> None:
    draws, shapes = torch.Generator().manual_seed(0), simulator_of(SimPEConfig(simulator="shapes", iterations=24))
    parameters = shapes.random(2000, draws)
    moved = [(shapes.varied(parameters, turn, draws) - parameters).abs().median() for turn in (0, 12, 23)]
    assert moved[0] > 2 * moved[1] > 4 * moved[2]
    assert moved[0] > 7 * moved[2]


@pytest.mark.slow
def test_votes_find_the_shape_of_a_class() -> None:
    """Class 0 is a bright disc in the middle, class 1 a dark one."""
    labels, disc = torch.arange(200) % 2, torch.linspace(-1, 1, 28).square()
    inside = disc[:, None] + disc < 0.4
    images = torch.where(labels[:, None, None] == 0, 255 * inside, 255 * ~inside).byte()[:, None]
    config = SimPEConfig(candidates=400, iterations=12, lookahead=1, noise_multiplier=1.0, simulator="shapes")
    context = Context(CPU, Streams(0), Cache(None, {}), Progress(), note=lambda text: None)
    private = PrivateData(images, labels, dataclasses.replace(SMALL, private_records=200, classes=2))
    source = SimPE(config, private.facts).fit_generator(private, NOTHING, ledger(), context)
    made, classes = source.draw(100, torch.Generator().manual_seed(0))
    wanted = torch.where(classes[:, None, None] == 0, inside, ~inside).float()
    off = (made[:, 0] - wanted).abs().mean((1, 2))
    assert float(off.median()) < 0.2, "0.5 by chance"


# --------------------------------------------------------------------------------------------------------------- errors


def test_characters_are_refused_for_data_without_them_and_shapes_are_the_quick_preset() -> None:
    for dataset in ("fmnist", "cifar10"):
        facts = dataclasses.replace(MNIST, dataset=dataset)
        with pytest.raises(BenchError, match=f"{dataset} shows none: its classes are .*simulator=shapes"):
            SimPE(SimPEConfig(), facts).calibrate(Budget(10.0, 1e-5))
        quick = SimPEConfig(**SimPE.presets(facts)["quick"])
        assert quick.simulator == "shapes"
        SimPE(quick, facts).calibrate(Budget(10.0, 1e-5))
        with pytest.raises(BenchError, match="candidates must be at least 10, one for each class"):
            SimPE(dataclasses.replace(quick, candidates=9), facts).calibrate(Budget(10.0, 1e-5))
    assert SimPEConfig(**SimPE.presets(MNIST)["quick"]).simulator == "text"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"texts": ""}, "texts must hold"),
        ({"candidates": 0}, "candidates must be at least 1"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be positive"),
    ],
)
def test_wrong_settings_get_a_clear_error(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        configured("sim-pe", changes)


def test_audits_find_worst_pairs_of_the_rows_cost() -> None:
    config = SimPE(SimPEConfig(**SimPE.presets(MNIST)["tiny"]), MNIST).calibrate(Budget(10.0, 1e-5))
    assert worst_pairs(SimPE, config, MNIST, 1e-5)
