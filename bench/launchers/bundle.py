"""Bundles: one zip file with what a grid needs on machines without a network.

    bundle.json    the program's version, the grid, the keys of its cells, and every other file with its SHA-256
    data/          stored data sets and public weights, as below the data root
    methods/       the files of methods that were given by path
    wheels/        optional: this program and its dependencies

A user's own data and weights are not packed, and no bundle holds anything private.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, BinaryIO, Literal

from pydantic import Field

from bench.core.config import Grid
from bench.core.errors import BenchError
from bench.core.plain_files import open_plain
from bench.core.progress import Progress, Stage
from bench.core.rows import Row, json_object, validated
from bench.core.version import __version__
from bench.data.datasets import load
from bench.data.own_name import PREFIX
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.data_source import DataSource
from bench.experiments.plan import Cell, bound_method
from bench.launchers.grid import plan_grid
from bench.storage.array_store import data_root
from bench.storage.download import file_digest
from bench.storage.files import writing

PIECE = 1 << 20
LARGEST_LIST = 1 << 26
"""Maximum bytes of bundle.json, for some 400,000 files."""
FOLDERS = ("data", "methods", "wheels")
SAFE_NAME = re.compile(r"[^\x00-\x1f\x7f\\/]{1,200}")
DAMAGE = (KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, struct.error)
"""What zipfile raises for archives that are damaged, encrypted or use an unknown compression."""
WHEN = (1980, 1, 1, 0, 0, 0)  # equal files give an equal bundle


class Packed(Row):
    """A file of a bundle."""

    name: str
    size: int = Field(ge=0)
    sha256: str


class Bundle(Row):
    """The contents of a bundle, ``bundle.json``."""

    format: Literal[1] = 1
    program: str
    grid: Grid
    cells: tuple[str, ...]
    files: tuple[Packed, ...]


def pack(grid: Grid, target: Path, progress: Progress, *, wheels: bool = False) -> Bundle:
    """Write the bundle of `grid` to `target`, fetching missing data and weights.

    Raises :class:`BenchError` for a cell that cannot run, and for data or weights from a user's own files.
    """
    with tempfile.TemporaryDirectory() as scratch:
        cells = plan_grid(grid, DataSource(progress), Calibrations(Path(scratch)), progress)
        for cell in cells:
            if cell.refused:
                raise BenchError(f"{cell.title}: {cell.refused}")
        files = {f"data/{path.relative_to(data_root()).as_posix()}": path for path in _data_files(cells)}
        own = {name: f"methods/{Path(name).name}" for name in grid.methods if name.endswith(".py")}
        if len(set(own.values())) < len(own):
            raise BenchError(f"two method files have the same name: {', '.join(own)}. Rename one of them.")
        files |= {packed: Path(name) for name, packed in own.items()}
        if wheels:
            files |= {f"wheels/{path.name}": path for path in _wheels(Path(scratch) / "wheels", progress)}
        total = sum(path.stat().st_size for path in files.values())
        listed: list[Packed] = []
        with progress.stage("hashing", total) as stage:
            for name, path in sorted(files.items()):
                listed.append(Packed(name=name, size=path.stat().st_size, sha256=file_digest(path, "sha256")))
                stage.advance(listed[-1].size)
        grid = replace(grid, methods=tuple(own.get(name, name) for name in grid.methods))
        bundle = Bundle(program=__version__, grid=grid, cells=tuple(cell.key for cell in cells), files=tuple(listed))
        with progress.stage("packing", total) as stage:
            _write(bundle, files, target, stage)
    return bundle


def unpack(source: Path, into: Path, progress: Progress) -> Bundle:
    """Unpack `source` below `into`, read data from there from now on, and return the contents; intact files are kept.

    Raises :class:`BenchError` for a file that differs from what was packed (the error names it), for a bundle that
    uses files outside itself, and if `into` or a folder below it is a link.
    """
    try:
        with open_plain(source, links=True) as file, zipfile.ZipFile(file) as archive:
            bundle = _read(archive, source)
            _check_whole(bundle, source)
            total = sum(file.size for file in bundle.files)
            _check_links(into, into)
            _check_room(into, total)
            with progress.stage("unpacking", total) as stage:
                for packed in bundle.files:
                    _extract(archive, packed, source, into, stage)
    except FileNotFoundError as error:
        raise BenchError(
            f"there is no bundle {source}. Make one where there is a network: `python -m bench bundle --methods NAMES "
            f"--datasets NAMES -o {source}`."
        ) from error
    except OSError as error:
        raise BenchError(f"{source} cannot be read: {error.strerror or error}.") from error
    except DAMAGE as error:
        raise BenchError(f"{source} is not a bundle, or is damaged: {error}. Copy it again.") from error
    # Local processes and Slurm's jobs inherit these.
    os.environ |= {"BENCH_DATA": str((into / "data").resolve()), "HF_HUB_OFFLINE": "1"}
    own = {name: str((into / name).resolve()) for name in bundle.grid.methods if name.endswith(".py")}
    grid = replace(bundle.grid, methods=tuple(own.get(name, name) for name in bundle.grid.methods))
    return bundle.model_copy(update={"grid": grid})


def _data_files(cells: list[Cell]) -> Iterator[Path]:
    from bench.models.pretrained import find_weights
    from bench.models.weight_store import manifest_path

    root = data_root()
    sets = {cell.dataset for cell in cells}
    backbones: set[tuple[str, str, str]] = set()
    for cell in cells:
        weights, start = (str(getattr(cell.config, name, "random")) for name in ("weights", "teacher_init"))
        given = bound_method(cell).given_teacher()
        if weights.startswith("source:"):
            sets.add(weights.removeprefix("source:"))
        elif given is not None and given.public:
            backbones.add((given.net, given.weights, given.sha256))
        elif weights.startswith("file:") or start.startswith("file:") or given is not None:
            raise BenchError(f"{cell.title} uses weights from your own file, which is not packed. Use a package.")
        elif weights in ("auto", "package", "hub"):
            backbones.add((cell.config.backbone, weights, cell.config.weights_sha256))
        elif start != "random":
            backbones.add((cell.config.teacher, start, cell.config.teacher_init_sha256))
    for name in sorted(sets):
        if name.startswith(PREFIX):
            raise BenchError(f"{name} is your own data, which is not packed. Copy it to the other machine yourself.")
        for path in load(name).paths:
            if not path.resolve().is_relative_to(root.resolve()):
                raise BenchError(f"{name} is read from {path}, outside the data root, and is not packed. Copy it.")
            yield from (file for file in sorted(path.rglob("*")) if file.is_file()) if path.is_dir() else [path]
    for backbone in sorted(backbones):
        found = find_weights(*backbone)
        yield from (found.path, manifest_path(found))


def _wheels(into: Path, progress: Progress) -> list[Path]:
    root = Path(__file__).resolve().parents[2]
    own = str(root) if (root / "pyproject.toml").is_file() else f"private-student-bench=={__version__}"
    with progress.stage("wheels", 1):
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "-w", str(into), own]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BenchError(f"pip could not collect the wheels: {done.stderr.strip().splitlines()[-1:]}")
    return sorted(into.iterdir())


def _write(bundle: Bundle, files: dict[str, Path], target: Path, stage: Stage) -> None:
    listed = bundle.to_json().encode()
    if len(listed) > LARGEST_LIST:
        raise BenchError(f"{len(files):,} files are too many for a bundle. Copy the data root to the other machine.")
    with writing(target), _aside(target) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("bundle.json", WHEN), listed)
        for packed in bundle.files:
            info = zipfile.ZipInfo(packed.name, WHEN)
            info.compress_type = zipfile.ZIP_DEFLATED
            with files[packed.name].open("rb") as read, archive.open(info, "w", force_zip64=True) as written:
                if copied(read, written, packed.size, stage) != packed.sha256:
                    raise BenchError(f"{files[packed.name]} changed while it was packed. Give the command again.")


@contextmanager
def _aside(target: Path) -> Iterator[BinaryIO]:
    """Open a new file next to `target`; rename it to `target`, or remove it if the block fails."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)  # left by a killed process, or a link by another user
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def copied(read: IO[bytes], written: IO[bytes], size: int, stage: Stage) -> str:
    """Copy at most `size` bytes of `read` to `written`; return the SHA-256, or "" if `read` has a different length."""
    digest, left = hashlib.sha256(), size
    while left >= 0 and (piece := read.read(PIECE)):
        left -= len(piece)
        written.write(piece[: len(piece) + min(left, 0)])
        digest.update(piece)
        stage.advance(len(piece))
    return "" if left else digest.hexdigest()


def _read(archive: zipfile.ZipFile, source: Path) -> Bundle:
    try:
        with _opened(archive, "bundle.json", LARGEST_LIST) as file:
            return validated(Bundle, json_object(file.read(LARGEST_LIST + 1)))
    except DAMAGE as error:
        raise BenchError(f"{source} is not a bundle that version {__version__} reads: {error}") from error


def _opened(archive: zipfile.ZipFile, name: str, largest: int) -> IO[bytes]:
    """Open a file of `archive`; raise one of :data:`DAMAGE` if it exceeds `largest` bytes or is packed differently."""
    info = archive.getinfo(name)
    if info.file_size > largest:
        raise ValueError(f"{info.file_size:,} bytes, at most {largest:,} are expected")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is not packed as bundles are")
    return archive.open(info)


def _check_whole(bundle: Bundle, source: Path) -> None:
    """Raise :class:`BenchError` if a name leads out of the bundle or its grid uses a file that is not in it."""
    names = [file.name for file in bundle.files]
    for name in names:
        parts = name.split("/")
        sound = all(SAFE_NAME.fullmatch(part) and part not in (".", "..") for part in parts)
        if not sound or len(parts) < 2 or parts[0] not in FOLDERS:
            raise BenchError(f"{source} holds {name[:80]!r}, which lies outside its folders. Do not use it.")
    if len(set(names)) < len(names):
        raise BenchError(f"{source} names a file twice. Do not use it.")
    grid = bundle.grid
    used = [
        name for name in grid.methods if name.endswith(".py") and not (name in names and name.startswith("methods/"))
    ]
    used += [name for name in grid.datasets if name.startswith(PREFIX)]
    used += [text for text in grid.overrides if "=file:" in text]
    if used:
        raise BenchError(f"{source} uses {used[0][:80]!r}, a file that is not in it. Do not use it.")


def _check_links(target: Path, into: Path) -> None:
    for place in (target, *target.parents):
        if place.is_symlink():
            raise BenchError(f"{place} is a link, and bundles are not unpacked through links. Remove it.")
        if place == into:
            return


def _check_room(into: Path, total: int) -> None:
    home = next(folder for folder in (into, *into.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(home).free
    if total > free + sum(file.stat().st_size for file in into.rglob("*") if file.is_file()):
        raise BenchError(
            f"the bundle holds {total / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free at {home}. Free some space, or "
            "choose another directory with --out."
        )


def _extract(archive: zipfile.ZipFile, file: Packed, source: Path, into: Path, stage: Stage) -> None:
    target = into / file.name
    _check_links(target, into)
    if target.is_file() and target.stat().st_size == file.size and file_digest(target, "sha256") == file.sha256:
        stage.advance(file.size)
        return
    with writing(target), _aside(target) as written:
        try:
            with _opened(archive, file.name, file.size) as read:
                found = copied(read, written, file.size, stage)
        except DAMAGE as error:
            raise BenchError(f"{source} is damaged: {file.name} cannot be read ({error}). Copy it again.") from error
        if found != file.sha256:
            raise BenchError(f"{source} is damaged: {file.name} is not what was packed. Copy it again.")
