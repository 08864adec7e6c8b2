"""One attack on one student and its controls: run it, score it, draw it and write its record.

Attacks compute no statistics: :mod:`bench.evaluation.attack.evaluators` and :mod:`bench.metrics.roc` score student and
controls alike.
"""

from __future__ import annotations

import contextlib
from typing import Any

from bench.core.config import Preset, as_dict
from bench.core.errors import BenchError, UnknownNameError
from bench.core.seeds import Streams
from bench.evaluation.attack.data_roles import TINY_RECORDS
from bench.evaluation.attack.inversion import inversion
from bench.evaluation.attack.membership import membership
from bench.evaluation.attack.release_attack import attack_release
from bench.evaluation.attack.robustness import robustness
from bench.evaluation.attack.workplace import AttackOptions, Workplace, configured
from bench.evaluation.common import ContextOf, attempted, refuse_given
from bench.experiments.plan import Cell
from bench.interface.attack import Attack, InversionAttack, MembershipAttack, ReleaseAttack, RobustnessAttack
from bench.interface.registry import ATTACKS
from bench.results.attack_record import AttackRecord
from bench.results.record import Record
from bench.storage.cache import digest_of
from bench.training.context import Context

JUDGED = {"inversion": 5, "membership": 3, "release": 3, "robustness": 1}
"""Scoring version by goal, part of every key.

Earlier records stay valid. Inversions before 5 have BCa intervals over fewer than 20 classes, before 4 no noise images
and no embedding; membership before 3 has rates that are biased upwards; releases before 3 have no copies above chance,
before 2 no KID.
"""
QUICK_SUITE = ("mi-face", "inversion-network", "gmi", "brep-mi", "data-free", "loss", "label-gap", "rmia")
"""The default of `bench attack`: minutes for one student on two cores."""


def attack_names(asked: str) -> list[str]:
    """Return the attacks in `asked`: comma-separated, ``quick`` or ``all``; raise :class:`UnknownNameError`."""
    if asked == "quick":
        return list(QUICK_SUITE)
    if asked == "all":
        return ATTACKS.names()
    names = [part.strip() for part in asked.split(",") if part.strip()]
    for name in names:
        if name not in ATTACKS:
            raise UnknownNameError("attack", name, [*ATTACKS.names(), "quick", "all"])
    if not names:
        raise BenchError("no attack given. Try --attacks mi-face, or quick, or all.")
    return names


def attack_key(record: Record, kind: type[Attack], attack: Attack | None, options: AttackOptions) -> str:
    """Return the key of `attack`, of `kind` (None: invalid), on a student: a hash of all that affects its results."""
    depends = [
        JUDGED[kind.goal], kind.name, kind.version, None if attack is None else as_dict(attack.config), options.seed,
        options.auxiliary_revision or None, options.preset.value,
        options.shadow_run_count() if issubclass(kind, MembershipAttack) else 0, *_tiny(kind, options),
        *([f"tuned among {options.tune}"] if options.tune and kind.goal == "inversion" else []),
    ]  # fmt: skip
    return f"{record.key}--{kind.name}-{digest_of(depends)[:12]}"


def _tiny(kind: type[Attack], options: AttackOptions) -> tuple[str, ...]:
    """Return the tiny preset's changes to the records and evaluators of an inversion attack."""
    if options.preset is not Preset.TINY or kind.goal != "inversion":
        return ()
    records = f"records of a class in each role: all -> {TINY_RECORDS}"
    return records, "training steps of the evaluators: all -> a tenth"


def planned_key(record: Record, name: str, place: Workplace) -> str:
    """Return the key of the record that :func:`attack_student` would write."""
    attack = None
    with contextlib.suppress(Exception):  # attack_student raises the error again and records it
        attack = configured(record, name, place)[1]
    return attack_key(record, ATTACKS.get(name), attack, place.options)


def attack_student(record: Record, name: str, place: Workplace) -> AttackRecord:
    """Run the attack `name` on the student of `record`; write and return its record, also for a failure.

    Raises :class:`BenchError` only if the record cannot be written.
    """
    kind, options, key = ATTACKS.get(name), place.options, planned_key(record, name, place)
    about: dict[str, Any] = {"config": {}}

    def work(context_of: ContextOf) -> dict[str, Any]:
        cell, attack, reduced = configured(record, name, place)
        about.update(config=as_dict(attack.config), reduced=[*map(str, reduced), *_tiny(kind, options)])
        parts = _run(record, cell, attack, key, place, context_of(cell, Streams(options.seed, f"attack/{name}/")))
        if "reduced" in parts:  # the attack has chosen its own settings
            parts["reduced"] += _tiny(kind, options)
        return parts

    parts = attempted(work, record, key, place.run_dir, place.progress, place.resources)  # fills `about`
    result = AttackRecord.model_validate(
        {
            **about,
            "knowledge": kind.knowledge or "",
            **parts,
            "key": key,
            "student": record.key,
            "attack": name,
            "attack_version": kind.version,
            "goal": kind.goal,
            "access": kind.access or "",
            "citation": kind.citation,
            "dataset": record.dataset,
            "preset": options.preset.value,
            "seed": options.seed,
        }
    )
    with place.run_dir.guarded(record.disclosure.owner_only):
        place.run_dir.write_row(result)
    return result


def applies(record: Record, name: str) -> bool:
    """Return whether the attack `name` can run on the student of `record`: some need released images."""
    return record.image_grid is not None or ATTACKS.get(name).goal != "release"


def _run(record: Record, cell: Cell, attack: Attack, key: str, place: Workplace, context: Context) -> dict[str, Any]:
    if isinstance(attack, RobustnessAttack):
        return robustness(record, cell, attack, key, place, context)
    refuse_given(cell)
    if isinstance(attack, InversionAttack):
        return inversion(record, cell, attack, key, place, context)
    if isinstance(attack, MembershipAttack):
        return membership(record, cell, attack, key, place, context)
    if isinstance(attack, ReleaseAttack):
        return attack_release(record, cell, attack, place, context)
    raise BenchError(f"{attack.name} derives from none of the four attack classes. Derive it from one of them.")
