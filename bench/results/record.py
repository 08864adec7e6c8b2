"""Typed records of cells, keyed by the hash of the specification; two runs differ in ``provenance`` alone."""

# Pydantic copies mutable defaults; ruff does not recognise Row as a pydantic model.
# ruff: noqa: RUF012

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from bench.core.config import NoiseKind
from bench.core.rows import Change, Epsilon, Row, SchemaError, Share, Unbounded, json_object, validated
from bench.core.types import Adjacency, PrivacyUnit, PublicKind
from bench.results.cell_spec import CellSpec, Specified
from bench.results.record_upgrades import UPGRADES

SCHEMA_VERSION = 2  # incremented when a field changes its meaning or is removed; older records are upgraded


SAFE_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")  # keys name files
SALT = "[0-9a-f]{64}"


class Status(StrEnum):
    """Outcome of a cell."""

    DONE = "done"
    FAILED = "failed"


class Accountant(Row):
    """The cost of the mechanisms by one accountant."""

    name: str
    epsilon: Epsilon
    sound: bool
    data_dependent: bool
    releasable: bool
    order: Annotated[Unbounded, Field(gt=0)] | None = None
    note: str = ""


class Claimed(Row):
    """The cost by the method's paper."""

    epsilon: Epsilon
    source: str
    note: str = ""


VISIBLE = 0.01
"""The smallest lower bound that is printed as more than 0."""


class Audited(Row):
    """A lower bound on epsilon from an audit, at `confidence`."""

    epsilon: Epsilon
    confidence: float
    audit: str  # what was seen, in words
    inconclusive: bool = False  # a larger bound was out of reach, or not known to be within
    at_most: Epsilon | None = None  # the largest bound that could have been seen; None where not known or unlimited

    @property
    def silent(self) -> bool:
        """Whether nothing was seen by an audit that could not have seen it: no figure to print."""
        return self.inconclusive and self.epsilon < VISIBLE


class Plausibility(Row):
    """A bound on accuracy from the claimed epsilon, for claims that hold between any two teachers.

    The accuracy exceeds `threshold` (share of the test records) with at most this `probability`; see
    :mod:`bench.privacy.utility_bound`.
    """

    probability: float
    threshold: float
    permutations: float


class Privacy(Row):
    """The three epsilons of a row with their unit and adjacency."""

    unit: PrivacyUnit
    adjacency: Adjacency
    delta: float
    claimed: Claimed
    proven: Accountant
    audited: Audited | None = None
    plausibility: Plausibility | None = None
    """None if the claim is about data sets that differ in one unit, which no accuracy contradicts."""
    bypasses: list[str] = []
    accountants: list[Accountant] = []
    withheld: str = ""  # why data-dependent figures are omitted, if they are
    events: list[dict[str, Any]] = []  # ledger events in order: mechanism and parameters, no data
    record_level: Accountant | None = None  # the guarantee for one training record, if the unit is a query's label


class Queries(Row):
    """Released teacher answers: numbers asked, given and correct."""

    asked: int
    answered: int
    label_accuracy: Share | None = None


class Utility(Row):
    """Utility of the released student on the test split."""

    accuracy: Share
    test_records: int
    official_accuracy: Share | None = None
    """On the whole official test set, where the split makes a part of it public and the method uses no public data."""
    official_records: int | None = None


class Student(Row):
    """The released student: timm rebuilds it from `name` and `options`; weights in `file` below the run directory."""

    name: str
    options: dict[str, Any]
    parameters: int
    file: str
    sha256: str


class ImageGrid(Row):
    """PNG of the first released images, `file` below the run directory."""

    file: str
    sha256: str


class Failure(Row):
    """Why a cell failed; `log` is a path below the run directory."""

    kind: str
    reason: str
    log: str | None = None
    spent: list[dict[str, Any]] = []
    """Ledger events before the failure; another run with fresh noise costs as much again."""


class Provenance(Row):
    """Time and environment: the only part in which two runs of a cell may differ. None comes with a reason."""

    started: str
    wall_seconds: float
    peak_memory_mib: float | None
    git_commit: str | None
    git_dirty: bool | None
    packages: dict[str, str]
    python: str
    platform: str
    device: str
    threads: int | None
    artefacts_made: int = 0
    artefacts_found: int = 0
    artefacts: dict[str, tuple[int, int]] = {}  # cache misses and hits by kind of artefact
    unread: dict[str, str] = {}  # unreadable field to reason


class Record(Row, Specified):
    """One cell of a grid, done or failed."""

    schema_version: Literal[2] = 2
    key: str
    status: Status
    cell: CellSpec
    citation: str = ""
    public_benchmark: bool = True
    reduced: list[Change] = []  # differences from the paper's setting
    config: dict[str, Any]  # the calibrated settings
    public_data: str
    public_kinds: list[PublicKind]  # declared by the method; the site's filter
    private_records: int
    public_records: int
    privacy: Privacy | None = None
    utility: Utility | None = None
    queries: Queries | None = None
    student: Student | None = None
    image_grid: ImageGrid | None = None  # None without released images of a displayable shape
    notes: list[str] = []
    failure: Failure | None = None
    noise_salt: str | None = Field(default=None, pattern=f"^{SALT}$")
    """What seeds the noise besides seed and key. None where these do so alone, and where the noise stays secret."""
    provenance: Provenance

    @property
    def asked(self) -> CellSpec:
        """The cell's specification."""
        return self.cell

    @property
    def method_version(self) -> int:
        """The method version of this record."""
        return self.cell.method_version

    @property
    def own_adjacency(self) -> Adjacency:
        """The adjacency of the method's own analysis; replace where a failed cell states none."""
        return Adjacency.REPLACE if self.privacy is None else self.privacy.adjacency

    @property
    def dataset(self) -> str:
        """The data set's name, without the path of a user's folder."""
        return self.cell.dataset

    @property
    def dataset_revision(self) -> str:
        """The revision of the data set."""
        return self.cell.dataset_revision

    @property
    def noise_salt_option(self) -> str:
        """The ``--noise-salt`` that draws the same noise again; empty where there is none or it is secret."""
        known = self.public_benchmark and self.noise is NoiseKind.SEEDED and self.epsilon is not None
        return (self.noise_salt or "none") if known else ""


def parse_record(text: str | bytes) -> Record:
    """Return the record in `text`, upgraded from an older schema if needed.

    Raise ValueError (one line) on invalid text, :class:`SchemaError` on a newer schema.
    """
    data = json_object(text)
    version = data.get("schema_version")
    while version in UPGRADES:
        data = UPGRADES[version](data)
        version = data["schema_version"]
    if version != SCHEMA_VERSION:
        raise SchemaError(f"schema version {version!r}, this program reads up to {SCHEMA_VERSION}")
    return validated(Record, data)


@dataclass(frozen=True, slots=True)
class Glance:
    """The fields of a record that planning needs; `file` is its student's, None without one."""

    key: str
    status: Status
    file: str | None


def glance(data: bytes) -> Glance | None:
    """Return the glance at the record in `data`, None if invalid; skips full validation, as plans read thousands."""
    try:
        values = json_object(data)
        if values["schema_version"] not in (SCHEMA_VERSION, *UPGRADES):
            return None
        student = values["student"]
        file = None if student is None else student["file"]
        found = Glance(values["key"], Status(values["status"]), file)
    except (ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found.key, str) and isinstance(found.file, str | None) else None
