"""Declarations of mechanisms' and papers' functions for `bench.epsilon` and ``bench epsilon``, and their results.

A parameter is a setting and a command-line option; the docstring is the command's help. Help must be fast, so NumPy and
the accountants are imported only when a function is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from bench.core.errors import BenchError
from bench.core.lazy import lazy_modules
from bench.core.types import Claim, Sampling

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from bench.privacy.accounting import accountants
    from bench.privacy.events import base_event, batch_events, conversions
else:
    globals().update(lazy_modules(__file__))

F = TypeVar("F", bound="Callable[..., Described]")


@dataclass(frozen=True, slots=True)
class Option:
    """A setting's meaning, other name, and group in the help."""

    help: str
    second: str = ""
    panel: str | None = None
    unused: str = ""
    """For a setting only of the claim: its help when the proven cost is requested."""


@dataclass(frozen=True, slots=True)
class Described:
    """The events of a mechanism or method, with facts that the accountants do not give."""

    events: Sequence[base_event.Event]
    title: str = ""
    """By default the description of the first event."""
    claim: Claim | None = None
    rows: Sequence[accountants.Accounted] = ()
    """Claims and figures on votes; one named like an accountant replaces it."""
    shown: Sequence[accountants.Accounted] | None = None
    """Figures shown beside a claim; by default every accountant that applies."""
    facts: Mapping[str, float | str] = field(default_factory=dict)

    def accounted(self, delta: float) -> list[accountants.Accounted]:
        """Return `rows`, then the figure of every accountant that applies."""
        found = accountants.account(self.events, delta) if self.shown is None else self.shown
        names, given = {row.name for row in found}, {row.name: row for row in self.rows}
        return [row for row in self.rows if row.name not in names] + [given.get(row.name, row) for row in found]


def settings_of(make: Callable[..., Any]) -> dict[str, tuple[Any, Option, Any]]:
    """Return type, option and default (`Parameter.empty` if required) of each setting that `make` declares, by name."""
    declared = inspect.signature(make, eval_str=True).parameters
    return {name: (*get_args(one.annotation), one.default) for name, one in declared.items() if name != "delta"}


def described(make: Callable[..., Described], delta: float, setting: Mapping[str, Any]) -> Described:
    """Return the result of `make` for a `setting`; raise :class:`BenchError` on a value out of range.

    A value that `make` declares as an enum may be given as its text.
    """
    conversions.check_delta(delta)
    declared, given = inspect.signature(make, eval_str=True).parameters, dict(setting)
    for name, value in setting.items():
        kind = (*get_args(getattr(declared.get(name), "annotation", None)), None)[0]
        if isinstance(kind, type) and issubclass(kind, Enum):
            if value not in (accepted := [one.value for one in kind]):
                raise BenchError(f"{name} is one of {', '.join(accepted)}, not {value!r}.")
            given[name] = kind(value)
    return make(**given, **({"delta": delta} if "delta" in declared else {}))


def by_name(*functions: F) -> dict[str, F]:
    """Return `functions` by their public names."""
    return {function.__name__.replace("_", "-"): function for function in functions}


def give_one(**given: object) -> None:
    """Raise :class:`BenchError` unless exactly one of the values is not None."""
    *others, last = words = [name.replace("_", " ") for name in given]
    said = [name for name, value in zip(words, given.values(), strict=True) if value is not None]
    if len(said) != 1:
        names = f"{', '.join(others)} and {last} (--{', --'.join(given).replace('_', '-')})"
        raise BenchError(f"give exactly one of {names}; {' and '.join(said) or 'none'} given.")


def sampling_rate_of(rate: float | None, batch: float | None, records: int | None) -> float:
    """Return `rate`, or `batch` over `records`; raise BenchError unless exactly one is given and in range."""
    if rate is not None and batch is None and records is None:
        return rate
    if rate is not None or batch is None or records is None:
        raise BenchError(
            "give either the sampling rate, or both batch and records (--sampling-rate; --batch and --records)."
        )
    base_event.whole("the number of records", records)
    if not 0 < batch <= records:
        raise BenchError(f"batch must lie between 0 and records, not {batch:g} of {records}.")
    return batch / records


def steps_of(steps: int | None, epochs: float | None, rate: float, sampling: Sampling = Sampling.POISSON) -> int:
    """Return `steps`, or those of `epochs` at a sampling `rate`; raise BenchError unless exactly one is given."""
    if steps is not None and epochs is None:
        return steps
    if epochs is None or steps is not None:
        given = "neither" if epochs is None else "both"
        raise BenchError(f"give either steps or epochs (passes over the records) of DP-SGD; {given} given.")
    known = sampling in (Sampling.RANDOM_ALLOCATION, Sampling.SHUFFLED)  # each record is in a batch of each epoch
    per_epoch = batch_events.steps_of_epoch(rate) if known else 1 / rate
    return max(1, round(base_event.positive("the number of epochs", epochs) * per_epoch))


Gamma = Annotated[float, Option("Laplace noise of scale 1 / gamma on every count.")]
_VOTES = ".npy file of vote counts (queries, classes): adds the data-dependent accountants."
Votes = Annotated["ArrayLike | None", Option(_VOTES, panel="Votes")]
Steps = Annotated[
    int | None,
    Option("Number of steps. With shuffling or random allocation, an epoch is 1 / sampling rate steps, rounded."),
]
Epochs = Annotated[float | None, Option("Instead of --steps: passes over the records, by the sampling.")]
Rate = Annotated[float | None, Option("Probability that a record is in a batch.", panel="Sampling")]
Batch = Annotated[float | None, Option("Expected batch size, with --records.", "batch_size", "Sampling")]
Records = Annotated[int | None, Option("Number of records, with --batch.", panel="Sampling")]
Multiplier = Option("Noise over the clipping norm.", "noise_multiplier")
_DRAWN = "How batches are drawn. Papers usually state Poisson's figure although their code shuffles (shuffled)."
Batches = Annotated[Sampling, Option(_DRAWN, panel="Sampling")]
