"""Calibrations that took long, kept beside a run's artefacts: the same plan is then made at once the next time.

A calibration is a function of a method's settings, a budget, what is public about the data, and the program. All of it
is in an entry's name, the program by its text and by the versions of what it computes with.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.core.config import as_dict, config_from
from bench.core.errors import BenchError
from bench.core.types import Budget, Facts
from bench.interface.method import Method
from bench.storage.cache import canonical_json
from bench.storage.files import write_atomic

SLOW = 0.3
"""Seconds from which a calibration is worth a file, with all others of its method: the first pays for imports."""
_PACKAGES = ("dp-accounting", "opacus", "numpy", "scipy", "torch", "timm")


class Calibrations:
    """Calibrated configs by what they follow from. `root` is the folder of a run's artefacts, None for none."""

    def __init__(self, root: Path | None = None) -> None:
        self._folder = None if root is None else root / "calibrations"
        self._new: dict[str, dict[str, dict[str, Any]]] = {}
        self._slow: set[str] = set()

    def calibrate(self, method: type[Method], config: Any, budget: Budget, facts: Facts) -> Any:
        """Return ``method.calibrate(config, budget, facts)``; a refusal is never kept."""
        # What a file of weights is may change under its name.
        if str(getattr(config, "weights", "")).startswith("file:"):
            return method.calibrate(config, budget, facts)
        name = _name(method, config, budget, facts)
        known = self._known(method, name)
        if known is not None:
            return known
        begin = time.monotonic()
        made = method.calibrate(config, budget, facts)
        if time.monotonic() - begin >= SLOW:
            self._slow.add(method.name)
        self._new.setdefault(method.name, {})[name] = as_dict(made)
        return made

    def keep(self) -> None:
        """Write down what was slow; the folder of artefacts must be there by now."""
        if self._folder is None:
            return
        for method in self._slow:
            for name, values in self._new[method].items():
                write_atomic(self._folder / f"{name}.json", json.dumps(values).encode(), mode=0o600)
        self._new.clear()

    def _known(self, method: type[Method], name: str) -> Any | None:
        made = self._new.get(method.name, {}).get(name)
        return self._read(method, name) if made is None else config_from(method, made)

    def _read(self, method: type[Method], name: str) -> Any | None:
        if self._folder is None:
            return None
        try:
            return config_from(method, json.loads((self._folder / f"{name}.json").read_text()))
        except (OSError, ValueError, TypeError, BenchError):  # not there, or damaged: it is computed
            return None


def _name(method: type[Method], config: Any, budget: Budget, facts: Facts) -> str:
    meaning = {
        "method": method.name,
        "version": method.version,
        "config": as_dict(config),
        "budget": [budget.epsilon, budget.delta, budget.basis.value],
        "facts": asdict(facts),
        "program": _program(inspect.getsourcefile(method) or ""),
    }
    return hashlib.sha256(canonical_json(meaning).encode()).hexdigest()[:24]


@functools.cache
def _program(source: str) -> str:
    """Return the digest of all that a calibration may go through: this program, the methods, files beside a plug-in."""
    here = Path(__file__).resolve().parent.parent
    files = {*here.rglob("*.py"), *(here.parent / "methods").glob("*.py"), *Path(source).parent.glob("*.py")}
    digest = hashlib.sha256(" ".join(version(name) for name in _PACKAGES).encode())
    for path in sorted(files):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()
