"""The jobs of a launch: submitted while Slurm has free slots, and again if they end without their results."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from bench.core.errors import BenchError
from bench.core.printable import counted
from bench.core.progress import Progress
from bench.launchers import slurm
from bench.launchers.attempts import attempts_of, ended
from bench.launchers.manifest import Launch
from bench.launchers.schedule import Order, waves_of
from bench.launchers.settings import Cluster, JobResources, More, largest
from bench.launchers.slurm_cli import Limits
from bench.launchers.slurm_ends import End, Reason, ends_of, last_words, more_after, summary
from bench.results.run_dir import RunDir
from bench.storage.locks import look

POLL_SECONDS = 2.0
LONGEST_PAUSE = 30.0  # between calls of squeue while nothing changes: frequent calls load the controller
GRACE_SECONDS = 15.0  # delay of a record on a network disk after its job has ended

Body = Callable[[tuple[str, ...], JobResources, bool], Callable[[], str]]
"""Makes the body of a job from its keys, its resources, and whether it ends at its limit instead of being requeued."""


@dataclass
class Jobs:
    """Jobs of a launch by unit or command, orders that wait for a free slot, and orders whose job was lost.

    With `grows`, a launcher waits for the jobs and gives more time to one that reaches its limit.
    """

    launch: Launch
    run_dir: RunDir
    cluster: Cluster
    limits: Limits
    progress: Progress
    body: Body
    waiting: list[Order]
    grows: bool = True
    job_of: dict[str, str] = field(default_factory=dict)
    ends: dict[str, End] = field(default_factory=dict)  # the last end of each key without a result
    _known: dict[str, End] = field(default_factory=dict)  # ends of jobs, queried before Slurm forgets them
    _orders: dict[str, Order] = field(default_factory=dict)
    _there: set[str] = field(default_factory=set)  # jobs seen at the last poll or submitted since
    _gone: dict[str, float] = field(default_factory=dict)  # when each job was first missing
    _losses: Counter[str] = field(default_factory=Counter)
    _said: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._orders = {key: order for order in self.waiting for key in order.keys}

    @property
    def pause(self) -> float:
        """The longest pause between two polls: Slurm forgets ended jobs, and slots become free."""
        return 2 * POLL_SECONDS if self.waiting else max(POLL_SECONDS, min(LONGEST_PAUSE, self.limits.keep / 3))

    def submit(self) -> int:
        """Submit as many of the waiting orders as Slurm accepts, and return their number.

        If Slurm refuses for good, cancel all jobs and raise :class:`BenchError`.
        """
        before = len(self.waiting)
        if not before:
            return 0
        try:
            places, limit = self.limits.places()
            now = self.waiting if places is None else self.waiting[: max(0, places)]
            if len(now) < before:
                jobs = counted(before - len(now), "job waits", "jobs wait")
                self._say_once(
                    "places", f"{jobs} for free slots in Slurm and will be submitted as others end ({limit})"
                )
            for wave in waves_of(now):
                for together in slurm.arrays(wave, self.cluster.parallel is not None, self.limits.array):
                    self._submit(together)
        except BenchError as error:
            if not self.job_of or (isinstance(error, slurm.RefusedError) and not error.passing):
                slurm.cancel(self.launch.id)
                raise
            self._say_once(str(error), f"{error} It will be queried again.")
        return before - len(self.waiting)

    def _submit(self, together: Sequence[Order]) -> None:
        first, capped = together[0], self.cluster.parallel is not None
        own = first.more.of(self.cluster.of(first.resources))
        if capped:
            # The cap applies per array, so with a cap arrays run in turn, one per wave and kind of resources.
            waits = sorted({job.partition("_")[0] for job in self._there}, key=int)[-1:]
        else:
            waits = sorted({self.job_of[key] for key in first.after if self.job_of.get(key) in self._there})
        ends_itself = self.grows and own.max_time is not None and own.time < own.max_time
        calls = [self.body(order.keys, own, ends_itself) for order in together]
        requeues = 0 if ends_itself else self.launch.options.retries
        made = slurm.submit_array(self.launch, calls, self.cluster, own, waits, requeues)
        self._there.update(made)
        for order, name in zip(together, made, strict=True):
            self.waiting.remove(order)
            self.job_of.update(dict.fromkeys(order.keys, name))

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self.progress.say(text)

    def lost(self, left: Iterable[str]) -> list[str]:
        """Return those of `left` whose jobs were cancelled, or have been gone for GRACE_SECONDS.

        Empty while Slurm does not answer; excludes those that wait for a free slot.
        """
        try:
            seen = slurm.queue(self.launch.id, over=True)
        except BenchError:  # the controller may be down temporarily
            return []
        self._there = {job for job, (state, _) in seen.items() if state not in slurm.OVER}
        stuck = Counter(reason for state, reason in seen.values() if state == "PENDING" and not _passes(reason))
        for reason, count in stuck.items():
            jobs = counted(count, "job waits", "jobs wait")
            self._say_once(reason, f"{jobs} for {reason}, which may never end; `scontrol show job` gives details")
        now = time.monotonic()
        waiting = {key for order in self.waiting for key in order.keys}
        gone = [key for key in left if key not in waiting and self.job_of.get(key) not in self._there]
        self._gone = {key: self._gone.get(key, now) for key in gone}
        new = {self.job_of[key] for key in gone if key in self.job_of} - self._known.keys()
        found = ends_of(new, self.launch.folder / "jobs") if new else {}
        self._known |= {job: end for job, end in found.items() if end.reason is not Reason.UNKNOWN}
        cancelled = {job for job, end in self._known.items() if end.reason is Reason.CANCELLED}
        cancelled |= {job for job, (state, _) in seen.items() if state == "CANCELLED"}
        return [
            key
            for key, since in self._gone.items()
            if self.job_of.get(key) in cancelled or now - since >= GRACE_SECONDS
        ]

    @property
    def mine(self) -> set[str]:
        """The keys that have a job of this launch or wait for one."""
        return self.job_of.keys() | {key for order in self.waiting for key in order.keys}

    @property
    def some_gone(self) -> bool:
        """Whether some key was without a job at the last poll."""
        return bool(self._gone)

    def again(self, lost: Sequence[str], what: str) -> list[str]:
        """Queue the `lost` keys first, with more time or memory if these ran out; return the keys that are given up.

        A key is given up after min(`retries`, 3) jobs that more resources would not have helped, or if it ran out of
        the maximum memory; jobs that another key ended before it began do not count. Prints both.
        """
        new = {self.job_of[key] for key in lost if key in self.job_of} - self._known.keys()
        ends = self._known | (ends_of(new, self.launch.folder / "jobs") if new else {})
        most = min(self.launch.options.retries, 3)
        said: dict[tuple[str, Reason | None], list[str]] = defaultdict(list)
        need: dict[str, More] = {}
        for key in lost:
            self._gone.pop(key, None)
            order, end = self._orders[key], ends.get(self.job_of.get(key, ""))
            own, need[key] = self.cluster.of(order.resources), order.more
            if end is not None:
                tried = [one for one in attempts_of(self.launch.folder, key) if one.job == end.job]
                if not end.node and tried:
                    ends[end.job] = end = replace(end, node=tried[-1].node)
                self.ends[key] = end
                need[key] = more_after(end, own, order.more)
                owner = look(self.run_dir.claims_path / key)
                peak = owner.memory if owner and owner.about.get("job") == end.job else None
                peak = max(filter(None, (peak, end.peak)), default=None)
                ended(self.launch.folder, key, end.job, end.node, str(end.reason), peak)
            # More resources would not have helped, and no other key ended the job before this one began.
            own_fault = need[key] == order.more and self._had_its_turn(key)
            self._losses[key] += own_fault
            full = end is not None and end.reason is Reason.MEMORY and own_fault and own.max_memory is not None
            at_once = " at once" if end is not None and end.reason is Reason.CANCELLED else ""
            given_up = full or self._losses[key] > most
            outcome = "given up" if given_up else f"submitted again{at_once}{need[key].words}"
            said[outcome, end.reason if end else None].append(key)
        for (outcome, _), keys in said.items():
            mine = {job: ends[job] for job in dict.fromkeys(self.job_of.get(key, "") for key in keys) if job in ends}
            how = f" ({summary(mine)})" if mine else ""
            whose = counted(len(keys), f"{what} has lost its job", f"{what}s have lost their jobs")
            self.progress.say(f"{whose}{how}: {outcome}{self._last_words(mine)}")
        left = {key for (outcome, _), keys in said.items() if outcome != "given up" for key in keys}
        self.waiting[:0] = self._rest(left, need)
        return [key for key in lost if key not in left]

    def _had_its_turn(self, key: str) -> bool:
        """Return whether `key` began in its last job, or no key of its order did."""
        job = self.job_of.get(key, "")

        def began(one: str) -> bool:
            return any(tried.job == job and tried.started for tried in attempts_of(self.launch.folder, one))

        return began(key) or not any(map(began, self._orders[key].keys))

    def _rest(self, left: Collection[str], need: dict[str, More]) -> list[Order]:
        """Return the orders of the keys `left`, each with the resources that all its keys need."""
        rest = []
        for order in dict.fromkeys(order for key, order in self._orders.items() if key in left):
            keys = tuple(key for key in order.keys if key in left)
            made = replace(order, keys=keys, more=largest(need[key] for key in keys))
            self._orders.update(dict.fromkeys(keys, made))
            rest.append(made)
        return rest

    def _last_words(self, jobs: Iterable[str]) -> str:
        for job in jobs:
            lines = last_words(self.launch.folder / "jobs", job).splitlines()
            lines = [line for line in lines if not line.startswith("submitit INFO")]
            if lines:
                return f"; the last output of one: {' / '.join(line.strip() for line in lines[-2:])}"
        return ""


def _passes(reason: str) -> bool:
    """Return whether a job that waits for `reason` starts by itself when others have ended."""
    usual = ("None", "Priority", "Resources", "Dependency", "JobArrayTaskLimit", "BeginTime", "Cleaning")
    return reason in usual or reason.startswith(("Assoc", "QOS"))
