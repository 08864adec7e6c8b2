"""Provenance of a cell. A value that cannot be read is None, with a reason, and never fails a run."""

from __future__ import annotations

import math
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.core.processes import peak_memory_mib, processor
from bench.results.record import Provenance

PACKAGES = ("private-student-bench", "torch", "torchvision", "timm", "opacus", "dp-accounting", "numpy", "scipy")


@dataclass(slots=True)
class Clock:
    """Measures a cell from its start; :meth:`stop` returns the provenance."""

    device: str = "cpu"
    threads: int | None = None
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    _begin: float = field(default_factory=time.perf_counter)

    def stop(
        self, *, made: int = 0, found: int = 0, elsewhere: int = 0,
        artefacts: Mapping[str, tuple[int, int]] | None = None, waited: float = 0.0, private: bool = False,
    ) -> Provenance:  # fmt: skip
        """Return the provenance since the start, without the seconds `waited` for other processes.

        Another processor may have rounded the `elsewhere` artefacts, so their run cannot be repeated to the bit.
        Time and memory may reveal `private` data, so it gets only the start date, the running time rounded up to
        minutes, and the memory rounded up to a power of 2.
        """
        unread: dict[str, str] = {}
        started, seconds, memory = self.started, time.perf_counter() - self._begin - waited, peak_memory_mib()
        if private:
            started, seconds, memory = started[:10], 60.0 * math.ceil(seconds / 60), 2.0 ** math.ceil(math.log2(memory))
            unread |= {
                "started": "the date alone: the time may tell of private data",
                "wall_seconds": "rounded up to minutes: how long private data takes may tell of it",
                "peak_memory_mib": "rounded up to a power of 2: how much private data takes may tell of it",
            }
        commit, dirty = _git(unread)
        packages: dict[str, str] = {}
        for name in PACKAGES:
            try:
                packages[name] = version(name)
            except PackageNotFoundError:
                unread[f"packages.{name}"] = "not installed"
        return Provenance(
            started=started,
            wall_seconds=round(seconds, 3),
            peak_memory_mib=memory,
            git_commit=commit,
            git_dirty=dirty,
            packages=packages,
            python=platform.python_version(),
            platform=f"{platform.system()} {platform.machine()}",
            processor=processor() + f", with {elsewhere} artefacts cached by another" * bool(elsewhere),
            device=self.device,
            threads=self.threads,
            artefacts_made=made,
            artefacts_found=found,
            artefacts=dict(artefacts or {}),
            unread=unread,
        )


def _git(unread: dict[str, str]) -> tuple[str | None, bool | None]:
    here = Path(__file__).resolve().parent

    def ask(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        # A package installed inside another repository must not report that repository's commit.
        ask("ls-files", "--error-unmatch", Path(__file__).name)
        # Files of the board are results, which no run reads.
        program = (":(top)", ":(top,exclude)leaderboards")
        return ask("rev-parse", "HEAD"), bool(ask("status", "--porcelain", "--untracked-files=no", "--", *program))
    except FileNotFoundError:
        why = "git is not installed"
    except subprocess.CalledProcessError:
        why = "the program does not run from a git checkout"
    except subprocess.TimeoutExpired:
        why = "git did not answer within 10 s"
    unread["git_commit"] = unread["git_dirty"] = why
    return None, None
