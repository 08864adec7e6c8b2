"""What a method accesses outside its arguments while it runs: files, processes, the network, its callers.

Python reports each by an audit event (PEP 578). An event counts as the method's if, on the call stack, the method's
code is nearer to it than this package and the import machinery. So data sets and weights that this package reads for a
method are allowed, and so is importing a module; a labelled file that an installed library reads for the method is not.
Libraries that read files outside Python raise no event.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

from bench.data.spec import LOADED
from bench.evaluation.check.fingerprint import LIBRARIES, PLUGINS

STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
REACHES = ("socket.connect", "socket.sendto", "socket.bind", "sqlite3.connect", "urllib.Request")
LOOKS = {
    "sys._getframe": "reads the frames of its callers",
    "sys._current_frames": "reads the frames of all threads",
    "sys.settrace": "traces what is called",
    "sys.setprofile": "traces what is called",
    "gc.get_objects": "searches all objects of its process",
    "gc.get_referrers": "searches all objects of its process",
    "gc.get_referents": "searches all objects of its process",
}
"""Events that honest libraries also raise, so that only the method's own calls count."""
MACHINERY = ("importlib.", "_frozen_importlib", "traceback", "warnings")
"""Code that opens files unasked: to import modules, or to show source lines in a message."""
LINKS = ("os.rename", "os.link", "os.symlink")


class Watch:
    """The events of one method, whose code is in `module` and in the same package, on private data of `dataset`."""

    def __init__(self, module: str, dataset: str) -> None:
        self.found = ""
        """The first thing that the method accessed outside, empty if none."""
        self._top, self._dataset = module.partition(".")[0], dataset
        self._written: set[str] = set()
        self._here = threading.local()  # whether this thread is in `note`, which reads paths itself

    def note(self, event: str, arguments: tuple[object, ...]) -> None:
        """Handle one audit event."""
        if self.found or getattr(self._here, "busy", False):
            return
        self._here.busy = True
        try:
            if event == LOADED and arguments == (self._dataset,):
                self.found = f"its code loads {self._dataset}, the data set of which the private records are a part"
            elif event == "open":
                self._opened(arguments[0], int(str(arguments[2])))
            elif event in LINKS:
                self._moved(*arguments[:2])
            elif event in LOOKS and self._is_its_own(directly=True):
                self.found = f"its code {LOOKS[event]}"
            elif event in STARTS and self._is_its_own():
                self.found = f"its code starts another process ({event})"
            elif event in REACHES and self._is_its_own():
                self.found = f"its code reaches outside its process ({event} {arguments[1:2]})"
        finally:
            self._here.busy = False

    def _opened(self, path: object, flags: int) -> None:
        if isinstance(path, int):  # a descriptor, whose path was opened before
            return
        name = _full(path)
        if flags & (os.O_TRUNC | os.O_EXCL):  # new or truncated: what is read from it later is the method's own
            self._written.add(name)
            return
        writes = flags & (os.O_WRONLY | os.O_RDWR) == os.O_WRONLY
        if not (writes or name in self._written or name == os.devnull) and self._is_its_own():
            self.found = f"its code opens the file {Path(name).name} (in {Path(name).parent})"

    def _moved(self, source: object, target: object) -> None:
        if _full(source) in self._written:
            self._written.add(_full(target))
        else:
            self._written.discard(_full(target))

    def _is_its_own(self, *, directly: bool = False) -> bool:
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None:
            module, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
            if module.startswith(PLUGINS) or module.partition(".")[0] == self._top != "bench":
                return True
            if module.startswith(("bench.", *MACHINERY)):
                if module != __name__:
                    return False
            elif not file.startswith(("<", *LIBRARIES)):
                return True  # the method's own file beside its module
            elif directly and module != "inspect":
                return False
            frame = frame.f_back
        return True  # a thread that only runs a library's function


def _full(path: object) -> str:
    return os.path.realpath(path.decode(errors="replace") if isinstance(path, bytes) else str(path))


_WATCHES: list[Watch] = []  # active ones
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
