"""``bench epsilon`` from the shell: options, tables, JSON and errors for bad input."""

from __future__ import annotations

import json
import math
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.cli.epsilon import app
from bench.cli.epsilon_output import LABELS
from bench.core.errors import BenchError

LNMAX = ["lnmax", "--gamma", "0.05"]


def run(*arguments: object) -> str:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False).stdout


@pytest.fixture
def votes(tmp_path: Path) -> Path:
    path = tmp_path / "votes.npy"
    np.save(path, np.tile([200.0, 30, 20], (40, 1)))
    return path


COMMANDS = [
    [*LNMAX, "--queries", 10],
    [*LNMAX, "--queries", 10, "--secure", 1024],
    [*LNMAX, "--target-epsilon", 1],
    ["gnmax", "--sigma", 40, "--queries", 10],
    ["gnmax", "--sigma", 40, "--target-epsilon", 1],
    ["confident-gnmax", "--threshold", 200, "--sigma1", 150, "--sigma2", 40, "--queries", 100, "--max-answers", 20],
    ["laplace", "--noise-multiplier", 10, "--count", 100],
    ["gaussian", "--sigma", 10, "--count", 100],
    ["tree-sums", "--sigma", 10, "--steps", 100],
    ["banded-sums", "--sigma", 10, "--steps", 100, "--bands", 4, "--separation", 20],
    ["exponential", "--epsilon", 0.5, "--count", 20],
    ["permute-and-flip", "--epsilon", 0.5],
    ["randomized-response", "--epsilon", 1, "--classes", 10],
    ["top-k", "--epsilon", 1, "--k", 3, "--classes", 10],
    ["dp-sgd", "--sampling-rate", 0.01, "--sigma", 1, "--steps", 100],
    ["sampled-gnmax", "--sampling-rate", 0.05, "--sigma", 8, "--queries", 100],
    ["sampled-gaussian", "--sampling-rate", 0.05, "--sigma", 2, "--count", 100],
    ["tuning", "--sigma", 4, "--trials-mean", 10],
    ["tuning", "--target-epsilon", 3, "--trials-mean", 3, "--law", "logarithmic"],
    ["tuning", "--sampling-rate", 0.01, "--sigma", 1, "--steps", 100],
    ["claimed", "pate", "--gamma", 0.05, "--queries", 100],
    ["claimed", "trpate", "--gamma", 0.05, "--queries", 100],
    ["claimed", "dgd", "--eps0", 0.05, "--queries", 400, "--eps1", 0.01],
    ["claimed", "dpsd", "--beta", 1e-3, "--classes", 10, "--batch", 256, "--iterations", 200, "--sigma", 100],
    ["claimed", "dpsd-label", "--epsilon", 1],
    ["claimed", "dp-sgd", "--batch", 10, "--records", 1000, "--sigma", 1, "--steps", 100],
    ["proven", "trpate", "--gamma", 0.05, "--queries", 100],
    ["proven", "dgd", "--eps0", 0.05, "--queries", 400],
    ["proven", "dpsd", "--beta", 1e-3, "--classes", 10, "--batch", 256, "--iterations", 200, "--sigma", 100],
    ["proven", "dpsd-label", "--epsilon", 1],
]


@pytest.mark.few(8)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(map(str, command)))
def test_table_and_json_say_the_same(command: list[object]) -> None:
    content = json.loads(run(*command, "--json"))
    table = run(*command)
    assert content["delta"] == 1e-5
    assert content["accountants"]
    for row in content["accountants"]:
        assert row["name"] in table
        epsilon, digits = float(row["epsilon"]), 1e6
        bound = row["sound"] and math.isfinite(epsilon)  # bounds are rounded up
        shown = math.ceil(round(epsilon * digits, 6)) / digits if bound else epsilon
        assert f"{shown:.6f}" in table
        assert {type(row[key]) for key in ("sound", "data_dependent", "releasable")} == {bool}


def test_a_tiny_epsilon_is_not_printed_as_zero() -> None:
    assert "1e-09" in run("laplace", "--noise-multiplier", "1e9")


def test_votes_add_private_figures(votes: Path) -> None:
    for command in (
        [*LNMAX, "--first", 20],
        ["gnmax", "--sigma", 40, "--sanitise"],
        ["confident-gnmax", "--threshold", 150, "--sigma1", 100, "--sigma2", 40, "--sanitise"],
        ["claimed", "pate", "--gamma", 0.05],
        ["claimed", "pate-2018", "--sigma2", 40],
        ["claimed", "pate-2018", "--sigma2", 40, "--threshold", 150, "--sigma1", 100],
    ):
        rows = json.loads(run(*command, "--votes", votes, "--json"))["accountants"]
        dependent = [row for row in rows if row["data_dependent"]]
        assert dependent
        assert [row["name"] for row in dependent if row["releasable"]] in ([], ["pate-2018-sanitised-release"])
        assert all(row["releasable"] for row in rows if not row["data_dependent"])


def test_selected_queries(votes: Path, tmp_path: Path) -> None:
    indices = tmp_path / "indices.npy"
    np.save(indices, np.arange(5))
    some = json.loads(run(*LNMAX, "--votes", votes, "--indices", indices, "--json"))
    assert some == json.loads(run(*LNMAX, "--votes", votes, "--first", 5, "--json"))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            [*LNMAX],
            r"exactly one of queries, votes and target epsilon \(--queries, --votes, --target-epsilon\); none given",
        ),
        ([*LNMAX, "--queries", 1, "--target-epsilon", 1], "queries and target epsilon given"),
        ([*LNMAX, "--queries", 0], "at least 1"),
        ([*LNMAX, "--queries", 1, "--delta", 0], "delta must lie strictly between 0 and 1"),
        ([*LNMAX, "--queries", 1, "--delta", "nan"], "delta must lie strictly between 0 and 1"),
        ([*LNMAX, "--queries", 1, "--largest-moment", 0], "largest moment"),
        ([*LNMAX, "--target-epsilon", "nan"], "epsilon must be a positive finite number"),
        (["lnmax", "--gamma", "nan", "--queries", 1], "gamma of LNMax must be a positive finite number"),
        (["lnmax", "--gamma", 2, "--target-epsilon", 1], "not reachable with even one query"),
        (["gnmax", "--sigma", -1, "--queries", 1], "sigma of GNMax"),
        (["gnmax", "--sigma", 40, "--queries", 1, "--sanitise"], "--votes"),
        (["dp-sgd", "--steps", 1, "--sigma", 1], "either the sampling rate"),
        (["dp-sgd", "--steps", 1, "--sampling-rate", 0.1], "one of sigma and target epsilon"),
        (["dp-sgd", "--steps", 1, "--batch", 20, "--records", 10, "--sigma", 1], "batch must lie"),
        (["tuning", "--trials-mean", 10], "one of sigma and target epsilon"),
        (["tuning", "--sigma", 4, "--trials-mean", 0.5], "at least 1, not 0.5"),
        (["claimed", "pate", "--gamma", 1], "one of queries and votes"),
        (["claimed", "dgd", "--eps0", 0, "--queries", 1], "eps0"),
        (["randomized-response", "--epsilon", 0, "--classes", 10], "epsilon of randomised response"),
    ],
)
def test_bad_options(command: list[object], said: str) -> None:
    with pytest.raises(BenchError, match=said):
        run(*command)


def test_an_epsilon_that_delta_covers_is_not_printed_as_no_cost() -> None:
    shown = run("dp-sgd", "--sigma", 1e9, "--sampling-rate", 0.01, "--steps", 1)
    assert "0 (within delta)" in shown
    assert "epsilon for replace-one neighbours: 0 (within delta)" in shown
    assert "0.000000" not in shown
    assert "0.000000" not in run("gaussian", "--sigma", 4e4)


def test_a_printed_epsilon_gets_a_verdict() -> None:
    setting = ["dp-sgd", "--sigma", 1.1, "--batch", 256, "--records", 60000, "--epochs", 15]
    shown = run(*setting, "--printed", 1.5)
    assert "printed epsilon 1.5 (add-remove): proven\n" in shown
    assert "printed epsilon 1.5 (replace-one): not proven; the best proof here gives 1.9" in shown
    shuffled = [*setting, "--sampling", "shuffled", "--printed", 2.9]
    assert "printed epsilon 2.9: false: no proof can give less than 6.01" in run(*shuffled)
    told = json.loads(run(*shuffled, "--json"))["printed"]
    assert told == {"epsilon": 2.9, "verdicts": {"": "false: no proof can give less than 6.010013"}}
    assert "printed" not in json.loads(run(*setting, "--json"))
    claimed = ["claimed", "dpsd", "--beta", 1e-3, "--classes", 10, "--batch", 256, "--iterations", 200, "--sigma", 100]
    assert "printed epsilon 1: not proven; the best proof here gives 28.8" in run(*claimed, "--printed", 1)
    with pytest.raises(BenchError, match="positive finite"):
        run(*setting, "--printed", 0)


HUGE = 10**400
LIMITED = [
    [*LNMAX, "--queries", HUGE],
    [*LNMAX, "--queries", 10, "--largest-moment", 10**9],
    ["gaussian", "--sigma", 1e-300],
    ["gaussian", "--sigma", 1e200],
    ["dp-sgd", "--sigma", 1, "--steps", 1, "--batch", 1, "--records", HUGE],
    ["claimed", "trpate", "--gamma", 0.05, "--queries", HUGE],
    ["claimed", "dpsd", "--beta", 1e-3, "--classes", HUGE, "--batch", 256, "--iterations", 200, "--sigma", 100],
    ["proven", "dpsd", "--batch", 10**15, "--iterations", 10**15, "--sigma", 100],
    ["randomized-response", "--epsilon", 1, "--classes", HUGE],
    ["tuning", "--sigma", 4, "--trials-mean", 1e300],
    ["impossible", "--eps", 1, "--accuracy", 90, "--classes", 10**9],
    ["impossible", "--eps", 1, "--accuracy", 90, "--classes", HUGE],
]


@pytest.mark.parametrize("command", LIMITED, ids=lambda command: " ".join(map(str, command))[:60])
def test_numbers_beyond_any_run_are_refused_in_one_line(command: list[object]) -> None:
    with pytest.raises(BenchError, match=r"at most|between") as refused:
        run(*command)
    assert len(str(refused.value)) < 200


ANSWERED: list[Any] = [
    pytest.param([*LNMAX, "--queries", 10**9], marks=pytest.mark.slow),  # the largest PLD: seconds, and more if traced
    [*LNMAX, "--queries", 10**15],
    [*LNMAX, "--queries", 100, "--secure", 10**9],
    ["lnmax", "--gamma", 1e-5, "--queries", 4 * 10**8],
    ["laplace", "--noise-multiplier", 1000, "--count", 9 * 10**8],
    ["laplace", "--noise-multiplier", 30_000, "--count", 9 * 10**11, "--delta", 0.5],
    ["gaussian", "--sigma", 1e-30, "--count", 10**15],
    ["dp-sgd", "--sigma", 1, "--steps", 9 * 10**8, "--sampling-rate", 1e-7],
    ["randomized-response", "--epsilon", 0.001, "--classes", 10**15, "--count", 10**9],
]


@pytest.mark.few(2)
@pytest.mark.parametrize("command", ANSWERED, ids=lambda command: " ".join(map(str, command)))
def test_large_counts_are_answered_in_little_memory(command: list[object]) -> None:
    """Traced: the largest arrays of NumPy are below half a gigabyte, where a count of 1e9 took 7.5 of them."""
    tracemalloc.start()
    try:
        rows = json.loads(run(*command, "--json"))["accountants"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**29
    assert min(float(row["epsilon"]) for row in rows) >= 0


def test_bad_files(votes: Path, tmp_path: Path) -> None:
    def refused(said: str, *options: object) -> None:
        with pytest.raises(BenchError, match=said):
            run(*LNMAX, *options)

    refused("does not exist", "--votes", tmp_path / "none.npy")
    text = tmp_path / "text.npy"
    text.write_text("1,2,3")
    refused("not a plain .npy array", "--votes", text)
    (tmp_path / "empty.npy").touch()
    refused("not a plain .npy array", "--votes", tmp_path / "empty.npy")
    cut = tmp_path / "cut.npy"
    cut.write_bytes(votes.read_bytes()[:-100])
    refused("not a plain .npy array", "--votes", cut)
    np.savez(tmp_path / "several.npz", votes=np.ones((2, 2)))
    refused("not a plain .npy array", "--votes", tmp_path / "several.npz")
    np.save(tmp_path / "objects.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    refused("not a plain .npy array", "--votes", tmp_path / "objects.npy")
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps([[1, 2]]))
    refused("not a plain .npy array", "--votes", tmp_path / "pickle.npy")
    np.save(tmp_path / "flat.npy", np.ones(3))
    refused("shape", "--votes", tmp_path / "flat.npy")
    np.save(tmp_path / "uneven.npy", np.array([[1.0, 2], [2, 2]]))
    refused("row 1 does not sum to 3", "--votes", tmp_path / "uneven.npy")
    refused("--first must lie", "--votes", votes, "--first", 41)
    refused("give only one of them", "--votes", votes, "--first", 4, "--indices", votes)
    refused("list of whole numbers", "--votes", votes, "--indices", votes)
    np.save(tmp_path / "beyond.npy", np.array([0, 40]))
    refused("index 40 is not one of the queries 0 to 39", "--votes", votes, "--indices", tmp_path / "beyond.npy")


def test_add_remove_mechanisms_state_the_cost_of_a_replaced_record_too() -> None:
    for command in (
        ["dp-sgd", "--sampling-rate", 0.01, "--sigma", 1, "--steps", 100],
        ["sampled-gaussian", "--sampling-rate", 0.01, "--sigma", 1, "--count", 100],
    ):
        content = json.loads(run(*command, "--json"))
        assert content["facts"]["replace_one"] == pytest.approx(0.8951, abs=1e-3)
        assert content["facts"]["replace_one"] > min(row["epsilon"] for row in content["accountants"])
    assert "replace_one" not in json.loads(run("gaussian", "--sigma", 10, "--json"))["facts"]


def test_other_batches_than_poissons_state_what_papers_print_and_what_is_known_at_least() -> None:
    asked = ["dp-sgd", "--batch", 10, "--records", 1000, "--sigma", 1, "--epochs", 1, "--json"]
    plain = json.loads(run(*asked))
    shuffled, fixed = (json.loads(run(*asked, "--sampling", name)) for name in ("shuffled", "fixed"))
    poisson = min(row["epsilon"] for row in plain["accountants"])
    assert "epsilon_at_least" not in plain["facts"]
    for content in (shuffled, fixed):
        proven = min(row["epsilon"] for row in content["accountants"])
        assert content["facts"]["epsilon_if_batches_were_poisson"] == pytest.approx(poisson)
        assert poisson < content["facts"]["epsilon_at_least"] < proven
    claimed = [json.loads(run("claimed", *asked, *more))["accountants"] for more in ([], ["--sampling", "shuffled"])]
    assert claimed[0][0]["epsilon"] == claimed[1][0]["epsilon"]
    assert (claimed[0][0]["sound"], claimed[1][0]["sound"]) == (True, False)


@pytest.mark.slow
def test_of_very_many_fixed_batches_no_lower_bound_is_stated() -> None:
    huge = run("dp-sgd", "--sampling-rate", 1e-7, "--sigma", 1, "--steps", 9 * 10**8, "--sampling", "fixed", "--json")
    assert "epsilon_at_least" not in json.loads(huge)["facts"]


@pytest.mark.slow
def test_a_target_of_dp_sgd_in_either_adjacency() -> None:
    asked = ["dp-sgd", "--sampling-rate", 0.5, "--steps", 5, "--target-epsilon", 1, "--json"]
    own, replaced = (json.loads(run(*asked, "--adjacency", name)) for name in ("own", "replace-one"))
    assert own["facts"]["sigma"] < replaced["facts"]["sigma"]
    assert replaced["facts"]["replace_one"] == pytest.approx(1.0, abs=1e-3)
    assert min(row["epsilon"] for row in own["accountants"]) == pytest.approx(1.0, abs=1e-3)


def test_a_papers_name_points_to_its_group() -> None:
    found = CliRunner().invoke(app, ["pate"])
    assert found.exit_code != 0
    assert "python -m bench epsilon claimed pate" in found.output


@pytest.mark.parametrize("sigma", ["0.5", "0.7", "1.3", "2.9"])
def test_what_bounds_is_printed_on_the_safe_side(sigma: str) -> None:
    options = ("dp-sgd", "--sampling", "fixed", "--sampling-rate", 0.1, "--sigma", sigma, "--steps", 3)
    facts, lines = json.loads(run(*options, "--json"))["facts"], run(*options).splitlines()
    printed = {label: float(line.rsplit(": ")[-1]) for line in lines for label in LABELS.values() if label in line}
    assert printed[LABELS["replace_one"]] >= facts["replace_one"]
    assert printed[LABELS["epsilon_at_least"]] <= facts["epsilon_at_least"]


def test_a_printed_sigma_keeps_to_its_target() -> None:
    options = ("dp-sgd", "--sampling", "shuffled", "--batch", 512, "--records", 60_000, "--epochs", 2)
    sigma = run(*options, "--target-epsilon", 1.5).split("sigma: ")[1].split()[0]
    assert "proven epsilon (add-remove): 1.500000," in run(*options, "--sigma", sigma)


@pytest.mark.parametrize(
    "command",
    [
        ["laplace", "--noise-multiplier", 0.00134228],
        ["randomized-response", "--classes", 10, "--epsilon", 744.8],
        ["permute-and-flip", "--epsilon", 3.409496229249154, "--count", 670, "--delta", 5.689243269779042e-07],
    ],
    ids=lambda command: command[0],
)
def test_beyond_what_doubles_resolve_no_lower_bound_is_stated(command: list[object]) -> None:
    found = json.loads(run(*command, "--json"))
    assert min(float(row["epsilon"]) for row in found["accountants"]) > 700
    assert "pld_without_rounding_at_least" not in found["facts"]
    assert "at least" not in run(*command)
