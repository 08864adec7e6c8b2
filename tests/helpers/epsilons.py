"""Accountants and ``bench epsilon`` against printed figures, and the votes that some of them were computed from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.cli.epsilon import app
from bench.privacy.accounting import pate
from bench.privacy.accounting.accountants import account
from bench.privacy.events.conversions import classic_epsilon
from bench.privacy.events.events import Event
from helpers.paths import SHARED

VOTES = SHARED / "votes"
MNIST = VOTES / "mnist_250_teachers.npy"
SVHN = VOTES / "svhn_250_teachers.npy"
INDICES = VOTES / "mnist_250_teachers_100_indices_used_by_student.npy"
needs_votes = pytest.mark.skipif(
    not (MNIST.is_file() and SVHN.is_file() and INDICES.is_file()),
    reason="the PATE authors' vote counts are not beside the checkout (../shared/votes); they state no licence",
)


def gnmax_epsilon(votes: Any, sigma: float, delta: float, orders: Any = pate.ORDERS) -> tuple[float, float]:
    """Return the data-dependent epsilon of GNMax on all rows, and its order."""
    return classic_epsilon(orders, pate.gnmax_rdp(votes, sigma, orders).sum(axis=0), delta)


def confident_epsilon(
    votes: Any, threshold: float, sigma1: float, sigma2: float, delta: float, orders: Any = pate.ORDERS,
    answered: Any = None,
) -> tuple[float, float]:  # fmt: skip
    """Return the data-dependent epsilon of Confident-GNMax on all rows, and its order."""
    rdp = pate.confident_rdp(votes, threshold, sigma1, sigma2, orders, answered)
    return classic_epsilon(orders, rdp, delta)


def digits(expected: float, places: int = 6) -> Any:
    """Return what matches `expected` to as many decimal places as it is printed with."""
    return pytest.approx(expected, abs=0.501 * 10**-places, rel=0)


def votes_of(name: str) -> np.ndarray:
    mnist = np.load(MNIST, allow_pickle=False)
    chosen = {
        "mnist-100": lambda: mnist[np.load(INDICES, allow_pickle=False)],
        "mnist-640": lambda: mnist[:640],
        "mnist-1000": lambda: mnist[:1000],
        "svhn-1000": lambda: np.load(SVHN, allow_pickle=False)[:1000],
        "svhn-8500": lambda: np.load(SVHN, allow_pickle=False)[:8500],
    }
    return pate.check_votes(chosen[name]())


def epsilons(*arguments: object) -> dict[str, tuple[float, float | None]]:
    """Run ``bench epsilon`` with ``--json`` and return epsilon and order by accountant."""
    content = answer(*arguments)
    return {row["name"]: (float(row["epsilon"]), row["order"]) for row in content["accountants"]}


def answer(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*(str(a) for a in arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    content: dict[str, Any] = json.loads(result.stdout)
    for row in content["accountants"]:
        assert set(row) >= {"name", "epsilon", "sound", "data_dependent", "releasable", "order"}
    return content


def only(events: list[Event], name: str, delta: float = 1e-5) -> float:
    return {row.name: row.epsilon for row in account(events, delta)}[name]
