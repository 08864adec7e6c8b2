"""The private cache of artefacts that cells share: teachers, votes on a block of queries, baseline classifiers.

An artefact is a set of named arrays in one safetensors file, keyed by the hash of its dependencies. Writes are atomic;
reads verify a content digest, set damaged files aside and rebuild them. No pickle. The folder has mode 0700.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bench.core.errors import BenchError
from bench.core.lazy_libraries import torch
from bench.core.processes import processor
from bench.storage.files import identity, write_atomic, writing
from bench.storage.locks import holding
from bench.storage.scratch import near

Arrays = dict[str, "NDArray[Any]"]


def canonical_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys and no spaces, identical on every machine."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=str)


def digest_of(value: Any) -> str:
    """Return the first 20 hex digits of the SHA-256 of `value` as canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:20]


class Charged(Protocol):
    """The part of a ledger that a cache reads."""

    @property
    def events(self) -> tuple[object, ...]:
        """The events charged so far."""


class Cache:
    """Artefacts below `root`, or in memory (None); every key includes `base`: the data set, its revision and split."""

    def __init__(self, root: Path | None, base: Mapping[str, Any], say: Callable[[str], None] | None = None) -> None:
        self.root = root
        self.base = dict(base)
        self.made: list[str] = []  # names of the cache misses
        self.found: list[str] = []  # names of the cache hits
        self.elsewhere = 0  # artefacts read that another processor or torch wrote, which may round differently
        self.waited = 0.0  # seconds spent waiting for other processes
        self.parent: Cache | None = None  # the unvaried data set's cache; see child()
        self._say = say
        self._ledger: Charged | None = None  # see refuse_answers()
        self._memory: dict[str, Arrays] = {}
        self._said: set[str] = set()

    def get(self, kind: str, depends: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """Return the artefact of this `kind` for `depends`; call `make` on a cache miss.

        `depends` must hold all dependencies besides the data set, as JSON values not computed from private records.
        Raises :class:`BenchError` if `make` asks the ledger; see :meth:`refuse_answers`.
        """
        found = self.find(kind, depends)
        if found is not None:
            return found
        with self.making(kind, depends):
            found = self.find(kind, depends)  # made by another process in the meantime?
            if found is not None:
                return found
            before = self._ledger and self._ledger.events
            arrays = make()
            if self._ledger and self._ledger.events != before:
                raise BenchError(
                    f"the artefact {kind!r} asks the ledger while it is made: a run that finds it in the cache would "
                    "learn from answers that it does not pay for. Ask the ledger outside of cache.get."
                )
            self.put(kind, depends, arrays)
            return arrays

    def refuse_answers(self, ledger: Charged) -> None:
        """Refuse artefacts that ask `ledger` while they are made."""
        self._ledger = ledger

    @contextmanager
    def making(self, kind: str, depends: Mapping[str, Any]) -> Iterator[None]:
        """Lock an artefact, so that one process makes it; waiting processes must look it up again."""
        if self.root is None:
            yield
            return

        def waiting() -> None:
            self.say(f"waiting for the {kind} that another process is making")

        begin = time.monotonic()
        with holding(self.root / "locks" / self._name(kind, depends), waiting):
            self.waited += time.monotonic() - begin
            yield

    def put(self, kind: str, depends: Mapping[str, Any], arrays: Arrays) -> None:
        """Store `arrays` as the artefact that :meth:`get` returns, replacing any earlier one."""
        name = self._name(kind, depends)
        self.made.append(name)
        self._write(name, arrays)

    def find(self, kind: str, depends: Mapping[str, Any]) -> Arrays | None:
        """Return the artefact, None on a cache miss."""
        name = self._name(kind, depends)
        arrays = self._read(name, nearby=True)
        if arrays is not None:
            self.found.append(name)
        return arrays

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the cache misses and hits of each kind."""
        made, found = (Counter(name.rpartition("-")[0] for name in names) for names in (self.made, self.found))
        return {kind: (made[kind], found[kind]) for kind in sorted(made | found)}

    def recall(self, kind: str, depends: Mapping[str, Any]) -> Arrays | None:
        """Return the state stored by :meth:`keep`, or None; not counted as a hit."""
        return self._read(self._name(kind, depends), "its work is repeated")

    def keep(self, kind: str, depends: Mapping[str, Any], arrays: Arrays) -> None:
        """Store the state of an unfinished stage; not counted as a miss."""
        self._write(self._name(kind, depends), arrays)

    def forget(self, kind: str, depends: Mapping[str, Any]) -> None:
        """Delete the state stored by :meth:`keep`, if any."""
        name = self._name(kind, depends)
        self._memory.pop(name, None)
        if self.root is not None:
            with writing(self._path(name)):
                self._path(name).unlink(missing_ok=True)

    def say(self, text: str, *, once: str = "") -> None:
        """Print a permanent line; lines with the same non-empty `once` print once."""
        if once in self._said:
            return
        if once:
            self._said.add(once)
        if self._say is not None:
            self._say(text)

    def child(self, **variation: Any) -> Cache:
        """Return a cache for a variation of the data set, with its own artefacts and this one as `parent`."""
        made = Cache(self.root, {**self.base, **variation}, self._say)
        made.parent, made._ledger = self, self._ledger
        return made

    def silent(self) -> Cache:
        """Return a picklable cache over the same artefacts, without output."""
        return Cache(self.root, self.base)

    def _name(self, kind: str, depends: Mapping[str, Any]) -> str:
        return f"{kind}-{digest_of({'kind': kind, 'base': self.base, 'depends': dict(depends)})}"

    def _path(self, name: str) -> Path:
        assert self.root is not None
        return self.root / f"{name}.safetensors"

    def _read(self, name: str, after: str = "it is made again", *, nearby: bool = False) -> Arrays | None:
        if self.root is None:
            return self._memory.get(name)
        path = self._path(name)
        before = identity(path)
        if before is None:
            return None

        try:
            with safe_open(near(path, str(before)) if nearby else path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays: Arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
            damage = "" if metadata.get("digest") == _content_digest(arrays) else "its digest differs"
            self.elsewhere += not damage and metadata.get("made_on") != _machine()
        except (SafetensorError, OSError, ValueError) as error:
            damage = str(error)
        if damage and nearby:  # perhaps only the copy is damaged
            return self._read(name, after)
        if damage:
            if identity(path) != before:  # replaced or set aside by another process
                return self._read(name)
            with writing(path), suppress(FileNotFoundError):
                os.replace(path, path.with_suffix(".damaged"))
            self.say(f"{path.name} is damaged ({damage}); it is set aside, and {after}")
            return None
        return arrays

    def _write(self, name: str, arrays: Arrays) -> None:
        if self.root is None:
            self._memory[name] = arrays
            return

        # np.ascontiguousarray would turn a scalar into a row.
        contiguous = {key: np.asarray(value, order="C") for key, value in arrays.items()}
        data = save(contiguous, metadata={"digest": _content_digest(contiguous), "made_on": _machine()})
        write_atomic(self._path(name), data, mode=0o600)


def _machine() -> str:
    return f"{processor()}, torch {torch.__version__}"


def _content_digest(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
