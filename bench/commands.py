"""The one command that makes a cell again, as text, and back to a grid.

A command holds no path of the machine that it was written on: where one was given, ``PATH`` stands in its place.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from bench.config import Grid, NoiseKind, PrecisionKind, Preset, build_config, default_delta, parse_overrides
from bench.errors import BenchError
from bench.interface import Basis, Facts, Method
from bench.registry import METHODS

if TYPE_CHECKING:
    from bench.plan import Cell

START = "python -m bench run"
PATH = "PATH"
"""What stands for a path that only the machine of the run has."""
_FLAGS = {"teacher": "--teacher", "backbone": "--teacher", "student": "--student"}
"""Fields that the command line has an option for; a frozen backbone is asked for as the teacher."""


def needed_overrides(method: type[Method], preset: Preset, facts: Facts, overrides: Sequence[str]) -> tuple[str, ...]:
    """Return those of the ``--set`` texts without which `method` would get another config, as ``FIELD=VALUE``."""
    mine = []
    for text in overrides:
        name, _, value = text.partition("=")
        if parse_overrides(method, [text]):
            mine.append(f"{name.rpartition('.')[2]}={value}")
    config, _ = build_config(method, preset, facts, mine)
    for text in list(mine):
        without = [other for other in mine if other is not text]
        try:
            alike = build_config(method, preset, facts, without)[0] == config
        except BenchError:  # it cannot be left out: the others need it
            continue
        if alike:
            mine = without
    return tuple(mine)


def command_for(cell: Cell) -> tuple[str, str]:
    """Return the shortest command that plans to `cell` alone, and what has to be put in for it; empty for nothing.

    ``cell.overrides`` are the ``--set`` texts that the cell was planned with.
    """
    missing: list[str] = []
    words = ["--methods", _method_word(cell.method, missing), "--datasets", _dataset_word(cell, missing)]
    if cell.epsilon is not None:
        words += ["--eps", number_word(cell.epsilon)]
    words += ["--seeds", str(cell.seed)]
    if cell.basis is not Basis.CLAIMED:
        words += ["--basis", cell.basis.value]
    if cell.preset is not Preset.QUICK:
        words += ["--preset", cell.preset.value]
    if cell.delta != default_delta(cell.facts.private_records):
        words += ["--delta", number_word(cell.delta)]
    if cell.noise is not NoiseKind.SEEDED:
        words += ["--noise", cell.noise.value]
    if cell.precision is not PrecisionKind.FLOAT32:
        words += ["--precision", cell.precision.value]
    for text in _public_overrides(cell, missing):
        name, _, value = text.partition("=")
        words += [_FLAGS[name], value] if name in _FLAGS and value else ["--set", text]
    return f"{START} {' '.join(shlex.quote(word) for word in words)}", "; ".join(dict.fromkeys(missing))


def number_word(value: float) -> str:
    """Return the shortest text that reads as `value`."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _method_word(name: str, missing: list[str]) -> str:
    module = METHODS.get(name).__module__
    if not module.startswith("bench_plugin_"):
        return name
    missing.append(f"{PATH} is the folder of the method's file")
    return f"{PATH}/{module.removeprefix('bench_plugin_')}.py"


def _dataset_word(cell: Cell, missing: list[str]) -> str:
    if not cell.facts.dataset.startswith("folder:"):
        return cell.facts.dataset
    missing.append(f"{PATH} is the folder of the images")
    stated = re.search(r"@\d+x\d+x\d+$", cell.dataset)
    return f"folder:{PATH}{stated[0] if stated else ''}"


def _public_overrides(cell: Cell, missing: list[str]) -> list[str]:
    """Return the cell's overrides with every path of this machine replaced."""
    shown: list[str] = []
    for text in cell.overrides:
        name, _, value = text.partition("=")
        kept, digest = getattr(cell.config, "weights", ""), getattr(cell.config, "weights_sha256", "")
        if name == "weights" and value.startswith("file:") and digest and str(kept).startswith("file:"):
            # A plan names such a file by its digest, which finds it wherever it lies.
            shown += [f"weights={kept}", f"weights_sha256={digest}"]
        elif name == "weights_sha256" and any(other.startswith("weights_sha256=") for other in shown):
            continue
        elif path := re.search(r"(?:^|(?<=:))(?:~|/|[A-Za-z]:[\\/]).*", value):
            missing.append(f"{PATH} is the folder of what --set {name} names")
            last = re.split(r"[\\/]", path[0].rstrip("\\/"))[-1]
            shown.append(f"{name}={value[: path.start()]}{PATH}/{last}")
        else:
            shown.append(text)
    return shown


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BenchError(f"that is no command of one cell: {message}.")


def grid_of(command: str) -> Grid:
    """Return the grid that `command` asks for.

    Nothing of it is looked up or executed: the text may come from anybody. Raises :class:`BenchError` where it is no
    ``python -m bench run`` with the options that say which cells there are, and no others.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise BenchError(f"that is no command of one cell: {error}.") from error
    if words[:4] != START.split():
        raise BenchError(f"a command begins with {START!r}.")
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--methods", "-m", required=True)
    parser.add_argument("--datasets", "-d", default="mnist")
    parser.add_argument("--eps", "-e", default="1,10")
    parser.add_argument("--seeds", "-s", default="0")
    parser.add_argument("--preset", "-p", default=Preset.QUICK, type=Preset)
    parser.add_argument("--basis", default=Basis.CLAIMED, type=Basis)
    parser.add_argument("--delta", type=float)
    parser.add_argument("--noise", default=NoiseKind.SEEDED, type=NoiseKind)
    parser.add_argument("--precision", default=PrecisionKind.FLOAT32, type=PrecisionKind)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--teacher")
    parser.add_argument("--student")
    given: Any = parser.parse_args(words[4:])
    overrides = list(given.overrides)
    overrides += [f"teacher={given.teacher}"] if given.teacher else []
    overrides += [f"student={given.student}"] if given.student else []
    try:
        epsilons = tuple(float(text) for text in given.eps.split(","))
        seeds = tuple(int(text) for text in given.seeds.split(","))
    except ValueError as error:
        raise BenchError(f"that is no command of one cell: {error}.") from error
    return Grid(
        methods=tuple(given.methods.split(",")),
        datasets=tuple(given.datasets.split(",")),
        epsilons=epsilons,
        seeds=seeds,
        preset=given.preset,
        basis=given.basis,
        delta=given.delta,
        noise=given.noise,
        overrides=tuple(overrides),
        precision=given.precision,
    )
