"""Locks on files of a run directory in which several processes work, perhaps on several machines.

A lock is a file that its owner holds by ``flock``: the system gives it up when the owner dies, however it dies. The
file says who the owner is, and its ``beat`` is raised every few seconds. That serves people who look, and it serves
where a lock is not seen from another machine (a network disk mounted with local locks): a file that names an owner on
another machine is taken over only when its beat has not moved for a while by the taker's own monotonic clock. No two
clocks are ever compared, so none that jumps can do harm.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.core.errors import BenchError
from bench.storage.interrupts import unstopped

BEAT_SECONDS = 10.0
"""Time between two signs of life."""
PATIENCE_SECONDS = 45.0
"""How long an owner on another machine, whose lock is not seen from here, may be silent before it counts as dead."""
_LENGTH = 2048
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@functools.cache
def this_machine() -> str:
    """Return a name of this machine since it was last started: no process of before can still live."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def process_start(pid: int) -> str | None:
    """Return when the process `pid` of this machine started, in the system's own units; None where there is none.

    Together with the number it names a process for good: numbers are used again.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # Field 3 is the state: a process that has ended and waits for its parent to ask does nothing any more.
    return None if fields[0] in "ZX" else fields[19]


def alive(pid: int, start: str | None) -> bool:
    """Return whether the process `pid` that started at `start` still lives on this machine."""
    if os.path.isdir("/proc/self"):
        return start is not None and process_start(pid) == start
    try:  # without /proc the number is all there is
        os.kill(pid, 0)
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock, or held it. `told` is what it says of its work; `held` is False where it is gone."""

    machine: str
    pid: int
    start: str | None
    beat: int
    attempts: Mapping[str, int]
    """Launch to how many of its processes took the lock and did not give it up, this one included."""
    seconds: float
    """Since it took the lock, by its own clock, at its last sign of life."""
    told: Mapping[str, Any]
    held: bool

    @property
    def attempt(self) -> int:
        """Which try of its launch it is, from 1."""
        return self.attempts.get(str(self.told.get("launch", "")), 1)

    @property
    def where(self) -> str:
        """Return machine and process, for people."""
        return f"{self.machine.partition('/')[0]}, process {self.pid}"

    @property
    def here(self) -> bool:
        """Whether the owner is a process of this machine."""
        return self.machine == this_machine()


@dataclass(slots=True)
class Held:
    """A lock that this process holds. `attempts` counts the owners that died with it, by launch, this one included."""

    path: Path
    descriptor: int
    attempts: dict[str, int]
    told: dict[str, Any] = field(default_factory=dict)
    _beat: int = 0
    _begin: float = field(default_factory=time.monotonic)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def attempt(self) -> int:
        """Which try of its launch this is, from 1."""
        return self.attempts.get(str(self.told.get("launch", "")), 1)

    def tell(self, **what: Any) -> None:
        """Change what the file says of the work; it is written with the next sign of life."""
        self.told.update(what)

    def beat(self) -> None:
        """Write a sign of life. A full disk is no reason to stop: the lock itself is the system's."""
        with self._guard:
            if self.descriptor < 0:
                return
            self._beat += 1
            said = {
                "machine": this_machine(),
                "pid": os.getpid(),
                "start": process_start(os.getpid()),
                "beat": self._beat,
                "attempts": self.attempts,
                "seconds": round(time.monotonic() - self._begin, 1),
            }
            text = json.dumps({**said, "told": self.told}, ensure_ascii=False).encode()
            if len(text) > _LENGTH:  # never without the launch, by which attempts are counted
                short = {name: value for name, value in self.told.items() if name in ("launch", "job")}
                text = json.dumps({**said, "told": short}).encode()
            # One write of one length: who reads meanwhile sees the old or the new text, or takes it for unreadable.
            with contextlib.suppress(OSError):
                os.pwrite(self.descriptor, text.ljust(_LENGTH), 0)
                os.fsync(self.descriptor)  # a client of a network disk may sit on it for longer than anybody waits

    def release(self) -> None:
        """Give the lock up and remove its file."""
        _HEART.drop(self)
        with self._guard:
            if self.descriptor < 0:
                return
            with contextlib.suppress(OSError):
                # While the lock is held: who opened the file before sees that it is not the one at this path any more.
                self.path.unlink()
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with unstopped():
            self.release()


class _Heart:
    """One thread that gives the signs of life of every lock that this process holds."""

    def __init__(self) -> None:
        self._held: list[Held] = []
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, held: Held) -> None:
        held.beat()
        with self._guard:
            self._held.append(held)
            if self._thread is None or not self._thread.is_alive():  # a forked child has none
                self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)
                self._thread.start()

    def drop(self, held: Held) -> None:
        with self._guard:
            if held in self._held:
                self._held.remove(held)

    def _run(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            with self._guard:
                now = list(self._held)
            for held in now:
                held.beat()


_HEART = _Heart()
_seen: dict[Path, tuple[tuple[str, int, int], float]] = {}
"""Path to the owner elsewhere that was seen there last, with its beat, and since when it has not moved."""


def take(path: Path, **told: Any) -> Held | None:
    """Return the lock at `path` if it is free, None while another process holds it; its folder must exist.

    `told` is shown to those who look. Raises :class:`BenchError` where the file system has no locks at all.
    """
    for _ in range(100):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BenchError(f"{path} cannot be locked: {error.strerror}.") from error
        try:
            if not _flocked(descriptor, path):
                break
            if not _same_file(descriptor, path):  # its owner finished and removed it in between
                continue
            before = _parse(_content(descriptor), held=False)
            if before is not None and not before.here and not _silent(path, before):
                break
            _seen.pop(path, None)
            held = Held(path, descriptor, _attempts(before, told), dict(told))
            descriptor = -1
            _HEART.add(held)
            return held
        finally:
            if descriptor >= 0:
                os.close(descriptor)
    return None


def _attempts(before: Owner | None, told: Mapping[str, Any]) -> dict[str, int]:
    """Return the attempts with one more of this launch; another launch is a decision to try anew."""
    launch = str(told.get("launch", ""))
    known = {} if before is None else dict(before.attempts)
    return {**known, launch: known.get(launch, 0) + 1}


def look(path: Path) -> Owner | None:
    """Return who holds the lock at `path`, or who died with it (`held` is False then); None where nobody has it."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            held = False
        except OSError as error:
            held = error.errno not in NO_LOCKS
        return _parse(_content(descriptor), held)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def holding(path: Path, waiting: Any = lambda owner: None, **told: Any) -> Iterator[Held]:
    """Hold the lock at `path` inside, waiting for it; ``waiting(owner)`` is called once, with who holds it or None."""
    pause, said = 0.02, False
    with contextlib.ExitStack() as taken:
        while True:
            with unstopped():  # or a signal could come between the lock and what gives it up
                held = take(path, **told)
                if held is not None:
                    taken.enter_context(held)
            if held is not None:
                break
            if pause > 0.5 and not said:
                waiting(look(path))
                said = True
            time.sleep(pause)
            pause = min(1.0, 2 * pause)
        yield held


def _flocked(descriptor: int, path: Path) -> bool:
    for last in (False, False, True):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise without_locks(path.parent, error) from error
            if not last:
                time.sleep(0.01)  # who looks holds it for a moment
    return False


def without_locks(folder: Path, error: OSError) -> BenchError:
    """Return `error`, met while locking a file in `folder`, as a message for the user."""
    return BenchError(
        f"{folder} is on a file system without locks ({error.strerror}), where two processes could train the same "
        "cell. Choose another directory with --out; Lustre has locks when it is mounted with -o flock."
    )


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except OSError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _content(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, 4096, 0)
    except OSError:
        return b""


def _parse(text: bytes, held: bool) -> Owner | None:
    try:
        said = json.loads(text)
        return Owner(
            str(said["machine"]), int(said["pid"]), said["start"], int(said["beat"]),
            {str(launch): int(count) for launch, count in said["attempts"].items()},
            float(said["seconds"]), dict(said["told"]), held,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        # Not written yet, or by no program of ours. Held it is all the same.
        return Owner("unknown", 0, None, 0, {}, 0.0, {}, held) if held else None


def _silent(path: Path, owner: Owner) -> bool:
    """Return whether `owner`, on another machine, has given no sign of life for long enough, as seen from here."""
    sign, now = (owner.machine, owner.pid, owner.beat), time.monotonic()
    known = _seen.get(path)
    if known is None or known[0] != sign:
        _seen[path] = (sign, now)
        return False
    return now - known[1] >= PATIENCE_SECONDS
