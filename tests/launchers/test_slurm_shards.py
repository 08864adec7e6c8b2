"""Shards that vote and bundles, as jobs of a real Slurm."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from bench.core.config import Grid, Preset
from bench.core.progress import Progress
from bench.launchers.bundle import pack
from bench.results.run_dir import RunDir
from helpers.launches import METHOD, finish, outcome
from helpers.paths import ROOT
from helpers.slurm_node import slurm_node, why_not

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(bool(why_not()), reason=why_not())]


@pytest.fixture(scope="module", autouse=True)
def _node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with slurm_node(tmp_path_factory.mktemp("slurm"), memory=8000):
        yield


def run(out: Path, *options: str | Path) -> str:
    """Run the command in a process of its own; return what it says."""
    command = [sys.executable, "-m", "bench", "run", *map(str, options), "--noise-salt", "none", "--out", str(out)]
    return finish(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT))


def size(out: Path, kind: str) -> int:
    """Return the bytes of all artefacts of a kind."""
    return sum(path.stat().st_size for path in (out / "cache").glob(f"{kind}-*.safetensors"))


def stated(artefact: Path) -> dict[str, str]:
    """Return what an artefact states of itself, with a digest of its content; the library writes it in any order."""
    with safe_open(artefact, "np") as file:
        return dict(file.metadata())


def test_eight_jobs_vote_and_the_job_that_counts_reads_no_weights(tmp_path: Path) -> None:
    # The paper's nets: a label is small beside the weights of who gives it.
    grid = [
        "-m", "pate", "-d", "digits", "-e", "10", "-p", "tiny", "--device", "cpu", "--teacher", "pate_mnist",
        "--set", "teachers=80", "--set", "teacher_steps=2",
    ]  # fmt: skip
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    run(shared, *grid, "--launcher", "slurm", "--shards", "8")
    assert len(list(shared.glob("launches/*/*.shard-*-of-8.done"))) == 8
    run(alone, *grid)
    assert outcome(shared) == outcome(alone)
    # The votes: what one process found itself is what the last job put together from the shards.
    (found,) = (alone / "cache").glob("teacher-labels-*.safetensors")
    assert stated(shared / "cache" / found.name) == stated(found)
    (record,) = RunDir(shared).read_records().found
    read = {kind for kind, (_, hits) in record.provenance.artefacts.items() if hits}
    assert read == {"teacher-labels"}
    assert record.provenance.artefacts["teacher-labels"] == (1, 8)
    share = sum(size(shared, kind) for kind in read) / size(shared, "teachers")
    print(f"the job that counts read {100 * share:.3f}% of the bytes of the weights")
    assert share <= 0.01


def test_jobs_run_the_cells_of_a_bundle(tmp_path: Path) -> None:
    source = tmp_path / "grid.zip"
    pack(Grid(("pate", METHOD), ("digits",), (5.0, 10.0), preset=Preset.TINY), source, Progress())
    cluster, here = tmp_path / "cluster", tmp_path / "here"
    said = run(cluster, "--bundle", source, "--device", "cpu", "--launcher", "slurm")
    assert "4 cells in" in said
    run(here, "--bundle", source, "--device", "cpu")
    assert len(outcome(here)) == 4
    assert outcome(cluster) == outcome(here)
