"""Artefacts that several cells share: a chunk of teachers, its votes on a block of queries, a baseline classifier.

An artefact is a set of named arrays in one safetensors file, keyed by the hash of what it depends on. It is written
aside and renamed, carries a digest of its content, and is verified when it is read: a damaged one is set aside and
made anew. Nothing is ever unpickled. Artefacts are private: they stay in the run directory's ``cache`` folder, which
only its owner may enter.
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
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.storage.files import write_atomic, writing
from bench.storage.locks import holding

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]


def canonical_json(value: Any) -> str:
    """Return `value` as JSON with sorted keys and no spaces, the same for equal values on every machine."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=str)


def digest_of(value: Any) -> str:
    """Return the first 20 hex digits of the SHA-256 of `value` as canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:20]


class Cache:
    """Artefacts below `root`; with `root` None they live in memory, for tests and for checks.

    `base` goes into every key: the data set, its revision and its split, which no stage should have to repeat.
    """

    def __init__(self, root: Path | None, base: Mapping[str, Any], say: Callable[[str], None] | None = None) -> None:
        self.root = root
        self.base = dict(base)
        self.made: list[str] = []
        """Names of the artefacts that were made, not found, since this object exists."""
        self.found: list[str] = []
        """Names of the artefacts that were found."""
        self.waited = 0.0
        """Seconds that this process waited while others made artefacts."""
        self.parent: Cache | None = None
        """The cache of the data set that this one's is a variation of; see :meth:`child`."""
        self._say = say
        self._memory: dict[str, Arrays] = {}
        self._said: set[str] = set()

    def get(self, kind: str, depends: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """Return the arrays of the artefact of this `kind` that `depends` names, making them where they are absent.

        `depends` must name everything that the arrays depend on besides the data set, as JSON values; nothing in it
        may be computed from private records.
        """
        found = self.find(kind, depends)
        if found is not None:
            return found
        with self.making(kind, depends):
            found = self.find(kind, depends)  # another process may have made it while this one waited
            if found is not None:
                return found
            arrays = make()
            self.put(kind, depends, arrays)
            return arrays

    @contextmanager
    def making(self, kind: str, depends: Mapping[str, Any]) -> Iterator[None]:
        """Be the one process that makes an artefact; wait while another does, and look for it again then."""
        if self.root is None:
            yield
            return

        def waiting() -> None:
            self.say(f"waiting for the {kind} that another process makes")

        begin = time.monotonic()
        with holding(self.root / "locks" / self._name(kind, depends), waiting):
            self.waited += time.monotonic() - begin
            yield

    def put(self, kind: str, depends: Mapping[str, Any], arrays: Arrays) -> None:
        """Store `arrays` under the name that :meth:`get` gives them, in place of what is there."""
        name = self._name(kind, depends)
        self.made.append(name)
        self._write(name, arrays)

    def find(self, kind: str, depends: Mapping[str, Any]) -> Arrays | None:
        """Return the artefact that :meth:`get` would return, None where it has not been made."""
        name = self._name(kind, depends)
        arrays = self._read(name)
        if arrays is not None:
            self.found.append(name)
        return arrays

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return, for each kind of artefact, how many were made and how many were found."""
        made, found = (Counter(name.rpartition("-")[0] for name in names) for names in (self.made, self.found))
        return {kind: (made[kind], found[kind]) for kind in sorted(made | found)}

    def recall(self, kind: str, depends: Mapping[str, Any]) -> Arrays | None:
        """Return what :meth:`keep` stored, None where there is nothing; it is not counted as an artefact."""
        return self._read(self._name(kind, depends), "what it held is done again")

    def keep(self, kind: str, depends: Mapping[str, Any], arrays: Arrays) -> None:
        """Store the state of a stage that is not done, as :meth:`put` does, without counting it as an artefact."""
        self._write(self._name(kind, depends), arrays)

    def forget(self, kind: str, depends: Mapping[str, Any]) -> None:
        """Delete what :meth:`keep` stored; nothing happens where there is nothing."""
        name = self._name(kind, depends)
        self._memory.pop(name, None)
        if self.root is not None:
            with writing(self._path(name)):
                self._path(name).unlink(missing_ok=True)

    def say(self, text: str, *, once: str = "") -> None:
        """Print a line that stays; with `once` only the first time that this word is given."""
        if once in self._said:
            return
        if once:
            self._said.add(once)
        if self._say is not None:
            self._say(text)

    def child(self, **variation: Any) -> Cache:
        """Return a cache for a variation of the data set: its artefacts are others, this one's can be looked up."""
        made = Cache(self.root, {**self.base, **variation}, self._say)
        made.parent = self
        return made

    def silent(self) -> Cache:
        """Return a cache over the same artefacts that says nothing, and so can be handed to another process."""
        return Cache(self.root, self.base)

    def _name(self, kind: str, depends: Mapping[str, Any]) -> str:
        return f"{kind}-{digest_of({'kind': kind, 'base': self.base, 'depends': dict(depends)})}"

    def _path(self, name: str) -> Path:
        assert self.root is not None
        return self.root / f"{name}.safetensors"

    def _read(self, name: str, after: str = "it is made anew") -> Arrays | None:
        if self.root is None:
            return self._memory.get(name)
        path = self._path(name)
        before = _identity(path)
        if before is None:
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                arrays: Arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
            damage = "" if metadata.get("digest") == _content_digest(arrays) else "its digest differs"
        except (SafetensorError, OSError, ValueError) as error:
            damage = str(error)
        if damage:
            if _identity(path) != before:  # another process has set it aside, and perhaps made it anew
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
        from safetensors.numpy import save

        # Not np.ascontiguousarray, which makes a row of a single number.
        contiguous = {key: np.asarray(value, order="C") for key, value in arrays.items()}
        data = save(contiguous, metadata={"digest": _content_digest(contiguous)})
        write_atomic(self._path(name), data, mode=0o600)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from one that takes its place; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _content_digest(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key}|{array.dtype.str}|{array.shape}|".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
