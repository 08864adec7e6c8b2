"""Sixty cells on a Slurm of three nodes that takes fourteen jobs, while jobs, a node and the controller fail."""

from __future__ import annotations

import re
import threading
from collections import Counter
from pathlib import Path

import pytest

from bench.launchers.attempts import attempts_of
from bench.results.run_dir import RunDir
from helpers.launches import finish, lines, nothing_is_left_over, until
from helpers.slurm_jobs import SLURM, log, running, start
from helpers.slurm_node import SlurmNode, slurm_node, why_not

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

# Ended jobs are forgotten soon: until then they take a place. Memory is watched by slurmd, without a cgroup.
LIMITS = """MaxArraySize=11
MaxJobCount=15
MinJobAge=5
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
JobAcctGatherFrequency=task=1
"""
SIXTY = ["--eps", "1,2,3,4,5,6,7,8,9,10", "--seeds", "0,1,2,3,4,5"]
NEEDS = ["--memory", "1", "--max-memory", "4", "--time", "3", "--max-time", "60"]


class Places:
    """The most jobs that the controller held, looked at again and again."""

    def __init__(self, node: SlurmNode) -> None:
        self.most, self._node, self._stop = 0, node, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            listed = self._node.run("squeue", "-h", "-a", "-r", "-t", "all", "-o", "%i", check=False)
            self.most = max(self.most, len(listed.splitlines()))

    def __enter__(self) -> Places:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_sixty_cells_through_fourteen_places_and_every_failure(tmp_path: Path) -> None:
    out = tmp_path / "grid" / "runs"
    out.parent.mkdir()
    (out.parent / "log.memory-10-0").write_text("1200")  # eps 1, seed 0
    slow = out.parent / "log.hold-10-1"
    slow.touch()
    told = tmp_path / "told"
    hooks = tmp_path / "cluster.yaml"
    hooks.write_text(
        f"on_record: 'echo \"record $BENCH_KEY $BENCH_STATUS\" >> {told}'\n"
        f"on_end: 'echo \"end $BENCH_DONE $BENCH_FAILED $BENCH_LEFT\" >> {told}'\n"
    )
    with slurm_node(tmp_path / "node", cpus=4, memory=6000, more=LIMITS, nodes=3) as node, Places(node) as places:
        process = start(out, *SIXTY, *SLURM, *NEEDS, "--cluster", str(hooks), making=0.1, seconds=2)

        def one(of: set[str]) -> tuple[str, str]:
            """Return a cell that runs, and its job, of those that nothing has hit yet."""
            found: list[tuple[str, str]] = []

            def there() -> bool:
                found[:] = [(key, job) for key, job in running(out).items() if job and key not in of]
                return bool(found)

            until(there, 900)
            return found[0]

        hit: set[str] = set()
        for action in ("scancel", "requeue"):
            key, job = one(hit)
            hit.add(key)
            node.run(*(["scancel", job] if action == "scancel" else ["scontrol", "requeue", job]))
        until(lambda: len(RunDir(out).recorded()) >= 8, 1500)
        node.crash("n2")
        node.start_slurmd("n2")
        until(lambda: len(RunDir(out).recorded()) >= 16, 1500)
        node.restart_controller(pause=5)
        until(lambda: lines(out)["start 10-1"] >= 2, 1500)  # its job was out of time
        slow.unlink()
        said = finish(process, seconds=2500)
        assert node.queue() == {}
    print(said)
    records = RunDir(out).read_records().found
    assert Counter(record.status for record in records) == {"done": 60}
    (launch,) = out.glob("launches/*")
    attempts = {f"end {record.config['noise']:g}-{record.seed}": attempts_of(launch, record.key) for record in records}
    done = {name: count for name, count in lines(out).items() if name.startswith("end")}
    assert set(done) == set(attempts)
    # A cell trains again only if its job was hit, at the latest between the end of its training and its record.
    assert [name for name, count in done.items() if count > len(attempts[name])] == []
    assert not [line for line in log(out) if line.startswith("OVERLAP")]
    nothing_is_left_over(out)
    *each, last = told.read_text().splitlines()
    assert Counter(each) == Counter(f"record {record.key} done" for record in records)  # each hook once
    assert last == "end 60 0 0"
    assert places.most <= 14
    scripts = [path.read_text() for path in out.glob("launches/*/jobs/*_submission.sh")]
    sizes = [int(size) + 1 for text in scripts for size in re.findall(r"--array=0-(\d+)", text)]
    assert max(sizes) <= 11
    assert "60 cells in 60 jobs of Slurm" in said
    assert re.search(r"\d+ jobs wait for free slots in Slurm .*MaxJobCount in slurm.conf", said)
    assert "cancelled): submitted again at once" in said
    assert "out of memory): submitted again with 2 GB" in said
    assert "out of time): submitted again with 6 min" in said
    reasons = Counter(one.reason for each_of in attempts.values() for one in each_of)
    print(reasons, f"most jobs at once: {places.most}", f"arrays: {sorted(sizes)}", sep="\n")
    assert reasons["done"] == 60
