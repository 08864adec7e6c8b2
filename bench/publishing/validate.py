"""Checks of a record before publication, without data or training.

Records are untrusted: key, settings, claimed and proven epsilon are computed again. A reviewer reruns the cell for the
rest (accuracy, figures that depend on votes).
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.core.errors import BenchError, UnknownNameError, nearest_names
from bench.core.types import Knowledge, PrivacyUnit
from bench.data.datasets import get_dataset
from bench.evaluation.audit.canaries import canary_unit, speaks_of
from bench.experiments.calibration_cache import Calibrations
from bench.experiments.candidates import public_kinds_of, public_words_of
from bench.interface.registry import ATTACKS, METHODS
from bench.privacy.accounting.risk import reconstruction
from bench.privacy.events.base_event import restored
from bench.publishing import recompute as reaccount
from bench.publishing.reproduce import Reproduction, check_method, dataset_of, missing_plugin, planned_again
from bench.results.attack_record import AttackRecord, AuditRecord, above
from bench.results.audited import CHANNELS, audited_of, bounded, corrected, many_bounded
from bench.results.cell_spec import CellSpec
from bench.results.record import SAFE_KEY, Provenance, Record, Status

LONGEST = 5000  # maximum characters of one text
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PATHS = re.compile(
    r"(?:^|[\s\"'(=:,\[])(?:(?:~|/[\w.+-]+)/[\w.+@-][\w./+@-]*|/(?:home|Users|root|tmp|mnt|work|scratch)\b)"
    r"|\b[A-Za-z]:\\\w+|\\\\\w+"
)
_ADDRESS = re.compile(r"[\w.+-]+@[\w.-]+\.[A-Za-z]{2,}\b")
# Names that identify no person or machine and occur as ordinary words in records.
_NOBODY = {"root", "user", "users", "admin", "ubuntu", "runner", "test", "home", "work", "main", "data", "localhost"}


@dataclass(slots=True)
class Vetted:
    """Result of one record's checks: `problems` refuse it, `unchecked` lists checks that could not run."""

    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    cell: CellSpec | None = None  # from planning, if it reproduces the record's cell


def vet_record(
    record: Record, calibrations: Calibrations | None = None, *, replan: bool = True, account: bool = True,
    published: bool = False,
) -> Vetted:  # fmt: skip
    """Return a finished cell's problems; `replan` checks its key, `account` its proven epsilon (seconds each).

    For a `published` record, a plug-in that is not installed here is not a problem: checks that need it are listed in
    `unchecked`. Neither is noise without a salt, from the time before salts existed.
    """
    found = Vetted()
    found.problems += _look(record)
    found.problems += _figures(record)
    if published and (why := missing_plugin(record)):
        found.unchecked.append(f"key, settings and epsilons: {why}")
        return found
    if not published and record.noise_salt_option == "none":
        found.problems.append(
            "its noise has no salt: a method could know it. Run its cell again without --noise-salt none, or with this "
            "version of the program."
        )
    known = _known(record)
    found.problems += known
    if record.privacy is not None and not known and account:
        problems, unchecked = reaccount.accounted(record, record.privacy)
        found.problems += problems
        found.unchecked += unchecked
    if replan and not known:
        reproduced = planned_again(record, calibrations)
        found.problems += _planned(record, reproduced)
        found.cell = None if reproduced.cell is None else reproduced.cell.spec
        if reproduced.cell is not None and record.privacy is not None:
            for check in (reaccount.claimed, reaccount.charged, reaccount.noisy):
                problems, unchecked = check(record, record.privacy, reproduced.cell)
                found.problems += problems
                found.unchecked += unchecked
    return found


def vet_audit(audit: AuditRecord, record: Record) -> list[str]:
    """Return the problems of a finished audit of the student of `record`."""
    from bench.evaluation.audit.audit import CHOSEN_SETS, events_of
    from bench.evaluation.audit.informed import found as found_by

    problems = [*_look(audit), *_clean(audit.provenance)]
    if record.method not in METHODS:
        return problems
    method = METHODS.get(record.method)
    pair, unit = audit.kind in CHOSEN_SETS, canary_unit(method.unit)
    if pair:
        unit = PrivacyUnit.RECORD if audit.record_level else method.unit
    said = (audit.method, audit.dataset, audit.unit, audit.adjacency, audit.delta)
    if said != (record.method, record.dataset, unit, method.adjacency, record.delta):
        problems.append("its method, data set, unit or delta differ from its student's record. Audit again.")
    claimed = record.privacy.claimed.epsilon if record.privacy and (pair or speaks_of(method.unit)) else None
    if not reaccount.same(audit.claimed, claimed):
        problems.append(f"it says {audit.claimed} is claimed, but its student's record says {claimed}. Audit again.")
    if audit.violated:
        seen = audit.verdict.partition("VIOLATED: ")[2]
        problems.append(f"{seen}: a bug of the method, the accountant or the audit. Find it first.")
    strict = corrected(audit.confidence, CHANNELS)
    for channel in audit.channels:
        # Audits that predate bounds by a curve have none.
        events = events_of(record, audit.unit) if channel.curve is not None else []
        if channel.errors is not None:
            again = many_bounded(channel.name, channel.family, channel.errors, audit.delta, strict, events)
        else:
            again = bounded(
                channel.name, channel.family, channel.canaries, channel.guesses, channel.correct, channel.group,
                audit.delta, strict, events,
            )  # fmt: skip
        for what, written, found in (("", channel.epsilon, again.epsilon), (" by curve", channel.curve, again.curve)):
            if not reaccount.same(written, found):
                problems.append(f"channel {channel.name}: its counts give {found}{what}, not {written}.")
    for bound in audit.pairs:
        if bound.errors is None:
            continue  # a transcript's losses are not in the record
        confidence = corrected(audit.confidence, bound.tests)
        events = events_of(record, audit.unit) if bound.curve is not None else []
        counted = many_bounded(bound.instrument, bound.pair, bound.errors, audit.delta, confidence, events)
        if not reaccount.same(bound.curve, counted.curve):
            problems.append(f"{bound.instrument}: its counts give {counted.curve} by curve, not {bound.curve}.")
        if (bound.errors[1], bound.errors[3]) != bound.runs or not (
            reaccount.same(bound.epsilon, counted.epsilon) and reaccount.same(bound.cap, counted.cap)
        ):
            problems.append(
                f"{bound.instrument}: its counts give {counted.epsilon:.6g} of at most {counted.cap:.6g}, not "
                f"{bound.epsilon:.6g} of {bound.cap:.6g} on {bound.runs[0]:,} + {bound.runs[1]:,} runs."
            )
    for attacked in audit.candidates:
        allowed = reconstruction(restored(record.privacy.events), 1 / attacked.candidates) if record.privacy else 1.0
        right = [number < attacked.right for number in range(attacked.runs)]
        counts = found_by(attacked.instrument, attacked.candidates, right, allowed, attacked.confidence)
        if not all(reaccount.same(getattr(attacked, name), getattr(counts, name)) for name in ("low", "high", "bound")):
            problems.append(
                f"{attacked.candidates} candidates by {attacked.instrument}: its counts and its student's events give "
                f"{counts.low:.4g} to {counts.high:.4g} and at most {counts.bound:.4g}. Audit again."
            )
    parts = [*(channel.epsilon for channel in audit.channels), *(bound.epsilon for bound in audit.pairs)]
    if parts and not reaccount.same(audit.epsilon, max(parts)):
        problems.append("its epsilon differs from that of its best channel or pair. Audit again.")
    return problems


def vet_attack(attack: AttackRecord, record: Record) -> list[str]:
    """Return the problems of a finished attack on the student of `record`."""
    problems = [*_look(attack), *_clean(attack.provenance)]
    if attack.dataset != record.dataset:
        problems.append(f"it is for {attack.dataset}, but its student for {record.dataset}. Attack again.")
    if attack.attack not in ATTACKS:
        problems.append(str(UnknownNameError("attack", attack.attack, ATTACKS.names())))
    elif attack.attack_version != ATTACKS.get(attack.attack).version:
        problems.append(
            f"version {attack.attack_version} of {attack.attack} made it; attack again with the current version."
        )
    else:
        kind = ATTACKS.get(attack.attack)
        for name in ("access", "knowledge", "citation"):
            stated = {str(getattr(kind, name) or "")}
            if name == "knowledge" and ("tuning" in attack.details or attack.config.get("subspace")):
                stated = {Knowledge.AUXILIARY.value}
            if getattr(attack, name) not in stated:
                problems.append(f"its {name} is not what {attack.attack} states. Attack again.")
    return problems


def audited_above_proven(record: Record, audits: Iterable[AuditRecord]) -> str:
    """Return the problem if a student's joint audits exceed its proven epsilon, or ""."""
    if record.privacy is None:
        return ""
    figures = [record.privacy.audited, audited_of(audits, record.privacy.unit)]
    seen = max((figure.epsilon for figure in figures if figure is not None), default=0.0)
    if above(seen, record.privacy.proven.epsilon):
        return (
            f"audited {seen:.4g} > proven {record.privacy.proven.epsilon:.4g}: a bug of the method, the "
            "accountant or the audit. Find it first."
        )
    return ""


def _look(row: Record | AuditRecord | AttackRecord) -> list[str]:
    """Return the problems of a record's texts: unsafe file names, and texts that identify people."""
    problems = []
    if not SAFE_KEY.fullmatch(row.key):
        problems.append(f"the key {row.key[:80]!r} cannot name a file.")
    if isinstance(row, Record):
        files = [("student", row.student, "safetensors"), ("image grid", row.image_grid, "png")]
        for what, part, ending in files:
            if part is not None and part.file != f"released/{row.key}.{ending}":
                problems.append(f"its {what} must be in released/{row.key}.{ending}, not {part.file[:80]!r}.")
    elif not row.key.startswith(f"{row.student}--"):
        problems.append("its key does not begin with its student's key.")
    # Answers are not text: the record's schema decodes them. They are long if a student is often wrong.
    problems += private_texts(row.model_dump(mode="json", exclude={"utility": {"answers": {"errors"}}}))
    return problems


def private_texts(values: Any) -> list[str]:
    """Return a problem for each text in `values` that is too long or names a path, a person or this machine."""
    own = _own_names()
    problems = []
    for where, text in _texts(values):
        if len(text) > LONGEST:
            problems.append(f"{where} holds a text of {len(text)} characters. Shorten the method's text.")
            continue
        seen = _PATHS.search(text) or _ADDRESS.search(text) or (own.search(text) if own else None)
        if seen:
            problems.append(
                f"{where} holds {seen[0].strip()!r}: a path, an address, or the name of a user or a "
                "machine. Remove it from the method's texts or settings, and run the cell again."
            )
    return problems


def _own_names() -> re.Pattern[str] | None:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container the user may have no name
        user = ""
    host = socket.gethostname()
    names = {name for name in (user, host, host.partition(".")[0]) if len(name) > 2 and name.lower() not in _NOBODY}
    return re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(names))) if names else None


def _texts(values: Any, where: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(values, str):
        yield where, values
    elif isinstance(values, Mapping):
        for name, value in values.items():
            yield f"a name in {where or 'the record'}", str(name)
            yield from _texts(value, f"{where}.{name}" if where else str(name))
    elif isinstance(values, list):
        for value in values:
            yield from _texts(value, where)


def _clean(provenance: Provenance) -> list[str]:
    if provenance.git_commit is None or not _COMMIT.fullmatch(provenance.git_commit):
        return ["it did not run from a git checkout, so the program that made it is unknown. Run it in a clone."]
    if provenance.git_dirty is not False:
        return ["it ran from modified files. Commit them and run the cell again with --reuse none."]
    return []


def _figures(record: Record) -> list[str]:
    """Return the problems of a record's numbers and provenance."""
    problems = _clean(record.provenance)
    if not record.disclosure.publishable:
        problems.append("its data is not a public benchmark: such rows stay with the owner of the data.")
    if record.collapsed:
        if record.status is not Status.FAILED or record.privacy or record.utility or record.student:
            problems.append("its generator collapsed, but it states figures. Run the cell again with --reuse none.")
        return problems
    if record.failure is not None:
        problems.append("it has both a reason for failure and the status done. Run the cell again with --reuse none.")
    if record.status is not Status.DONE or record.privacy is None or record.utility is None or record.student is None:
        problems.append("it has no student, accuracy or privacy. Run the cell again with --reuse none.")
        return problems
    if record.queries is not None and not 0 <= record.queries.answered <= record.queries.asked:
        problems.append("its number of answers exceeds its queries or is negative. Run the cell again.")
    if record.provenance.wall_seconds < 0 or record.student.parameters < 0:
        problems.append("its time or its number of parameters is negative. Run the cell again.")
    if not _DIGEST.fullmatch(record.student.sha256):
        problems.append("its student's SHA-256 is invalid. Run the cell again.")
    privacy = record.privacy
    if privacy.audited is not None:
        problems.append("it contains an audited epsilon, but audits have separate records. Run the cell again.")
    return problems + list(filter(None, [audited_above_proven(record, ())]))


def _known(record: Record) -> list[str]:
    """Return why the record cannot be recomputed here: a method or data set that is unknown or of another version."""
    try:
        check_method(record)
    except UnknownNameError as error:
        near = nearest_names(record.method, METHODS.names(), 1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        return [f"unknown method {error.name!r}.{guess} Add its file in the same pull request, or install its package."]
    except BenchError as error:
        return [f"{error} Run its cell again."]
    if str(record.config.get("teacher_weights", "")).startswith("file:"):
        return [
            "its teacher is a user's own file, which nobody else has. Only rows with "
            "teacher_weights=package, which names a registry's pinned package, are reproducible."
        ]
    if record.cell.own_folder:
        return ["a user's own folder is not a public benchmark."] if record.public_benchmark else []
    try:
        if record.public_benchmark and not get_dataset(record.dataset).public_benchmark:
            return [f"{record.dataset} is not a public benchmark here."]
        dataset = dataset_of(record)
    except BenchError as error:
        return [str(error)]
    if record.utility is not None and dataset.facts.test_records != record.utility.test_records:
        return [f"{record.dataset} has {dataset.facts.test_records} test records here. Run its cell again."]
    return []


def _planned(record: Record, reproduced: Reproduction) -> list[str]:
    """Return the differences between a record and its planned cell."""
    cell = reproduced.cell
    if cell is None:
        return [f"its key differs from the planned one: {reproduced.reason.rstrip('.')}. Run its cell again."]
    problems = []
    method = METHODS.get(record.method)
    made, here = record.cell.plugin, cell.spec.plugin
    if (made and made.distribution) != (here and here.distribution):
        problems.append("its plug-in is not from the distribution that it names. Run its cell again.")
    if list(cell.reduced) != record.reduced:
        problems.append("its stated differences from the paper are not those that planning finds. Run its cell again.")
    stated = (record.public_data, record.public_kinds, record.citation)
    if (public_words_of(cell), list(public_kinds_of(cell)), method.citation) != stated:
        problems.append("its public data or citation differ from the method's. Run its cell again.")
    return problems
