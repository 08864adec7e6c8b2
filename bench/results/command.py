"""The one command that makes a cell again, as text.

A command holds no path of the machine that it was written on: where one was given, ``PATH`` stands in its place.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench.core.config import NoiseKind, PrecisionKind, Preset, default_delta
from bench.core.types import Basis

if TYPE_CHECKING:
    from bench.results.cell_spec import CellSpec

START = "python -m bench run"
PATH = "PATH"
"""What stands for a path that only the machine of the run has."""
_FLAGS = {"teacher": "--teacher", "backbone": "--teacher", "student": "--student"}
"""Fields with an option of their own; a frozen backbone is given as the teacher."""


def public_overrides(overrides: Mapping[str, str], config: Any) -> dict[str, str]:
    """Return `overrides` with every path of this machine replaced; `config` is what became of them."""
    shown: dict[str, str] = {}
    for name, value in overrides.items():
        kept, digest = str(getattr(config, "weights", "")), getattr(config, "weights_sha256", "")
        if name == "weights" and value.startswith("file:") and digest and kept.startswith("file:"):
            # A plan names such a file by its digest, which finds it wherever it lies.
            shown |= {"weights": kept, "weights_sha256": digest}
        elif name == "weights_sha256" and name in shown:
            continue
        elif path := re.search(r"(?:^|(?<=:))(?:~|/|[A-Za-z]:[\\/]).*", value):
            last = re.split(r"[\\/]", path[0].rstrip("\\/"))[-1]
            shown[name] = f"{value[: path.start()]}{PATH}/{last}"
        else:
            shown[name] = value
    return shown


def command_for(spec: CellSpec, private_records: int) -> tuple[str, str]:
    """Return the shortest command that plans the cell `spec` alone, and what has to be put in for it, if anything.

    ``--delta`` is left out where it follows from the number of `private_records`.
    """
    missing: list[str] = []
    method, dataset = spec.method, spec.dataset
    if spec.method_file:
        method = f"{PATH}/{spec.method_file}"
        missing.append(f"{PATH} is the folder of the method's file")
    if spec.own_folder:
        dataset = f"folder:{PATH}{'@' if spec.image_shape else ''}{spec.image_shape}"
        missing.append(f"{PATH} is the folder of the images")
    words = ["--methods", method, "--datasets", dataset]
    if spec.epsilon is not None:
        words += ["--eps", number_word(spec.epsilon)]
    words += ["--seeds", str(spec.seed)]
    if spec.basis is not Basis.CLAIMED:
        words += ["--basis", spec.basis.value]
    if spec.preset is not Preset.QUICK:
        words += ["--preset", spec.preset.value]
    if spec.delta != default_delta(private_records):
        words += ["--delta", number_word(spec.delta)]
    if spec.noise is not NoiseKind.SEEDED:
        words += ["--noise", spec.noise.value]
    if spec.precision is not PrecisionKind.FLOAT32:
        words += ["--precision", spec.precision.value]
    for name, value in (spec.overrides or {}).items():
        words += [_FLAGS[name], value] if name in _FLAGS and value else ["--set", f"{name}={value}"]
        if re.search(rf"(?:^|:){PATH}/", value):
            missing.append(f"{PATH} is the folder of what --set {name} names")
    return f"{START} {' '.join(shlex.quote(word) for word in words)}", "; ".join(missing)


def number_word(value: float) -> str:
    """Return the shortest text that reads as `value`."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
