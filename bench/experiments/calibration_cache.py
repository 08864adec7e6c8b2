"""Cache of slow calibrations, kept with a run's artefacts.

An entry's name hashes everything a calibration depends on: the method's settings, the budget, the public facts of the
data, the program's source and the versions of its packages.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.core.config import DataclassInstance, as_dict, config_from
from bench.core.errors import BenchError
from bench.core.plain_files import read_plain
from bench.core.rows import json_object
from bench.core.types import Budget, Facts
from bench.interface.method import Method
from bench.storage.cache import canonical_json
from bench.storage.files import write_atomic

SLOW = 0.3  # seconds; once one is this slow, store all of its method's: only the first one pays for imports
_MAKERS = ("training", "models", "data", "methods")  # folders whose code makes cached artefacts
_PACKAGES = ("dp-accounting", "opacus", "numpy", "scipy", "torch", "timm")


class Calibrations:
    """Cache of calibrated configs, in memory and in folders: it reads all `roots` and writes to the first, if any."""

    def __init__(self, *roots: Path) -> None:
        self._folders = [root / "calibrations" for root in roots]
        self._new: dict[str, dict[str, dict[str, Any]]] = {}
        self._slow: set[str] = set()

    def calibrate(self, method: type[Method], config: DataclassInstance, budget: Budget, facts: Facts) -> Any:
        """Return ``method(config, facts).calibrate_checked(budget)``; refusals are not cached."""
        # The content of a weights file may change while its name stays.
        if "file:" in (str(getattr(config, name, ""))[:5] for name in ("weights", "teacher_weights")):
            return method(config, facts).calibrate_checked(budget)
        name = _name(method, config, budget, facts)
        known = self._known(method, name)
        if known is not None:
            return known
        begin = time.monotonic()
        made = method(config, facts).calibrate_checked(budget)
        if time.monotonic() - begin >= SLOW:
            self._slow.add(method.name)
        self._new.setdefault(method.name, {})[name] = as_dict(made)
        return made

    def keep(self) -> None:
        """Write slow calibrations to disk. Raises :class:`BenchError` if that is impossible."""
        if not self._folders:
            return
        for method in self._slow:
            for name, values in self._new[method].items():
                write_atomic(self._folders[0] / f"{name}.json", json.dumps(values).encode(), mode=0o600)
        self._new.clear()

    def _known(self, method: type[Method], name: str) -> Any | None:
        if (made := self._new.get(method.name, {}).get(name)) is not None:
            return config_from(method, made)
        for folder in self._folders:
            # Absent or damaged: a cache miss.
            with contextlib.suppress(OSError, ValueError, TypeError, BenchError):
                return config_from(method, json_object(read_plain(folder / f"{name}.json")))
        return None


def _name(method: type[Method], config: DataclassInstance, budget: Budget, facts: Facts) -> str:
    meaning = {
        "method": method.name,
        "version": method.version,
        "config": as_dict(config),
        "budget": [budget.epsilon, budget.delta, budget.basis.value, budget.adjacency.value],
        "facts": asdict(facts),
        "program": program_digest(inspect.getsourcefile(method) or ""),
    }
    return hashlib.sha256(canonical_json(meaning).encode()).hexdigest()[:24]


@functools.cache
def program_digest(source: str) -> str:
    """Return the digest of all code that a calibration may run: this program, the methods, and a plug-in's folder."""
    here = Path(__file__).resolve().parent.parent
    # rglob does not follow the symbolic link to the methods in a checkout.
    return _code({*here.rglob("*.py"), *(here / "methods").resolve().rglob("*.py"), *Path(source).parent.glob("*.py")})


@functools.cache
def artefact_program() -> str:
    """Return the digest of the code that makes cached artefacts: training, models, data and methods."""
    here = Path(__file__).resolve().parent.parent
    return _code(path for part in _MAKERS for path in (here / part).resolve().rglob("*.py"))


def _code(files: Iterable[Path]) -> str:
    digest = hashlib.sha256(" ".join(version(name) for name in _PACKAGES).encode())
    for path in sorted(files):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()
