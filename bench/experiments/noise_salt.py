"""The secret salt of a cell's noise: drawn for each run, part of no key, and not passed to methods.

RUN_DIR/noise/KEY (mode 0600, in a folder of mode 0700) holds it until the cell's record is written, so that a killed
run resumes with its noise. It is not in the cache, whose path methods know; the same user's processes can read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from bench.core.config import NoiseKind
from bench.core.errors import BenchError
from bench.core.plain_files import read_plain
from bench.core.seeds import new_salt, salted_digest
from bench.interface.registry import METHODS
from bench.privacy.mechanisms.noise import Noise, SecureNoise, salted_noise
from bench.results.record import SALT
from bench.storage.files import write_atomic, writing
from bench.storage.locks import holding

if TYPE_CHECKING:
    from pathlib import Path

    from bench.experiments.plan import Cell
    from bench.results.record import Record
    from bench.results.run_dir import RunDir

RANDOM, NONE = "random", "none"


def check_salt(given: str, cell: Cell) -> None:
    """Raise :class:`BenchError` unless `cell` may run with the ``--noise-salt`` `given`."""
    if given not in (RANDOM, NONE) and not re.fullmatch(SALT, given):
        raise BenchError(f"--noise-salt takes {RANDOM}, {NONE} or the 64 hex digits of a record, not {given!r}.")
    if given != RANDOM and not cell.facts.disclosure.noise_salt:
        raise BenchError(
            f"--noise-salt {given} would reveal the noise on {cell.facts.dataset}, which is not a public "
            "benchmark. Leave the option out: each run then draws its own salt."
        )
    if given != RANDOM and cell.noise is NoiseKind.SECURE:
        raise BenchError("--noise secure has no salt: its noise cannot be drawn again. Leave --noise-salt out.")


def check_repeats(given: str, kept: Collection[str], records: Iterable[Record], out: Path) -> None:
    """Raise :class:`BenchError` if one of `records`, with a key in `kept`, has noise but not of the salt `given`."""
    for record in records:
        if record.key in kept and record.noise_salt not in (None, given):
            raise BenchError(
                f"{record.key} is done in {out} with other noise, so --noise-salt {given} would not be used. Give "
                "another --out, or replace the record by --reuse none."
            )


def salt_of(cell: Cell, run_dir: RunDir, given: str = RANDOM) -> str | None:
    """Return the salt of `cell`: an unfinished run's, a new one, or the `given` one; None without a salt.

    A method without privacy has no salt. Raises :class:`BenchError` as :func:`check_salt` does.
    """
    check_salt(given, cell)
    if given == NONE or not METHODS.get(cell.method).private:
        return None
    if given != RANDOM:
        return given
    path = run_dir.noise_path / cell.key
    with holding(run_dir.cache_path / "locks" / cell.key):  # all processes must use the same salt
        found = None if _finished(run_dir, path) else _stored(path)
        if found is None:
            found = new_salt(), run_dir.signature(cell.key)
            with writing(path):
                path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomic(path, json.dumps(found).encode(), mode=0o600)
    return found[0]


def noise_of(cell: Cell, salt: str | None) -> Noise:
    """Return the noise source of `cell`."""
    return SecureNoise() if cell.noise is NoiseKind.SECURE else salted_noise(salt, cell.seed, cell.key)


def cell_token(cell: Cell, salt: str | None) -> str:
    """Return :attr:`bench.training.context.Context.cell`, which names checkpoints and reveals nothing."""
    return salted_digest(salt, "cell", cell.seed, cell.key).hex()


def forget_salt(run_dir: RunDir, key: str) -> None:
    """Delete the salt of the cell `key`, whose record is written."""
    path = run_dir.noise_path / key
    with writing(path):
        path.unlink(missing_ok=True)


def sweep_salts(run_dir: RunDir) -> None:
    """Delete salts that killed processes left behind although their cells now have records.

    A cell without such a record resumes with its salt. So does a cell recorded as lost because its processes died,
    since its checkpoints hold answers with that noise.
    """
    with writing(run_dir.path):
        if not run_dir.cache_path.is_symlink():  # a link by another user may lead anywhere
            for old in run_dir.cache_path.glob("*.noise"):  # earlier versions of the program kept salts here
                old.unlink(missing_ok=True)
        if not run_dir.noise_path.is_symlink():
            for path in run_dir.noise_path.glob("[!.]*"):
                if _finished(run_dir, path):
                    path.unlink(missing_ok=True)


def _finished(run_dir: RunDir, path: Path) -> bool:
    """Return whether the salt in `path` is no longer needed, because it is invalid or its cell has a record."""
    found, now = _stored(path), run_dir.signature(path.name)
    if found is None or now is None or now == found[1]:
        return found is None
    records, _ = run_dir.read_records_of([path.name], set_aside=False)
    return any(record.failure is None or record.failure.kind != "lost" for record in records)


def _stored(path: Path) -> tuple[str, tuple[int, int] | None] | None:
    """Return the salt in `path` and the signature of the record that preceded it; None without a valid salt."""
    try:
        salt, before = json.loads(read_plain(path))
        return str(salt), None if before is None else (int(before[0]), int(before[1]))
    except (FileNotFoundError, ValueError, TypeError, IndexError):
        return None
