"""Confinement of a process to the files and environment variables that a repeatable run needs.

On Linux the kernel enforces it (Landlock, 5.13 or later), also for libraries that read files outside Python. On other
systems only the variables are removed. Neither the process nor its children can undo it. To confine a command:

    python -m bench.core.confinement READABLE[:READABLE...] WRITABLE[:WRITABLE...] COMMAND ...
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_OF_USER = "HOME LANG LC_ALL LC_CTYPE LOGNAME PATH SYSTEMROOT TERM TMPDIR TZ USER"
_OF_PYTHON = "COLUMNS LD_LIBRARY_PATH NO_COLOR PYTHONPATH PYTHONSAFEPATH VIRTUAL_ENV"
_OF_PROCESSORS = "CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES MKL_CBWR MKL_NUM_THREADS OMP_NUM_THREADS OPENBLAS_NUM_THREADS"
_OF_DATA = "BENCH_DATA HF_ENDPOINT HF_HOME HF_HUB_CACHE HF_HUB_OFFLINE TORCH_HOME XDG_CACHE_HOME"
_OF_CLIENTS = (  # which fetch data sets and weights
    "HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy PIP_CONFIG_FILE PIP_INDEX_URL NPM_CONFIG_REGISTRY "
    "npm_config_registry CURL_CA_BUNDLE NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE SSL_CERT_DIR SSL_CERT_FILE"
)
KEPT = frozenset(" ".join((_OF_USER, _OF_PYTHON, _OF_PROCESSORS, _OF_DATA, _OF_CLIENTS)).split())
"""Environment variables that a confined process keeps."""
LONGEST = 4096  # characters of a kept variable; longer ones could hold data
SYSTEM = ("/bin", "/etc", "/lib", "/lib64", "/proc", "/run/systemd/resolve", "/sbin", "/sys", "/usr")
CLIENTS = ("~/.config/pip", "~/.pip", "~/.npmrc", "~/.netrc")  # settings of the clients
SHARED = "shm"  # in /dev: memory shared with other processes

# Numbers of the kernel's interface (linux/landlock.h); the system calls have the same ones on all processors but Alpha.
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH = 1, 1
_NO_NEW_PRIVILEGES = 38
_WRITE, _READ, _TRUNCATE = 1 << 1, 1 << 2, 1 << 14
_OF_FILES = _WRITE | _READ | _TRUNCATE
_CHANGES = sum(1 << bit for bit in (1, *range(4, 13)))  # writing, removing and making files; listing stays free
_SINCE = {2: 1 << 13, 3: _TRUNCATE}  # rights that later versions of the interface added


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled", ctypes.c_uint64),)


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def confine(readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Let this thread, and what it starts later, read only below `readable` and write only below `writable`.

    Python, the installed packages and the system's folders stay readable, and `writable` too. Where the kernel cannot
    do it (:func:`is_confinable`), only the environment changes. Call this before other threads start: they are not
    confined. Raise OSError if the kernel refuses.
    """
    for name, value in os.environ.items():
        if name not in KEPT or len(value) > LONGEST:
            del os.environ[name]
    if not is_confinable():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE, None, 0, _VERSION)
    handled = _READ | _CHANGES | sum(right for since, right in _SINCE.items() if version >= since)
    ruleset = libc.syscall(_CREATE, ctypes.byref(_Ruleset(handled)), ctypes.sizeof(_Ruleset), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock makes no ruleset")
    try:
        devices = [entry.path for entry in os.scandir("/dev") if entry.name != SHARED]
        allowed = dict.fromkeys(map(str, (*programs(), *readable)), _READ) | dict.fromkeys(devices, _READ | _WRITE)
        allowed |= dict.fromkeys(map(str, writable), handled)
        for path, rights in allowed.items():
            _allow(libc, ruleset, path, rights & handled)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if libc.syscall(_RESTRICT, ruleset, 0):
            raise OSError(ctypes.get_errno(), "Landlock does not confine this process")
    finally:
        os.close(ruleset)


def is_confinable() -> bool:
    """Return whether the kernel can confine a process."""
    return sys.platform.startswith("linux") and int(ctypes.CDLL(None).syscall(_CREATE, None, 0, _VERSION)) >= 1


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    """Allow `rights` below `path`, if it exists."""
    with suppress(OSError):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rights = rights if os.path.isdir(path) else rights & _OF_FILES
            rule = _Beneath(rights, place)
            libc.syscall(_ADD, ruleset, _BENEATH, ctypes.byref(rule), 0)
        finally:
            os.close(place)


def programs() -> Iterable[Path]:
    """Yield the folders of the system, of Python, of packages and of this one, which need not exist."""
    yield from map(Path, (*SYSTEM, *map(os.path.expanduser, CLIENTS), sys.prefix, sys.base_prefix, sys.exec_prefix))
    if sys.pycache_prefix is not None:
        yield Path(sys.pycache_prefix)
    yield from (Path(path) for path in sys.path if path and any(Path(path).glob("*.dist-info")))
    ours = Path(__file__).resolve().parents[1]
    # Versions of packages that are installed in place, such as this one in its repository.
    yield from (place for path in sys.path if path for place in Path(path).glob("*.egg-info"))
    yield from (place.resolve() for place in (ours, ours / "methods", ours / "attacks", ours / "reports"))


def words_confined(readable: Iterable[Path], writable: Iterable[Path], words: Iterable[str]) -> list[str]:
    """Return the command that runs `words` confined."""
    sides = (os.pathsep.join(map(str, side)) for side in (readable, writable))
    return [sys.executable, "-m", __name__, *sides, *words]


if __name__ == "__main__":
    given, rest = sys.argv[1:3], sys.argv[3:]
    confine(*(map(Path, filter(None, side.split(os.pathsep))) for side in given))
    os.execvp(rest[0], rest)
