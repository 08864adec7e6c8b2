"""DPSD's annotation: the largest distance between two teachers' bounded gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from bench.methods.distillation.annotation import bounded, distillation_gradient, gradient_sensitivity, keep_top


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
