"""File locks of a run directory that several processes or machines share.

:func:`holding` (filelock) prevents duplicate work on artefacts and secrets. :func:`take` claims cells: the system frees
a claim when its owner dies, and the claim's file counts dead owners. On a network disk with machine-local locks,
another machine takes over a claim when its ``beat`` has stalled, as measured by that machine's monotonic clock; clocks
of different machines are never compared. filelock's SoftFileLease is similar, but also waits for a dead owner on the
same machine.
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

from filelock import FileLock, Timeout

from bench.core.errors import BenchError
from bench.core.processes import peak_memory_mib
from bench.core.rows import json_object
from bench.storage.files import explain_os_error, writing
from bench.storage.interrupts import unstopped

BEAT_SECONDS = 10.0  # interval of beats
PATIENCE_SECONDS = 45.0
"""Seconds of silence after which an owner on another machine, whose lock is invisible here, counts as dead."""
_LENGTH = 2048
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@functools.cache
def this_machine() -> str:
    """Return a name for this machine and boot, because no process of an earlier boot can be alive."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def process_start(pid: int) -> str | None:
    """Return the start time of process `pid` in system units (unique together with the pid), or None if it is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # Field 3 is the state; zombie and dead processes do no work.
    return None if fields[0] in "ZX" else fields[19]


def alive(pid: int, start: str | None) -> bool:
    """Return whether process `pid`, started at `start`, is alive on this machine."""
    if os.path.isdir("/proc/self"):
        return start is not None and process_start(pid) == start
    try:  # without /proc, only the pid is known
        os.kill(pid, 0)
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds a claim, or died with it (`held` is False); `about` describes its work."""

    machine: str
    pid: int
    start: str | None
    beat: int
    attempts: Mapping[str, int]
    """For each launch: the number of its processes that took the claim without releasing it, including this one."""
    seconds: float  # seconds from taking the claim to the last beat, on the owner's clock
    about: Mapping[str, Any]
    held: bool
    memory: float | None = None  # the owner's peak memory in MiB, at its last beat

    @property
    def attempt(self) -> int:
        """Attempt number within the launch, from 1."""
        return self.attempts.get(str(self.about.get("launch", "")), 1)

    @property
    def where(self) -> str:
        """Return the machine and process as text."""
        return f"{self.machine.partition('/')[0]}, process {self.pid}"

    @property
    def here(self) -> bool:
        """Whether the owner is on this machine."""
        return self.machine == this_machine()


@dataclass(slots=True, eq=False)
class Held:
    """A claim of this process; `attempts` counts owners that died with it, plus this one, by launch."""

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
        """Attempt number within the launch, from 1."""
        return self.attempts[str(self.about.get("launch", ""))]

    def tell(self, **about: Any) -> None:
        """Update the description of the work, effective at the next beat."""
        self.about.update(about)

    def beat(self) -> None:
        """Write a heartbeat; ignore a full disk, because the system keeps the lock."""
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
                "memory": peak_memory_mib(),
            }
            text = json.dumps({**state, "about": self.about}, ensure_ascii=False).encode()
            if len(text) > _LENGTH:  # keep the launch, which is needed to count attempts
                short = {name: value for name, value in self.about.items() if name in ("launch", "job")}
                text = json.dumps({**state, "about": short}).encode()
            # A single write of fixed length: a reader sees the old, the new, or unreadable text.
            with contextlib.suppress(OSError):
                os.pwrite(self.descriptor, text.ljust(_LENGTH), 0)
                os.fsync(self.descriptor)  # a network disk might otherwise delay it beyond PATIENCE_SECONDS

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
                # Remove it under the lock, so that a process with the old file open notices the new one at this path.
                self.path.unlink()
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        with unstopped():
            self.release()


_seen: dict[Path, tuple[tuple[str, int, int], float]] = {}
"""For each path: the last heartbeat from another machine, and the monotonic time at which it appeared."""


def take(path: Path, **about: Any) -> Held | None:
    """Take the claim at `path`, in an existing folder; None if another process holds it. `about` names the `launch`.

    Raise :class:`BenchError` on a file system without locks.
    """
    for _ in range(100):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise BenchError(f"{path} cannot be locked: {error.strerror}.") from error
        try:
            if not _flocked(descriptor, path):
                break
            if not _same_file(descriptor, path):  # removed by its owner in the meantime
                continue
            before = _parse(_content(descriptor), held=False)
            if before is not None and not before.here and not _silent(path, before):
                break
            _seen.pop(path, None)
            launch, attempts = str(about.get("launch", "")), {} if before is None else dict(before.attempts)
            attempts[launch] = attempts.get(launch, 0) + 1
            held = Held(path, descriptor, attempts, dict(about))
            descriptor = -1
            return held
        finally:
            if descriptor >= 0:
                os.close(descriptor)
    return None


def look(path: Path) -> Owner | None:
    """Return the owner of the claim at `path`, or None; a dead owner has `held` False."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
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
    """Hold the lock at `path`; call `waiting` once if another process holds it. RunDir cleans up the file.

    Raise :class:`BenchError` on a file system without locks.
    """
    # Do not fall back to a soft lock, which would outlive an owner on another machine.
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
                time.sleep(0.01)  # look() holds it briefly
    return False


def without_locks(folder: Path, error: OSError) -> BenchError:
    """Return a user error for `error`, raised while locking a file in `folder`."""
    return BenchError(
        f"{folder} is on a file system without locks ({error.strerror}), where two processes could train the same "
        "cell. Choose another directory with --out; Lustre has locks when it is mounted with -o flock."
    )


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _content(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, 4096, 0)
    except OSError:
        return b""


def _parse(text: bytes, held: bool) -> Owner | None:
    try:
        state = json_object(text)
        return Owner(
            str(state["machine"]), int(state["pid"]), state["start"], int(state["beat"]),
            {str(launch): int(count) for launch, count in state["attempts"].items()},
            float(state["seconds"]), dict(state["about"]), held, state.get("memory"),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        # The content is missing or foreign, but the lock still counts as held.
        return Owner("unknown", 0, None, 0, {}, 0.0, {}, held) if held else None


def _silent(path: Path, owner: Owner) -> bool:
    """Return whether `owner`, on another machine, has been silent for PATIENCE_SECONDS."""
    sign, now = (owner.machine, owner.pid, owner.beat), time.monotonic()
    known = _seen.get(path)
    if known is None or known[0] != sign:
        _seen[path] = (sign, now)
        return False
    return now - known[1] >= PATIENCE_SECONDS
