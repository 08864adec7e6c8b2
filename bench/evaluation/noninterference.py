"""The non-interference test: everything released depends on private data through the ledger only.

A method runs twice with a ledger in data-independent mode, with equal seeds and public data, on two private sets that
share only size, image shape and number of classes. If the releases differ in any byte, it uses private data outside any
mechanism: a declared bypass, or it is rejected. Methods that pass take :mod:`bench.evaluation.sensitivity`'s test.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.core.config import parse_overrides
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Budget, Facts, LabelledSource, PrivateData, PublicData, Released
from bench.evaluation.sensitivity import Given, ProbeLedger, neighbours, violation
from bench.interface.method import Method
from bench.privacy.noise import SeededNoise
from bench.storage.cache import Cache, canonical_json
from bench.training.context import Context

if TYPE_CHECKING:
    import torch

CHECK_FACTS = Facts(
    dataset="check", private_records=240, public_records=80, test_records=40, classes=10, shape=(1, 28, 28)
)

_NOISE = secrets.randbits(256)  # one for all runs of a check; nothing that a method is given leads to it


class CheckVerdict(StrEnum):
    """Outcome of a check."""

    PASSED = "passed"
    BYPASS = "declared bypass"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome of a check and its reason: the first difference, or the declared bypass."""

    method: str
    verdict: CheckVerdict
    reason: str

    @property
    def ok(self) -> bool:
        """Whether the method may be registered."""
        return self.verdict is not CheckVerdict.REJECTED


def private_pair(facts: Facts = CHECK_FACTS) -> tuple[PrivateData, PrivateData]:
    """Return two private sets of `facts` that differ in images, value range and class counts; both hold every class."""
    import torch

    generator = np.random.default_rng(0)
    size = facts.private_records
    patterns = generator.integers(0, 256, (facts.classes, *facts.shape))
    even = np.arange(size) % facts.classes
    noisy = np.clip(patterns[even] + generator.normal(0, 40, (size, *facts.shape)), 0, 255)
    skewed = np.concatenate([np.arange(facts.classes), generator.integers(0, 2, size - facts.classes)])
    dark = generator.integers(0, 60, (size, *facts.shape))
    return (
        PrivateData(torch.from_numpy(noisy.astype(np.uint8)), torch.from_numpy(even.astype(np.int64)), facts),
        PrivateData(torch.from_numpy(dark.astype(np.uint8)), torch.from_numpy(skewed.astype(np.int64)), facts),
    )


def public_set(facts: Facts = CHECK_FACTS, *, labelled: bool = False) -> PublicData:
    """Return the public images of both runs, with a labelled source if `labelled`."""
    import torch

    generator = np.random.default_rng(1)
    size = facts.public_records

    def images() -> torch.Tensor:
        return torch.from_numpy(generator.integers(0, 256, (size, *facts.shape)).astype(np.uint8))

    unlabelled, said = images(), "random images made for the check"
    if not labelled:
        return PublicData(unlabelled, said)
    labels = torch.arange(size) % facts.classes
    return PublicData(unlabelled, said, LabelledSource(images(), labels, "check", "nothing"))


def check_method(
    method: type[Method],
    *,
    overrides: Sequence[str] = (),
    facts: Facts = CHECK_FACTS,
    labelled: bool = False,
) -> Check:
    """Return the outcome of the non-interference and sensitivity tests of `method` with its tiny preset.

    `overrides` (``FIELD=VALUE``) reach other paths, `labelled` adds a labelled public source. Exceptions of the method
    propagate: failing to run is no leak.
    """
    config = method.Config(**{**method.presets(facts).get("tiny", {}), **parse_overrides(method, overrides)})
    config = method.calibrate(config, Budget(10.0, 1e-5), facts)
    first, second = private_pair(facts)
    released_a, events_a, bypass_a, notes_a, given = _data_independent_run(method, config, first, labelled)
    released_b, events_b, bypass_b, notes_b, _ = _data_independent_run(method, config, second, labelled)
    difference = (
        _compare(released_a, released_b)
        or _compare_parts("what the ledger recorded", events_a, events_b)
        or _compare_parts("what the method noted", notes_a, notes_b)
    )
    declared = "; ".join(dict.fromkeys([*bypass_a, *bypass_b]))
    rejected = ""
    if declared and method.bypass:
        return Check(method.name, CheckVerdict.BYPASS, declared)
    if declared:
        rejected = f"it calls ledger.bypass ({declared}) but its class attribute bypass is empty"
    elif method.bypass:
        rejected = (
            f"its class attribute bypass says {method.bypass!r}, but it never calls ledger.bypass, so its proven "
            "epsilon would come out finite"
        )
    elif method.private and not events_a:
        rejected = "it took nothing through the ledger, so its privacy is unknown"
    elif difference:
        rejected = (
            f"{difference}. It uses private data outside any mechanism. Usual leaks: normalisation statistics, class "
            "counts, batch-norm statistics, early stopping on private data, queries chosen by private data. Route it "
            "through the ledger, or declare it with ledger.bypass"
        )
    elif given:
        others = (_data_independent_run(method, config, other, labelled) for other in neighbours(first, method.unit))
        moved = next(filter(None, (violation(given, other[-1], method.adjacency) for other in others)), "")
        if moved:
            rejected = (
                f"{moved}. The noise is sized for less than the effect of one record. State the sensitivity that "
                "holds, clip, or give each record to one teacher only"
            )
    if rejected:
        return Check(method.name, CheckVerdict.REJECTED, rejected)
    reason = "equal releases, to the byte, on two unrelated private sets"
    if given:
        reason += "; no neighbour moves the inputs of its mechanisms by more than they are charged for"
    return Check(method.name, CheckVerdict.PASSED, reason)


def _data_independent_run(
    method: type[Method], config: Any, private: PrivateData, labelled: bool
) -> tuple[Released, list[Any], list[str], list[str], list[Given]]:
    import torch

    streams = Streams(0)
    notes: list[str] = []
    context = Context(
        device=torch.device("cpu"),
        streams=streams,
        cache=Cache(None, {}),  # in memory: two private sets must not share an artefact
        progress=Progress(),
        note=notes.append,
    )
    noise = SeededNoise(np.random.default_rng(_NOISE))
    ledger = ProbeLedger(method.unit, method.adjacency, noise, data_independent=True)
    streams.seed_globals()  # equal draws from the global generators too
    # A new set for each run: a method's writes must not reach the next.
    public = public_set(private.facts, labelled=labelled)
    released = method().train_student(config, private, public, ledger, context)
    return released, [event.as_dict() for event in ledger.events], ledger.bypasses, notes, ledger.given


def _compare(first: Released, second: Released) -> str:
    if (first.generator is None) != (second.generator is None):
        return "one run released a generator, the other none"
    found = _compare_parts("student_name", first.student_name, second.student_name)
    found = found or _compare_parts("student_options", first.student_options, second.student_options)
    found = found or _compare_tensors("the student's", first.student.state_dict(), second.student.state_dict())
    if first.generator is not None and second.generator is not None:
        states = first.generator.state_dict(), second.generator.state_dict()
        found = found or _compare_tensors("the generator's", *states)
    return found or _compare_tensors("the released", first.extras, second.extras)


def _compare_parts(what: str, first: Any, second: Any) -> str:
    return "" if canonical_json(first) == canonical_json(second) else f"{what} differs between the two runs"


def _compare_tensors(whose: str, first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> str:
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())
        return f"{whose} tensors have other names in the two runs: {', '.join(odd[:4])}"
    for name, tensor in first.items():
        other = second[name]
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            return f"{whose} {name} has another shape or type in the two runs"
        if _bytes(tensor) != _bytes(other):
            return f"{whose} {name} differs between the two runs"
    return ""


def _bytes(tensor: torch.Tensor) -> bytes:
    import torch

    # Compares bytes, so that NaN equals itself.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
