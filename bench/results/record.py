"""Records: one typed row per cell, attack or audit, as it is written, read and published.

A record's key is the hash of its cell's specification (see :func:`bench.experiments.plan.keyed`). Everything outside
``provenance`` is a function of that key and the program: two runs of one cell differ there alone.
"""

# Pydantic copies mutable defaults; the linter does not see that Row is a pydantic model.
# ruff: noqa: RUF012

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from pydantic import ValidationError

from bench.core.rows import Change, Row, SchemaError, json_object, validated
from bench.core.types import Adjacency, PrivacyUnit, PublicKind
from bench.results.cell_spec import CellSpec, Specified
from bench.results.record_upgrades import UPGRADES

SCHEMA_VERSION = 2
"""Raised when a field changes its meaning or goes; older records are turned into this one."""


SAFE_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
"""What a key may be made of: it names files."""


class Status(StrEnum):
    """How a cell ended."""

    DONE = "done"
    FAILED = "failed"


class Accountant(Row):
    """What one accountant says the mechanisms cost."""

    name: str
    epsilon: float
    sound: bool
    data_dependent: bool
    releasable: bool
    order: float | None = None
    note: str = ""


class Claimed(Row):
    """What the method's paper says this setting costs."""

    epsilon: float
    source: str
    note: str = ""


class Audited(Row):
    """A lower bound on epsilon that an experiment saw, at `confidence`."""

    epsilon: float
    confidence: float
    audit: str


class Plausibility(Row):
    """What the claimed epsilon says of the measured accuracy, where the claim holds between any two teachers.

    Above `threshold`, a share of the test records, the accuracy is with at most this `probability`; see
    :mod:`bench.privacy.utility_bound`.
    """

    probability: float
    threshold: float
    permutations: float


class Privacy(Row):
    """The three epsilons of a row, and what they speak of."""

    unit: PrivacyUnit
    adjacency: Adjacency
    delta: float
    claimed: Claimed
    proven: Accountant
    audited: Audited | None = None
    plausibility: Plausibility | None = None
    """None where the claim speaks of data sets that differ in one unit, which no accuracy contradicts."""
    bypasses: list[str] = []
    accountants: list[Accountant] = []
    withheld: str = ""
    """Why data-dependent figures are not listed, where they are not."""
    events: list[dict[str, Any]] = []
    """What the ledger saw, in order: mechanism and parameters, no data."""
    record_level: Accountant | None = None
    """What follows for one training record, where the unit is the label of a query."""


class Queries(Row):
    """The teacher's answers that were released: how many were asked and given, and how many are right."""

    asked: int
    answered: int
    label_accuracy: float | None = None


class Utility(Row):
    """How good the released student is on the test split."""

    accuracy: float
    test_records: int


class Student(Row):
    """The released student: rebuilt by timm from `name` and `options`, weights in `file` below the run directory."""

    name: str
    options: dict[str, Any]
    parameters: int
    file: str
    sha256: str


class ImageGrid(Row):
    """A picture of the first released images: a PNG, `file` below the run directory."""

    file: str
    sha256: str


class Failure(Row):
    """Why a cell failed. `log` is a path below the run directory."""

    kind: str
    reason: str
    log: str | None = None
    spent: list[dict[str, Any]] = []
    """What the ledger had charged when the cell failed: noise drawn afresh would cost as much again."""


class Provenance(Row):
    """Where and when: the one part in which two runs of the same cell may differ. None comes with a reason."""

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
    artefacts: dict[str, tuple[int, int]] = {}
    """Of each kind of artefact, how many were made and how many found: what this cell shared with others."""
    unread: dict[str, str] = {}
    """Field to reason, for what could not be read."""


class Record(Row, Specified):
    """One cell of a grid, done or failed."""

    schema_version: Literal[2] = 2
    key: str
    status: Status
    cell: CellSpec
    citation: str = ""
    public_benchmark: bool = True
    reduced: list[Change] = []
    """What differs from the paper's setting."""
    config: dict[str, Any]
    """The settings, calibrated."""
    public_data: str
    public_kinds: list[PublicKind]
    """What the method declares of its public data: what the site filters by."""
    private_records: int
    public_records: int
    privacy: Privacy | None = None
    utility: Utility | None = None
    queries: Queries | None = None
    student: Student | None = None
    image_grid: ImageGrid | None = None
    """None where no images were released that a picture can show."""
    notes: list[str] = []
    failure: Failure | None = None
    provenance: Provenance

    @property
    def asked(self) -> CellSpec:
        """The cell's specification."""
        return self.cell

    @property
    def method_version(self) -> int:
        """The version of the method that made the record."""
        return self.cell.method_version

    @property
    def dataset(self) -> str:
        """The data set's name; for a user's folder without its path."""
        return self.cell.dataset

    @property
    def dataset_revision(self) -> str:
        """The revision of the data set."""
        return self.cell.dataset_revision


_CURRENT = re.compile(rf'\s*\{{\s*"schema_version"\s*:\s*{SCHEMA_VERSION}\s*,')


def parse_record(text: str) -> Record:
    """Return the record that `text` holds, upgraded where an older program wrote it.

    Raises ValueError, in one line, where `text` is no record; :class:`SchemaError` where it is of a newer schema.
    """
    if _CURRENT.match(text):
        try:
            return Record.model_validate_json(text)  # nearly twice as fast as through a dict
        except ValidationError:
            pass  # what is wrong with it is said below, in the same words for every schema
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
    """What a plan has to know of a record; `file` is that of its student, None where it has none."""

    key: str
    status: Status
    file: str | None


def glance(data: bytes) -> Glance | None:
    """Return the key, the status and the student's file of the record in `data`; None where it is none or damaged.

    Thousands are looked at whenever a grid is planned: nothing else of them is validated.
    """
    try:
        values = json.loads(data)
        if values["schema_version"] not in (SCHEMA_VERSION, *UPGRADES):
            return None
        student = values["student"]
        file = None if student is None else student["file"]
        found = Glance(values["key"], Status(values["status"]), file)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return found if isinstance(found.key, str) and isinstance(found.file, str | None) else None
