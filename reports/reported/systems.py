"""Facts about each system whose numbers papers print: ``leaderboards/reported/systems.yaml``. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from bench.core.errors import BenchError, first_problem
from bench.core.types import PublicKind
from bench.reports.reported.yaml_lines import YamlLines
from bench.results.published import need_published

NUMBERS, SYSTEMS = "numbers.csv", "systems.yaml"

PAPERS = {
    "pate": "Papernot et al., ICLR 2017",
    "trpate": "Wang et al., IEEE Access 2019",
    "dgd": "Ge et al., IEEE TIP 2023",
    "dpsd": "Liu et al., arXiv:2601.19090",
}
"""Sorted by year, the order on pages."""


class Strict(BaseModel):
    """A frozen model that forbids extra fields and strips whitespace around texts."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


Unit = Literal["record", "label", "query-label", "client", "none"]
Typed = Literal["sound", "step fails, number holds", "unsound", "unclear", "no privacy"]
TypedOfCode = Literal["sound", "step fails, number holds", "unsound", "unclear", "none found", "not read"]


def _check_told(verdict: str | None, reason: str | None, source: str | None) -> None:
    if verdict is not None and not (reason and source):
        raise ValueError("a verdict needs a reason and a source")
    if reason is not None and not source:
        raise ValueError("a reason needs a source")
    if any("\n" in text for text in (reason or "", source or "")):
        raise ValueError("reason and source are one line each")


class Code(Strict):
    """The verdict on a system's published code."""

    verdict: TypedOfCode
    reason: str | None = None
    source: str | None = None

    @model_validator(mode="after")
    def _told(self) -> Code:
        if self.verdict not in ("none found", "not read"):
            _check_told(self.verdict, self.reason, self.source)
        elif self.reason is not None:
            _check_told(None, self.reason, self.source)
        return self


class Facts(Strict):
    """The facts of a system that an override may replace; None keeps the system's."""

    method: str | None = None
    unit: Unit | None = None
    public_data: str | None = None
    public_kinds: tuple[PublicKind, ...] | None = None
    verdict: Typed | None = None
    by: str | None = None
    """Whose analysis the verdict relies on, if we did not read the paper for it."""
    reason: str | None = None
    source: str | None = None
    code: Code | None = None

    @model_validator(mode="after")
    def _told(self) -> Facts:
        _check_told(self.verdict, self.reason, self.source)
        if (self.public_data is None) != (self.public_kinds is None):
            raise ValueError("give public_data and public_kinds together: the words and their kinds")
        kinds = self.public_kinds or ()
        if len(set(kinds)) < len(kinds) or (len(kinds) > 1 and {PublicKind.NONE, PublicKind.NOT_STATED} & {*kinds}):
            raise ValueError("public_kinds must name each kind once; none and not-stated cannot be combined")
        return self


class Override(Facts):
    """Facts that replace a system's for the numbers that match every given paper, table, dataset and epsilon."""

    paper: str | None = None
    table: str | None = None
    dataset: str | None = None
    epsilon: float | None = None

    @model_validator(mode="after")
    def _narrow(self) -> Override:
        if (self.paper, self.table, self.dataset, self.epsilon) == (None, None, None, None):
            raise ValueError("an override must name the paper, table, dataset or epsilon that it applies to")
        if self.paper is not None and self.paper not in PAPERS:
            raise ValueError(f"unknown paper {self.paper!r}: {', '.join(PAPERS)}")
        return self

    def fits(self, *found: str | float | None) -> bool:
        """Return whether the override applies to a number of this paper, table, dataset and epsilon."""
        wanted = (self.paper, self.table, self.dataset, self.epsilon)
        return all(want is None or want == have for want, have in zip(wanted, found, strict=True))


class System(Facts):
    """The facts about one system: citation, privacy unit, public data, and the verdict on its epsilon."""

    citation: str = Field(min_length=1)
    unit: Unit
    public_data: str = Field(min_length=1)
    public_kinds: tuple[PublicKind, ...] = Field(min_length=1)
    verdict: Typed
    between_any_teachers: Literal["stated", "inferred"] | None = None
    """Whether the proof uses only that a teacher's answer is bounded, so that its epsilon may rule out an accuracy.

    ``inferred`` if we did not read the proof: the bound is then stated as a condition and does not decide the verdict.
    """
    corrected: str | None = None
    """Our method that is the corrected form, with a proven epsilon."""
    here: str | None = None
    """How the mechanism that we run differs from the paper's, if it does."""
    summary: str | None = None
    """The reason in one line; default: its first sentence."""
    not_built: str | None = None
    """Why none of our methods can measure it."""
    overrides: tuple[Override, ...] = ()

    @model_validator(mode="after")
    def _same(self) -> System:
        for facts in (self, *map(self.replaced, self.overrides)):
            if (facts.unit == "none") != (facts.verdict == "no privacy"):
                raise ValueError("unit none and verdict 'no privacy' go together")
            if facts.code is None and facts.verdict != "no privacy":
                raise ValueError("the verdict has two parts: code is missing (none found and not read are accepted)")
        return self

    def replaced(self, override: Override) -> System:
        """Return the system with the facts that `override` gives; a replaced verdict is by whom the override names."""
        given = {name: value for name in Facts.model_fields if (value := getattr(override, name))}
        return self.model_copy(update={**given, "by": (override if override.verdict else self).by})


class Systems(Strict):
    """All of ``systems.yaml``. `test_classes` has the number of test records per class of a data set."""

    systems: Mapping[str, System] = Field(min_length=1)
    test_classes: Mapping[str, tuple[int, ...]] = {}

    @field_validator("test_classes")
    @classmethod
    def _counts(cls, counts: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        for name, classes in counts.items():
            if len(classes) < 2 or min(classes) < 1:
                raise ValueError(f"{name} needs the records of 2 or more classes, each at least 1")
        return counts


def read_systems(folder: Path | None = None) -> Systems:
    """Return ``systems.yaml`` of `folder`; raise :class:`BenchError` with file and line for any mistake."""
    path = (folder or reported_folder()) / SYSTEMS
    lines = YamlLines(text_of(path), str(path))
    try:
        return Systems.model_validate(lines.data)
    except ValidationError as error:
        where = f"{path}, line {lines.line(error.errors()[0]['loc'])}"
        raise BenchError(f"{where}: {said_of(error)}. See the comment at the top of the file.") from error


def reported_folder() -> Path:
    """Return the folder of the published numbers; raise :class:`BenchError` if it is not here."""
    return need_published() / "reported"


def text_of(path: Path) -> str:
    """Return the text of a file of the folder; raise :class:`BenchError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BenchError(f"cannot read {path}: {why}. Give a folder with {NUMBERS} and {SYSTEMS}.") from error


def said_of(error: ValidationError) -> str:
    """Return the first problem in one line: field and message."""
    return ": ".join(filter(None, first_problem(error))).rstrip(".")
