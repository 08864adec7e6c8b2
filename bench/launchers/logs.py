"""Output of the attempts at a cell, audit or attack, for ``bench logs``."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.core.errors import BenchError, UnknownNameError
from bench.core.plain_files import check_run_dir, listed
from bench.core.printable import counted
from bench.launchers.attempts import Attempt, attempts_of, log_of
from bench.launchers.manifest import Launch, launches
from bench.launchers.worker import POLL_SECONDS, settled
from bench.results.run_dir import RunDir


@dataclass(frozen=True, slots=True)
class Tried:
    """An attempt at a key, in a launch and under the name of its command; `number` counts all launches' attempts."""

    launch: Launch
    name: str
    number: int
    attempt: Attempt

    @property
    def logs(self) -> list[Path]:
        """The output of the attempt, and of its job: from before the cell began, or from Slurm after its end."""
        own = log_of(self.launch.folder, self.name, self.attempt.number)
        done = self.attempt.reason in ("", "done")
        jobs = [] if done else sorted(self.launch.folder.glob(f"jobs/{self.attempt.job or '-'}_*_log.out"))
        return [path for path in (own, *jobs) if path.exists()]


class Attempts:
    """The attempts in a run directory at the key `start`, which may be a unique prefix.

    Raises :class:`BenchError` if no launch has the key (with similar keys), or if several keys start with it.
    """

    def __init__(self, path: Path, start: str) -> None:
        self._run_dir = RunDir(path)
        check_run_dir(path)
        self._run_dir.check_layout()
        names = {name: None for launch in launches(self._run_dir) for name in _names(launch)}
        found = [start] if start in names else [name for name in names if name.startswith(start)]
        if not found:
            raise UnknownNameError("key", start, names, hint=f"`python -m bench status -o {path}` lists launches.")
        if len(found) > 1:
            shown = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
            raise BenchError(f"{start!r} is a prefix of {len(found)} keys: {shown}. Give more of the one you mean.")
        (self.key,) = found
        self._seen: list[Path] = []
        self._launches: list[tuple[Launch, str]] = []

    def _with_key(self) -> list[tuple[Launch, str]]:
        """Return the launches of the key with its name there, oldest first; rereads them only if there is a new one."""
        if (folders := listed(self._run_dir.launches_path)) != self._seen:
            self._seen = folders
            named = [(launch, _names(launch).get(self.key)) for launch in launches(self._run_dir)]
            self._launches = [(launch, name) for launch, name in named if name is not None]
        return self._launches

    def all(self) -> list[Tried]:
        """Return the attempts of all launches so far, in order."""
        every = [(launch, name, one) for launch, name in self._with_key() for one in attempts_of(launch.folder, name)]
        return [Tried(launch, name, number, one) for number, (launch, name, one) in enumerate(every, 1)]

    def chosen(self, number: int | None) -> Tried:
        """Return the attempt `number`, by default the last; raise :class:`BenchError` if there is none."""
        every = self.all()
        if not every:
            inline = all(launch.kind == "inline" for launch, _ in self._with_key())
            why = "it ran without --launcher, and its output went to the terminal" if inline else "it has not begun"
            raise BenchError(f"{self.key} has no log: {why}.")
        if number is None:
            return every[-1]
        if not 1 <= number <= len(every):
            raise BenchError(f"--attempt {number}: {self.key} has {counted(len(every), 'attempt')}, from 1.")
        return every[number - 1]

    @property
    def settled(self) -> bool:
        """Whether the last launch of the key has its result."""
        launch, _ = self._with_key()[-1]
        return any(settled(one, self._run_dir) for one in launch.results if one.key == self.key)

    def followed(self, number: int | None) -> Iterator[str]:
        """Yield the output of an attempt as it grows, then that of later attempts, until the key has its result."""
        begun = number is not None or self.settled or len(self.all()) > 0
        for current in itertools.count(self.chosen(number).number if begun else 1):
            while current > len(self.all()):
                if self.settled:
                    return
                time.sleep(POLL_SECONDS)
            yield f"{self.heading(self.all()[current - 1])}\n"
            read: dict[Path, int] = {}
            while True:
                one = self.all()[current - 1]
                for path in one.logs:
                    with path.open("rb") as file:
                        file.seek(read.get(path, 0))
                        data = file.read()
                    read[path] = read.get(path, 0) + len(data)
                    yield data.decode(errors="replace")
                if one.attempt.reason or current < len(self.all()) or self.settled:
                    break
                time.sleep(POLL_SECONDS)
            yield f"-- attempt {current}: {self.all()[current - 1].attempt.words}\n"
            if self.settled:
                return

    def heading(self, one: Tried) -> str:
        """Return a line about an attempt."""
        return f"-- {self.key}, attempt {one.number}: {one.attempt.words}"


def _names(launch: Launch) -> dict[str, str]:
    """Return for each key of a launch the name of its attempts."""
    commands = {task.key: task.command or task.key for task in launch.tasks}
    return {entry.key: entry.key for entry in launch.entries} | commands
