"""Slurm's commands and partitions, and the check that a job can start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.core.errors import BenchError, UnknownNameError
from bench.launchers.settings import Resources, minutes


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition of a cluster: the most per node of each resource (memory in GB); `minutes` is None without a limit."""

    name: str
    default: bool
    gpus: int
    cpus: int
    memory: float
    minutes: int | None


def command(*words: str) -> str:
    """Return the output of a Slurm command. Raises :class:`BenchError` if it is missing or fails."""
    if shutil.which(words[0]) is None:
        raise BenchError(
            f"no Slurm on this machine ({words[0]} is not found). Run it on a login node of the cluster, or use "
            "--launcher local, which runs --jobs N processes here; Debian and Ubuntu have Slurm as slurm-wlm."
        )
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=60, check=True, env=undisturbed(os.environ)
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"Slurm did not answer `{' '.join(words)}` within a minute. Try again later.") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or error.stdout.strip() or f"status {error.returncode}").splitlines()[-1]
        raise BenchError(
            f"Slurm refused `{' '.join(words)}`: {said.rstrip('.')}. `sinfo` must answer here, as on a login node of "
            "the cluster; --launcher local runs --jobs N processes on this machine instead."
        ) from error
    return done.stdout


def partitions() -> list[Partition]:
    """Return the partitions that are up. Raises :class:`BenchError` without Slurm."""
    found: dict[str, Partition] = {}
    for line in command("sinfo", "-h", "-o", "%P|%G|%c|%m|%l|%a").splitlines():
        name, gres, cpus, memory, limit, state = line.strip().split("|")
        if state != "up":
            continue
        default, name = name.endswith("*"), name.rstrip("*")
        gpus = sum(int(count) for count in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres))
        try:
            most = None if limit in ("infinite", "n/a") else minutes(limit)
        except ValueError:
            most = None
        here = Partition(name, default, gpus, int(cpus.rstrip("+")), float(memory.rstrip("+")) / 1024, most)
        before = found.get(name, here)
        found[name] = Partition(
            name, default, max(here.gpus, before.gpus), max(here.cpus, before.cpus), max(here.memory, before.memory),
            most,
        )  # fmt: skip
    return list(found.values())


def check(wanted: Iterable[Resources]) -> None:
    """Raise :class:`BenchError` if a job could never start: no Slurm, unknown partition, or too many resources."""
    there = {partition.name: partition for partition in partitions()}
    if not there:
        raise BenchError("Slurm has no partition that is up (`sinfo`).")
    for resources in wanted:
        named = resources.partition.split(",") if resources.partition else []
        for name in named:
            if name not in there:
                raise UnknownNameError("partition", name, there, hint="`sinfo` tells more.")
        chosen = [there[name] for name in named] or [p for p in there.values() if p.default] or list(there.values())
        words = f"partition {', '.join(p.name for p in chosen)}"
        _at_most("--gpus", resources.gpus, max(p.gpus for p in chosen), f"GPUs of a node of {words}")
        _at_most("--cpus", resources.cpus, max(p.cpus for p in chosen), f"cores of a node of {words}")
        if resources.memory is not None:
            _at_most("--memory", resources.memory, max(p.memory for p in chosen), f"GB of a node of {words}")
        limits = [p.minutes for p in chosen]
        if None not in limits:
            _at_most("--time", resources.time, max(limit or 0 for limit in limits), f"minutes that {words} allows")


def _at_most(option: str, asked: float, most: float, what: str) -> None:
    if asked > most:
        raise BenchError(f"{option} {asked:g} is more than the {most:g} {what}. Ask for less, or another --partition.")


def undisturbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without a surrounding job's limits and without settings that hide jobs or override ours."""
    changing = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "SUBMITIT_")
    return {name: value for name, value in environment.items() if not name.startswith(changing) or name == "SLURM_CONF"}
