"""Every committed proven epsilon against an accountant that imports nothing of this project."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from typing import Any

import pytest

from helpers import outside_accountant
from helpers.outside_accountant import (
    epsilon,
    events_of,
    gaussian,
    laplace,
    proven,
    proven_for_record,
    replaced_gaussians,
    responses,
)
from helpers.paths import BOARD, TESTS

TOLERANCE = 1e-3  # of both sides' grids, which round up
Values = dict[str, Any]


def committed() -> dict[str, list[Values]]:
    """Return the records of the board and of the ablations by their ledgers' kinds of events."""
    found: dict[str, list[Values]] = defaultdict(list)
    for folder in (BOARD, BOARD / "ablations"):
        for path in sorted((folder / "records").glob("*.json")):
            values = json.loads(path.read_text())
            if values.get("privacy"):
                found[" and ".join(sorted({event["kind"] for event in values["privacy"]["events"]}))].append(values)
    return found


RECORDS = committed()


def distance(ours: float | str, theirs: float) -> float:
    return 0.0 if float(ours) == theirs else float(ours) - theirs  # infinity less infinity is no number


def test_it_imports_nothing_of_this_project() -> None:
    code = (
        "import sys; before = set(sys.modules); import helpers.outside_accountant as it\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"dp_accounting", "scipy", "helpers"} <= loaded
    assert not loaded & {"bench", "methods", "attacks", "reports"}


def test_all_records_are_covered() -> None:
    paths = [path for folder in (BOARD, BOARD / "ablations") for path in (folder / "records").glob("*.json")]
    counted = sum(json.loads(path.read_text())["status"] == "done" for path in paths)
    assert sum(map(len, RECORDS.values())) == counted > 400
    assert {"lnmax", "gnmax", "confident-gnmax", "gaussian", "dp-sgd", "bypass"} < set(RECORDS)


@pytest.mark.few(2)
@pytest.mark.parametrize("kinds", sorted(RECORDS))
def test_no_committed_proven_epsilon_is_too_small(kinds: str) -> None:
    """Nor too large, nor is a sound accountant's too small. Only Gaussian noise and single responses are exact.

    Both round privacy loss distributions up, on other grids: LNMax differs by 1e-4, of the whole noisy histogram on
    both sides, since the cost of its arg max alone has no closed form; DP-SGD by 2e-4.
    """
    for record in RECORDS[kinds]:
        theirs = proven(record)
        # Near 1e12, sums of a ledger's Gaussians differ in the last digits of a double.
        rounding = TOLERANCE + (1e-14 * theirs if math.isfinite(theirs) else 0.0)
        assert abs(distance(record["privacy"]["proven"]["epsilon"], theirs)) <= rounding, record["key"]
        for row in record["privacy"]["accountants"]:
            if row["sound"] and not row["data_dependent"]:
                assert distance(row["epsilon"], theirs) >= -rounding, (record["key"], row["name"])


def test_record_level_figures_of_labels_are_not_too_small() -> None:
    """Ours are above by at most 1e-4 of themselves: Renyi accounting, or the most that the labels can cost."""
    levels = [r for found in RECORDS.values() for r in found if r["privacy"]["unit"] == "query-label"]
    assert levels
    for record in levels:
        ours, theirs = float(record["privacy"]["record_level"]["epsilon"]), proven_for_record(record)
        assert theirs - TOLERANCE <= ours <= theirs * (1 + 1e-4), record["key"]


@pytest.mark.parametrize("kinds", sorted(kinds for kinds in RECORDS if "bypass" not in kinds))
def test_a_figure_with_too_much_noise_is_found(kinds: str) -> None:
    """The comparison can fail: events of a hundredth less noise cost more than the record says."""
    record = RECORDS[kinds][0]
    less = {"gamma": 1.01, "epsilon": 1.01, "sigma": 0.99, "sigma1": 0.99, "sigma2": 0.99, "noise_multiplier": 0.99}
    events = [{k: v * less.get(k, 1) if k in less else v for k, v in event.items()} for event in events_of(record)]
    theirs = epsilon(events, record["cell"]["delta"])
    assert float(record["privacy"]["proven"]["epsilon"]) < theirs - TOLERANCE


def test_closed_forms() -> None:
    """Against figures that were computed by hand or by others."""
    assert gaussian(1.0, 1e-5) == pytest.approx(4.377, abs=1e-3)
    assert laplace(1.0, 1, 1e-12) == pytest.approx(1.0, abs=1e-3)
    single = math.log((math.e / (math.e + 9) - 1e-5) * (math.e + 9))  # (p - delta) / q
    assert responses(1.0, 10, 1, 1e-5) == pytest.approx(single, abs=1e-8)
    of_all = replaced_gaussians({(1.0, 10.0): 20, (1.0, 5.0): 5}, 1e-5)
    assert of_all == pytest.approx(gaussian(2 * math.sqrt(20 / 100 + 5 / 25), 1e-5), abs=1e-5)
    kept = math.e / (math.e + 1)  # two binary responses: losses 2, 0 and -2
    assert responses(1.0, 2, 2, 1e-5) == pytest.approx(2 + math.log1p(-1e-5 / kept**2), abs=1e-8)


def test_what_it_cannot_compose_is_an_error() -> None:
    with pytest.raises(ValueError, match="no discrete noise"):
        epsilon([{"kind": "gnmax", "sigma": 1.0, "queries": 1, "exact": True}], 1e-5)
    with pytest.raises(ValueError, match="unknown kind"):
        epsilon([{"kind": "magic"}], 1e-5)
    assert outside_accountant.epsilon([{"kind": "bypass", "reason": "none"}, {"kind": "magic"}], 1e-5) == math.inf
