"""One attack on one student, with its controls: what the attack returns is judged, drawn and written as a record.

Attacks compute no statistics. What they make is judged by :mod:`attacks.evaluators` and :mod:`bench.metrics.roc`;
controls come from :mod:`bench.evaluation.reference_models`, so that every number stands beside what it would be without
privacy, and without any record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.core.config import as_dict, build_config
from bench.core.errors import BenchError, UnknownNameError
from bench.core.rows import Change
from bench.core.seeds import Streams
from bench.evaluation.workplace import AttackOptions, Workplace
from bench.experiments.plan import Cell, cell_of
from bench.experiments.run import cache_base, failure_of
from bench.interface.attack import Attack, InversionAttack, MembershipAttack
from bench.interface.registry import ATTACKS
from bench.results.attack_record import AttackRecord
from bench.results.provenance import Clock
from bench.results.record import Record, Status
from bench.storage.cache import Cache, digest_of
from bench.training.context import Context

if TYPE_CHECKING:
    pass

JUDGED = {"inversion": 3, "membership": 2, "robustness": 1}
"""By goal, a number that is raised whenever the same attack would be judged otherwise: part of every key.

Inversion: 3 since its matched control is the training without privacy, stopped. Records of 2 stay valid."""
ROBUSTNESS = "robustness"
"""The name under which adversarial robustness is asked for; no attack on privacy."""
QUICK_SUITE = ("mi-face", "inversion-network", "gmi", "brep-mi", "data-free", "loss", "label-gap", "rmia")
"""What `bench attack` runs when nothing is asked for: minutes for one student on two cores."""


def attack_names(asked: str) -> list[str]:
    """Return the attacks that `asked` names: with commas, or ``quick`` or ``all``.

    Raises :class:`UnknownNameError` for a name that is no attack.
    """
    if asked == "quick":
        return list(QUICK_SUITE)
    if asked == "all":
        return [*ATTACKS.names(), ROBUSTNESS]
    names = [part.strip() for part in asked.split(",") if part.strip()]
    for name in names:
        if name != ROBUSTNESS and name not in ATTACKS:
            raise UnknownNameError("attack", name, [*ATTACKS.names(), ROBUSTNESS, "quick", "all"])
    if not names:
        raise BenchError("no attack asked for. Try --attacks mi-face, or quick, or all.")
    return names


def configured(name: str, record: Record, cell: Cell, options: AttackOptions) -> tuple[Any, list[Change]]:
    """Return the config of the attack `name` and what differs from its paper's."""
    return build_config(configurable(name), options.preset, cell.facts, options.overrides)


def configurable(name: str) -> Any:
    """Return the attack `name`, or what stands for robustness."""
    if name == ROBUSTNESS:
        from attacks.robustness import Robustness

        return Robustness
    return ATTACKS.get(name)


def attack_key(record: Record, name: str, config: Any, options: AttackOptions) -> str:
    """Return the key of one attack on one student: everything that its numbers depend on, hashed."""
    depends = [
        JUDGED[_goal(name)], name, configurable(name).version, as_dict(config), options.seed,
        options.auxiliary_revision or None,
        options.preset.value,
        options.shadow_run_count() if name in ATTACKS and issubclass(ATTACKS.get(name), MembershipAttack) else 0,
    ]  # fmt: skip
    return f"{record.key}--{name}-{digest_of(depends)[:12]}"


def attack_student(record: Record, name: str, place: Workplace) -> AttackRecord:
    """Run the attack `name` on the student of `record`; return its record, written. A failure is a record too.

    Raises :class:`BenchError` only where the record cannot be written or the options do not fit the attack.
    """
    import torch

    clock = Clock(device=place.device, threads=torch.get_num_threads())
    options = place.options
    cell = cell_of(record, place.source.describe(place.folder or record.dataset))
    config, reduced = configured(name, record, cell, options)
    key = attack_key(record, name, config, options)
    cache = Cache(place.run_dir.cache_path, cache_base(cell), place.progress.say)
    notes: list[str] = []
    context = Context(
        torch.device(place.device), Streams(options.seed, f"attack/{name}/"), cache, place.progress, place.workers,
        notes.append,
    )  # fmt: skip
    try:
        parts = _run(record, cell, name, config, key, place, context)
        parts["status"] = Status.DONE
    except Exception as error:  # noqa: BLE001 (one attack's failure must not stop the others)
        failure = failure_of(error, record.public_benchmark, place.run_dir, key)
        parts = {"status": Status.FAILED, "failure": failure}
        if not record.public_benchmark:
            place.progress.say(f"{type(error).__name__}: {error}")
    kind = configurable(name)
    result = AttackRecord.model_validate(
        {
            "key": key,
            "student": record.key,
            "attack": name,
            "attack_version": kind.version,
            "goal": _goal(name),
            "access": getattr(kind, "access", ""),
            "knowledge": getattr(kind, "knowledge", ""),
            "citation": kind.citation,
            "dataset": record.dataset,
            "preset": options.preset.value,
            "reduced": list(map(str, reduced)),
            "config": as_dict(config),
            "seed": options.seed,
            "notes": list(dict.fromkeys(notes)),
            "provenance": clock.stop(made=len(cache.made), found=len(cache.found)),
            **parts,
        }
    )
    place.run_dir.write_attack(result)
    return result


def _goal(name: str) -> str:
    if name == ROBUSTNESS:
        return "robustness"
    return "membership" if issubclass(ATTACKS.get(name), MembershipAttack) else "inversion"


def _run(
    record: Record, cell: Cell, name: str, config: Any, key: str, place: Workplace, context: Context
) -> dict[str, Any]:
    attack: Attack | None = None if name == ROBUSTNESS else ATTACKS.get(name)()
    if attack is None:
        from bench.evaluation.robustness import robustness

        return robustness(record, cell, config, key, place, context)
    if isinstance(attack, InversionAttack):
        from bench.evaluation.inversion import inversion

        return inversion(record, cell, attack, config, key, place, context)
    if isinstance(attack, MembershipAttack):
        from bench.evaluation.membership import membership

        return membership(record, cell, attack, config, key, place, context)
    raise BenchError(f"{name} is neither an inversion nor a membership attack: derive it from one of these.")
