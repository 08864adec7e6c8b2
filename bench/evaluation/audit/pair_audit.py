"""Audit by worst-case pairs: a lower bound on epsilon from many runs of the method on two tiny adjacent sets.

Privacy must hold for every pair, so the auditor chooses it. *Release*: black box; runs with fresh seeds and real noise
are distinguished by one score of their releases, with direction and threshold fixed on uncounted runs. An epsilon that
it refutes does not hold for the published release. *Transcript*: pairs of runs in lockstep
(:mod:`bench.evaluation.audit.lockstep`) give exact privacy losses of the ledger's answers, hence a bound close to the
accountant's if that is tight.

The instruments share the error probability; the pair, the score and the tilt are chosen on uncounted runs.

*Transcript at full size*: one pair of runs in lockstep on the row's own data and a neighbour. It reveals uses of
private data outside the ledger that tiny sets do not, such as a branch taken only with many records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.core.config import DataclassInstance
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.rows import Change
from bench.core.types import Facts, Instrument
from bench.evaluation.audit.guesses import best_threshold
from bench.evaluation.audit.lockstep import Transcript
from bench.evaluation.audit.pair_runs import Crew, Runs, release, transcript
from bench.evaluation.audit.pairs import WorstPair, worst_pairs
from bench.evaluation.audit.release_score import Channels, Score, best_score
from bench.evaluation.check.check_runs import MethodPlace
from bench.interface.method import Method
from bench.privacy.auditing.bounds import many_run_epsilon
from bench.privacy.auditing.curve_bounds import many_run_by_curve
from bench.privacy.auditing.loss_bound import best_tilt, refuted_by_losses
from bench.privacy.auditing.sampled_loss import shift_log_moment
from bench.privacy.events.base_event import Event
from bench.results.attack_record import PairBound
from bench.results.audited import corrected
from bench.results.full_size import NO_FULL_SIZE
from bench.storage.cache import Arrays, Cache

R = TypeVar("R")

VERSION = 3  # increment when the same options run differently
INSTRUMENTS, LOOKS, LOSSES = 2, 2, 2  # tiny and full-size transcripts share the error of their instrument
TRIED, PILOT, CUT = 4, 20, 16  # runs per set: to choose a pair, to fit the score, to choose the threshold
FEW = 16  # compare releases on pairs of at most this many records, if there are any
SILENT = (12, 24)  # runs per set without noise: to fit a score, to count
FIRST_COUNTED = 1_000  # seed of the first counted run
TILTED = 4  # pairs of runs per direction for choosing the tilt
SURE = 1_000.0  # ln E[exp(loss)] far above any useful epsilon; a few untilted runs show it
RELEASES, TRANSCRIPTS = 2_000, 1_000  # limits on counted runs per set and on pairs of runs
ALIKE = 0.95  # share of the largest mean loss at which a pair counts as equally good
MARGIN = 0.3  # slack in epsilon, so that the early stop tolerates one or two errors
POWER_SHARE = 0.15  # share of the minutes
FULL_SHARE = 0.25  # share of the minutes
TRANSCRIPT_SHARE = 0.4  # share of the minutes, if the rest is enough to compare releases
CHOICE_SHARE = 1 / 3  # share of the transcripts' time for choosing a pair, and of the rest for choosing the tilt


@dataclass(frozen=True, slots=True)
class PairPlan:
    """Options of an audit by pairs: `minutes` for both instruments; release runs stop once `target` is refuted."""

    minutes: float
    target: float
    delta: float
    confidence: float
    workers: int
    events: Sequence[Event] = ()  # the row's events, which determine the proven trade-off curve
    power: bool = True  # whether an instrument that refutes nothing is also run without noise
    seed: int = 0  # the row's seed


@dataclass(slots=True)
class _Bench:
    plan: PairPlan
    crew: Crew
    cache: Cache
    progress: Progress
    place: MethodPlace | type[Method]
    name: str
    until: float = math.inf
    later: tuple[float, float] = (math.inf, math.inf)  # seconds for releases, and the end without them
    ended: list[float] = field(default_factory=list)  # when each run ended that no earlier command had made

    def more(self) -> bool:
        return time.monotonic() < self.until

    def pace(self) -> float:
        """Return the shortest time (s) between the ends of two runs, without process starts; 0 if too few ended."""
        gaps = zip(self.ended, self.ended[self.plan.workers :], strict=False)
        return min((after - before for before, after in gaps), default=0.0) / self.plan.workers

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """Leave time for the runs that count after those inside the block."""
        until, now = self.until, time.monotonic()
        self.until = now + CHOICE_SHARE * (until - now)
        yield
        self.until = until

    def depends(self, pair: WorstPair) -> list[Any]:
        # Reuse runs only to resume the same command: another command would test the same runs again without correction.
        plan = [self.plan.minutes, str(self.plan.target)]  # the target is infinite if nothing finite is claimed
        return [VERSION, self.name, *plan, pair.name, pair.config, str(pair.facts)]

    def each(
        self, kind: str, what: str, jobs: Sequence[tuple[dict[str, Any], Callable[[], R]]],
        arrays: Callable[[R], Arrays],
    ) -> Iterator[tuple[int, R | Arrays]]:  # fmt: skip
        """Yield each job's position and result, as arrays if an earlier command kept it, in any order."""
        missing = []
        with self.progress.stage(what, len(jobs), max(0.0, self.until - time.monotonic())) as stage:
            for position, (depends, _) in enumerate(jobs):
                kept = self.cache.find(f"pair-{kind}", depends) if self.more() else None
                if kept is None:
                    missing.append(position)
                    continue
                stage.advance()
                yield position, kept
            for number, result in self.crew.each([jobs[position][1] for position in missing], self.more):
                self.cache.put(f"pair-{kind}", jobs[missing[number]][0], arrays(result))
                stage.advance()
                self.ended.append(time.monotonic())
                yield missing[number], result


@dataclass(frozen=True, slots=True)
class PairsFound:
    """What the instruments found; `bypassed` says where releases differ despite equal answers."""

    bounds: list[PairBound]
    bypassed: str
    reduced: tuple[Change, ...]
    notes: tuple[str, ...] = ()


def audit_pairs(
    method: type[Method],
    config: DataclassInstance,
    facts: Facts,
    plan: PairPlan,
    cache: Cache,
    progress: Progress,
    full: WorstPair | None = None,
) -> PairsFound:
    """Return the bounds of all instruments for a method, its `config` calibrated for a row with these `facts`.

    `full` is the pair at full size, None to leave it out.
    """
    # Fastest pairs first, so that a short audit tries most of them.
    pairs = sorted(worst_pairs(method, config, facts, plan.delta), key=lambda pair: len(pair.first))
    place = MethodPlace.of(method)
    begin = time.monotonic()
    with closing(Crew(plan.workers, apart=place is not None)) as crew:
        bench = _Bench(plan, crew, cache, progress, place or method, _named(method))
        seconds, at_full_size, notes = 60 * plan.minutes, None, list[str]()
        bench.until = begin + TRANSCRIPT_SHARE * seconds
        bench.later = (1 - TRANSCRIPT_SHARE - FULL_SHARE) * seconds, begin + (1 - FULL_SHARE * bool(full)) * seconds
        with progress.stage("transcripts", 1):
            by_transcript, order, bypassed = _by_transcript(bench, pairs, notes.append)
        compared = not notes
        bench.until = begin + seconds
        if full is not None:
            at_full_size, difference = _at_full_size(bench, full, FULL_SHARE * seconds, notes.append)
            bypassed = bypassed or difference
        with progress.stage("releases", 1):
            by_release = _by_release(bench, order) if compared else None
    bounds = [bound for bound in (by_release, by_transcript, at_full_size) if bound is not None]
    audited = [pair for pair in order if pair.name in {bound.pair for bound in bounds}] or order[:1]
    reduced = dict.fromkeys(change for pair in audited for change in pair.reduced)
    return PairsFound(bounds, bypassed, tuple(reduced), tuple(notes))


def audit_full_size(
    method: type[Method], pair: WorstPair, plan: PairPlan, cache: Cache, progress: Progress
) -> PairsFound:
    """Return the bound of `pair`, the one at full size, which may take all of the plan's minutes.

    It holds jointly with those of :func:`audit_pairs`, which leave a share of the error probability for it.
    """
    notes = list[str]()
    bench = _Bench(plan, Crew(1, apart=False), cache, progress, MethodPlace.of(method) or method, _named(method))
    bound, bypassed = _at_full_size(bench, pair, 60 * plan.minutes, notes.append)
    return PairsFound([bound] if bound else [], bypassed, (), tuple(notes))


def _named(method: type[Method]) -> str:
    return f"{method.name} {method.version}"


def _at_full_size(
    bench: _Bench, pair: WorstPair, seconds: float, note: Callable[[str], None]
) -> tuple[PairBound | None, str]:
    """Return the bound from one pair of runs on `pair`, and any difference; without a bound, `note` gets the reason."""
    plan = bench.plan
    depends = {"pair": bench.depends(pair), "delta": plan.delta, "seed": plan.seed}
    kept = bench.cache.find("pair-full-size", depends)
    call = partial(transcript, Runs(bench.place, pair, plan.seed, bench.cache.silent()), False, 1.0, plan.delta)
    crew = closing(Crew(1, apart=isinstance(bench.place, MethodPlace)))  # terminated if a run takes too long
    try:
        with crew as one, bench.progress.stage("a pair of runs at full size", 1, seconds):
            found = one.once(call, seconds) if kept is None else Transcript.from_arrays(kept)
    except TimeoutError:
        note(f"{NO_FULL_SIZE}: it took more than the {seconds:.0f} seconds that --minutes gives it")
        return None, ""
    except BenchError as error:
        note(f"{NO_FULL_SIZE}: {error}")
        return None, ""
    if kept is None:
        bench.cache.put("pair-full-size", depends, found.as_arrays())
    if not found.calls or found.difference:
        return None, f"on {pair.name}: {found.difference}" if found.difference else ""
    tests = INSTRUMENTS * LOSSES if found.exact is None else 1
    drawn = np.array([found.loss]), np.array([found.log_weight]), plan.delta, corrected(plan.confidence, tests)
    epsilon = refuted_by_losses(*drawn) if found.exact is None else max(found.exact)
    return PairBound(
        instrument=Instrument.FULL_SIZE, pair=pair.name, seen="answers of the ledger", cap=math.inf,
        runs=(1, 0) if found.exact is None else (1, 1), epsilon=epsilon, exact=found.exact is not None, tests=tests,
    ), ""  # fmt: skip


def _by_transcript(
    bench: _Bench, pairs: Sequence[WorstPair], note: Callable[[str], None]
) -> tuple[PairBound | None, list[WorstPair], str]:
    """Return the bound, the pairs by descending loss, and any bypass; `note` that no releases will be compared."""
    delta = bench.plan.delta
    with bench.choosing():
        found = dict(_transcripts(bench, [(pair, False, 0, 1.0) for pair in pairs]))
    bypassed = next((run.difference for run in found.values() if run.difference), "")
    shown = {number: run.size if run.exact is None else max(run.exact) for number, run in found.items()}
    exact = any(run.exact for run in found.values())
    enough = max(shown.values(), default=0.0) * (1.0 if exact else ALIKE)
    # Among equally good pairs, the one with fewer records gives more runs in the same time.
    order = sorted(shown, key=lambda number: (shown[number] < enough, len(pairs[number].first), -shown[number]))
    order += [number for number in range(len(pairs)) if number not in shown]
    ranked = [pairs[number] for number in order]
    if not shown or not found[order[0]].calls:
        return None, ranked, bypassed
    bound = partial(
        PairBound, instrument=Instrument.TRANSCRIPT, pair=ranked[0].name, seen="answers of the ledger", cap=math.inf
    )
    if (epsilons := found[order[0]].exact) is not None:
        return bound(runs=(1, 1), epsilon=max(epsilons), exact=True), ranked, bypassed
    sure = found[order[0]].size > SURE
    with bench.choosing():
        swapped, tilt = (False, 0.0) if sure else _tilt(bench, ranked[0])
    # Runs that choose the pair, the score and the threshold; a transcript takes two runs.
    first = 2 * (TRIED * len(_small(pairs)) + PILOT - TRIED + CUT)
    if (wait := first / 2 * bench.pace()) > bench.later[0]:
        note(f"no releases were compared: the {first} runs before those that count take {wait / 60:.0f} minutes")
        bench.until = bench.later[1]
    numbers = range(FIRST_COUNTED, FIRST_COUNTED + (TILTED if sure else TRANSCRIPTS))
    counted = [one for _, one in _transcripts(bench, [(ranked[0], swapped, number, tilt) for number in numbers])]
    if not counted:
        return None, ranked, bypassed
    losses, weights = (np.array([getattr(one, name) for one in counted]) for name in ("loss", "log_weight"))
    runs, tests = (0, len(counted)) if swapped else (len(counted), 0), INSTRUMENTS * LOSSES
    epsilon = refuted_by_losses(losses, weights, delta, corrected(bench.plan.confidence, tests))
    return bound(runs=runs, epsilon=epsilon, tests=tests), ranked, bypassed


def _tilt(bench: _Bench, pair: WorstPair) -> tuple[bool, float]:
    """Return the direction with the larger losses, and a tilt that makes those near the bound common."""
    calls = [(pair, swapped, turn, 1.0) for swapped in (False, True) for turn in range(1, 1 + TILTED)]
    found: dict[bool, list[Transcript]] = {False: [], True: []}
    for position, one in _transcripts(bench, calls):
        found[calls[position][1]].append(one)
    if not all(found.values()):
        return False, 0.0
    size = {swapped: float(np.mean([run.size for run in runs])) for swapped, runs in found.items()}
    swapped = size[True] > size[False]
    training = found[swapped][0].training
    if training is None or not training.distances:
        # As with Gaussian noise, the size at another tilt is tilt (1 + tilt) / 2 times this one.
        return swapped, best_tilt(lambda tilt: tilt * (1 + tilt) / 2 * size[swapped], bench.plan.delta)
    moment = partial(
        shift_log_moment, training.rate, training.distances, present=training.present, displaced=training.displaced
    )
    return swapped, best_tilt(moment, bench.plan.delta)


def _transcripts(bench: _Bench, calls: Sequence[tuple[WorstPair, bool, int, float]]) -> list[tuple[int, Transcript]]:
    """Return the position in `calls` (pair, swapped, number, tilt) and the transcript of each run there is time for.

    In order of position: the choice among equal pairs must not depend on which run ends first or was cached.
    """
    delta = bench.plan.delta
    jobs = [
        (
            {"pair": bench.depends(pair), "delta": delta, "swapped": swapped, "number": number, "tilt": tilt},
            partial(transcript, Runs(bench.place, pair), swapped, tilt, delta),
        )
        for pair, swapped, number, tilt in calls
    ]
    ran = []
    for position, found in bench.each("transcript", "pairs of runs", jobs, Transcript.as_arrays):
        ran.append((position, found if isinstance(found, Transcript) else Transcript.from_arrays(found)))
    return sorted(ran, key=lambda one: one[0])


def _by_release(bench: _Bench, pairs: Sequence[WorstPair]) -> PairBound | None:
    plan = bench.plan
    confidence = corrected(plan.confidence, INSTRUMENTS * LOOKS)
    caps = ((n, many_run_epsilon(0, n, 0, n, plan.delta, confidence).cap) for n in range(8, RELEASES))
    first_look = next((n for n, cap in caps if cap > plan.target + MARGIN), None)
    tried = {pair.name: _releases(bench, pair, range(TRIED)) for pair in _small(pairs)}
    whole = [pair for pair in _small(pairs) if min(map(len, tried[pair.name])) >= 4]
    if not whole:
        return None
    pair = max(whole, key=lambda pair: best_score(*tried[pair.name]).rank)
    later = _releases(bench, pair, range(TRIED, PILOT))
    pilot = [[*tried[pair.name][side], *later[side]] for side in (0, 1)]
    score = best_score(*pilot)
    cut = [score(runs) for runs in _releases(bench, pair, range(PILOT, PILOT + CUT))]
    if not all(map(len, cut)):
        return None
    threshold = best_threshold(cut[1], cut[0], plan.delta, confidence)
    counts = np.zeros((2, 2), dtype=np.int64)  # per set: runs above the threshold, all runs
    for side, values in _counted(bench, pair, score):
        counts[side] += int(values >= threshold), 1
        looks = counts[:, 1].min() == counts[side, 1] == first_look
        if looks and many_run_epsilon(*_errors(counts), plan.delta, confidence).epsilon > plan.target:
            break
    if not counts[:, 1].all():
        return None
    errors = _errors(counts)
    last = many_run_epsilon(*errors, plan.delta, confidence)
    by_curve = many_run_by_curve(plan.events, *errors, plan.delta, confidence)
    return PairBound(
        instrument=Instrument.RELEASE, pair=pair.name, seen=score.channel, tests=INSTRUMENTS * LOOKS,
        runs=(errors[1], errors[3]), epsilon=last.epsilon,
        cap=last.cap, curve=None if by_curve is None else by_curve.epsilon,
        curve_of="" if by_curve is None else by_curve.family, errors=errors,
        power=_power(bench, pair) if plan.power and last.epsilon <= plan.target else None,
    )  # fmt: skip


def _small(pairs: Sequence[WorstPair]) -> Sequence[WorstPair]:
    """Return the pairs on which releases are compared: larger ones are too slow."""
    return [pair for pair in pairs if pair.facts.private_records <= FEW] or pairs[:1]


def _errors(counts: NDArray[np.int64]) -> tuple[int, int, int, int]:
    """Return the errors by which :func:`many_run_epsilon` counts, from each set's runs above the threshold and all."""
    (above, firsts), (hits, seconds) = counts.tolist()
    return above, firsts, seconds - hits, seconds


def _power(bench: _Bench, pair: WorstPair) -> float | None:
    """Return the bound from runs without noise, with their own score; None if time is up."""
    bench.until = max(bench.until, time.monotonic() + 60 * bench.plan.minutes * POWER_SHARE)
    learn, count = SILENT
    runs = _releases(bench, pair, range(learn + count), silent=True)
    if min(map(len, runs)) < learn + 2:
        return None
    score = best_score(*(side[:learn] for side in runs))
    values = [score(side[learn:]) for side in runs]
    counts = np.array([[int((side >= 0).sum()), len(side)] for side in values])
    confidence = corrected(bench.plan.confidence, INSTRUMENTS * LOOKS)
    return many_run_epsilon(*_errors(counts), bench.plan.delta, confidence).epsilon


def _releases(
    bench: _Bench, pair: WorstPair, seeds: range, *, silent: bool = False
) -> tuple[list[Channels], list[Channels]]:
    """Return the releases of runs on both sets, for as many `seeds` as time allows."""
    calls = [(seed, side) for seed in seeds for side in (0, 1)]
    found = {calls[position]: channels for position, channels in _run(bench, pair, calls, silent=silent)}
    return tuple([found[seed, side] for seed in seeds if (seed, side) in found] for side in (0, 1))  # type: ignore[return-value]


def _counted(bench: _Bench, pair: WorstPair, score: Score) -> Iterator[tuple[int, float]]:
    """Yield the set and the score of each counted run, alternating, until time is up."""
    calls = [(FIRST_COUNTED + number, side) for number in range(RELEASES) for side in (0, 1)]
    for position, channels in _run(bench, pair, calls):
        yield calls[position][1], float(score([channels])[0])


def _run(
    bench: _Bench, pair: WorstPair, calls: Sequence[tuple[int, int]], *, silent: bool = False
) -> Iterator[tuple[int, Channels]]:
    """Yield the position in `calls` (seed, side) and the release of each run there is time for."""
    runs, depends = Runs(bench.place, pair), {"pair": bench.depends(pair), "silent": silent}
    jobs = [
        ({**depends, "seed": seed, "side": side}, partial(release, runs, side, seed, silent=silent))
        for seed, side in calls
    ]
    return bench.each("release", "runs" + " without noise" * silent, jobs, lambda channels: channels)
