"""Options of an audit, declared once for the command line and the library."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from bench.core.errors import BenchError
from bench.core.options import what
from bench.core.types import AuditKind, Family

MOST_CANDIDATES = 1_000
canary = partial(typer.Option, rich_help_panel="With --kind one-run or many-run")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Options of an audit, fixed before any shadow run; 0 canaries or guesses: a default for the data set's size.

    `canaries` and `guesses` are per family and run; half of the guesses are True, half False. The audit must be able to
    refute the epsilon `refute`; None: any.
    """

    kind: Annotated[
        AuditKind,
        what(
            "--kind",
            help="pair: runs on two worst-case adjacent sets; one-run, many-run: canaries in the real data; "
            "candidates: guess the one unknown record.",
        ),
    ] = AuditKind.PAIR
    minutes: Annotated[float, what("--minutes", help="Minutes per student, with --kind pair or candidates.")] = 10.0
    candidates: Annotated[
        str, what("--candidates", help="With --kind candidates: numbers of candidates, comma-separated.")
    ] = "10,100"
    family: Annotated[Family, canary("--family", help="Family of canaries.")] = Family.OUTLIER
    canaries: Annotated[
        int, canary("--canaries", help="Canaries per run; 0: a tenth of the records, at most 1000.")
    ] = 0
    guesses: Annotated[int, canary("--guesses", help="Guesses per run; 0: half of the canaries, at most 100.")] = 0
    runs: Annotated[int, canary("--runs", help="Shadow runs to train and to guess on; 8 or more for many-run.")] = 1
    copies: Annotated[int, canary("--copies", help="Copies of a duplicated canary.")] = 4
    confidence: Annotated[float, what("--confidence", help="Confidence of the lower bound.")] = 0.95
    refute: Annotated[
        float | None,
        what(
            "--refute",
            help="Epsilon to refute. Pair: stop once refuted (default: the claim). Canaries: fail if impossible.",
        ),
    ] = None
    power: Annotated[bool, what("--power/--no-power", help="Also run each pipeline without its noise.")] = True
    draws: Annotated[int, what("--draws", help="Draws from each mechanism on each input; 0: none.")] = 1_000_000
    seed: Annotated[int, what("--seed", help="Seed of canaries and coins.")] = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise BenchError(f"--confidence must lie in [0.5, 1), not {self.confidence}. 0.95 is usual.")
        if self.runs < 1 or self.canaries < 0 or self.guesses < 0 or self.draws < 0 or not self.minutes > 0:
            raise BenchError(
                "--minutes must be positive, --runs 1 or more, and --canaries, --guesses and --draws 0 or more; given: "
                f"{self.minutes:g}, {self.runs}, {self.canaries}, {self.guesses} and {self.draws}."
            )
        if self.refute is not None and not 0 < self.refute < math.inf:
            raise BenchError(f"--refute takes a positive finite epsilon, not {self.refute:g}.")
        _ = self.numbers
        usual = {"canaries": 0, "guesses": 0, "runs": 1, "family": Family.OUTLIER, "copies": 4}
        given = [f"--{name}" for name, value in usual.items() if getattr(self, name) != value]
        if given and self.kind in (AuditKind.PAIR, AuditKind.CANDIDATES):
            raise BenchError(
                f"--kind {self.kind} takes no {', '.join(given)}: leave that out, or give --kind one-run or many-run."
            )
        if self.kind is AuditKind.MANY_RUN and (self.runs < 8 or self.family is Family.DUPLICATED or self.canaries > 1):
            raise BenchError(
                "an audit of many runs takes one canary, of a single record, and 8 runs or more: try "
                "--kind many-run --runs 100, without --canaries and with another family than duplicated."
            )

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of candidates; raises :class:`BenchError` if invalid."""
        try:
            numbers = tuple(dict.fromkeys(int(word) for word in self.candidates.split(",")))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 2 or max(numbers) > MOST_CANDIDATES:
            raise BenchError(
                f"--candidates takes whole numbers from 2 to {MOST_CANDIDATES:,}, comma-separated, not "
                f"{self.candidates!r}. Try 10,100."
            )
        return numbers

    def fitted(self, private_records: int) -> AuditOptions:
        """Return the options with numbers for `private_records`. Raise :class:`BenchError` for invalid guesses."""
        if self.kind in (AuditKind.PAIR, AuditKind.CANDIDATES):
            return self
        if self.kind is AuditKind.MANY_RUN:
            return dataclasses.replace(self, canaries=1, guesses=1)
        canaries = self.canaries or max(2, min(1000, private_records // 10))
        guesses = self.guesses or max(2, min(100, canaries // 2) // 2 * 2)
        if guesses % 2 or guesses > canaries:
            raise BenchError(
                f"--guesses must be even and at most the number of canaries ({canaries}), not {guesses}: half of them "
                "go to each side."
            )
        return dataclasses.replace(self, canaries=canaries, guesses=guesses)
