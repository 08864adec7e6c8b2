"""Print what building the board of 8,000 records takes: ``python tests/performance/board.py [ROWS]``."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 8_000


def fill(folder: Path, rows: int) -> None:
    """Write `RECORDS` records: copies of committed MNIST rows, which differ in their seeds."""
    paths = sorted((ROOT / "leaderboards/records").glob("mnist-*-s0-*.json"))
    chosen = [record for path in paths if (record := json.loads(path.read_text()))["status"] == "done"][:rows]
    (folder / "records").mkdir(parents=True)
    for seed in range(RECORDS // len(chosen)):
        for record in chosen:
            key = record["key"].replace("-s0-", f"-s{seed}-")
            copy = {**record, "key": key, "cell": {**record["cell"], "seed": seed}}
            (folder / f"records/{key}.json").write_text(json.dumps(copy))


def main() -> None:
    """Fill a run directory, build its board and print time, memory and size."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "runs"
        fill(folder, int(sys.argv[1]) if len(sys.argv) > 1 else 80)
        subprocess.run([sys.executable, "-m", "bench", "leaderboard", str(folder), "-q"], check=True, cwd=ROOT)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        pages = [path for path in folder.rglob("*") if path.is_file() and path.parent != folder / "records"]
        size = sum(path.stat().st_size for path in pages) / 1e6
        print(f"{used.ru_utime + used.ru_stime:.1f} s of CPU, {used.ru_maxrss / 1024:.0f} MiB of memory,")
        print(f"{len(pages)} files of {size:.0f} MB")


if __name__ == "__main__":
    main()
