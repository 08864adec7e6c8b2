"""Worst-case pairs: tiny adjacent private sets on which one unit has the most influence, and settings for them.

Everything that determines a row's cost stays as in the row: the mechanisms' noise, their numbers of queries, steps and
records per batch. Nets, images and training are smaller; audit records list these differences.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.core.config import DataclassInstance
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.rows import Change
from bench.core.seeds import Streams
from bench.core.types import Adjacency, Facts, PrivacyUnit, PrivateData
from bench.data.splits import Materialised
from bench.data.text import FIRST_WORD, is_text
from bench.evaluation.check.check_data import generated
from bench.interface.method import Method
from bench.models.build import build
from bench.models.feature_net import OnFixedMap
from bench.storage.cache import Cache
from bench.training.context import Context

SIDE = 8  # image side in pixels
PUBLIC = 64  # minimum number of public images
HANDFUL = 4  # records besides an absent one
BRIGHT = 10  # minimum number of bright pixels of a candidate
NET = "softmax_regression"
KEPT = ("teachers", "clients", "k", "random_share", "teacher_lr", "student_lr")
"""Settings that affect one record's influence but no cost."""
ENOUGH = {
    "teacher_epochs": 60.0, "student_steps": 60, "student_epochs": 4, "generator_steps": 200,
    "baseline_steps": 60,
}  # fmt: skip
"""Steps, and epochs over a handful of records, after which small nets fit them."""


@dataclass(frozen=True, slots=True)
class WorstPair:
    """Two adjacent private sets, and the settings with which a method is trained on both.

    `facts` and the public data are the same for both. They differ in the first record, and at unit client in all of its
    client's; it is absent from `second` under add-remove adjacency.
    """

    name: str
    config: dict[str, Any]
    facts: Facts
    first: PrivateData
    second: PrivateData
    material: Materialised
    reduced: tuple[Change, ...]


def worst_pairs(method: type[Method], config: DataclassInstance, facts: Facts, delta: float) -> list[WorstPair]:
    """Return the pairs to try for a method, `config` calibrated for a row with these `facts`.

    Raises :class:`BenchError` if no smaller setting costs the same.
    """
    found = [_built(method, config, facts, delta, layout) for layout in _layouts(method, config)]
    return [*found, *_own(method, config, facts, delta)]


def full_size_pair(method: type[Method], config: Any, material: Materialised, seed: int) -> WorstPair | None:
    """Return the row's own private set and a neighbour that differs in the first record or client, or None if unknown.

    A client keeps its labels, on which it may depend which records are its own. None if a whole client may be absent:
    the others' records would move. `seed` is the row's.
    """
    private, absent = material.private, method.adjacency is Adjacency.ADD_REMOVE
    if absent and method.unit is PrivacyUnit.CLIENT:
        return None
    which = f"one record of {len(private):,}"
    if method.unit is PrivacyUnit.CLIENT:
        context = Context(torch.device("cpu"), Streams(seed), Cache(None, {}), Progress())
        clients = method(config, private.facts).clients(private, context)
        rows = torch.from_numpy(next(part for part in clients if 0 in part))
        images, labels = private.images.clone(), private.labels
        images[rows] = 255 - images[rows]
        which, changed = f"the {len(rows):,} records of one client of {len(clients):,}", "other images"
    elif absent:
        images, labels = private.images[1:], private.labels[1:]
        changed = "present or absent"
    else:
        images, labels = private.images.clone(), private.labels.clone()
        labels[0] = (labels[0] + 1) % private.facts.classes
        changed = "its label changed"
        if method.unit is not PrivacyUnit.LABEL:
            images[0] = 255 - images[0]
            changed = "another image and label"
    other = dataclasses.replace(private, images=images, labels=labels)
    name = f"the row's own data, {which}, {changed}"
    return WorstPair(name, _values(config), private.facts, private, other, material, ())


@dataclass(frozen=True, slots=True)
class _Layout:
    """The sets of a pair: `records` of them, the unit's image and label on each side, None if it is absent there."""

    name: str
    records: int
    labels: tuple[int, int | None]
    saturated: tuple[bool, bool] = (False, False)
    lead: int | None = None
    """The lead in votes between the first two classes, one record each; None: all others are in the first class."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)


def _layouts(method: type[Method], config: DataclassInstance) -> Iterator[_Layout]:
    settings = _values(config)
    if method.adjacency is Adjacency.ADD_REMOVE:
        # Keep the public number of records; all but a few are absent.
        yield _Layout("a mislabelled bright record present or absent", HANDFUL, (1, None), (True, True))
        return
    ensemble = "teachers" in settings
    alone = {"teachers": 1} if ensemble else {}
    records = getattr(config, "clients", 1)
    whose = "one client's record" if records > 1 else "a single record"
    yield _Layout(f"{whose}, its label flips", records, (0, 1), settings=alone)
    if method.unit is not PrivacyUnit.LABEL:
        yield _Layout(f"{whose}, blank or saturated", records, (0, 0), (False, True), settings=alone)
        yield _Layout(f"{whose}, another image and label", records, (0, 1), (False, True), settings=alone)
    if ensemble:
        # With large noise on two counts, a clear winner may reveal more about a vote than a tie.
        noise = next((settings[name] for name in ("sigma2", "sigma", "noise_scale") if name in settings), 0.0)
        if "gamma" in settings:
            noise = 1 / settings["gamma"]
        for lead in sorted({min(settings["teachers"], round(times * noise)) // 2 * 2 for times in (0.0, 0.5, 1.0)}):
            votes = f"a lead of {lead} votes" if lead else "the vote tied"
            yield _Layout(f"one record per teacher, {votes}, one label flips", settings["teachers"], (0, 1), lead=lead)


def _built(method: type[Method], config: DataclassInstance, facts: Facts, delta: float, layout: _Layout) -> WorstPair:
    start = dataclasses.replace(config, **layout.settings)
    smaller, small, material = _reduced(method, (config, facts), start, delta, layout.records)
    dark, bright = _dark_and_bright(small.shape)

    def records(side: int) -> PrivateData:
        count = layout.records
        images = dark.repeat(count, *[1] * dark.dim())
        labels = torch.zeros(count, dtype=torch.int64)
        if layout.lead is not None:
            labels[(count + layout.lead) // 2 :] = 1
        label = layout.labels[side]
        if label is None:
            return PrivateData(images[1:], labels[1:], small)
        labels[0] = label
        if layout.saturated[side]:
            images[0] = bright
        return PrivateData(images, labels, small)

    changes = _changes((config, facts), (smaller, small), layout.records)
    return WorstPair(layout.name, _values(smaller), small, records(0), records(1), _blank(material), changes)


def _reduced(
    method: type[Method], row: tuple[Any, Facts], start: Any, delta: float, records: int, side: int = SIDE
) -> tuple[Any, Facts, Materialised]:
    """Return smaller settings from `start` at the cost of `row`, and facts and material for this many `records`."""
    config, facts = row
    shape = facts.shape if is_text(facts.shape) else (facts.shape[0], side, side)
    queries = max([PUBLIC, *(getattr(config, name, 0) for name in ("queries", "synthetic_queries"))])
    small = dataclasses.replace(
        facts, private_records=records, public_records=min(facts.public_records, queries), test_records=20,
        shape=shape, public_benchmark=True,
    )  # fmt: skip
    material = generated(small, labelled=True)
    if method.adjacency is Adjacency.ADD_REMOVE:
        small = dataclasses.replace(small, private_records=facts.private_records)
    smaller = _smaller(method, start, small, delta)
    _same_cost(method, row, (smaller, small), delta)
    return smaller, small, material


def candidate_pairs(
    method: type[Method], config: DataclassInstance, facts: Facts, delta: float, count: int
) -> list[WorstPair]:
    """Return a pair for each of `count` candidates: the first sets hold one candidate each, the second set none.

    Candidates differ in label or, within a label, in their bright pixels, so that their gradients are nearly
    orthogonal. All other records are dark. Raises :class:`BenchError` if there are not enough candidates.
    """
    if is_text(facts.shape):
        raise BenchError("candidates are images here, and this data set holds texts.")
    if method.unit is PrivacyUnit.LABEL and count > facts.classes:
        raise BenchError(f"a label has {facts.classes} values, so there are no more candidates. Give fewer.")
    layouts = 1 if method.unit is PrivacyUnit.LABEL else math.ceil(count / facts.classes)
    side = max(SIDE, math.ceil(math.sqrt(BRIGHT * layouts) / SIDE) * SIDE)
    absent = method.adjacency is Adjacency.ADD_REMOVE
    records = HANDFUL if absent else getattr(config, "clients", 1)
    start = dataclasses.replace(config, **({"teachers": 1} if "teachers" in _values(config) else {}))
    smaller, small, material = _reduced(method, (config, facts), start, delta, records, side)
    changes = _changes((config, facts), (smaller, small), records)
    labels = torch.zeros(records, dtype=torch.int64)
    images = torch.zeros((records, *small.shape), dtype=torch.uint8)
    others = PrivateData(images[absent:], labels[absent:], small)
    found = []
    for number in range(count):
        layout, label = divmod(number, facts.classes)
        labels, images = labels.clone(), images.clone()
        labels[0], images[0] = label, 0
        if method.unit is not PrivacyUnit.LABEL:
            pixels = side * side // layouts
            # With few bright pixels, votes on dark public images follow the label; a blank image has no features.
            few = layouts == 1 and not absent
            bright = slice(None, None, 6) if few else slice(layout * pixels, (layout + 1) * pixels)
            images[0].flatten(1)[:, bright] = 255
        held = PrivateData(images, labels, small)
        name = f"candidate {number} of {count}"
        found.append(WorstPair(name, _values(smaller), small, held, others, _blank(material), changes))
    return found


def _dark_and_bright(shape: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two opposite records: a black and a white image, or one-word sentences of the two most frequent words."""
    dark = torch.zeros(tuple(shape), dtype=torch.uint8)
    if not is_text(shape):
        return dark, torch.full_like(dark, 255)
    bright = dark.clone()
    dark[1], bright[1] = FIRST_WORD, FIRST_WORD + 1
    return dark, bright


def _blank(material: Materialised) -> Materialised:
    """Return `material` with public records near the dark private ones, so that all teachers agree on them."""
    images = material.public.images
    near = _dark_and_bright(images.shape[1:])[0].expand_as(images).clone() if is_text(images.shape[1:]) else images // 8
    return dataclasses.replace(material, public=dataclasses.replace(material.public, images=near))


def _own(method: type[Method], config: DataclassInstance, facts: Facts, delta: float) -> Iterator[WorstPair]:
    for name, first, second in method(config, facts).worst_pairs():
        small = first.facts
        # Each teacher needs a record.
        few = {"teachers": len(first)} if getattr(config, "teachers", 0) > len(first) else {}
        smaller = _smaller(method, dataclasses.replace(config, **few), small, delta)
        _same_cost(method, (config, facts), (smaller, small), delta)
        changes = _changes((config, facts), (smaller, small), len(first))
        yield WorstPair(name, _values(smaller), small, first, second, generated(small, labelled=True), changes)


def _smaller(method: type[Method], config: DataclassInstance, facts: Facts, delta: float) -> Any:
    """Return `config` with every setting of ``tiny`` that does not change the cost."""
    changes = {
        name: ENOUGH.get(name, value)
        for name, value in method.presets(facts).get("tiny", {}).items()
        if name not in KEPT
    }
    fields = {field.name for field in dataclasses.fields(config)}
    nets = [name for name in ("teacher", "student") if name in fields and not is_text(facts.shape)]
    if getattr(config, "teacher_init", "random") != "random":  # a small net has no public weights
        changes |= {"teacher_init": "random", "teacher_init_sha256": ""} | dict.fromkeys(nets, NET)
    else:
        changes |= {name: NET for name in nets if not _on_fixed_map(getattr(config, name), facts)}
    if "synthetic" in changes:
        changes["synthetic"] = max(changes["synthetic"], getattr(config, "queries", 0))
    made = config
    for name, value in changes.items():
        try:
            tried = dataclasses.replace(made, **{name: value})
        except BenchError:  # it does not fit the row's other settings
            continue
        if value != getattr(made, name) and _cost(method, tried, facts, delta) == _cost(method, made, facts, delta):
            made = tried
    return made


def _on_fixed_map(net: str, facts: Facts) -> bool:
    """Return whether `net` is a small head on features that its method computes itself."""
    with torch.random.fork_rng([]):
        return isinstance(build(net, facts.classes, facts.shape[0], facts.shape[1:]), OnFixedMap)


def _cost(method: type[Method], config: DataclassInstance, facts: Facts, delta: float) -> tuple[float, str]:
    events = [event.as_dict() for event in method(config, facts).charges() or ()]
    for event in events:
        if event["unit"] == PrivacyUnit.LABEL.value:
            event.pop("answers", None)  # answers on labels of other records
    return method(config, facts).claimed(delta).epsilon, str(events)


def _same_cost(method: type[Method], row: tuple[Any, Facts], pair: tuple[Any, Facts], delta: float) -> None:
    before, after = _cost(method, *row, delta), _cost(method, *pair, delta)
    if not math.isclose(before[0], after[0], rel_tol=1e-9) or before[1] != after[1]:
        raise BenchError(
            f"{method.name} on {pair[1].private_records} records does not cost what the row costs: claimed "
            f"{after[0]:.6g} against {before[0]:.6g}; {after[1]} against {before[1]}. Offer a pair by worst_pairs."
        )


def _values(config: DataclassInstance) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def _changes(row: tuple[Any, Facts], pair: tuple[Any, Facts], records: int) -> tuple[Change, ...]:
    (config, before), (smaller, after) = row, pair
    changes = [
        *((name, old, getattr(smaller, name)) for name, old in _values(config).items()),
        ("records", before.private_records, records), ("public_records", before.public_records, after.public_records),
        ("shape", before.shape, after.shape),
    ]  # fmt: skip
    return tuple(Change.of(name, old, new) for name, old, new in changes if old != new)
