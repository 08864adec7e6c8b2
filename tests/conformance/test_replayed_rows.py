"""What `publish` asks of new rows holds for committed ones: each method's cheapest cell replays on other records."""

from __future__ import annotations

import functools

import pytest

from bench.evaluation.check.row_replay import check_row
from bench.experiments.device import prepare_device
from bench.interface.registry import METHODS
from bench.publishing.reproduce import planned_again
from bench.publishing.revalidate import replayable
from bench.publishing.verify import stated_here
from bench.results.record import Record
from bench.results.run_dir import RunDir
from helpers.paths import ROOT


@functools.cache
def cheapest() -> dict[str, Record]:
    """Return the committed record of each method that `publish --all` would replay first."""
    found: dict[str, Record] = {}
    for record in replayable(RunDir(ROOT / "leaderboards").read_records(set_aside=False).found):
        found.setdefault(record.method, record)
    return found


@pytest.mark.replay
@pytest.mark.timeout(6 * 3_600)
@pytest.mark.parametrize("name", [name for name in METHODS.names() if METHODS.get(name).private])
def test_a_row_s_own_run_replays_on_other_records(name: str) -> None:
    """Fetches MNIST and others where they are not here."""
    record = cheapest().get(name)
    if record is None:
        pytest.skip("no committed row that publish replays")
    again = planned_again(record)
    if again.cell is None:
        pytest.skip(again.reason)
    prepare_device()
    # Older records do not say whether another processor made the artefacts that they found.
    stated = None if record.provenance.artefacts_found else stated_here(record)
    check = check_row(again.cell, record.noise_salt, stated)
    assert check.ok, check.reason
