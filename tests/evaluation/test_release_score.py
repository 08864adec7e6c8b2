"""The score of a release: the chosen channel, what it ignores, and the vectors of releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bench.core.types import Released
from bench.evaluation.audit.release_score import WIDTH, Channels, best_score, channels_of

Draw = Callable[[np.random.Generator, int], Any]


def runs(side: int, count: int, seed: int = 0, **channels: Draw) -> list[Channels]:
    """Return runs on one set; a channel draws its vector by its generator and the side."""
    generator = np.random.default_rng([seed, side])
    return [
        {name: np.asarray(draw(generator, side), dtype=np.float32) for name, draw in channels.items()}
        for _ in range(count)
    ]


def pilot(count: int = 20, **channels: Draw) -> tuple[list[Channels], list[Channels]]:
    return runs(0, count, **channels), runs(1, count, **channels)


def noise(generator: np.random.Generator, side: int) -> Any:
    return generator.normal(size=5)


def shifted(by: float, width: int = 5) -> Draw:
    return lambda generator, side: generator.normal(size=width) + by * side * (np.arange(width) == 1)


def area(low: np.ndarray, high: np.ndarray) -> float:
    return float((high[:, None] > low[None]).mean())


def test_the_channel_that_shifts_is_chosen_and_tells_new_runs_apart() -> None:
    channels = {"logits": noise, "weights": shifted(4.0), "images": noise}
    score = best_score(*pilot(**channels))
    assert score.channel == "weights"
    assert score.quality > 0.95
    low, high = (score(runs(side, 200, 1, **channels)) for side in (0, 1))
    assert area(low, high) > 0.98
    assert low.mean() < 0 < high.mean(), "the middle is at 0, where runs without noise are cut"


def test_of_two_channels_that_separate_the_wider_gap_is_chosen() -> None:
    score = best_score(*pilot(narrow=shifted(8.0), wide=shifted(80.0)))
    assert (score.channel, score.quality) == ("wide", 1.0)


def test_of_noise_nothing_is_learnt() -> None:
    score = best_score(*pilot(noise=noise))
    low, high = (score(runs(side, 2000, 1, noise=noise)) for side in (0, 1))
    assert area(low, high) == pytest.approx(0.5, abs=0.05)


def test_the_direction_takes_account_of_what_varies_together() -> None:
    def correlated(generator: np.random.Generator, side: int) -> Any:
        common = generator.normal()
        return [common + 0.3 * generator.normal() + side, common + 0.3 * generator.normal()]

    score = best_score(*pilot(40, both=correlated))
    low, high = (score(runs(side, 300, 1, both=correlated)) for side in (0, 1))
    assert area(low, high) > 0.88, "the first entry alone has 0.75"


@pytest.mark.parametrize(
    "beside",
    [
        lambda generator, side: np.full(3, 7.0),
        lambda generator, side: 1e6 + generator.normal(size=3),
        lambda generator, side: 1e30 * generator.normal(size=3),
        lambda generator, side: 1e-30 * generator.normal(size=3),
    ],
    ids=["constant", "offset", "huge", "tiny"],
)
def test_entries_that_are_constant_or_of_another_scale_do_not_disturb(beside: Draw) -> None:
    both = {"weights": lambda generator, side: [*shifted(6.0)(generator, side), *beside(generator, side)]}
    score = best_score(*pilot(**both))
    assert np.isfinite(score.weights).all()
    assert score.quality > 0.95
    low, high = (score(runs(side, 100, 1, **both)) for side in (0, 1))
    assert area(low, high) > 0.95


def test_equal_releases_have_a_score_of_nothing() -> None:
    same = {"weights": lambda generator, side: np.arange(4.0)}
    score = best_score(*pilot(**same))
    assert (score.quality, score.distance) == (0.5, 0.0)
    assert score(runs(1, 3, **same)).tolist() == [0.0] * 3
    assert score([]).shape == (0,)


def test_sets_told_apart_without_any_spread_are_told_apart() -> None:
    """As in runs without noise."""
    certain = {"weights": lambda generator, side: np.full(2, float(side))}
    score = best_score(*pilot(3, **certain))
    assert score.quality == 1
    assert score(runs(0, 1, **certain))[0] < 0 <= score(runs(1, 1, **certain))[0]
    one_entry = {"weights": lambda generator, side: [*generator.normal(size=20), side]}
    assert best_score(*pilot(**one_entry)).quality == 1


def test_a_channel_that_some_runs_lack_or_have_in_another_shape_is_left_out() -> None:
    first, second = pilot(4, logits=noise, images=shifted(50.0), labels=shifted(50.0))
    del second[2]["images"]
    first[1]["labels"] = np.zeros(9, dtype=np.float32)
    assert best_score(first, second).channel == "logits"


def test_of_equally_good_channels_the_same_is_taken_in_any_order() -> None:
    first, second = pilot(4, weights=noise, logits=shifted(0.0))
    for run in (*first, *second):
        run["weights"] = run["logits"]
    turned = ([dict(reversed(run.items())) for run in runs] for runs in (first, second))
    assert best_score(first, second).channel == best_score(*turned).channel


def test_a_counted_run_without_the_channel_scores_in_the_middle() -> None:
    score = best_score(*pilot(weights=shifted(50.0)))
    assert score([{}, {"weights": np.zeros(2, dtype=np.float32)}]).tolist() == [0.0, 0.0]


# ----------------------------------------------------------------------------------------------------- what is released


def released(generator: torch.nn.Module | None = None, **extras: torch.Tensor) -> Released:
    torch.manual_seed(0)
    student = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    return Released(student, "none", {}, generator=generator, extras=extras)


PROBES = torch.rand(6, 1, 2, 2)


def test_student_and_generator_are_channels_and_logits_are_free_of_their_mean() -> None:
    found = channels_of(released(torch.nn.Linear(3, 7)), PROBES)
    lengths = {name: len(vector) for name, vector in found.items()}
    assert lengths == {"logits": 18, "mean logits": 3, "weights": 28, "generator": 28}
    assert found["logits"].reshape(6, 3).mean(1) == pytest.approx(np.zeros(6), abs=1e-6)
    assert all(vector.dtype == np.float32 for vector in found.values())


def test_buffers_are_among_the_weights() -> None:
    one, other = released(), released()
    other.student[2].running_mean[0] = 3.0  # type: ignore[index, union-attr]
    assert (channels_of(one, PROBES)["weights"] != channels_of(other, PROBES)["weights"]).sum() == 1


def test_released_sets_of_another_size_have_vectors_of_one_length() -> None:
    few, many = (channels_of(released(synthetic_images=torch.rand(count, 1, 4, 4)), PROBES) for count in (10, 30))
    assert few["synthetic_images"].shape == many["synthetic_images"].shape
    given = torch.arange(30) % 3, torch.arange(9) % 2, torch.arange(9) * 1000
    labels = [channels_of(released(synthetic_labels=one), PROBES)["synthetic_labels"] for one in given]
    assert len({vector.shape for vector in labels}) == 1, "whichever classes there are"
    assert len({vector.tobytes() for vector in labels}) == 3


def test_answers_count_by_class_and_unanswered_ones_apart() -> None:
    answers = torch.tensor([-1, -1, 0, 2, 2, 2, 1, -1])
    found = channels_of(released(answers=answers), PROBES)["answers"]
    assert found[:4] == pytest.approx(np.array([3, 1, 1, 3]) / 8)


def test_no_release_gives_a_vector_that_is_not_finite_or_too_long() -> None:
    odd = released(
        torch.nn.Linear(40, 40), images=torch.full((3, 1, 2, 2), torch.nan), scale=torch.tensor([np.inf]),
        number=torch.tensor(7), bits=torch.tensor([True, False]), none=torch.zeros(0, 1, 2, 2),
    )  # fmt: skip
    with torch.no_grad():
        odd.student[1].weight[0, 0] = -torch.inf  # type: ignore[index, union-attr]
    for name, vector in channels_of(odd, PROBES).items():
        assert np.isfinite(vector).all(), name
        assert vector.ndim == 1
        assert len(vector) <= WIDTH
    assert len(channels_of(odd, PROBES)["generator"]) == WIDTH


def test_a_projected_vector_is_the_same_projection_in_every_run() -> None:
    long = [channels_of(released(torch.nn.Linear(40, 40)), PROBES)["generator"] for _ in range(2)]
    assert np.array_equal(*long)
