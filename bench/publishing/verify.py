"""What publication requires beyond vetting: an audit of each row, a check of each method, and reruns of cells."""

from __future__ import annotations

import hashlib
import inspect
import math
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.core.config import NoiseKind, Preset
from bench.core.confinement import words_confined
from bench.core.errors import UnknownNameError
from bench.core.grouping import grouped
from bench.core.lazy import LazyModule
from bench.core.progress import Progress
from bench.core.types import AuditKind, Instrument
from bench.experiments.device import prepare_device
from bench.interface.plugin_source import plugin_of, sources_of
from bench.interface.registry import METHODS
from bench.publishing.outcomes import Outcomes
from bench.publishing.publish import MACHINE, Fate, Item, Publication
from bench.publishing.recompute import TOLERANCE
from bench.publishing.reproduce import command_of, planned_again
from bench.results.attack_record import AuditRecord
from bench.results.derived import row_key
from bench.results.full_size import NO_FULL_SIZE, has_full_size
from bench.results.merge import content_of
from bench.results.provenance import Clock
from bench.results.record import Record
from bench.results.replays import Replay
from bench.results.run_dir import RunDir
from bench.storage.array_store import data_places, user_cache

if TYPE_CHECKING:
    from bench.evaluation.check import noninterference as checks
    from bench.evaluation.check import row_replay, trials
else:  # with timm, which dry runs do not need
    checks, row_replay, trials = (
        LazyModule(f"bench.evaluation.check.{name}") for name in ("noninterference", "row_replay", "trials")
    )

LEAST_SPREAD = 0.005
"""How far another machine's arithmetic may move an accuracy if the seeds of a row differ by less."""
_UNKNOWN = 3_600.0  # seconds that making an artefact takes if no record says
_PATIENCE = 30.0  # seconds until a stopped run is killed


def demand_audits(found: Publication, lacking: Fate = Fate.REFUSED) -> None:
    """Refuse each row of added records without a finished audit of any seed, old or new; baselines need none.

    One audit must hold a pair of runs at the row's own size, or a note on why it cannot. If all are inconclusive, the
    row is flagged: it counts as not audited. A tuned row cannot be audited, so it needs an audit of its method with
    fixed settings on the same data. `lacking` is the fate of rows that are not refused but lack something.
    """
    audited = {(r.method, r.dataset) for r in found.board.values() if r.cell.tuning is None and found.audits.get(r.key)}
    for seeds in grouped((row_key(record), record) for record in found.board.values()).values():
        added = [r for r in seeds if r.key in found.added and r.epsilon is not None and not r.collapsed]
        tuned = seeds[0].cell.tuning is not None
        if tuned and (seeds[0].method, seeds[0].dataset) in audited:
            continue
        if not added:
            continue
        key = min(added, key=lambda r: (r.provenance.wall_seconds, r.key)).key
        run = found.added[key][1]
        every = (audit for record in seeds for audit in found.audits.get(record.key, {}).values())
        audits = [audit for audit in every if audit.kind is not AuditKind.CANDIDATES]  # guesses bound no epsilon
        fate, why = _judged(audits, f"python -m bench audit {key} -o {shlex.quote(str(run))}")
        if tuned and not audits:
            why = "it is tuned, and no row of its method with fixed settings is audited there. Publish one first."
        if why:
            fate = lacking if fate is Fate.REFUSED else fate
            found.items.append(Item("record", f"{run.name}/records/{key}.json", fate, why))


def _judged(audits: Sequence[AuditRecord], command: str) -> tuple[Fate, str]:
    """Return what is missing in the `audits` of a row, or ""; `command` audits the row."""
    if not audits:
        return Fate.REFUSED, f"no seed of its row is audited. Audit one: {command}"
    # A shared audit never tries a pair of this row's size, so its note does not excuse the missing pair.
    tried = [note for audit in audits if not audit.shared for note in audit.notes if note.startswith(NO_FULL_SIZE)]
    if not any(map(has_full_size, audits)):
        if not tried:
            return Fate.REFUSED, f"no audit of its row runs a pair at the row's own size: {command} --kind pair"
        return Fate.FLAGGED, f"its audit has {tried[0]}"
    if all(audit.powerless for audit in audits):
        why = "its audits are inconclusive, so the row counts as not audited"
        # More runs cannot raise a bound that was computed exactly.
        exact = any(pair.exact and pair.instrument is Instrument.TRANSCRIPT for audit in audits for pair in audit.pairs)
        return Fate.FLAGGED, why if exact else f"{why}; try more --minutes"
    return Fate.PASSED, ""


def verify(
    found: Publication, kept: Outcomes, progress: Progress, *, rerun: Sequence[str] = (), skip_rerun: bool = False
) -> None:
    """Check the methods of the added records, then run one cell of each again, and add the outcomes to `found`.

    The cells are those whose keys begin with `rerun`; for other methods, the fastest one. What a stopped command
    already did is taken from `kept`. Raises :class:`BenchError` if `rerun` names no added record.
    """
    records = [record for record, _ in found.added.values()]
    chosen = _chosen(records, rerun)
    if not records:
        return
    _check(found, records, kept, progress)
    found.unchecked["how many other seeds and settings were tried (say so in the pull request)"] = len(records)
    if skip_rerun:
        found.unchecked["whether a cell of theirs gives the same student again (--no-rerun): say so"] = len(records)
    elif not found.refused:
        for record in chosen:
            seconds = cold_seconds(record, records)
            once = partial(_again, record, found, seconds, progress)
            found.items.append(kept.once("rerun", record.method, [record], once))
        if not found.refused:
            _replay(found, records, kept, progress)


def _check(found: Publication, records: Sequence[Record], kept: Outcomes, progress: Progress) -> None:
    names = sorted({record.method for record in records})
    prepare_device()
    for name in progress.each("checks", names):
        those = [record for record in records if record.method == name]
        found.items.append(kept.once("check", name, those, partial(checked, name, those)))


def checked(name: str, records: Sequence[Record], failed: Fate = Fate.REFUSED) -> Item:
    """Return the outcome of checking the method `name` of `records`; `failed` is the fate if it cannot be checked."""
    try:
        check = checks.check_method(
            METHODS.get(name), seeds=trials.random_seeds(), awake=Preset.QUICK, seconds=checks.SECONDS,
            labels_of=sorted({record.dataset for record in records}),
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 (of a plug-in: no other record may be added unchecked)
        return Item("check", name, failed, f"it cannot be checked: {type(error).__name__}: {error}")
    given = {f"{k}={v}" for record in records for k, v in (record.cell.overrides or {}).items()}
    why = f"{check.verdict.value}: {check.reason}"
    why += f". With its tiny and quick settings, not with {', '.join(sorted(given))}" if given else ""
    return Item("check", name, Fate.PASSED if check.ok else Fate.REFUSED, why)


def _replay(found: Publication, records: Sequence[Record], kept: Outcomes, progress: Progress) -> None:
    """Replay a random cell of each method, preset, data set and --set on the same number of other records."""
    alike = defaultdict(list)
    for record in records:
        if METHODS.get(record.method).private and record.cell.tuning is None:
            given = tuple(sorted(map(str, (record.cell.overrides or {}).items())))
            alike[record.method, record.preset, record.dataset, given, record.collapsed].append(record)
    for those in progress.each("replays", alike.values()):
        item = kept.once("replay", those[0].method, those, partial(_replayed, those))
        found.items.append(item)
        if item.fate is Fate.PASSED:
            found.replays.append(entry_of(item, next(one for one in those if one.key == item.name)))


def entry_of(item: Item, record: Record) -> Replay:
    """Return the board's entry for the passed replay `item` of `record`."""
    here = Clock().stop()
    return Replay(
        key=record.key, method=record.method, dataset=record.dataset, source_sha256=source_sha256(record.method),
        commit=here.git_commit, date=here.started[:10], outcome=item.why,
    )  # fmt: skip


def source_sha256(method: str) -> str:
    """Return the SHA-256 of a method's own file, or of the files of a plug-in."""
    kind = METHODS.get(method)
    if (plugin := plugin_of(kind)) is not None:
        return plugin.source_sha256
    return hashlib.sha256(Path(inspect.getsourcefile(kind) or "").read_bytes()).hexdigest()


def _replayed(records: Sequence[Record]) -> Item:
    lowest = min(records, key=lambda one: math.inf if one.epsilon is None else one.epsilon)  # gains most by cheating
    record = secrets.choice([lowest, secrets.choice(records)])
    return replayed(record, stated_here(record))


def replayed(record: Record, stated: row_replay.Stated | None, failed: Fate = Fate.REFUSED) -> Item:
    """Return the outcome of replaying `record`, which must reproduce what is `stated`.

    `failed` is the fate if it cannot be replayed, for lack of data for example.
    """
    cell = planned_again(record).cell
    if cell is None or record.noise is NoiseKind.SECURE:
        why = "its noise is secure" if cell is not None else "its settings cannot be planned again"
        return Item("replay", record.key, Fate.FLAGGED, f"not replayed: {why}")
    try:
        check = row_replay.check_row(cell, record.noise_salt, stated)
    except Exception as error:  # noqa: BLE001 (of a plug-in: no other record may be added unchecked)
        return Item("replay", record.key, failed, f"it cannot be replayed: {type(error).__name__}: {error}")
    fate = Fate.PASSED if check.ok else Fate.REFUSED
    return Item("replay", record.key, fate, f"{check.verdict.value}: {check.reason}")


def stated_here(record: Record) -> row_replay.Stated | None:
    """Return what `record` states of its run; None without a student, or if another machine made it."""
    here = Clock().stop()
    if record.student is None or record.utility is None or record.privacy is None:
        return None
    if any(getattr(here, name) != getattr(record.provenance, name) for name in MACHINE):
        return None
    return row_replay.Stated(record.student.sha256, record.utility.accuracy, record.privacy.events)


def _chosen(records: Sequence[Record], rerun: Sequence[str]) -> list[Record]:
    """Return the cells to run again, at least one of each method."""
    chosen = {r.key: r for key in rerun for r in records if r.key.startswith(key)}
    for key in rerun:
        if not any(name.startswith(key) for name in chosen):
            raise UnknownNameError("record to add", key, [record.key for record in records])
    for method, those in grouped((record.method, record) for record in records).items():
        if not any(record.method == method for record in chosen.values()):
            best = min(those, key=lambda r: (_words(r)[1] != "", cold_seconds(r, records), r.key))
            chosen[best.key] = best
    return list(chosen.values())


def cold_seconds(record: Record, records: Iterable[Record]) -> float:
    """Estimate the time of `record` from an empty cache: its own, plus that of the records that made its artefacts."""
    reused = {kind for kind, (_, hits) in record.provenance.artefacts.items() if hits}
    seconds = dict.fromkeys(reused, _UNKNOWN)
    for other in records:
        if (other.dataset, other.preset) == (record.dataset, record.preset):
            for kind in reused:
                if other.provenance.artefacts.get(kind, (0, 0))[0]:
                    seconds[kind] = min(seconds[kind], other.provenance.wall_seconds)
    return record.provenance.wall_seconds + max(seconds.values(), default=0.0)


def _words(record: Record) -> tuple[list[str], str]:
    """Return the command that runs a record again, or why there is none."""
    command, remark = command_of(record)
    if command is None or remark:
        return [], remark
    provenance = record.provenance
    device = "cpu" if provenance.device == "cpu" else "auto"
    words = shlex.split(command)[1:]
    return [sys.executable, *words, "--device", device, "--threads", str(provenance.threads or 1), "-q"], ""


def _again(record: Record, found: Publication, seconds: float, progress: Progress) -> Item:
    """Run the cell of `record` in a fresh directory and process, and compare."""
    words, remark = _words(record)
    if not words:
        why = f"its cell cannot be run again here: {remark}. Choose another by --rerun, or --no-rerun."
        return Item("rerun", record.key, Fate.REFUSED, why)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-rerun-") as folder:
        out = Path(folder) / "run"
        writable = [Path(folder), *data_places(), user_cache(), Path("/dev/shm")]
        confined = words_confined(sources_of(METHODS.get(record.method)), writable, [*words, "--out", str(out)])
        problem = run_command(confined, Path(folder) / "log", f"{record.key} again", seconds, progress)
        # Take the only record: its key may differ, because calibrated numbers round differently on another machine.
        again = next(iter(RunDir(out).read_records().found), None) if out.is_dir() else None
    if again is None:
        return Item("rerun", record.key, Fate.REFUSED, f"its cell cannot be run again: {problem}")
    return Item("rerun", record.key, *compared(record, again, found.board.values(), time.monotonic() - begin))


def compared(record: Record, again: Record, board: Iterable[Record], seconds: float) -> tuple[Fate, str]:
    """Return the outcome of a cell's second run `again`, which took `seconds`.

    With the same packages, processor and device, everything except provenance must be equal, including the student's
    SHA-256. Otherwise, and with secure noise, the accuracy may differ by half a point or twice the range of the row's
    other seeds.
    """
    if record.collapsed and again.collapsed:
        return Fate.PASSED, f"its generator collapsed again, in {seconds:.0f} s"
    if record.collapsed:
        return Fate.REFUSED, "its generator does not collapse in the second run. Run the cell again with --reuse none."
    if again.utility is None or again.privacy is None or again.student is None:
        return Fate.REFUSED, f"the second run fails: {again.failure.reason if again.failure else 'no reason is given'}"
    assert record.utility is not None
    assert record.privacy is not None
    assert record.student is not None
    before, now = content_of(record), content_of(again)
    parts = [name for name in now if now[name] != before[name]]
    if not parts:
        return Fate.PASSED, f"the same student and record again, in {seconds:.0f} s"
    told = f"accuracy {100 * again.utility.accuracy:.2f}%, and its record says {100 * record.utility.accuracy:.2f}%"
    secure = record.noise is NoiseKind.SECURE
    other = [name for name in MACHINE if getattr(record.provenance, name) != getattr(again.provenance, name)]
    if not (other or secure):
        return Fate.REFUSED, (
            f"a second run here with the same packages gives another {', '.join(parts)}: {told}. Run the cell again "
            "with --reuse none; if that differs too, make the method deterministic."
        )
    why = "its secure noise is fresh" if secure else f"it ran with different {', '.join(other)}"
    limit = record.privacy.proven.epsilon * (1 + TOLERANCE)
    if not again.privacy.proven.epsilon <= limit:
        return Fate.REFUSED, (
            f"the second run costs epsilon {again.privacy.proven.epsilon:.6g}, and its record says "
            f"{record.privacy.proven.epsilon:.6g} is proven. Run the cell again with --reuse none."
        )
    row = row_key(record)
    seeds = [r.utility.accuracy for r in board if r.key != record.key and r.utility and row_key(r) == row]
    allowed = max(LEAST_SPREAD, 2 * (max(seeds) - min(seeds)) if seeds else 0.0)
    if abs(again.utility.accuracy - record.utility.accuracy) > allowed:
        return Fate.REFUSED, f"run again ({why}) it gives {told}: more than {100 * allowed:.2f} points apart"
    return Fate.FLAGGED, f"a different student, because {why}: {told}, within {100 * allowed:.2f} points"


def run_command(words: Sequence[str], log: Path, title: str, seconds: float, progress: Progress) -> str:
    """Run `words` with a progress bar and return the last output; stop the command if this process is stopped.

    Its temporary files are written next to `log`.
    """
    root = str(Path(__file__).resolve().parents[2])  # this program, wherever it is installed
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    total, begin = max(1, round(seconds)), time.monotonic()
    with log.open("wb") as file, progress.stage(title, total) as stage:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(log.parent)},
        )  # fmt: skip
        shown = 0
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
                now = min(total, int(time.monotonic() - begin))
                stage.advance(now - shown)
                shown = now
        finally:
            if process.poll() is None:
                _stop(process)
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended with status {process.returncode}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # including its workers
    process.wait()
