"""The command that reproduces a cell, with ``PATH`` in place of machine paths."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bench.core.config import default_delta
from bench.core.options import grid_words, number_word
from bench.core.types import Adjacency, Basis

if TYPE_CHECKING:
    from bench.results.cell_spec import CellSpec

START, TUNE = "python -m bench run", "python -m bench tune"
PATH = "PATH"
_FLAGS = {"teacher": "--teacher", "backbone": "--teacher", "student": "--student"}
"""Fields that have their own option; ``--teacher`` also sets a frozen backbone."""


def public_overrides(overrides: Mapping[str, str], config: object) -> dict[str, str]:
    """Return `overrides` without machine paths; `config` is the resulting config."""
    shown: dict[str, str] = {}
    for name, value in overrides.items():
        kept, digest = str(getattr(config, name, "")), getattr(config, f"{name}_sha256", "")
        if value.startswith("file:") and digest and kept.startswith("file:"):
            # The digest identifies the file wherever it is stored.
            shown |= {name: kept, f"{name}_sha256": digest}
        elif name in shown:
            continue
        elif path := re.search(r"(?:^|(?<=:))(?:~|/|[A-Za-z]:[\\/]).*", value):
            last = re.split(r"[\\/]", path[0].rstrip("\\/"))[-1]
            shown[name] = f"{value[: path.start()]}{PATH}/{last}"
        else:
            shown[name] = value
    return shown


def command_for(
    spec: CellSpec, private_records: int, own: Adjacency = Adjacency.REPLACE, noise_salt: str = ""
) -> tuple[str, str]:
    """Return the shortest command for the cell (no default ``--delta``), and a note on its placeholders, if any.

    `own` is the method's own adjacency, `noise_salt` is :attr:`bench.results.record.Record.noise_salt_option`.
    """
    missing: list[str] = []
    method, dataset = spec.method, spec.dataset
    if spec.method_file:
        method = f"{PATH}/{spec.method_file}"
        missing.append(f"{PATH} is the folder of the method's file")
    if spec.own_folder:
        dataset = f"folder:{PATH}{'@' if spec.image_shape else ''}{spec.image_shape}"
        missing.append(f"{PATH} is the path of the data")
    words = grid_words(methods=method, datasets=dataset, eps=spec.epsilon, seeds=spec.seed)
    tuning = spec.tuning
    if tuning is not None:
        words += ["--space", "CANDIDATES", "--trials-mean", number_word(tuning.trials_mean), "--law", tuning.law.value]
        words += ["--score", tuning.score.value]
        words += [] if tuning.score_noise is None else ["--score-noise", number_word(tuning.score_noise)]
        missing.append("CANDIDATES is a file with the candidates that the record lists; each tuning makes new draws")
    proven = spec.basis is not Basis.CLAIMED
    words += grid_words(
        basis=spec.basis if proven and tuning is None else None,
        adjacency=spec.adjacency if proven and own is Adjacency.ADD_REMOVE else None, preset=spec.preset,
        delta=None if spec.delta == default_delta(private_records) else spec.delta, noise=spec.noise,
    )  # fmt: skip
    if spec.own_folder and spec.epsilon is not None and not proven and tuning is None:
        words += ["--basis", Basis.CLAIMED.value]  # the default on own data is proven
    if noise_salt and tuning is None:
        words += ["--noise-salt", noise_salt]
    words += grid_words(precision=spec.precision)
    chosen = set() if tuning is None else set(tuning.candidates[0])
    for name, value in (spec.overrides or {}).items():
        if name in chosen:
            continue
        words += [_FLAGS[name], value] if name in _FLAGS and value else ["--set", f"{name}={value}"]
        if re.search(rf"(?:^|:){PATH}/", value):
            missing.append(f"{PATH} is the folder of what --set {name} names")
    return f"{START if tuning is None else TUNE} {' '.join(shlex.quote(word) for word in words)}", "; ".join(missing)
