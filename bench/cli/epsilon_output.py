"""Vote files and output of ``bench epsilon``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bench.core.errors import BenchError
from bench.core.lazy_libraries import numpy as np
from bench.core.margins import covered
from bench.core.progress import echo, print_table
from bench.core.types import Adjacency

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.privacy.accounting.described import Described


LABELS = {
    "replace_one": "epsilon for replace-one neighbours",
    "pld_without_rounding_at_least": "PLD without rounding, at least",
    "epsilon_if_batches_were_poisson": "epsilon if batches were Poisson samples",
    "epsilon_at_least": "no proof can give less than",
    "epsilon_of_one_trial": "epsilon of one trial",
    "epsilon_if_larger_answers_win": "epsilon if the larger answer wins",
    "sigma_by_rdp": "sigma if Renyi divergences counted the cost",
}
"""What the names of facts mean; JSON has the names."""


def load_array(path: Path, what: str) -> NDArray[Any]:
    """Return the array of an ``.npy`` file without pickle; raise BenchError, which names `what`, on an invalid file."""
    if not path.is_file():
        raise BenchError(f"{what} file {path} does not exist. Give the path of an .npy file, as numpy.save writes it.")
    try:
        with path.open("rb") as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError, MemoryError) as error:
        raise BenchError(
            f"{what} file {path} is not a plain .npy array ({error}). Write it with numpy.save; arrays of Python "
            "objects are refused, because reading them could run code."
        ) from error
    return array


def load_votes(path: Path, first: int | None, indices: Path | None) -> NDArray[np.float64]:
    """Load votes ``(queries, classes)``: all, the `first` ones, or those at `indices`; raise BenchError if invalid."""
    from bench.privacy.accounting.pate import check_votes

    if first is not None and indices is not None:
        raise BenchError("--first and --indices both choose queries: give only one of them.")
    votes = check_votes(load_array(path, "votes"))
    if first is not None:
        if not 1 <= first <= len(votes):
            raise BenchError(f"--first must lie between 1 and the {len(votes)} queries of {path}, not {first}.")
        return votes[:first]
    if indices is None:
        return votes
    chosen = load_array(indices, "indices")
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or chosen.size == 0:
        raise BenchError(f"indices must be a list of whole numbers, not {chosen.dtype} of shape {chosen.shape}.")
    wrong = chosen[(chosen < 0) | (chosen >= len(votes))]
    if wrong.size:
        raise BenchError(f"index {wrong[0]} is not one of the queries 0 to {len(votes) - 1} of {path}.")
    if np.unique(chosen).size != chosen.size:
        # A repeated query draws fresh noise, so it costs twice.
        typer.echo("note: some indices are repeated; each counts as a separate query.", err=True)
    picked: NDArray[np.float64] = votes[chosen]
    return picked


def verdicts(best: float, known: Mapping[str, float | str], printed: float) -> dict[str, str]:
    """Return for each adjacency, or for "", whether the `printed` epsilon is proven.

    `best` is the proven epsilon; `known` may have that for replace-one neighbours, and what no proof can be below.
    """
    least = known.get("epsilon_at_least")
    if isinstance(least, float) and least > printed:
        return {"": f"false: no proof can give less than {_epsilon(least, ROUND_FLOOR)}"}
    places = {"": best} if "replace_one" not in known else {"add-remove": best, "replace-one": known["replace_one"]}
    said = {}
    for place, proven in places.items():
        spent = float(proven)
        more = "" if covered(spent, printed) else f"not proven; the best proof here gives {_epsilon(spent)}"
        said[place] = more or "proven"
    return said


def report(found: Described, delta: float, as_json: bool, group: int = 1, printed: float | None = None) -> None:
    """Print `found` as a table with notes, or as one JSON object in which infinity is ``"inf"``.

    For add-remove events, the facts include the proven epsilon for replace neighbours. The risk is for `group` records.
    Raises :class:`BenchError` if `printed` is not an epsilon.
    """
    from bench.privacy.accounting.accountants import replace_one
    from bench.privacy.accounting.distributions import at_least
    from bench.privacy.accounting.risk import risk
    from bench.results.text import RISK_WORDS, risk_text

    known, rows = dict(found.facts), found.accounted(delta)
    title = found.title or found.events[0].describe()
    if any(row.name == "pld" for row in rows) and (least := at_least(found.events, delta)) is not None:
        known["pld_without_rounding_at_least"] = least
    if any(event.adjacency is Adjacency.ADD_REMOVE for event in found.events):
        known["replace_one"] = replace_one(found.events, delta).epsilon
    bounds = risk(found.events, group, coarseness=5.0)
    best = min((r for r in rows if r.sound and r.releasable), key=lambda r: r.epsilon, default=None)
    said = {}
    if printed is not None:
        if not 0 < printed < math.inf:
            raise BenchError(f"--printed is an epsilon, a positive finite number, not {printed:g}.")
        said = verdicts(math.inf if best is None else best.epsilon, known, printed)
    if as_json:
        accountants = [row.as_dict() for row in rows]
        content = {
            "mechanism": title, "accountants": accountants, "delta": delta, "facts": known, "group": group,
            "risk": bounds.as_dict(), **({"printed": {"epsilon": printed, "verdicts": said}} if said else {}),
        }  # fmt: skip
        typer.echo(json.dumps(content, allow_nan=False))
        return
    print_table(
        f"{title}, delta {delta:g}",
        ("accountant", "epsilon", "sound", "data-dependent", "releasable", "order"),
        [
            (row.name, _epsilon(row.epsilon, ROUND_CEILING if row.sound else ROUND_HALF_EVEN),
             *("yes" if yes else "no" for yes in (row.sound, row.data_dependent, row.releasable)),
             "" if row.order is None else f"{row.order:.6g}")
            for row in rows
        ],
    )  # fmt: skip
    if best is not None:
        of = " (add-remove)" if "replace_one" in known else ""
        echo(f"proven epsilon{of}: {_epsilon(best.epsilon)}, by {best.name}")
    for place, verdict in said.items():
        echo(f"printed epsilon {printed:g}{f' ({place})' * bool(place)}: {verdict}")
    for name, value in known.items():
        if name in ("replace_one", "epsilon_of_one_trial") and value == 0:
            value = _epsilon(0.0)
        label = LABELS.get(name, name)
        echo(f"{label}: {_fact(name, value) if isinstance(value, float) else value}")
    for row in rows:
        if row.note:
            echo(f"{row.name}: {row.note}")
    print_table(
        "bounds on an attacker, by the proven curve" + (f", of {group} records" if group > 1 else ""),
        ("success", "at most"),
        [(word, risk_text(value, 0.0)) for word, value in zip(RISK_WORDS, bounds.as_dict().values(), strict=True)],
    )


def _fact(name: str, value: float) -> str:
    """Return ten digits: lower bounds rounded down, and upper bounds and noise, which must suffice, rounded up."""
    if not math.isfinite(value) or value == 0:
        return f"{value:.10g}"
    exact = Decimal(repr(value))
    upper = name.startswith(("replace_one", "epsilon_", "sigma"))
    rounding = ROUND_FLOOR if name.endswith("at_least") else ROUND_CEILING if upper else ROUND_HALF_EVEN
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 9), rounding)):.10g}"


def _epsilon(epsilon: float, rounding: str = ROUND_CEILING) -> str:
    if epsilon == 0:
        return "0 (within delta)"
    if not epsilon < 1e9:  # a double has no more digits
        return f"{epsilon:.6f}"
    exact = Decimal(repr(float(epsilon)))
    digits = 6 if epsilon >= 0.001 else 5 - exact.adjusted()
    rounded = exact.quantize(Decimal(1).scaleb(-digits), rounding)
    return f"{rounded:f}" if epsilon >= 0.001 else f"{float(rounded):.6g}"
