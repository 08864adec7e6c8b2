"""Model card of a released student: Markdown with YAML front matter, a pure function of record and public facts."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from bench.core.margins import covered
from bench.core.types import PrivacyUnit
from bench.privacy.auditing.utility_bound import remark
from bench.results.record import Privacy, Record, Student
from bench.results.text import epsilon_rows, epsilon_text, md, risk_table

_UNITS = {
    PrivacyUnit.RECORD: "one record, together with its label",
    PrivacyUnit.LABEL: "the label of one record; the rest of it is taken as public",
    PrivacyUnit.QUERY_LABEL: "the label that the teacher gave to one query; it says nothing about a training record",
    PrivacyUnit.CLIENT: "all records of one client of a federation",
}


@dataclass(frozen=True, slots=True)
class CardFacts:
    """Content of a card that is not in the record; licence, source and citation are the data set's."""

    command: str | None
    no_command: str  # why there is no command
    licence: str
    source: str
    citation: str
    task: Literal["image", "text", "tabular"]  # the records are images, sentences or rows of numbers
    own_net: bool  # whether the architecture is this project's own, which timm knows after an import
    backbone: str  # timm name of a frozen backbone that the file lacks, or ""
    backbone_words: str
    preprocessing: Sequence[str]
    digest: str  # SHA-256 of model.safetensors
    extras: Sequence[str]  # names of releases other than the student


def card(record: Record, facts: CardFacts) -> str:
    """Return the card of the student of `record`, which must be a finished cell's."""
    assert record.privacy is not None
    assert record.utility is not None
    assert record.student is not None
    parts = [
        _front(record, record.privacy, record.utility.accuracy, facts),
        f"# {plain(record.key)}",
        _about(record),
        *_warnings(record, record.privacy),
        "## Privacy",
        _epsilons(record, record.privacy),
        "## Data",
        _bullets(
            [
                f"Private: {record.private_records} {_whose(record)} {plain(record.dataset)} "
                f"({plain(record.dataset_revision)}). Licence of the data: {plain(facts.licence)}."
                + (f" From: {plain(facts.source)}." if facts.source else "")
                + (f" {plain(facts.citation)}." if facts.citation else ""),
                f"Public: {plain(record.public_data)}.",
                f"Accuracy: {100 * record.utility.accuracy:.2f}% of {record.utility.test_records} test records.",
            ]
        ),
        "## Input",
        _bullets([plain(line) for line in facts.preprocessing]),
        "## Load",
        _load(record, facts),
        "## Setting",
        _setting(record, facts),
        "## Files",
        _files(record, record.student, facts),
    ]
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Return untrusted `text` escaped for Markdown: no HTML, no link, no emphasis, one line."""
    return re.sub(r"([\]*_~])", r"\\\1", md(text))


def _front(record: Record, privacy: Privacy, accuracy: float, facts: CardFacts) -> str:
    tags = ["private-student-bench", record.method]
    if _private(record, privacy):
        tags.insert(0, "differential-privacy")
    task = f"{facts.task}-classification"
    data = {"name": record.dataset, "type": record.dataset, "revision": record.dataset_revision}
    result = {"task": {"type": task}, "dataset": data, "metrics": [{"type": "accuracy", "value": accuracy}]}
    told: dict[str, Any] = {
        "library_name": "timm", "pipeline_tag": task, "tags": tags, "datasets": [record.dataset], "license": "other",
        "license_name": "see-the-licence-of-the-data", "model-index": [{"name": record.key, "results": [result]}],
    }  # fmt: skip
    return f"---\n{yaml.safe_dump(told, sort_keys=False, allow_unicode=False, width=10_000)}---"


def _whose(record: Record) -> str:
    digest = record.config.get("teacher_weights_sha256")
    return f"that trained the given teacher of SHA-256 {plain(str(digest))}; tested on" if digest else "records of"


def _private(record: Record, privacy: Privacy) -> bool:
    """Return whether the claim or the target epsilon is proven for records: hubs list models by this tag."""
    promised = max(privacy.claimed.epsilon, record.epsilon or 0.0)
    figure = privacy.proven.epsilon
    return math.isfinite(figure) and figure <= promised and privacy.unit is not PrivacyUnit.QUERY_LABEL


def _about(record: Record) -> str:
    by = f" ({plain(record.citation)})" if record.citation else ""
    return (
        f"A student of private-student-bench: trained by the method {plain(record.method)}, version "
        f"{record.method_version}{by}, on {plain(record.dataset)}. Three epsilons accompany its accuracy: the paper's "
        "claim, what a sound accountant proves for the mechanisms that ran, and a lower bound measured by an audit."
    )


def _warnings(record: Record, privacy: Privacy) -> list[str]:
    said = []
    if math.isinf(privacy.proven.epsilon):
        reasons = "; ".join(privacy.bypasses) or privacy.proven.note or "no mechanism hides the private data"
        said.append(f"No privacy is proven for this student: {plain(reasons)}.")
    elif not covered(privacy.proven.epsilon, privacy.claimed.epsilon):
        said.append(
            f"The claimed epsilon, {epsilon_text(privacy.claimed.epsilon)}, is below the proven epsilon of "
            f"the mechanisms that ran, {epsilon_text(privacy.proven.epsilon, 'up')}: the claim is not proven."
            + (f" {plain(privacy.claimed.note)}." if privacy.claimed.note else "")
        )
    if privacy.plausibility is not None:
        found = remark([privacy.plausibility.probability])
        said += [f"The claim compared with the accuracy: {plain(found)}."] if found else []
    if privacy.unit is PrivacyUnit.QUERY_LABEL:
        level = privacy.record_level
        follows = f"; for one of those epsilon {epsilon_text(level.epsilon, 'up')} follows" if level else ""
        said.append(f"The epsilons below protect labels of queries, not training records{follows}.")
    if record.noise_salt_option:
        said.append(
            f"The noise was drawn from a seed{' and a salt' if record.noise_salt else ''} that the benchmark "
            "publishes, so that anyone can repeat the run. Whoever knows the seed can subtract the noise, "
            "so the epsilons describe the mechanism with secret noise. The weights do not contain the "
            "seed; the command below does."
        )
    return ["\n".join(f"> **Warning.** {line}\n>" for line in said).removesuffix("\n>")] if said else []


def _epsilons(record: Record, privacy: Privacy) -> str:
    rows = epsilon_rows(privacy)
    if not covered(privacy.proven.epsilon, privacy.claimed.epsilon):
        rows[0] = ("claimed, not proven", *rows[0][1:])
    table = [f"| epsilon | at delta {privacy.delta:g} | from |", "|---|---|---|"]
    table += [f"| {name} | {value} | {plain(why)} |" for name, value, why in rows]
    asked = "without privacy" if record.epsilon is None else f"for epsilon {record.epsilon:g} ({record.basis.value})"
    unit = f"Unit: {_UNITS[privacy.unit]}. Neighbours: {privacy.adjacency.value}. Asked {asked}.\n"
    if math.isfinite(privacy.proven.epsilon):
        bounds = risk_table(privacy)
        lines = _bullets([f"{what}: at most {one}" for what, one, _ in bounds.rows])
        table.append(f"\n{bounds.caption}, {bounds.columns[1]}:\n\n{lines}\n\n{bounds.note}")
    return "\n".join([unit, *table])


def _load(record: Record, facts: CardFacts) -> str:
    lines = ["import timm", f'model = timm.create_model("local-dir:{record.key}", pretrained=True).eval()']
    words = "The architecture is timm's own, so only timm is needed. From the folder that holds this one:"
    if facts.own_net:
        lines.insert(0, "import bench.models.for_timm  # registers the nets of private-student-bench with timm")
        words = "From the folder that holds this one, with private-student-bench installed:"
    code = "\n".join(f"    {line}" for line in lines)
    after = "`model` maps float tensors of shape (n, channels, height, width) in [0, 1] to logits (n, classes)."
    parts = [words, code, after]
    if facts.backbone:
        parts.append(
            f"The file holds only the head. Its frozen backbone, {plain(facts.backbone_words)}, is named by the hash "
            "of its public weights, which we may not redistribute. Fetch them once; loading then finds them by hash:"
        )
        parts.append(f"    python -m bench weights get {facts.backbone}")
    return "\n\n".join(parts)


def _setting(record: Record, facts: CardFacts) -> str:
    differs = [f"differs from the paper: {change}" for change in record.reduced]
    lines = [f"preset {record.preset}", *(differs or ["nothing differs from the paper's setting"]), *record.notes]
    commit = record.provenance.git_commit
    made = f"The record was made by the program at commit {plain(commit)}. " if commit else ""
    again = f"No command reproduces it: {plain(facts.no_command)}."
    if facts.command:
        again = "Repeat it, with other noise," if record.cell.own_folder else "Reproduce it"
        again = f"{again} with:\n\n{textwrap.indent(facts.command, '    ')}"
    return f"{_bullets([plain(line) for line in lines])}\n\n{made}{again}"


def _files(record: Record, student: Student, facts: CardFacts) -> str:
    lines = [
        f"`model.safetensors`: SHA-256 {facts.digest}, {student.parameters} parameters.",
        f"The run released it as a file of SHA-256 {plain(student.sha256)}.",
        f"The record: `python -m bench show {record.key}`" + (
            " with `--out` and its run directory." if record.cell.own_folder
            else f", or, if published, `leaderboards/records/{record.key}.json` in the project."
        ),
    ]  # fmt: skip
    if facts.extras:
        lines.append(f"Also released, but not included here: {plain(', '.join(facts.extras))}.")
    return _bullets(lines)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
