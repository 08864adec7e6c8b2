"""Execution of one cell, from data to record, independent of launchers."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.core.config import NoiseKind, as_dict
from bench.core.disclosure import Disclosure
from bench.core.errors import BenchError, no_exit
from bench.core.options import ONE_CPU, Resources
from bench.core.printable import page, printable
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import GivenTeacher, PrivateData, PublicKind, Released
from bench.data.splits import Materialised
from bench.experiments.calibration_cache import artefact_program
from bench.experiments.candidates import public_kinds_of, public_words_of, trial_events, tuned_claim
from bench.experiments.data_source import DataSource
from bench.experiments.noise_salt import RANDOM, cell_token, forget_salt, noise_of, salt_of
from bench.experiments.plan import Cell, bound_method
from bench.experiments.release import save_image_grid, save_released
from bench.interface.method import Method, check_costs, checked_claim
from bench.interface.registry import METHODS
from bench.metrics.intervals import accuracy_interval
from bench.models import given_teacher
from bench.privacy.accounting.accountants import Accounted, account, proven
from bench.privacy.accounting.distributions import merged
from bench.privacy.auditing.utility_bound import probability_bound
from bench.privacy.events.base_event import stored
from bench.privacy.events.events import Event, RepeatAndSelect
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.results.answers import Answers
from bench.results.provenance import Clock
from bench.results.record import (
    COLLAPSED,
    Accountant,
    Claimed,
    Failure,
    ImageGrid,
    Plausibility,
    Privacy,
    Queries,
    Record,
    Status,
    Student,
    Utility,
)
from bench.results.run_dir import RunDir
from bench.storage.cache import Cache
from bench.storage.files import write_atomic, writing
from bench.training.context import Context
from bench.training.divergence import CollapsedError
from bench.training.features import student_logits
from bench.training.loop import predict


def run_cell(
    cell: Cell, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources = ONE_CPU, *,
    noise_salt: str = RANDOM, tuned: RepeatAndSelect | None = None,
) -> Record:  # fmt: skip
    """Run `cell` and return its record, written to `run_dir`; a failure is recorded too, an interrupt leaves no record.

    For `noise_salt` see :func:`bench.experiments.noise_salt.salt_of`. A cell with tuning is one trial of `tuned`, and
    its record states the cost of `tuned`. Raises :class:`BenchError` only if the record cannot be written.
    """
    clock = Clock(device=resources.device, threads=torch.get_num_threads())
    cache = Cache(run_dir.cache_path, cache_base(cell), progress.say)
    disclosure = cell.facts.disclosure
    ledger: Ledger | None = None
    salt = None
    try:
        if cell.refused:
            raise BenchError(cell.refused)
        if (cell.spec.tuning is None) != (tuned is None):
            raise BenchError("a tuned cell is the best of a random number of trials: `bench tune` runs them.")
        method = METHODS.get(cell.method)
        salt = salt_of(cell, run_dir, noise_salt)
        context = _context(cell, cache, progress, resources, salt)
        ledger = Ledger(method.unit, method.adjacency, Noisy(noise_of(cell, salt)))
        cache.refuse_answers(ledger)
        with no_exit(cell.method):
            record = _train(cell, run_dir, source, context, ledger, clock, tuned)
    except Exception as error:  # noqa: BLE001 (one cell's failure must not stop the grid)
        events = () if ledger is None else merged(ledger.events) if tuned is None else (tuned,)
        spent = stored(events)
        failure = failure_of(error, disclosure, run_dir, cell.key, spent, refused=bool(cell.refused))
        grid = None
        if isinstance(error, CollapsedError) and disclosure.pictures:
            with contextlib.suppress(BenchError):  # show the useless images, if they can be written
                extras = {"synthetic_images": error.images, "synthetic_labels": error.labels}
                grid = _image_grid(extras, cell, run_dir)
        record = _record(cell, clock, cache, status=Status.FAILED, failure=failure, image_grid=grid)
    if disclosure.noise_salt and cell.noise is NoiseKind.SEEDED:
        record = record.model_copy(update={"noise_salt": salt})
    run_dir.write_record(record)
    # Forget the salt even after a failure: rerunning edited code with the same noise would expose what changed.
    forget_salt(run_dir, cell.key)
    return record


def cache_base(cell: Cell) -> dict[str, object]:
    """Return what every artefact of the cell depends on: data, split, packages, and the source of what makes it."""
    facts = cell.facts
    return {
        "dataset": facts.dataset,
        "revision": cell.dataset_revision,
        "split": [facts.private_records, facts.public_records, facts.test_records],
        # Key by source hash so that neither edited plug-ins nor another version of this program reuse stale artefacts.
        "program": artefact_program(),
        **({} if cell.spec.plugin is None else {"plugin": cell.spec.plugin.source_sha256}),
    }


def _context(cell: Cell, cache: Cache, progress: Progress, resources: Resources, salt: str | None = None) -> Context:
    return Context(
        torch.device(resources.device), Streams(cell.seed), cache, progress, resources.workers,
        cell=cell_token(cell, salt), precision=cell.precision.value, devices=resources.devices,
    )  # fmt: skip


def _train(
    cell: Cell, run_dir: RunDir, source: DataSource, context: Context, ledger: Ledger, clock: Clock,
    tuned: RepeatAndSelect | None,
) -> Record:  # fmt: skip
    method = METHODS.get(cell.method)
    check_costs(bound_method(cell), cell.delta)  # fail before hours of training
    material = source.material(cell.dataset)
    notes: list[str] = []
    context.note = notes.append
    context.streams.seed_globals()
    private, given = material.private, bound_method(cell).given_teacher()
    if given is not None:  # the data set's own records are not private here, and not used
        private = PrivateData(private.images[:0], private.labels[:0], cell.facts)
    released = method(cell.config, private.facts).train_checked(private, material.public, ledger, context)
    if method.private and not ledger.events:
        raise BenchError(
            f"{method.name} never used the ledger, so its privacy is unknown. Route its access to private "
            "data through the ledger, or declare ledger.bypass; a baseline sets private = False."
        )
    released.student.eval()
    with context.progress.stage("test", 1) as stage:
        logits = student_logits(released.student, material.test_images, context, alone=True)
        labels = material.test_labels
        if logits.softmax(1).isnan().any():
            raise BenchError("the student's outputs are not numbers: its training diverged. Lower its learning rate.")
        accuracy = _right(logits, labels) / len(labels)
        utility = Utility(accuracy=round(accuracy, 6), test_records=len(labels))
        kinds = set(public_kinds_of(cell))
        if tuned is not None:
            kinds |= {PublicKind.UNLABELLED}  # the student may have been selected by public labels
        if material.public_from_test and not {PublicKind.UNLABELLED, PublicKind.NOT_STATED} & kinds:
            rest = student_logits(released.student, material.public.images, context, "public")
            logits, labels = torch.cat([logits, rest]), torch.cat([labels, material.public_labels])
            whole = round(_right(logits, labels) / len(labels), 6)
            utility = utility.model_copy(update={"official_accuracy": whole, "official_records": len(labels)})
        if cell.facts.disclosure.test_labels:
            utility = utility.model_copy(update={"answers": Answers.of(logits, labels)})
        if given is not None and given.public:  # a private teacher answers only through the ledger
            notes.append(_agreement(released.student, given, material, context))
        stage.advance()
    score = None if tuned is None else _score(cell, released, material, ledger, context)
    file = f"released/{cell.key}.safetensors"
    former = run_dir.read_record(cell.key)
    # Remove an older record first, so that a killed run does not leave it next to a newer release.
    with writing(run_dir.record_path(cell.key)):
        run_dir.record_path(cell.key).unlink(missing_ok=True)
    with run_dir.guarded(cell.facts.disclosure.owner_only):
        digest = save_released(released, run_dir.path / file)
        grid = _image_grid(released.extras, cell, run_dir)
    if former is None or former.student is None or former.student.sha256 != digest:
        run_dir.forget_attacks(cell.key)  # they attacked other weights
    return _record(
        cell,
        clock,
        context.cache,
        status=Status.DONE,
        privacy=_privacy(cell, ledger, accuracy, material, tuned),
        utility=utility,
        score=score,
        queries=_queries(method, ledger, released, material),
        student=Student(
            name=released.student_name,
            options=released.student_options,
            parameters=sum(p.numel() for p in released.student.parameters()),
            file=file,
            sha256=digest,
        ),
        image_grid=grid,
        notes=list(dict.fromkeys(notes)),
    )


def _image_grid(extras: Mapping[str, Tensor], cell: Cell, run_dir: RunDir) -> ImageGrid | None:
    picture = f"released/{cell.key}.png"
    seen = save_image_grid(extras, run_dir.path / picture)
    return None if seen is None else ImageGrid(file=picture, sha256=seen)


def _right(logits: Tensor, labels: Tensor) -> int:
    return int((logits.argmax(1) == labels).sum())


def _agreement(student: nn.Module, given: GivenTeacher, material: Materialised, context: Context) -> str:
    """Report how often student and public teacher agree on test images, and how often the teacher is right."""
    net, images = given_teacher.load_given(given, material.private.facts), material.test_images
    taught = predict(net, images, device=context.device).argmax(1)
    learnt = predict(student, images, device=context.device).argmax(1)
    same, right = int((taught == learnt).sum()), int((taught == material.test_labels).sum())
    low, high = accuracy_interval([same / len(images)], len(images))
    return (
        f"student and teacher agree on {same} of {len(images)} test images ({100 * low:.1f} to {100 * high:.1f}%, 95% "
        f"interval); the teacher is right on {right}"
    )


def _score(cell: Cell, released: Released, material: Materialised, ledger: Ledger, context: Context) -> float:
    """Return the score of the student: its right answers on public records, or a noisy count on private records."""
    tuning = cell.spec.tuning
    assert tuning is not None
    if tuning.score_noise is None:
        logits = student_logits(released.student, material.public.images, context, "public")
        return float(_right(logits, material.public_labels))
    logits = student_logits(released.student, material.private.images, context, "private")
    right = _right(logits, material.private.labels)
    # A record changes at most one answer: logits of private images do not depend on the other images.
    return float(ledger.gaussian(np.array([right]), sensitivity=1.0, noise_multiplier=tuning.score_noise)[0])


def _privacy(
    cell: Cell, ledger: Ledger, accuracy: float, material: Materialised, tuned: RepeatAndSelect | None
) -> Privacy:
    method, figures = METHODS.get(cell.method), cell.facts.disclosure.data_figures
    if figures and tuned is None:
        after = bound_method(cell).claimed_after(cell.delta, ledger)
        claim = checked_claim(after, f"{method.name}.claimed_after()")
    else:
        claim = bound_method(cell).claimed(cell.delta)
    events: Sequence[Event] = ledger.events
    if tuned is not None:
        if set(merged(events)) != set(trial_events(cell)):
            raise BenchError(
                f"{method.name} cost a different amount from what it stated in advance, so it cannot be tuned."
            )
        events = [tuned]
        claim = tuned_claim(claim, proven(events, cell.delta))
    accountants, withheld = account(events, cell.delta), ""
    if tuned is None and figures:  # those of a tuned cell would describe a single trial
        accountants = [*accountants, *ledger.data_dependent(cell.delta)]
    elif tuned is None:
        withheld = "the data set is not a public benchmark, and data-dependent figures reveal its records"
    record_level = ledger.record_level(cell.delta)
    return Privacy(
        unit=ledger.unit,
        adjacency=ledger.adjacency,
        delta=cell.delta,
        claimed=Claimed(epsilon=claim.epsilon, source=claim.source, note=claim.note),
        proven=_accountant(proven(events, cell.delta)),
        plausibility=_plausibility(cell, claim.epsilon, accuracy, material),
        bypasses=ledger.bypasses,
        accountants=[_accountant(figure) for figure in accountants],
        withheld=withheld,
        events=stored(events),
        record_level=None if record_level is None else _accountant(record_level),
    )


def _plausibility(cell: Cell, epsilon: float, accuracy: float, material: Materialised) -> Plausibility | None:
    """Return how plausible the accuracy is under the claim, from the class frequencies of the test records."""
    if not (METHODS.get(cell.method).single_teacher and cell.facts.disclosure.test_labels):
        return None
    counts = material.test_labels.bincount(minlength=cell.facts.classes)
    bound = probability_bound(epsilon, cell.delta, accuracy, (counts.double() / counts.sum()).tolist())
    return Plausibility(probability=bound.probability, threshold=bound.threshold, permutations=bound.permutations)


def _accountant(figure: Accounted) -> Accountant:
    return Accountant(**dataclasses.asdict(figure))


def _queries(method: type[Method], ledger: Ledger, released: Released, material: Materialised) -> Queries | None:
    """Return the number of answers and, where those are public, their accuracy on the pool's held-back labels."""
    if not ledger.asked:
        return None
    accuracy = None
    indices, labels = released.extras.get("query_indices"), released.extras.get("query_labels")
    # A method without public data queries images of its own, which have no labels.
    known = material.private.facts.disclosure.pool_labels and method.public_data != "none"
    if known and indices is not None and labels is not None and len(labels):
        accuracy = round(float((material.public_labels[indices] == labels).double().mean()), 6)
    return Queries(asked=ledger.asked, answered=ledger.answered, label_accuracy=accuracy)


def record_failure(cell: Cell, run_dir: RunDir, error: BenchError) -> Record:
    """Write and return the record of a cell whose processes died, with `error` as the reason."""
    cache = Cache(run_dir.cache_path, cache_base(cell))
    failure = Failure(kind="lost", reason=str(error))
    record = _record(cell, Clock(), cache, status=Status.FAILED, failure=failure)
    run_dir.write_record(record)
    return record


def make_shard(
    cell: Cell, shard: tuple[int, int], run_dir: RunDir, source: DataSource, progress: Progress,
    resources: Resources = ONE_CPU,
) -> None:  # fmt: skip
    """Make `shard` (number, count) of a shared artefact. Errors are printed; the cell that needs it records them."""
    cache = Cache(run_dir.cache_path, cache_base(cell), progress.say)
    try:
        context = _context(cell, cache, progress, resources)
        context.streams.seed_globals()
        material = source.material(cell.dataset)
        with no_exit(cell.method):
            METHODS.get(cell.method)(cell.config, material.private.facts).make_shard(
                material.private, material.public, context, *shard
            )
    except Exception as error:  # noqa: BLE001 (see above)
        progress.say(f"{cell.title}, shard {shard[0] + 1} of {shard[1]}: {type(error).__name__}: {error}")


def failure_of(
    error: Exception, disclosure: Disclosure, run_dir: RunDir, key: str, spent: Sequence[dict[str, Any]] = (), *,
    refused: bool = False,
) -> Failure:  # fmt: skip
    """Log `error` and return it as a failure, whose text quotes only what `disclosure` allows."""
    told = error.told if isinstance(error, BenchError) else ""
    kind = type(error).__name__
    # An error without a message says nothing, but its traceback may quote the errors that caused it.
    private = not (disclosure.messages or refused or (told and told == str(error)))
    if isinstance(error, BenchError) and not private:
        kind = "refused" if refused else COLLAPSED if isinstance(error, CollapsedError) else "error"
        return Failure(kind=kind, reason=printable(str(error)), spent=list(spent))
    log = disclosure.log(key)
    text = page("".join(traceback.format_exception(error)))
    with contextlib.suppress(BenchError):  # write the record even without a log
        write_atomic(run_dir.path / log, text, mode=disclosure.file_mode)
    if told and private:
        reason = f"{told}; the log says why"
    elif private:
        reason = f"{kind}; the message may reveal private records and stays in the log"
    else:
        reason = printable(f"{kind}: {error}")
    return Failure(kind=kind, reason=reason, log=log, spent=list(spent))


def _record(cell: Cell, clock: Clock, cache: Cache, *, status: Status, **parts: object) -> Record:
    method = METHODS.get(cell.method)
    return Record.model_validate(
        {
            "key": cell.key,
            "status": status,
            "cell": cell.spec,
            "citation": method.citation,
            "public_benchmark": cell.facts.public_benchmark,
            "reduced": list(cell.reduced),
            "config": as_dict(cell.config),
            "public_data": public_words_of(cell),
            "public_kinds": list(public_kinds_of(cell)),
            "private_records": cell.facts.private_records,
            "public_records": cell.facts.public_records,
            "provenance": clock.stop(
                made=len(cache.made),
                found=len(cache.found),
                elsewhere=cache.elsewhere,
                artefacts=cache.counts(),
                waited=cache.waited,
                private=not cell.facts.disclosure.exact_costs,
            ),
            **parts,
        }
    )
