"""DPSD's annotation: its loss and gradient, their bounds, and the largest distance between two teachers' gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from bench.methods.distillation.annotation import (
    bounded,
    distillation_gradient,
    distillation_loss,
    gradient_sensitivity,
    keep_top,
)


def one_gradient(teacher: np.ndarray, student: np.ndarray, kind: Any, k: int, how: Any = "normalise") -> np.ndarray:
    p, q = (torch.from_numpy(part[None].astype(np.float32)) for part in (teacher, student))
    return bounded(keep_top(distillation_gradient(p, q, kind, 8.0), k), how, 1e-3, 1e-4)[0].numpy()


def softmax32(logits: list[float]) -> np.ndarray:
    return torch.tensor(logits, dtype=torch.float32).softmax(0).numpy()


@given(data=st.data(), kind=st.sampled_from(["decoupled", "dkd", "plain"]), classes=st.integers(2, 12))
@settings(max_examples=100, deadline=None)
def test_no_two_teachers_gradients_are_further_apart_than_their_sensitivity(data: Any, kind: Any, classes: int) -> None:
    k = data.draw(st.integers(1, classes))
    logits = st.lists(st.floats(-25, 25, width=32), min_size=classes, max_size=classes)
    student, *teachers = (softmax32(data.draw(logits)) for _ in range(3))
    for how in ("normalise", "clip"):
        one, other = (one_gradient(teacher, student, kind, k, how) for teacher in teachers)
        assert np.linalg.norm(one - other) <= gradient_sensitivity(kind, classes, k, 8.0)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("classes", "k"),
    [
        (10, 2),
        (100, 50),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((10, 3), (10, 10), (3, 3), (2, 2))),
    ],
)
def test_the_sensitivity_of_a_gradient_is_nearly_reached(classes: int, k: int) -> None:
    """A student sure of a class; a teacher less sure of it, and one torn between it and another; then a search."""

    def distance(logs: np.ndarray) -> float:
        rest, doubt, lead = np.exp(logs)
        student, first = (np.r_[1 - part, np.full(classes - 1, part / (classes - 1))] for part in (doubt, rest))
        second = np.r_[0.5 - lead, np.full(classes - 2, 1e-9), 0.5 + lead]
        return float(
            np.linalg.norm(one_gradient(first, student, "decoupled", k) - one_gradient(second, student, "decoupled", k))
        )

    within = optimize.Bounds([-13.0, -15.0, -9.0], [-0.7, -9.0, -1.0])
    starts = np.random.default_rng(0).uniform(within.lb, within.ub, (12, 3))
    found = max(
        -optimize.minimize(
            lambda x: -distance(x), start, method="Nelder-Mead", bounds=within, options={"maxfev": 150}
        ).fun
        for start in starts
    )
    bound = gradient_sensitivity("decoupled", classes, k, 8.0)
    assert 0.9 * bound < found <= bound
    if (classes, k) == (10, 3):
        assert found > 1.79, "the 2 of any two gradients is too much, and less than this would be too little"


def test_one_sign_makes_the_sensitivity_the_root_of_two() -> None:
    assert gradient_sensitivity("plain", 10, 3, 8.0) == gradient_sensitivity("dkd", 10, 3, 8.0) == math.sqrt(2)
    assert gradient_sensitivity("dkd", 10, 3, 0.5) == gradient_sensitivity("decoupled", 10, 1, 8.0) == 2.0
    assert gradient_sensitivity("decoupled", 10, 3, 8.0) == pytest.approx(1.839, abs=1e-3)
    assert gradient_sensitivity("decoupled", 10, 3, 1e-9) == pytest.approx(2.0)


def predictions(rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    teacher, student = torch.randn(2, rows, 10, generator=generator, dtype=torch.float64) * 3
    return teacher.softmax(1), student.softmax(1)


@pytest.mark.parametrize("kind", ["decoupled", "dkd", "plain"])
def test_gradient_is_the_slope_of_the_loss(kind: Any) -> None:
    teacher, student = predictions(4)
    gradient = distillation_gradient(teacher, student, kind, 8.0)
    moved = student.clone()
    moved[:, 3] += 1e-7
    slope = (distillation_loss(teacher, moved, kind, 8.0) - distillation_loss(teacher, student, kind, 8.0)) / 1e-7
    torch.testing.assert_close(gradient[:, 3], slope, rtol=1e-3, atol=1e-4)


def test_dkd_is_the_divergence_of_target_and_of_the_other_classes() -> None:
    teacher, student = predictions(1)
    r = int(teacher.argmax())
    p, q = teacher[0], student[0]
    others = [j for j in range(10) if j != r]
    first = p[r] * (p[r] / q[r]).log() + (1 - p[r]) * ((1 - p[r]) / (1 - q[r])).log()
    a, b = p[others] / (1 - p[r]), q[others] / (1 - q[r])
    torch.testing.assert_close(
        distillation_loss(teacher, student, "dkd", 8.0)[0], first + 8 * (a * (a / b).log()).sum(), rtol=1e-6, atol=1e-9
    )


def test_top_k_keeps_k_entries_of_the_largest_magnitude() -> None:
    gradient = distillation_gradient(*predictions(), "decoupled", 8.0)
    kept = keep_top(gradient, 3)
    assert ((kept != 0).sum(1) == 3).all()
    assert (kept.abs().amax(1) == gradient.abs().amax(1)).all()


@pytest.mark.parametrize("how", ["normalise", "clip"])
def test_one_gradient_never_exceeds_its_bound(how: Any) -> None:
    gradient = torch.randn(200, 10, generator=torch.Generator().manual_seed(1)) * torch.logspace(-8, 8, 200)[:, None]
    gradient[0, 0], gradient[1, 1] = math.nan, math.inf
    norms = bounded(gradient, how, 5e-3, 1e-4).norm(dim=1)
    assert norms.max() <= 1
    assert norms[100:].min() > 0.99, "large gradients use the whole bound"
    if how == "clip":
        torch.testing.assert_close(norms[40], gradient[40].double().norm() / 5e-3, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("how", ["normalise", "clip"])
def test_a_batch_divided_by_its_norm_is_at_most_one_long(how: Any) -> None:
    gradient = torch.randn(256, 10, generator=torch.Generator().manual_seed(1)) * 1e30
    gradient[0, 0] = math.nan
    found = bounded(gradient, how, 5e-3, 1e-4, whole=True)
    assert 1 - 1e-9 < found.norm() <= 1
    torch.testing.assert_close(found[1] * gradient[2].double().norm() / found[2].norm(), gradient[1].double())
    torch.testing.assert_close(
        bounded(gradient[:1], how, 5e-3, 1e-4, whole=True), bounded(gradient[:1], how, 5e-3, 1e-4)
    )


def test_batches_of_two_teachers_are_no_farther_apart_than_charged() -> None:
    """Each batch is normalised as a whole."""
    generator = torch.Generator().manual_seed(1)
    student = torch.rand(8, 10, generator=generator).pow(6).add(1e-5)
    student /= student.sum(1, keepdim=True)
    limit, most = gradient_sensitivity("decoupled", 10, 3, 8.0), 0.0
    for _ in range(400):
        teachers = (
            (torch.randn(8, 10, generator=generator) * 20).softmax(1),
            torch.eye(10)[torch.randint(10, (8,), generator=generator)],
        )
        one, other = (
            bounded(keep_top(distillation_gradient(said, student, "decoupled", 8.0), 3), "normalise", 1.0, 1e-4, True)
            for said in teachers
        )
        most = max(most, float((one - other).norm()))
    assert 1.2 < most <= limit
