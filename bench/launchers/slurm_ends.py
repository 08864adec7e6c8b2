"""How jobs of Slurm ended: by ``sacct`` if accounting is on, otherwise by ``scontrol``, exit signals and logs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bench.core.errors import BenchError
from bench.launchers.settings import JobResources, More
from bench.launchers.slurm_cli import command

OUT_OF_TIME_STATUS = 124
"""Exit status of a job that ends itself near its time limit, so that the launcher submits it with more time."""


class Reason(StrEnum):
    """Why a job ended without its records."""

    TIME = "out of time"
    MEMORY = "out of memory"
    KILLED = "killed (signal 9), as the system does when memory is short"
    CANCELLED = "cancelled"
    NODE = "its node failed"
    PREEMPTED = "preempted"
    FAILED = "failed"
    COMPLETED = "ended without a record"
    UNKNOWN = "gone, and Slurm does not remember it"


STATES = {
    "TIMEOUT": Reason.TIME, "DEADLINE": Reason.TIME, "OUT_OF_MEMORY": Reason.MEMORY, "CANCELLED": Reason.CANCELLED,
    "NODE_FAIL": Reason.NODE, "BOOT_FAIL": Reason.NODE, "PREEMPTED": Reason.PREEMPTED, "COMPLETED": Reason.COMPLETED,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class End:
    """The end of a job; memory in MiB, None where unknown."""

    job: str
    reason: Reason = Reason.UNKNOWN
    status: str = ""
    node: str = ""
    peak: float | None = None
    given: float | None = None

    @property
    def words(self) -> str:
        """Return a text with job, node and reason."""
        status = f" with status {self.status.partition(':')[0]}" if self.reason is Reason.FAILED else ""
        return f"job {self.job}{f' on {self.node}' if self.node else ''}: {self.reason}{status}"


WORDS = {
    Reason.MEMORY: "exceeded memory limit|oom.kill|out of memory",
    Reason.TIME: f"DUE TO TIME LIMIT|exit code {OUT_OF_TIME_STATUS}$|exit code 140$|timed-out too many times",
    Reason.NODE: "DUE TO NODE FAILURE",
    Reason.CANCELLED: r"CANCELLED AT \S+ \*\*\*",
    Reason.KILLED: "task 0: Killed",
}
"""Patterns in a job's log; for a job that Slurm has forgotten, the first that matches gives the reason."""


def reason_of(state: str, status: str, last_words: str = "") -> Reason:
    """Return why a job ended, by Slurm's state and exit code (STATUS:SIGNAL) and the end of its log."""
    said = [r for r, words in WORDS.items() if re.search(words, last_words, re.IGNORECASE | re.MULTILINE)]
    if not state:
        return (said or [Reason.UNKNOWN])[0]
    for name, reason in STATES.items():
        if state.startswith(name):  # "CANCELLED by 0"
            return reason
    code, _, number = status.partition(":")
    if number == "125" or Reason.MEMORY in said:
        return Reason.MEMORY
    # A job gets signal 12 if its time ends before a cell begins.
    if code in (str(OUT_OF_TIME_STATUS), "140") or number == "12" or Reason.TIME in said:
        return Reason.TIME
    if number == "9" or code == "137":
        return Reason.KILLED
    return Reason.FAILED


def ends_of(jobs: Collection[str], logs: Path) -> dict[str, End]:
    """Return the end of each of `jobs`, by id, with the logs in the folder `logs`; never raises."""
    told = _by_sacct(jobs) or _by_scontrol(jobs)
    found = {}
    for job in jobs:
        state, status, node, peak, given = told.get(job, ("", "", "", None, None))
        state = "" if state.startswith(("PENDING", "RUNNING", "COMPLETING", "REQUEUED")) else state  # accounting lags
        node = "" if node in ("(null)", "None assigned") else node
        found[job] = End(job, reason_of(state, status, last_words(logs, job)), status, node, peak, given)
    return found


def last_words(logs: Path, job: str) -> str:
    """Return the end of the newest log of `job`, for the terminal only: it may quote private data."""
    try:
        newest = max(logs.glob(f"{job}_*_log.out"), key=lambda log: log.stat().st_mtime)
        text = newest.read_text(errors="replace")[-4000:]
        return re.split("Loading pickle.*\n", text)[-1].strip()  # what followed the job's last start
    except (OSError, ValueError):
        return ""


_Told = tuple[str, str, str, float | None, float | None]


def _by_sacct(jobs: Collection[str]) -> dict[str, _Told]:
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    try:
        text = command("sacct", "-n", "-P", "-j", ids, "-o", "JobID,State,ExitCode,NodeList,MaxRSS,ReqMem")
    except BenchError:
        return {}
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 5]
    peaks: dict[str, float] = {}
    for name, _, _, _, peak, _ in rows:  # peak memory is reported per step: 12_3.batch, 12_3.0
        job = name.partition(".")[0]
        peaks[job] = max(peaks.get(job, 0.0), _mib(peak) or 0.0)
    return {
        name: (state, status, node, peaks[name] or None, _mib(given))
        for name, state, status, node, _, given in rows
        if "." not in name
    }


def _by_scontrol(jobs: Collection[str]) -> dict[str, _Told]:
    found: dict[str, _Told] = {}
    for array in sorted({job.partition("_")[0] for job in jobs}):
        try:
            text = command("scontrol", "-o", "show", "job", array)
        except BenchError:  # Slurm forgets a job after MinJobAge seconds
            continue
        for line in text.splitlines():
            said = dict(re.findall(r"(\S+?)=(\S*)", line))
            name = f"{said['ArrayJobId']}_{said.get('ArrayTaskId')}" if "ArrayJobId" in said else said.get("JobId", "")
            given = re.search(r"[ ,=]mem=(\w+)", line)
            found[name] = (
                said.get("JobState", ""), said.get("ExitCode", ""), said.get("NodeList", ""), None,
                _mib(given[1]) if given else None,
            )  # fmt: skip
    return found


def _mib(text: str) -> float | None:
    """Return the MiB in Slurm's `text`, for instance 512000K, 4000M or, of older versions, 4Gn."""
    match = re.fullmatch(r"([\d.]+)([KMGT]?)[nc]?", text.strip())
    return float(match[1]) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[match[2]] if match else None


def more_after(end: End, own: JobResources, more: More) -> More:
    """Return `more` for the job after `end`: twice the time or memory that ran out, up to the limits of `own`."""
    have = more.of(own)
    if end.reason is Reason.TIME and own.max_time is not None and have.time < own.max_time:
        return More(min(2 * have.time, own.max_time), more.memory)
    if end.reason in (Reason.MEMORY, Reason.KILLED) and own.max_memory is not None:
        given = have.memory or (end.given or 0.0) / 1024  # without --memory, the cluster's default
        if 0 < given < own.max_memory:
            return More(more.time, min(2 * given, own.max_memory))
    return more


def summary(ends: Mapping[str, End]) -> str:
    """Return a text on how jobs ended, three at most."""
    shown = [end.words for end in list(ends.values())[:3]]
    return "; ".join([*shown, *(["..."] if len(ends) > 3 else [])])
