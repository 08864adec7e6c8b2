"""Locks on files of a run directory in which several processes work, perhaps on several machines.

:func:`holding` is filelock's flock, for what would only be made twice without it (artefacts, a secret). :func:`take` is
our own, for claims on cells, which filelock cannot give. A claim is freed by the system when its owner dies, as with
filelock's UnixFileLock; but its file also states the owner, its progress and how many owners died with it (filelock
leaves the file empty). Where flock is not seen from another machine (a network disk mounted with local locks), a claim
is taken over once its ``beat`` has not moved for a while by the taker's own monotonic clock. filelock's SoftFileLease
does that too, but then waits as long for a dead owner on the same machine. No two clocks are ever compared.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.core.errors import BenchError
from bench.storage.files import explain_os_error, writing
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
    """The process that holds a claim, or died with it (`held` is False). `about` describes its work."""

    machine: str
    pid: int
    start: str | None
    beat: int
    attempts: Mapping[str, int]
    """Launch to how many of its processes took the claim without releasing it, this one included."""
    seconds: float
    """Since it took the claim, by its own clock, at its last beat."""
    about: Mapping[str, Any]
    held: bool

    @property
    def attempt(self) -> int:
        """Which try of its launch it is, from 1."""
        return self.attempts.get(str(self.about.get("launch", "")), 1)

    @property
    def where(self) -> str:
        """Return machine and process, for people."""
        return f"{self.machine.partition('/')[0]}, process {self.pid}"

    @property
    def here(self) -> bool:
        """Whether the owner is a process of this machine."""
        return self.machine == this_machine()


@dataclass(slots=True, eq=False)
class Held:
    """A claim of this process. `attempts` counts the owners that died with it, by launch, this one included."""

    path: Path
    descriptor: int
    attempts: dict[str, int]
    about: dict[str, Any] = field(default_factory=dict)
    _beat: int = 0
    _begin: float = field(default_factory=time.monotonic)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _released: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.beat()
        threading.Thread(target=self._keep_beating, name="claim", daemon=True).start()

    @property
    def attempt(self) -> int:
        """Which attempt of its launch this is, from 1."""
        return self.attempts[str(self.about.get("launch", ""))]

    def tell(self, **about: Any) -> None:
        """Change the description of the work; it is written with the next beat."""
        self.about.update(about)

    def beat(self) -> None:
        """Write a sign of life. A full disk is no reason to stop: the lock itself is the system's."""
        with self._guard:
            if self.descriptor < 0:
                return
            self._beat += 1
            state = {
                "machine": this_machine(),
                "pid": os.getpid(),
                "start": process_start(os.getpid()),
                "beat": self._beat,
                "attempts": self.attempts,
                "seconds": round(time.monotonic() - self._begin, 1),
            }
            text = json.dumps({**state, "about": self.about}, ensure_ascii=False).encode()
            if len(text) > _LENGTH:  # never without the launch, by which attempts are counted
                short = {name: value for name, value in self.about.items() if name in ("launch", "job")}
                text = json.dumps({**state, "about": short}).encode()
            # One write of one length: a reader sees the old or the new text, or takes it for unreadable.
            with contextlib.suppress(OSError):
                os.pwrite(self.descriptor, text.ljust(_LENGTH), 0)
                os.fsync(self.descriptor)  # or a client of a network disk may hold it back for longer than PATIENCE

    def _keep_beating(self) -> None:
        while not self._released.wait(BEAT_SECONDS):
            self.beat()

    def release(self) -> None:
        """Release the claim and remove its file."""
        self._released.set()
        with self._guard:
            if self.descriptor < 0:
                return
            with contextlib.suppress(OSError):
                # While the lock is held: a process that opened the file before sees that the path has another now.
                self.path.unlink()
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        with unstopped():
            self.release()


_seen: dict[Path, tuple[tuple[str, int, int], float]] = {}
"""Path to the owner on another machine that was last seen there, with its beat, and since when it has not moved."""


def take(path: Path, **about: Any) -> Held | None:
    """Return the claim at `path`, None while another process holds it; its folder must exist.

    `about` describes the work, with its `launch`. Raises :class:`BenchError` where the file system has no locks.
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
            held = Held(path, descriptor, _attempts(before, about), dict(about))
            descriptor = -1
            return held
        finally:
            if descriptor >= 0:
                os.close(descriptor)
    return None


def _attempts(before: Owner | None, about: Mapping[str, Any]) -> dict[str, int]:
    """Return the attempts with one more of this launch; another launch is a decision to try anew."""
    launch = str(about.get("launch", ""))
    known = {} if before is None else dict(before.attempts)
    return {**known, launch: known.get(launch, 0) + 1}


def look(path: Path) -> Owner | None:
    """Return the owner of the claim at `path`, dead ones included (`held` is False then); None where there is none."""
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
def holding(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock at `path` inside; `waiting` is called once where another process holds it.

    The file stays until :class:`bench.results.run_dir.RunDir` has its directory alone.

    Raises :class:`BenchError` where the file system has no locks.
    """
    from filelock import FileLock, Timeout

    # Without the fallback: a soft lock would outlive an owner on another machine.
    lock = FileLock(path, mode=0o600, poll_interval=0.1, fallback_to_soft=False)
    with writing(path.parent):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        try:
            lock.acquire(timeout=0.5)
        except Timeout:
            waiting()
            lock.acquire()
    except OSError as error:
        raise (
            without_locks(path.parent, error) if error.errno in NO_LOCKS else explain_os_error(error, path)
        ) from error
    try:
        yield
    finally:
        lock.release()


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
        state = json.loads(text)
        return Owner(
            str(state["machine"]), int(state["pid"]), state["start"], int(state["beat"]),
            {str(launch): int(count) for launch, count in state["attempts"].items()},
            float(state["seconds"]), dict(state["about"]), held,
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
