"""Evaluations in Python: :func:`bench.check`, :func:`bench.audit` and :func:`bench.attack`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bench.core.config import Preset, check_overrides
from bench.core.errors import BenchError
from bench.core.options import Names, Resources, Students, member
from bench.core.progress import Progress
from bench.core.types import AuditKind
from bench.evaluation.attack.attack import attack_names, attack_student, planned_key
from bench.evaluation.attack.workplace import AttackOptions, Workplace
from bench.evaluation.audit.audit import audit_key, audit_student
from bench.evaluation.audit.options import AuditOptions
from bench.evaluation.check.noninterference import SECONDS, Check, check_method
from bench.evaluation.check.trials import random_seeds
from bench.experiments.data_source import DataSource
from bench.interface.registry import ATTACKS, METHODS
from bench.launchers.students import Do, each_student
from bench.launchers.worker import ClaimProgress, claimed_result
from bench.results.attack_record import AttackRecord, AuditRecord
from bench.results.record import Record
from bench.results.run_dir import RunDir
from bench.storage.locks import Held

R = TypeVar("R", AttackRecord, AuditRecord)


def check(method: str, *, dataset: str = "", preset: str | None = None, seconds: float = SECONDS) -> Check:
    """Test whether a method uses private data outside any mechanism, as ``python -m bench check`` does.

    Args:
        method: A registered method, or the path of a file.
        dataset: Private data of the first run; "": a generated set.
        preset: ``paper``, ``quick`` or ``tiny``; None: tiny, plus one run of quick.
        seconds: Time in seconds for a search among neighbours.

    Raises:
        BenchError: The name is unknown, or the method fails to run.
    """
    chosen = Preset.TINY if preset is None else member(Preset, "preset", preset)
    return check_method(
        METHODS.get(method), dataset=dataset, preset=chosen, seeds=random_seeds(),
        awake=None if preset or dataset else Preset.QUICK, seconds=seconds,
    )  # fmt: skip


def audit(
    keys: Names | None = None, *, out: str | Path = "runs", kind: str = "pair", minutes: float = 10.0, seed: int = 0,
    data: str | None = None, device: str = "auto", quiet: bool = False,
) -> list[AuditRecord]:  # fmt: skip
    """Bound the epsilon of students from below, as ``python -m bench audit`` does, and return the audits' records.

    Args:
        keys: Keys of students in `out`, or their prefixes; None: all.
        out: Run directory with the students; the audits' records are written there, and existing ones are kept.
        kind: ``pair``, ``one-run``, ``many-run`` or ``candidates``.
        minutes: Minutes per student, for the kinds ``pair`` and ``candidates``.
        seed: Seed of canaries and coins.
        data: ``folder:PATH``, if the students trained on a folder.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        quiet: Whether to show no progress.

    Raises:
        BenchError: A name or value is unknown, or another process is running one of these audits.
        KeyboardInterrupt: The audit was stopped; the same call resumes it.
    """
    options = AuditOptions(kind=member(AuditKind, "kind", kind), minutes=minutes, seed=seed)
    found: list[AuditRecord] = []

    def do(record: Record, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources) -> None:
        def make(held: Held) -> AuditRecord:
            seen = ClaimProgress(progress, held)
            return audit_student(record, options, run_dir, source, seen, dataset=data, resources=resources)

        found.append(_made(run_dir, audit_key(record, options), f"audit of {record.key}", run_dir.read_audit, make))

    _each(keys, out, data, device, quiet, do)
    return found


def attack(
    keys: Names | None = None, *, out: str | Path = "runs", attacks: Names = "quick", preset: str = "quick",
    set: Mapping[str, Any] | None = None, seed: int = 0, data: str | None = None, device: str = "auto",
    quiet: bool = False,
) -> list[AttackRecord]:  # fmt: skip
    """Attack students and their controls, as ``python -m bench attack`` does, and return the attacks' records.

    Args:
        keys: Keys of students in `out`, or their prefixes; None: all.
        out: Run directory with the students; the attacks' records are written there, and existing ones are kept.
        attacks: Names, ``quick`` or ``all``.
        preset: ``paper``, ``quick`` or ``tiny``.
        set: Settings by name, ``FIELD`` or ``ATTACK.FIELD``.
        seed: Seed of the attacks.
        data: ``folder:PATH``, if the students trained on a folder.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        quiet: Whether to show no progress.

    Raises:
        BenchError: A name or value is unknown, or another process is running one of these attacks.
        KeyboardInterrupt: The attack was stopped; the same call resumes it.
    """
    names = attack_names(attacks if isinstance(attacks, str) else ",".join(attacks))
    overrides = tuple(f"{name}={'none' if value is None else value}" for name, value in (set or {}).items())
    check_overrides([ATTACKS.get(name) for name in names], overrides)
    options = AttackOptions(member(Preset, "preset", preset), overrides, seed)
    found: list[AttackRecord] = []

    def do(record: Record, run_dir: RunDir, source: DataSource, progress: Progress, resources: Resources) -> None:
        place = Workplace(run_dir, source, progress, options, resources, data)
        with place.stack:
            for name in names:

                def make(held: Held, name: str = name) -> AttackRecord:
                    return attack_student(record, name, place)

                title = f"{name} on {record.key}"
                found.append(_made(run_dir, planned_key(record, name, place), title, run_dir.read_attack, make))

    _each(keys, out, data, device, quiet, do)
    return found


def _made(run_dir: RunDir, key: str, title: str, read: Callable[[str], R | None], make: Callable[[Held], R]) -> R:
    """Return the finished result of `key`, making it first if it is missing or failed."""
    found = claimed_result(run_dir, key, title, read, lambda known: known.failure is None, make)
    if found is None:
        raise BenchError(f"another process is making {key}. Wait until it ends.")
    return found


def _each(keys: Names | None, out: str | Path, data: str | None, device: str, quiet: bool, do: Do) -> None:
    words = keys.split(",") if isinstance(keys, str) else list(keys or ())
    if each_student(Students(words, Path(out), data=data), do, Resources(device), quiet) is not None:
        raise KeyboardInterrupt("stopped; the same call resumes.")
