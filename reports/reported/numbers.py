"""The numbers that the four papers print, each with a verdict on its epsilon for the stated unit. Imports no torch.

Two hand-written files in ``leaderboards/reported/`` hold the data: ``numbers.csv`` has one line per printed number, and
``systems.yaml`` the facts about each system. The verdict "impossible as claimed" is computed for proofs that hold
between any two teachers; see :mod:`bench.privacy.auditing.utility_bound`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from bench.core.errors import BenchError, UnknownNameError
from bench.core.types import PublicKind
from bench.privacy.auditing.utility_bound import IMPLAUSIBLE, TRIES, honest_tries, odds, probability_bound
from bench.reports.reported.systems import (
    NUMBERS,
    PAPERS,
    SYSTEMS,
    Code,
    Strict,
    System,
    read_systems,
    reported_folder,
    said_of,
    text_of,
)

BASELINE = "Baseline"
"""The non-private model of a paper, the reference for its drops."""

INFERRED = "epsilon inferred"
"""Prefix of the note of a number whose epsilon is not printed next to it."""

PERCENT = frozenset({"accuracy", "label accuracy", "teacher accuracy"})
POINTS = frozenset({"drop", "gain", "gap"})
MEASURES = PERCENT | POINTS | {"epsilon", "queries", "records", "minutes", "inception score"}
"""Accuracies in %, their differences in points, counts and epsilons."""


class Verdict(StrEnum):
    """Whether the printed epsilon holds for its unit, by the paper or by the published code."""

    SOUND = "sound"
    HOLDS = "step fails, number holds"
    UNSOUND = "unsound"
    UNCLEAR = "unclear"
    IMPOSSIBLE = "impossible as claimed"
    NONE = "no privacy"
    NOT_FOUND = "none found"
    """Only for code: no published code was found."""
    NOT_READ = "not read"
    """Only for code: nobody read the code."""


@dataclass(frozen=True, slots=True)
class Reported:
    """One number printed by a paper. Accuracies are in %, drops and gains in points."""

    paper: str
    table: str
    """The table's number in the paper ("I", "2"), or "text" or "fig 3" for text, captions and figures."""
    row: str
    column: str
    system: str
    """As printed, with names normalised across papers."""
    method: str | None
    """Registry name, if any."""
    dataset: str
    """Our name, if any; "any" for pure accounting figures, "not known" if the paper does not say."""
    setting: str
    unit: str
    """record, label, query-label or client; none without privacy."""
    public_data: str
    public_kinds: tuple[PublicKind, ...]
    epsilon: float | None
    """As printed; infinite without privacy, None if not given."""
    delta: float | None
    measure: str
    value: float
    verdict: Verdict
    """Verdict on the paper: does the epsilon follow from the mechanism that it describes?"""
    reason: str
    source: str
    """The section or file that the reason refers to."""
    by: str = ""
    """Whose analysis the verdict on the paper relies on, if it is not ours."""
    code_verdict: Verdict = Verdict.NOT_READ
    """Verdict on the published code: does it implement the mechanism behind the paper's epsilon?"""
    code_reason: str = ""
    code_source: str = ""
    note: str = ""
    """Remarks on this number, such as a contradiction in the paper."""
    corrected: str | None = None
    """Registry name of its corrected form, if any."""

    @property
    def paper_verdict(self) -> str:
        """A text on the verdict on the paper, and the source of the analysis."""
        return self.verdict.value + (f", by {self.by}" if self.by else "")

    @property
    def verdicts(self) -> str:
        """A text on both parts of the verdict."""
        if self.verdict is Verdict.NONE:
            return self.verdict.value
        return f"paper: {self.paper_verdict}; code: {self.code_verdict.value}"

    @property
    def refuted(self) -> bool:
        """Whether the paper or its code shows that the printed epsilon does not hold."""
        return self.verdict in (Verdict.UNSOUND, Verdict.IMPOSSIBLE) or self.code_verdict is Verdict.UNSOUND

    @property
    def holds(self) -> bool:
        """Whether the printed epsilon follows from the paper, and no flaw in its code is known."""
        return self.verdict in (Verdict.SOUND, Verdict.HOLDS) and self.code_verdict in _NOTHING_AGAINST

    def reasons(self) -> str:
        """Return the reasons of both parts with their sources, in one line."""
        parts = [f"{self.reason.rstrip('.')} ({self.source})"]
        if self.code_reason:
            parts.append(f"Code: {self.code_reason.rstrip('.')} ({self.code_source})")
        return ". ".join(parts)


_NOTHING_AGAINST = (Verdict.SOUND, Verdict.HOLDS, Verdict.NOT_FOUND, Verdict.NOT_READ)


class Number(Strict):
    """One line of ``numbers.csv``."""

    paper: str
    table: str = Field(min_length=1)
    row: str = Field(min_length=1)
    column: str = Field(min_length=1)
    system: str
    dataset: str = Field(min_length=1)
    setting: str
    epsilon: float | None
    delta: float | None
    measure: str
    value: float
    note: str

    @field_validator("epsilon", "delta", mode="before")
    @classmethod
    def _blank(cls, text: object) -> object:
        return None if text == "" else text

    @field_validator("paper", "measure")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        accepted = list(PAPERS) if info.field_name == "paper" else sorted(MEASURES)
        if name not in accepted:
            raise ValueError(f"unknown {info.field_name} {name!r}: {', '.join(accepted)}")
        return name

    @model_validator(mode="after")
    def _ranges(self) -> Number:
        if not math.isfinite(self.value):
            raise ValueError(f"value must be a finite number, not {self.value}")
        if self.measure in PERCENT and not 0 <= self.value <= 100:
            raise ValueError(f"an accuracy must lie between 0 and 100, not {self.value:g}")
        if self.measure in POINTS and not -100 <= self.value <= 100:
            raise ValueError(f"a difference of accuracies must lie between -100 and 100, not {self.value:g}")
        if self.measure not in PERCENT | POINTS and self.value < 0:
            raise ValueError(f"{self.measure} must be at least 0, not {self.value:g}")
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"epsilon must be positive, inf or blank, not {self.epsilon:g}")
        if self.delta is not None and not 0 <= self.delta < 1:
            raise ValueError(f"delta must be at least 0 and below 1, or blank, not {self.delta:g}")
        if self.measure == "epsilon" and self.epsilon != self.value:
            raise ValueError("a printed epsilon goes into both columns, epsilon and value")
        return self

    @property
    def cell(self) -> tuple[str, str, str, str, str]:
        """The key of the line, which is unique in the file."""
        return self.paper, self.table, self.row, self.column, self.measure


def read_reported(folder: Path | None = None) -> list[Reported]:
    """Return every number of ``numbers.csv`` in `folder`, in file order, with its system's facts and verdict.

    Raise :class:`BenchError` with file and line for an unreadable file, an unknown name or field, a value out of
    range, a duplicate cell, or a verdict without reason or source.
    """
    folder = folder or reported_folder()
    known = read_systems(folder)
    found: list[Reported] = []
    cells: dict[tuple[str, ...], int] = {}
    for line, number in _numbers(folder / NUMBERS):
        where = f"{folder / NUMBERS}, line {line}"
        first = cells.setdefault(number.cell, line)
        if first != line:
            raise BenchError(f"{where}: the same paper, table, row, column and measure as line {first}. Remove one.")
        system = known.systems.get(number.system)
        if system is None:
            error = UnknownNameError("system", number.system, known.systems, f"Or describe it in {SYSTEMS}.")
            raise BenchError(f"{where}: {error}")
        reported = _judged(number, system, known.test_classes)
        if (reported.epsilon == math.inf) != (reported.unit == "none") and reported.measure == "accuracy":
            raise BenchError(
                f"{where}: {number.system} has the unit {reported.unit}, but epsilon {number.epsilon}. "
                "Write inf for a system without privacy, and only then."
            )
        found.append(reported)
    return found


def _numbers(path: Path) -> Iterator[tuple[int, Number]]:
    rows = csv.reader(text_of(path).splitlines(keepends=True), strict=True)
    columns = list(Number.model_fields)
    try:
        head = next(rows, [])
        if head != columns:
            raise BenchError(f"{path}, line 1: the columns must be {','.join(columns)}, not {','.join(head)}.")
        begins = rows.line_num + 1
        for cells in rows:
            where = f"{path}, line {begins}"
            if len(cells) != len(columns):
                raise BenchError(
                    f"{where}: {len(cells)} cells where {len(columns)} are needed. Quote texts with commas."
                )
            try:
                number = Number.model_validate(dict(zip(columns, cells, strict=True)))
            except ValidationError as error:
                raise BenchError(f"{where}: {said_of(error)}.") from error
            yield begins, number
            begins = rows.line_num + 1
    except csv.Error as error:
        raise BenchError(f"{path}, line {rows.line_num}: no CSV: {error}.") from error


def _judged(number: Number, system: System, test_classes: Mapping[str, Sequence[int]]) -> Reported:
    at = (number.paper, number.table, number.dataset, number.epsilon)
    facts = next((system.replaced(override) for override in system.overrides if override.fits(*at)), system)
    verdict, reason, source = Verdict(facts.verdict), facts.reason or "", facts.source or ""
    code = facts.code or Code(verdict="not read")
    probability = _probability(number, facts.unit, test_classes) if system.between_any_teachers else 1.0
    if probability < IMPLAUSIBLE:
        said = odds([probability])
        if number.note.startswith(INFERRED):
            said += f", at the epsilon {number.epsilon:g} inferred here"
        if system.between_any_teachers == "inferred":
            reason = f"{reason.rstrip('.')}. If its proof holds between any two teachers, {said}"
        else:
            reason = f"Under a claim that holds between any two teachers {said}. {reason}"
            if honest_tries([probability]) > TRIES:
                verdict = Verdict.IMPOSSIBLE
        source = f"bench/privacy/auditing/utility_bound.py; {source}"
    return Reported(
        **number.model_dump(),
        **facts.model_dump(include={"method", "corrected", "unit", "public_data", "public_kinds"}),
        verdict=verdict,
        reason=reason,
        source=source,
        by=facts.by or "",
        code_verdict=Verdict(code.verdict),
        code_reason=code.reason or "",
        code_source=code.source or "",
    )


def _probability(number: Number, unit: str, test_classes: Mapping[str, Sequence[int]]) -> float:
    counts = test_classes.get(number.dataset)
    if counts is None or unit != "record" or number.measure != "accuracy":
        return 1.0
    if number.epsilon is None or number.delta is None or math.isinf(number.epsilon):
        return 1.0
    shares = [count / sum(counts) for count in counts]
    return probability_bound(number.epsilon, number.delta, number.value / 100, shares).probability
