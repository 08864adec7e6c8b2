"""Slurm's commands and partitions, and the check that a job can start."""

from __future__ import annotations

import os
import pwd
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


class NoSlurmError(BenchError):
    """No Slurm answers on this machine."""


def command(*words: str) -> str:
    """Return the output of a Slurm command. Raises :class:`NoSlurmError` if it is missing or fails."""
    if shutil.which(words[0]) is None:
        raise NoSlurmError(
            f"no Slurm on this machine ({words[0]} is not found). Run it on a login node of the cluster, or use "
            "--launcher local, which runs --jobs N processes here; Debian and Ubuntu have Slurm as slurm-wlm."
        )
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True, env=undisturbed(os.environ))
    except subprocess.TimeoutExpired as error:
        raise NoSlurmError(f"Slurm did not answer `{' '.join(words)}` within a minute. Try again later.") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or error.stdout.strip() or f"status {error.returncode}").splitlines()[-1]
        raise NoSlurmError(
            f"Slurm refused `{' '.join(words)}`: {said.rstrip('.')}. `sinfo` must answer here, as on a login node of "
            "the cluster; --launcher local runs --jobs N processes on this machine instead."
        ) from error
    return ran.stdout


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
            raise UnknownNameError("partition", name, there, hint="`sinfo` lists them.")
    return [there[name] for name in named] or [p for p in there.values() if p.default] or list(there.values())


def at_once(wanted: Iterable[JobResources]) -> int:
    """Return how many jobs with the largest of the `wanted` resources fit on the empty cluster, at least 1.

    Raises :class:`BenchError` without Slurm or for an unknown partition.
    """
    there = {partition.name: partition for partition in partitions()}
    fits = [sum(n.at_once(resources) for p in _chosen(resources, there) for n in p.nodes) for resources in wanted]
    return max(1, min(fits, default=1))


def check(wanted: Iterable[JobResources], folder: Path) -> None:
    """Raise :class:`BenchError` if a job of `wanted` resources with the run directory `folder` could never start.

    That is the case without Slurm, in an unknown partition, and if it asks for too many resources.
    """
    for what, text in (("run directory's path", str(folder.resolve())), ("SBATCH_ACCOUNT", account_of_shell())):
        if CONTROL.search(text):
            raise BenchError(
                f"the {what} {text!r} has a control character, which a Slurm script cannot hold. Use another value."
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
        for name, asked in (("--memory ", resources.memory), ("--max-memory ", resources.max_memory)):
            _at_most(name, asked or 0, memory, f"{said} of a node {words}")
        limits = [p.minutes for p in chosen]
        if None not in limits:
            most = max(limit or 0 for limit in limits)
            for name, asked in (("--time ", resources.time), ("--max-time ", resources.max_time)):
                _at_most(name, asked or 0, most, f"{counted(most, 'minute')} {words}")
        nodes_asked = re.match(r"\d+", str(resources.extra.get("nodes", resources.nodes)))  # the 2 in 2-4
        most = max(sum(each.count for each in p.nodes) for p in chosen)
        _at_most("--slurm nodes=", int(nodes_asked[0]) if nodes_asked else 0, most, f"{counted(most, 'node')} {words}")


def _at_most(option: str, asked: float, most: float, what: str) -> None:
    if asked > most:
        raise BenchError(f"{option}{asked:g} is more than the {what}. Ask for less, or another --partition.")


def account_of_shell() -> str:
    """Return the account in SBATCH_ACCOUNT, which many clusters ask users to set in the shell, or ""."""
    return os.environ.get("SBATCH_ACCOUNT", "")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the jobs of an array, of the cluster (MaxJobCount) and of this user by accounting; None if unknown.

    Slurm remembers a job for `keep` seconds after its end, and counts it until then in `jobs`.
    """

    array: int = LARGEST_ARRAY
    jobs: int | None = None
    submit: int | None = None
    keep: int = 300

    def places(self) -> tuple[int | None, str]:
        """Return how many more jobs Slurm accepts now (None: no limit), and the name of the limit.

        Beyond the cluster's limit sbatch would wait silently.
        """
        free: list[tuple[int, str]] = []
        if self.jobs is not None:
            there = _count("-a", "-t", "all")
            said = f"fewer than {self.jobs} jobs in the cluster, MaxJobCount in slurm.conf; {there} are there"
            free.append((self.jobs - 1 - there, said))
        if self.submit is not None:
            there = _count("-u", str(os.getuid()))
            free.append((self.submit - there, f"{self.submit} jobs of yours, by sacctmgr; {there} are there"))
        return min(free, default=(None, ""), key=lambda one: one[0] or 0)

    @property
    def most(self) -> int | None:
        """The largest number of jobs that an empty cluster accepts."""
        return min((n for n in (self.jobs and self.jobs - 1, self.submit) if n is not None), default=None)

    def check_room(self, jobs: int) -> None:
        """Raise :class:`BenchError` if Slurm does not accept `jobs` more jobs now."""
        places, limit = self.places()
        if places is not None and jobs > places:
            raise BenchError(
                f"Slurm takes {limit}, and this needs {jobs} more. Leave out --detach, so that they are "
                "submitted as others end; or use a larger --pack or fewer cells."
            )


def _count(*words: str) -> int:
    return len(command("squeue", "-h", "-r", "-o", "%i", *words).splitlines())


def limits(wanted: Iterable[JobResources] = ()) -> Limits:
    """Return the cluster's limits on jobs of `wanted` resources.

    Raises :class:`BenchError` without Slurm, and if it takes no arrays.
    """
    config = command("scontrol", "show", "config")

    def number(name: str, otherwise: int | None = None) -> int | None:
        found = re.search(rf"^{name}\s*=\s*(\d+)", config, re.MULTILINE)
        return int(found[1]) if found else otherwise

    array = number("MaxArraySize", LARGEST_ARRAY)
    if array == 0:
        raise BenchError("this Slurm takes no job arrays (MaxArraySize=0 in slurm.conf), which --launcher slurm needs.")
    submit = None
    if re.search(r"^AccountingStorageType\s*=\s*accounting_storage/slurmdbd", config, re.MULTILINE):
        submit = min((n for one in wanted if (n := _submit_limit(one)) is not None), default=None)
    return Limits(min(LARGEST_ARRAY, array or LARGEST_ARRAY), number("MaxJobCount"), submit, number("MinJobAge") or 300)


def _submit_limit(wanted: JobResources) -> int | None:
    """Return how many jobs of these resources this user may have in the queue, by association and QOS; None: any."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
        account = wanted.account or account_of_shell()
        of = [f"user={user}", *([f"account={account}"] if account else [])]
        told = command("sacctmgr", "-n", "-P", "show", "assoc", *of, "format=MaxSubmitJobs,DefaultQOS").splitlines()
        rows = [line.partition("|") for line in told]
        names = {wanted.qos} if wanted.qos else {qos for _, _, qos in rows if qos}
        qos = command("sacctmgr", "-n", "-P", "show", "qos", "format=Name,MaxSubmitPU").splitlines()
    except (BenchError, KeyError):  # no permission, or a user without a name
        return None
    found = [most for most, _, _ in rows] + [most for name, _, most in (q.partition("|") for q in qos) if name in names]
    return min((int(most) for most in found if most.isdigit()), default=None)


def undisturbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` without an enclosing job's limits and settings that hide jobs or override ours."""
    changing = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "SUBMITIT_")
    return {name: value for name, value in environment.items() if not name.startswith(changing) or name == "SLURM_CONF"}
