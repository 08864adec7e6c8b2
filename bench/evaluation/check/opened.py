"""Watches what a running method accesses besides its arguments: files, processes, the network, its callers.

Python reports each by an audit event (PEP 578). An event counts as the method's if, on the call stack, the method's
code is nearer to it than this package and the import machinery. So data sets and weights that this package reads for a
method are allowed, and so is importing a module; a labelled file that an installed library reads for the method is not.
Libraries that read files outside Python raise no event.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

from bench.core.confinement import programs
from bench.data.datasets import DATASETS
from bench.data.spec import LOADED
from bench.evaluation.check.fingerprint import LIBRARIES, PLUGINS
from bench.storage.array_store import data_places, data_root

FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")
READ_VARIABLE = "bench.environ"
"""The :func:`sys.audit` event of a variable that is read."""
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
FOLDERS = (
    "os.mkdir", "os.rename", "os.link", "os.symlink", "os.utime", "os.truncate", "os.chmod", "os.setxattr",
    "os.getxattr", "os.listxattr", "os.listdir", "os.scandir",
)  # fmt: skip
"""Events on a path whose name, size, time or attributes could carry information from one run to another."""
REACHES = ("socket.connect", "socket.sendto", "socket.bind", "sqlite3.connect", "urllib.Request")
_CTYPES = "dlopen", "dlsym", "dlsym/handle", "call_function", "cdata", "string_at", "PyObj_FromPtr"
_TRACES = "sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"
_SEARCHES = "gc.get_objects", "gc.get_referrers", "gc.get_referents"
LOOKS = {
    "sys._getframe": "reads the frames of its callers",
    "sys._current_frames": "reads the frames of all threads",
    **dict.fromkeys(_TRACES, "traces what is called"),
    **dict.fromkeys((f"ctypes.{name}" for name in _CTYPES), "reaches into its process by ctypes"),
    **dict.fromkeys(_SEARCHES, "searches all objects of its process"),
}
"""Events that honest libraries also raise, so that only the method's own calls count."""
MACHINERY = ("importlib.", "_frozen_importlib", "traceback", "warnings")
"""Code that opens files by itself: to import modules, or to show source lines in a message."""
LINKS = ("os.rename", "os.link", "os.symlink")
PASSED_ON = ("inspect", "ctypes", "os", "collections.abc")
"""Modules whose calls of this kind are attributed to their callers."""


class Watch:
    """The events of one method, whose code is in `module` and in the same package, on private data of `dataset`.

    It may write below `folder`; None: anywhere, because it is not training yet.
    """

    def __init__(self, module: str, dataset: str, folder: Path | None = None) -> None:
        self.found = ""
        """The first thing that the method accessed outside, empty if none."""
        self._top, self._dataset = module.partition(".")[0], dataset
        self._folder = None if folder is None else os.path.join(os.path.realpath(folder), "")
        self._readable = tuple(os.path.join(os.path.realpath(path), "") for path in (*programs(), *data_places()))
        self._written: set[str] = set()
        self._threads = set(sys._current_frames())
        self._here = threading.local()  # whether this thread is in `note`, which reads paths itself

    def note(self, event: str, arguments: tuple[object, ...]) -> None:
        """Handle one audit event."""
        if self.found or getattr(self._here, "busy", False):
            return
        self._here.busy = True
        try:
            if event == LOADED and self._is_private(str(arguments[0])):
                self.found = f"its code loads {arguments[0]}, the private data set or another with the same files"
            elif event == READ_VARIABLE and self._is_its_own(directly=True):
                self.found = f"its code reads the environment variable {arguments[0]}, which no record states"
            elif event == "open":
                self._opened(arguments[0], int(str(arguments[2])))
            elif event in FOLDERS and self._is_elsewhere(*arguments[: 1 + (event in LINKS)]):
                if self._is_its_own(through_bench=event in LINKS and not self._is_readable(arguments[0])):
                    self.found = f"its code lists or changes files outside its folder ({event} {arguments[0]})"
            elif event in LINKS:
                self._moved(*arguments[:2])
            elif event == "mmap.__new__" and _is_shared(arguments[0]) and self._is_its_own():
                self.found = "its code maps memory that other processes share"
            elif event == "object.__getattr__" and arguments[1] in FRAMES and self._is_its_own(directly=True):
                self.found = f"its code {LOOKS['sys._getframe']}"
            elif event in LOOKS and self._is_its_own(directly=True):
                self.found = f"its code {LOOKS[event]}"
            elif event in STARTS and self._is_its_own():
                self.found = f"its code starts another process ({event})"
            elif event in REACHES and self._is_its_own():
                self.found = f"its code reaches outside its process ({event} {arguments[1:2]})"
        finally:
            self._here.busy = False

    def _is_private(self, name: str) -> bool:
        """Return whether the data set `name` is that of the private records, or is read from the same files."""
        if name == self._dataset:
            return True
        bases = [one.partition(":")[0] for one in (name, self._dataset)]
        stores = [DATASETS[base].store for base in bases if base in DATASETS]
        return len(stores) == 2 and stores[0] == stores[1]

    def _opened(self, path: object, flags: int) -> None:
        if isinstance(path, int):  # a descriptor, whose path was checked when opened
            return
        name = _full(path)
        if flags & (os.O_TRUNC | os.O_EXCL):  # new or truncated, so its later content is the method's own
            self._written.add(name)
            if self._is_elsewhere(name) and self._is_its_own():
                self.found = f"its code writes the file {Path(name).name} (in {Path(name).parent})"
            return
        writes = flags & (os.O_WRONLY | os.O_RDWR) == os.O_WRONLY
        if writes or name in self._written or name == os.devnull:
            return
        if self._is_its_own():
            self.found = f"its code opens the file {Path(name).name} (in {Path(name).parent})"
        elif (
            self._is_elsewhere(name)
            and not self._is_readable(name)
            and os.path.isfile(name)  # false for a name relative to another folder, as rmtree opens them
            and self._is_its_own(through_bench=True)
        ):
            self.found = f"its code makes bench read the file {Path(name).name} (in {Path(name).parent})"

    def _is_readable(self, path: object) -> bool:
        name = _full(path)
        return os.path.join(name, "").startswith(self._readable) or name in module_files()

    def _is_elsewhere(self, *paths: object) -> bool:
        named = (path for path in paths if not isinstance(path, int))  # skip descriptors
        full = (os.path.join(_full("." if path is None else path), "") for path in named)
        return self._folder is not None and not all(path.startswith(self._folder) for path in full)

    def threads_ended(self, patience: float = 2.0) -> None:
        """Note a thread that runs after the training: it could change what was released."""
        begin, self._here.busy = time.monotonic(), True
        while set(sys._current_frames()) - self._threads and not self.found:
            if time.monotonic() - begin > patience:
                self.found = "its code leaves a thread running; join its threads and shut down its executors"
            time.sleep(0.01)
        self._here.busy = False

    def _moved(self, source: object, target: object) -> None:
        if _full(source) in self._written:
            self._written.add(_full(target))
        else:
            self._written.discard(_full(target))

    def _is_its_own(self, *, directly: bool = False, through_bench: bool = False) -> bool:
        """Return whether the method's code is nearest on the stack, or anywhere below bench `through_bench`."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None:
            module, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
            if module.startswith(PLUGINS) or module.partition(".")[0] == self._top != "bench":
                return True
            if module == __name__:
                pass
            elif module.startswith(MACHINERY):
                return False
            elif module.startswith("bench."):
                if not through_bench or module.startswith("bench.evaluation.check."):
                    return False
            elif not file.startswith(("<", *LIBRARIES)):
                return True  # a file of the method, next to its module
            elif directly and module not in PASSED_ON:
                return False
            frame = frame.f_back
        return not through_bench  # a thread that only runs a library's function


def module_files() -> set[str]:
    """Return the files of imported modules, outside installed packages: messages and digests read their lines."""
    named = (getattr(one, "__file__", None) for one in list(sys.modules.values()))
    return {os.path.realpath(file) for file in named if file and not file.startswith(LIBRARIES)}


def denied(error: Exception) -> str:
    """Return what the kernel denied to a confined method, or ""."""
    if isinstance(error, PermissionError):
        return f"its code may not reach {error.filename or error}"
    return f"its code may not reach a file: {error}" if "Permission denied" in str(error) else ""  # of a library


def _is_shared(descriptor: object) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/shm")
    except OSError:  # without a file, or on another system
        return False


def _full(path: object) -> str:
    return os.path.realpath(path.decode(errors="replace") if isinstance(path, bytes) else str(path))


_WATCHES: list[Watch] = []  # the active ones
_HOOKED: list[bool] = []


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    for watch in _WATCHES:
        watch.note(event, arguments)


@contextlib.contextmanager
def watched(watch: Watch) -> Iterator[Watch]:
    """Note what a method accesses in this block, in all threads."""
    if not _HOOKED:
        sys.addaudithook(_hook)  # cannot be removed before the process ends
        _HOOKED.append(True)
    _WATCHES.append(watch)
    try:
        yield watch
    finally:
        _WATCHES.remove(watch)


class _Environment(type(os.environ)):  # type: ignore[misc]
    """The environment, which reports the variables that are read."""

    def __getitem__(self, name: str) -> str:
        sys.audit(READ_VARIABLE, name)
        return super().__getitem__(name)  # type: ignore[no-any-return]


def watch_environment() -> None:
    """Report, by audit events, which variables this process reads from now on."""
    os.environ.__class__ = _Environment


CACHES = ("MPLCONFIGDIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME")
"""Variables that move the caches of libraries."""


@contextlib.contextmanager
def temporary_files_in(folder: Path) -> Iterator[None]:
    """Create temporary files, and the caches of libraries, in `folder` instead of folders that all runs share."""
    before, caches = tempfile.tempdir, {name: os.environ.get(name) for name in (*CACHES, "BENCH_DATA")}
    tempfile.tempdir = str(folder)
    os.environ["BENCH_DATA"] = str(data_root())  # otherwise it would move with the caches, and weights would be missing
    os.environ.update(dict.fromkeys(CACHES, str(folder)))
    try:
        yield
    finally:
        tempfile.tempdir = before
        for name, value in caches.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
