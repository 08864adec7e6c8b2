"""Slurm's commands and partitions, and the check that a job can start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.core.errors import BenchError, UnknownNameError
from bench.core.printable import counted
from bench.launchers.settings import CONTROL, JobResources, minutes

LARGEST_ARRAY = 1000  # Slurm's default (MaxArraySize 1001)


@dataclass(frozen=True, slots=True)
class Nodes:
    """A number of equal nodes; memory in GB."""

    count: int
    gpus: int
    cpus: int
    memory: float

    def at_once(self, wanted: JobResources) -> int:
        """Return how many jobs of `wanted` resources fit on these nodes together."""
        fit = self.cpus // wanted.cpus
        if wanted.gpus:
            fit = min(fit, self.gpus // wanted.gpus)
        if wanted.memory is not None:
            fit = min(fit, int(self.memory / wanted.memory))
        return self.count * fit


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition of a cluster, with its nodes by kind; `minutes` is None without a limit."""

    name: str
    default: bool
    minutes: int | None
    nodes: tuple[Nodes, ...]


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
    for line in command("sinfo", "-h", "-o", "%P|%G|%c|%m|%l|%a|%D").splitlines():
        name, gres, cpus, memory, limit, state, count = line.strip().split("|")
        if state != "up":
            continue
        default, name = name.endswith("*"), name.rstrip("*")
        gpus = sum(int(number) for number in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres))
        try:
            most = None if limit in ("infinite", "n/a") else minutes(limit)
        except ValueError:
            most = None
        here = Nodes(int(count), gpus, int(cpus.rstrip("+")), float(memory.rstrip("+")) / 1024)
        before = found[name].nodes if name in found else ()
        found[name] = Partition(name, default, most, (*before, here))
    return list(found.values())


def _chosen(resources: JobResources, there: Mapping[str, Partition]) -> list[Partition]:
    named = resources.partition.split(",") if resources.partition else []
    for name in named:
        if name not in there:
            raise UnknownNameError("partition", name, there, hint="`sinfo` tells more.")
    return [there[name] for name in named] or [p for p in there.values() if p.default] or list(there.values())


def at_once(wanted: Iterable[JobResources]) -> int:
    """Return how many jobs of the largest of the `wanted` resources an empty cluster runs at once, at least 1.

    Raises :class:`BenchError` without Slurm or for an unknown partition.
    """
    there = {partition.name: partition for partition in partitions()}
    fits = [sum(n.at_once(resources) for p in _chosen(resources, there) for n in p.nodes) for resources in wanted]
    return max(1, min(fits, default=1))


def check(wanted: Iterable[JobResources], folder: Path, jobs: int) -> None:
    """Raise :class:`BenchError` if one of `jobs` jobs with the run directory `folder` could never start.

    That is without Slurm, in an unknown partition, with too many resources, or beyond the cluster's number of jobs.
    """
    for what, text in (("run directory's path", str(folder.resolve())), ("SBATCH_ACCOUNT", account_of_shell())):
        if CONTROL.search(text):
            raise BenchError(
                f"the {what} {text!r} has a control character, which a script of Slurm cannot hold. Give another."
            )
    there = {partition.name: partition for partition in partitions()}
    if not there:
        raise BenchError("Slurm has no partition that is up (`sinfo`).")
    for resources in wanted:
        chosen = _chosen(resources, there)
        nodes = [each for p in chosen for each in p.nodes]
        words = f"of partition {', '.join(p.name for p in chosen)}"
        gpus, cpus = max(each.gpus for each in nodes), max(each.cpus for each in nodes)
        _at_most("--gpus ", resources.gpus, gpus, f"{counted(gpus, 'GPU')} of a node {words}")
        _at_most("--cpus ", resources.cpus, cpus, f"{counted(cpus, 'core')} of a node {words}")
        memory = max(each.memory for each in nodes)
        said = f"{memory:.3g} GB" if memory >= 1 else f"{1024 * memory:.0f} MB"
        _at_most("--memory ", resources.memory or 0, memory, f"{said} of a node {words}")
        limits = [p.minutes for p in chosen]
        if None not in limits:
            most = max(limit or 0 for limit in limits)
            _at_most("--time ", resources.time, most, f"{counted(most, 'minute')} {words}")
        asked = re.match(r"\d+", str(resources.extra.get("nodes", "")))  # the 2 of 2-4
        most = max(sum(each.count for each in p.nodes) for p in chosen)
        _at_most("--slurm nodes=", int(asked[0]) if asked else 0, most, f"{counted(most, 'node')} {words}")
    check_room(jobs)


def _at_most(option: str, asked: float, most: float, what: str) -> None:
    if asked > most:
        raise BenchError(f"{option}{asked:g} is more than the {what}. Ask for less, or another --partition.")


def account_of_shell() -> str:
    """Return the account in SBATCH_ACCOUNT, which many clusters have users set in the shell; empty without one."""
    return os.environ.get("SBATCH_ACCOUNT", "")


def _limit(name: str) -> int | None:
    """Return the number `name` of slurm.conf; None if Slurm does not tell."""
    found = re.search(rf"^{name}\s*=\s*(\d+)", command("scontrol", "show", "config"), re.MULTILINE)
    return int(found[1]) if found else None


def largest_array() -> int:
    """Return the maximum number of tasks of an array job. Raises :class:`BenchError` if Slurm takes no arrays."""
    most = _limit("MaxArraySize")
    if most == 0:
        raise BenchError("this Slurm takes no job arrays (MaxArraySize=0 in slurm.conf), which --launcher slurm needs.")
    return LARGEST_ARRAY if most is None else min(LARGEST_ARRAY, most)


def check_room(jobs: int) -> None:
    """Raise :class:`BenchError` if Slurm cannot hold `jobs` more, because sbatch would wait silently."""
    most = _limit("MaxJobCount")
    if most is None:
        return
    there = len(command("squeue", "-h", "-a", "-r", "-t", "all", "-o", "%i").splitlines())
    if there + jobs >= most:
        raise BenchError(
            f"Slurm holds fewer than {counted(most, 'job')} (MaxJobCount in slurm.conf), {there} are there, and this "
            f"needs {jobs} more. Give a larger --pack or fewer cells, or try again when others have ended."
        )


def undisturbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without a surrounding job's limits and without settings that hide jobs or override ours."""
    changing = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "SUBMITIT_")
    return {name: value for name, value in environment.items() if not name.startswith(changing) or name == "SLURM_CONF"}
