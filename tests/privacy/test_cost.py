"""`bench.epsilon`: what `bench epsilon` prints, as a function."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import bench
from bench.cli.epsilon import app
from bench.core.errors import BenchError
from bench.core.types import Adjacency
from bench.privacy.accounting.cost import MECHANISMS, PAPERS

SETTINGS: dict[str, dict[str, Any]] = {
    "pate": {"gamma": 0.05, "queries": 100},
    "trpate": {"gamma": 0.05, "queries": 100},
    "dgd": {"eps0": 0.05, "queries": 400, "eps1": 0.01},
    "dpsd": {"beta": 1e-3, "classes": 10, "batch": 256, "iterations": 200, "sigma": 100.0},
    "dpsd-label": {"epsilon": 1.0},
    "dp-sgd": {"batch": 10, "records": 1000, "sigma": 1.0, "steps": 100},
    "gaussian": {"noise_multiplier": 10.0, "count": 100},
    "sampled-gnmax": {"sampling_rate": 0.05, "sigma": 8.0, "queries": 100},
}


def printed(*words: object) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(CliRunner().invoke(app, [*map(str, words), "--json"]).stdout)
    return content


@pytest.mark.parametrize("name", SETTINGS)
def test_the_function_says_what_the_command_prints(name: str) -> None:
    options = [word for k, v in SETTINGS[name].items() for word in (f"--{k.replace('_', '-')}", v)]
    shown = printed(*(["claimed"] if name in PAPERS else []), name, *options)
    cost = bench.epsilon(name, **SETTINGS[name])
    figures = {row["name"]: float(row["epsilon"]) for row in shown["accountants"]}
    claimed = figures.pop(f"claimed-{name if name != 'pate' else 'pate-2017'}", None)
    assert cost.claimed == claimed
    assert figures.items() <= {row.name: row.epsilon for row in cost.accountants}.items()
    if math.isfinite(cost.proven):
        assert cost.proven == min(figures.values())
        assert cost.replace_one == shown["facts"].get("replace_one", cost.proven)
    assert (cost.proven == math.inf) == (name in ("dgd", "dpsd-label"))


def test_votes_give_the_figure_of_pate_2018(tmp_path: Any) -> None:
    votes = np.tile([200.0, 30, 20], (40, 1))
    np.save(tmp_path / "votes.npy", votes)
    confident = {"threshold": 200.0, "sigma1": 150.0}
    for more in ({}, confident):
        options = [word for k, v in more.items() for word in (f"--{k}", v)]
        shown = printed("claimed", "pate-2018", "--sigma2", 40, "--votes", tmp_path / "votes.npy", *options)
        cost = bench.epsilon("pate-2018", votes=votes, sigma2=40.0, **more)
        assert cost.claimed == shown["accountants"][0]["epsilon"]
        assert cost.proven == min(row["epsilon"] for row in shown["accountants"] if not row["data_dependent"])
    shown = printed("claimed", "pate", "--gamma", 0.05, "--votes", tmp_path / "votes.npy")
    assert bench.epsilon("pate", gamma=0.05, votes=votes).claimed == shown["accountants"][0]["epsilon"]


def test_adjacency_may_be_given_by_its_word() -> None:
    own = bench.epsilon("sampled-gaussian", sampling_rate=0.05, noise_multiplier=2.0)
    other = bench.epsilon("sampled-gaussian", sampling_rate=0.05, noise_multiplier=2.0, adjacency="replace")
    assert (own.adjacency, other.adjacency) == (Adjacency.ADD_REMOVE, Adjacency.REPLACE)
    assert own.proven < own.replace_one == other.proven == other.replace_one


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "setting", "same"),
    [
        ("gaussian", {"sigma": 2.0}, {"noise_multiplier": 2.0}),
        ("sampled-gaussian", {"sigma": 2.0, "sampling_rate": 0.1}, {"noise_multiplier": 2.0, "sampling_rate": 0.1}),
        (
            "dp-sgd",
            {"noise_multiplier": 1.1, "batch_size": 250, "records": 10_000, "epochs": 10},
            {"sigma": 1.1, "sampling_rate": 0.025, "steps": 400},
        ),
    ],
)
def test_second_names_and_epochs(name: str, setting: dict[str, Any], same: dict[str, Any]) -> None:
    cost = bench.epsilon(name, **setting)
    assert cost == bench.epsilon(name, **same)
    options = [word for k, v in setting.items() for word in (f"--{k.replace('_', '-')}", v)]
    assert printed(name, *options)["mechanism"] == cost.mechanism
    if name == "dp-sgd":
        assert printed("claimed", name, *options)["mechanism"] == cost.mechanism
        assert cost.mechanism in printed("tuning", *options)["mechanism"]


@pytest.mark.parametrize(
    ("name", "setting", "says"),
    [
        ("dp-sdg", {}, "Did you mean 'dp-sgd'?"),
        ("dp-sgd", {"sigma": 1.0, "sampling_rate": 0.1}, "steps or epochs .*; neither given"),
        ("dp-sgd", {"sigma": 1.0, "sampling_rate": 0.1, "steps": 1, "epochs": 1}, "steps or epochs .*; both given"),
        ("gaussian", {"sigma": 1.0, "noise_multiplier": 1.0}, "given twice"),
        ("dp-sgd", {"sigma": 1.0, "steps": 1}, "either the sampling rate, or both batch and records"),
        ("dp-sgd", {"sigma": 1.0, "steps": 1, "batch": 9, "records": 3}, "between 0 and records"),
        ("dp-sgd", {"sigma": 1.0, "step": 1}, "Did you mean 'steps'?"),
        ("dp-sgd", {"sigma": 1.0, "steps": 1, "sampling": "any"}, "sampling is one of poisson, .*, not 'any'"),
        ("dp-sgd", {"sigma": 1.0, "target_epsilon": 1.0, "steps": 1, "sampling_rate": 0.1}, "exactly one of sigma"),
        ("gaussian", {"noise_multiplier": 0.0}, "positive"),
        ("gaussian", {"noise_multiplier": 1.0, "delta": 0.0}, "delta"),
        ("pate", {"gamma": 0.05}, "one of queries and votes"),
        ("pate-2018", {"votes": np.ones((2, 2)), "sigma2": 1.0, "sigma1": 1.0}, "both threshold and sigma1"),
        ("bypass", {}, "unknown paper or mechanism"),
    ],
)
def test_mistakes_name_what_is_accepted(name: str, setting: dict[str, Any], says: str) -> None:
    with pytest.raises(BenchError, match=says.replace("?", r"\?")):
        bench.epsilon(name, **setting)


def test_every_name_of_the_docstring_is_a_paper() -> None:
    said = (bench.epsilon.__doc__ or "").replace("\n", " ")
    assert all(f"``{name}``" in said for name in PAPERS)
    assert "gaussian" in MECHANISMS


def test_mechanisms_take_the_options_of_the_command_and_the_fields_of_the_event(tmp_path: Any) -> None:
    cost = bench.epsilon("gnmax", sigma=40.0, target_epsilon=1.0)
    shown = printed("gnmax", "--sigma", 40, "--target-epsilon", 1)
    assert (cost.mechanism, len(cost.accountants)) == (shown["mechanism"], len(shown["accountants"]))
    votes = np.tile([200.0, 30, 20], (40, 1))
    np.save(tmp_path / "votes.npy", votes)
    shown = printed("lnmax", "--gamma", 0.05, "--votes", tmp_path / "votes.npy")
    cost = bench.epsilon("lnmax", gamma=0.05, votes=votes)
    assert [row.as_dict() for row in cost.accountants] == shown["accountants"]
    assert cost.proven == min(row.epsilon for row in cost.accountants if row.sound and row.releasable)
    assert "1/16 vote" in bench.epsilon("lnmax", gamma=0.05, queries=10, secure_granularity=16).mechanism
    assert bench.epsilon("tuning", sigma=4.0).mechanism.startswith("the best of")


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["replace-one", "own"])
def test_dp_sgd_is_solved_for_the_neighbours_that_the_target_names(adjacency: str) -> None:
    cost = bench.epsilon("dp-sgd", target_epsilon=2.0, sampling_rate=0.01, steps=100, adjacency=adjacency)
    assert (cost.proven if adjacency == "own" else cost.replace_one) == pytest.approx(2, abs=1e-4)
    assert cost.claimed is None


def test_settings_of_the_claim_alone_change_nothing_proven() -> None:
    without = printed("proven", "dpsd", "--batch", 256, "--iterations", 200, "--sigma", 100)
    words = ["--beta", 7, "--classes", 3, "--batch", 256, "--iterations", 200, "--sigma", 100]
    assert printed("proven", "dpsd", *words) == without
