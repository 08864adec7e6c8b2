"""Runs of a method for the checks: recorded or replayed, in separate processes, on sets made from the same data."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.errors import BenchError, no_exit
from bench.core.progress import Progress
from bench.core.seeds import Streams, new_salt
from bench.core.types import Facts, PrivateData, PublicData, Released
from bench.data.splits import Materialised
from bench.evaluation.check import check_data
from bench.evaluation.check.check_data import Few, Variant
from bench.evaluation.check.fingerprint import fingerprint
from bench.evaluation.check.opened import Watch, denied, temporary_files_in, watched
from bench.evaluation.check.released_parts import digest_of, released_parts
from bench.evaluation.check.replaced import Originals
from bench.evaluation.check.sensitivity import violation
from bench.evaluation.check.shaped_kernels import Product, ShapedKernels
from bench.evaluation.check.tape import Recording, Replaying, Taped
from bench.experiments.data_source import DataSource
from bench.experiments.device import prepare_device
from bench.experiments.release import save_released
from bench.interface.method import Method
from bench.interface.registry import import_file
from bench.privacy.events.base_event import stored
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import Noise, SeededNoise, Silence, salted_noise
from bench.storage.cache import Cache
from bench.training.by_record import require_fixed_positions
from bench.training.context import Context
from bench.training.divergence import CollapsedError
from bench.training.features import student_logits

SHARDS = 2  # parts of a shared artefact that runs at even seeds make beforehand, as a grid may
NEIGHBOURS = 24
WHISPER = 1e-6  # factor on the noise in a run without noise

T = TypeVar("T")

data_source = DataSource(Progress())
"""Holds the data set of a confined process, which cannot read it again."""


class Rejected(Exception):
    """A check found private data outside the mechanisms; the message says where."""


@dataclass(frozen=True, slots=True)
class Row:
    """The cell that the runs repeat: its key, noise salt and artefact dependencies; a folder for tapes.

    With `digest`, the first run reports the digest of its student.
    """

    key: str
    salt: str | None
    cache_base: dict[str, object]
    folder: str
    digest: bool


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings shared by the runs of one check; `dataset` is a registered name, empty for a generated set."""

    method: MethodPlace | type[Method]
    config: dict[str, Any]
    facts: Facts
    seed: int
    dataset: str = ""
    labelled: bool = False
    noisy: bool = False  # whether the mechanisms' noise is on
    noise: int = field(default_factory=lambda: secrets.randbits(256))
    """Seed of noise and samples; nothing passed to a method reveals it."""
    cell: str = field(default_factory=new_salt)  # the runs' token, which looks like any other run's
    row: Row | None = None
    rehearsal: dict[str, Any] | None = None
    """The settings of another cell that runs on these data before the recorded run, in its process and cache."""
    products: tuple[Product, ...] | None = None
    """The products of the first run on few records, for the runs on its neighbours."""
    sets: int | None = None  # seed of the other private sets; None: the run's

    def material(self) -> Materialised:
        """Return the data, read or generated afresh, so that a method's writes do not reach the next run."""
        if not self.dataset:
            return check_data.generated(self.facts, self.seed, labelled=self.labelled)
        return data_source.material(self.dataset, anew=True)


@dataclass(frozen=True, slots=True)
class MethodPlace:
    """The import path by which another process finds a method's class."""

    module: str
    file: str
    name: str

    @classmethod
    def of(cls, method: type[Method]) -> MethodPlace | None:
        """Return the import path of `method`, None for a class defined inside a function."""
        file = getattr(sys.modules.get(method.__module__), "__file__", None)
        if file is None or "<locals>" in method.__qualname__:
            return None
        return cls(method.__module__, str(Path(file).resolve()), method.__qualname__)

    def load(self) -> type[Method]:
        """Return the class, imported by its module's name or from its file."""
        if self.module not in sys.modules:
            try:
                importlib.import_module(self.module)
            except ImportError:
                import_file(self.module, Path(self.file))
        found: type[Method] = functools.reduce(getattr, self.name.split("."), sys.modules[self.module])  # type: ignore[assignment]
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that one run released, and what the checks measured."""

    released: list[tuple[str, str]] = field(default_factory=list)
    """Names and digests, in order: parts of the release, the student's outputs, the ledger's events, the notes."""
    bypasses: list[str] = field(default_factory=list)
    events: int = 0
    watched: bool = False  # whether inputs of mechanisms were compared
    calls: list[Taped] = field(default_factory=list)
    difference: str = ""  # where a replayed run diverged from the tape, or why it failed
    moved: str = ""  # the mechanism input that one record moved by more than its charge
    outside: str = ""  # what the method's code accessed or replaced beyond its arguments
    alone: bool = False  # whether the other cell's run, which should precede it, failed
    sha256: str = ""  # digest of a row's released student
    charged: list[dict[str, Any]] = field(default_factory=list)  # the ledger's events, as records store them
    before: list[dict[str, Any]] | None = None  # those of the other cell's run, with other noise
    stated: list[dict[str, Any]] | None = None  # the method's charges() in this form, if it states them
    products: tuple[Product, ...] = ()
    artefacts: dict[str, int] = field(default_factory=dict)  # the number of cached artefacts of each kind
    predicted: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    accuracy: float = 0.0


def session(trial: Trial, variants: Sequence[Variant], tape: list[Taped] | None, seconds: float = 0.0) -> list[Outcome]:
    """Return the outcomes of runs on `variants`, one after the other in this process.

    Without a tape the first run is recorded and its tape answers the others, which share its cache. With a tape, as
    many neighbours follow as fit into `seconds`, at most :data:`NEIGHBOURS`.
    """
    prepare_device()
    originals = Originals()
    method, outside = loaded(trial.method, trial.facts.dataset)
    outcomes, alone, earlier = list[Outcome](), False, None
    first = sum(isinstance(which, int) for which in variants)
    more = range(first, NEIGHBOURS) if tape is not None else range(0)
    with contextlib.ExitStack() as stack:
        shared = None if tape is not None else stack.enter_context(tempfile.TemporaryDirectory(prefix="runs-"))
        if shared is not None and trial.rehearsal is not None:
            other = dataclasses.replace(
                trial, cell=new_salt(), noise=secrets.randbits(256), noisy=True, config=trial.rehearsal
            )
            alone = True
            with contextlib.suppress(BenchError):  # some noise leaves too few answers to train on
                before = run_once(other, method, variants[0], None, Path(shared), originals)
                outside, alone = outside or before.outside, False
                earlier = before.charged if trial.rehearsal == trial.config else None
        for number, which in enumerate([*variants, *more]):
            folder = shared or stack.enter_context(tempfile.TemporaryDirectory(prefix="runs-"))
            begin = time.monotonic()
            found = run_once(trial, method, which, tape, Path(folder), originals)
            outcomes.append(dataclasses.replace(found, outside=outside or found.outside, alone=alone, before=earlier))
            took = time.monotonic() - begin
            tape = outcomes[0].calls if tape is None else tape
            if number + 1 >= len(variants):
                seconds -= took if number >= len(variants) else 0.0
                if seconds < took:
                    break
    return outcomes


def loaded(method: MethodPlace | type[Method], dataset: str) -> tuple[type[Method], str]:
    """Return a method's class, and what its module accesses outside when imported."""
    if not isinstance(method, MethodPlace):
        return method, ""
    with watched(Watch(method.module, dataset)) as watch:
        try:
            found = method.load()
        except OSError:
            refuse_outside(watch.found)
            raise
    return found, watch.found


def run_once(
    trial: Trial, method: type[Method], which: Variant, tape: list[Taped] | None, folder: Path, originals: Originals,
    *, keep: bool = False,
) -> Outcome:  # fmt: skip
    """Return the outcome of one run, with its calls if there is no `tape` or `keep` is set."""
    material = trial.material()
    seed = trial.seed if trial.sets is None else trial.sets
    private = check_data.variant_of(material.private, which, method.unit, method.adjacency, seed)
    absent = check_data.absent_place(which, len(material.private), method.unit, method.adjacency, seed)
    public = material.public
    if which == "renamed" and tape is None:
        public = check_data.renamed_source(public, trial.facts.classes, trial.seed)
    streams, notes = Streams(trial.seed), []  # type: ignore[var-annotated]
    row, base = trial.row, {"dataset": trial.facts.dataset, "split": str(trial.facts)}
    cache = Cache(folder / "cache", base if row is None else row.cache_base)
    context = Context(torch.device("cpu"), streams, cache, Progress(), note=notes.append, cell=trial.cell)
    drawn = np.random.default_rng(trial.noise if tape is None else secrets.randbits(256))
    noise: Noise = SeededNoise(drawn) if trial.noisy else Silence(drawn, WHISPER)
    if row is not None and tape is None:
        noise = salted_noise(row.salt, trial.seed, row.key)
    kernels, steps = ShapedKernels(trial.products), None if row is None else Path(row.folder) / "steps"
    watch = Watch(method.__module__, trial.facts.dataset, folder)
    if tape is not None:
        taping: Recording = Replaying(noise, tape, originals, kernels.paused, far=which == "unrelated")
    else:
        taping = Recording(noise, originals, kernels.paused, steps)
    ledger = Ledger(method.unit, method.adjacency, taping)
    cache.refuse_answers(ledger)
    streams.seed_globals()
    bound = method(method.Config(**trial.config), private.facts)
    clients = 0  # the number of those with other images or labels
    if which == "client" or which == "clients" or which == "client's labels":
        private, clients = _clients_replaced(bound, private, context, seed, which)
    before = _handed(private, public)
    with contextlib.suppress(BenchError):  # once per process, before `kernels` compares products
        require_fixed_positions()
    try:
        around = kernels if isinstance(which, Few) else contextlib.nullcontext()
        with no_exit(method.name), watched(watch), around, temporary_files_in(folder):
            if method.shardable and row is None and trial.seed % 2 == 0 and not isinstance(which, Few):
                for shard in range(SHARDS):
                    bound.make_shard(private, public, context, shard, SHARDS)
            try:
                released: Released | CollapsedError = bound.train_checked(private, public, ledger, context)
            except CollapsedError as error:
                if row is None:
                    raise
                released = error  # its record shows these images
            words = "" if isinstance(which, Few) else _words_of_claim(bound, ledger)
            watch.threads_ended()
    except Exception as error:
        if tape is None:
            refuse_outside(watch.found or denied(error))
            raise
        line = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(".")
        said = taping.difference or f"it fails on other private data with the same answers: {line}"
        moved = _moved(taping, tape, method, clients, absent)
        return Outcome(difference=said, moved=moved, outside=_outside(watch, taping, originals))
    taping.finish(ledger.events)
    predicted = material.test_labels[:0]
    if isinstance(released, CollapsedError):
        seen = [("the error of the failed run", str(released))]
        seen += [(f"the {name} of the failed run", digest_of(getattr(released, name))) for name in ("images", "labels")]
    else:
        with watched(watch):
            try:
                logits = student_logits(released.student.eval(), material.test_images, context, alone=True)
            except BenchError as error:
                raise Rejected(str(error).removesuffix(".")) from None
        predicted = logits.argmax(1).cpu()
        # The record's accuracy is measured on the student in memory, which may hold more than its weights.
        seen = [*released_parts(released), ("the student's outputs on test images", digest_of(logits))]
        nets = {"student": released.student, "generator": released.generator}
        seen += [(f"what the {name} holds besides its weights", fingerprint(net)) for name, net in nets.items() if net]
    seen += [(f"event {number}", json.dumps(event.as_dict())) for number, event in enumerate(ledger.events, 1)]
    seen += [(f"note {number}", note) for number, note in enumerate(notes, 1)]
    seen += [("the words of its claim", words)]
    made = {kind: sum(counts) for kind, counts in cache.counts().items()}
    outcome = Outcome(seen, ledger.bypasses, len(ledger.events), bool(taping.given), difference=taping.difference)
    outcome = dataclasses.replace(outcome, artefacts=made)
    written = _handed(private, public) != before
    outside = "its code writes into the records that it was given" if written else _outside(watch, taping, originals)
    outcome = dataclasses.replace(outcome, outside=outside)
    if tape is not None:
        calls = taping.calls if keep else []
        return dataclasses.replace(outcome, moved=_moved(taping, tape, method, clients, absent), calls=calls)
    if row is not None and row.digest and isinstance(released, Released):
        outcome = dataclasses.replace(outcome, sha256=save_released(released, folder / "student"))
    charges, accuracy = bound.charges(), 0.0
    if len(predicted):
        accuracy = float((predicted == material.test_labels).double().mean())
    return dataclasses.replace(
        outcome, calls=taping.calls, predicted=predicted.numpy(), accuracy=accuracy, products=tuple(kernels.products),
        charged=stored(ledger.events), stated=None if charges is None else stored(charges),
    )  # fmt: skip


def _words_of_claim(method: Method, ledger: Ledger) -> str:
    """Return the source and the note of the claim after the run; if the note has at most 12 digits, numbers become #.

    A data-dependent claim may state the order of its bound, which depends on the votes, but nothing else of them.
    """
    claim = method.claimed_after(1e-5, ledger)
    few = sum(letter.isdecimal() for letter in claim.note) <= 12
    return f"{claim.source}; {re.sub('[0-9]+', '#', claim.note) if few else claim.note}"


def _clients_replaced(
    method: Method, private: PrivateData, context: Context, seed: int, which: Variant
) -> tuple[PrivateData, int]:
    """See :func:`clients_replaced`; refuse clients that share records or depend on images.

    Labels stay as they are where they decide which client a record belongs to.
    """
    try:
        clients = method.clients(private, context)
    except NotImplementedError as error:
        raise Rejected(str(error)) from None
    other, number = check_data.clients_replaced(private, clients, which, seed)
    if not np.array_equal(np.sort(np.concatenate(clients)), np.arange(len(private))):
        raise Rejected("its clients share records or leave some out, so changing one client's data changes others'")
    if all(map(np.array_equal, clients, method.clients(other, context))):
        return other, number
    if which == "client's labels":
        return private, number
    raise Rejected("other images of one client change which client records belong to")


def _handed(private: PrivateData, public: PublicData) -> list[str]:
    """Return digests of the records passed to a method, since later runs of a grid get the same tensors."""
    parts = [private.images, private.labels, public.images]
    parts += [] if public.labelled is None else [public.labelled.images, public.labelled.labels]
    return [digest_of(part) for part in parts if isinstance(part, torch.Tensor)]


def _outside(watch: Watch, taping: Recording, originals: Originals) -> str:
    name = taping.replaced or originals.replaced()
    return watch.found or taping.changed or (f"its code replaces {name} while it runs" if name else "")


def _moved(taping: Recording, tape: list[Taped], method: type[Method], clients: int, absent: int | None) -> str:
    recorded = [call.given for call in tape if call.given is not None]
    unit = "client" if clients else "record"
    return violation(recorded, taping.given, method.adjacency, clients or 1, absent, unit)


def refuse_outside(found: str) -> None:
    """Raise :class:`Rejected` if a method's code accessed or replaced something outside."""
    if found:
        raise Rejected(
            f"{found}. A method uses its config, private, public, the ledger and the context. Read data sets, weights "
            "and files through bench (public, context.cache), and declare them in public_data and public_data_kinds"
        )
