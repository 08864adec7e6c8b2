"""The informed attacker, who knows all records but one and guesses which of n candidates that one is.

Balle et al. 2022 (arXiv:2201.04845); Hayes et al. 2023 (arXiv:2302.07225). *Transcript*: the method runs on all n sets
in lockstep, with the ledger's answers of one of them, and the attacker names the candidate under which these answers
are most probable; no attack on the answers does better. If records are sampled, the attacker knows the sample of the
others. *Release*: the student's log odds of each candidate's label on its own image, standardised over runs on other
sets.

Whatever the attacker does, the proven curve bounds the success (:mod:`bench.privacy.accounting.risk`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from bench.core.errors import BenchError
from bench.core.progress import Stage
from bench.core.seeds import new_salt
from bench.core.transforms import as_float
from bench.core.types import Instrument, Released
from bench.evaluation.audit.canary_runs import Noiseless, logits_of
from bench.evaluation.audit.lockstep import Lockstep
from bench.evaluation.audit.options import AuditOptions
from bench.evaluation.audit.pair_runs import Crew, class_of, trained
from bench.evaluation.audit.pairs import WorstPair, candidate_pairs
from bench.evaluation.audit.tapped_dp_sgd import candidates_dp_sgd
from bench.evaluation.check.check_runs import MethodPlace
from bench.experiments.plan import Cell
from bench.interface.method import Method
from bench.interface.signals import log_odds
from bench.privacy.accounting.risk import reconstruction
from bench.privacy.auditing.compared import Comparison
from bench.privacy.auditing.transcript_loss import compare
from bench.privacy.events.base_event import Event, Floats
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise, Silence
from bench.results.audited import corrected
from bench.results.candidates import CandidatesFound
from bench.training.context import Context

RUNS = 2_000
"""Most counted guesses of each instrument and number of candidates."""
LIKELIHOODS = 100_000
"""Most likelihoods of candidates that one run in lockstep computes, so that it ends in seconds."""
PILOT = 16
"""Runs that show how each candidate scores when it is not the true one."""
SILENT = 8
"""Guesses at releases without noise."""


@dataclass(frozen=True, slots=True)
class Game:
    """The method and, for each candidate, the pair whose first set holds it; all have the same second set."""

    method: MethodPlace | type[Method]
    pairs: tuple[WorstPair, ...]


def guess(scores: Floats, generator: np.random.Generator) -> int:
    """Return the index of the largest of `scores` (n,), a random one if tied."""
    return int(generator.choice(np.flatnonzero(scores == scores.max())))


def transcript_hits(game: Game, draws: int = RUNS) -> list[bool]:
    """Return whether the attacker is right on the answers of runs in lockstep, each with a random true candidate.

    One guess per run, or `draws` guesses if the only call of the ledger depends on no answer. Raises
    :class:`BenchError` for a method whose answers have no exact likelihood here.
    """
    generator = np.random.default_rng(secrets.randbits(256))
    method, true = class_of(game.method), int(generator.integers(len(game.pairs)))
    total = np.zeros(len(game.pairs))
    cell, calls = new_salt(), 0
    only: Callable[[int, np.random.Generator], tuple[Floats, Floats]] | None = None
    works = [partial(trained, method, pair, 0, 0, {}, cell) for pair in game.pairs]
    works.append(partial(trained, method, game.pairs[0], 1, 0, {}, cell))
    sides = [Lockstep(work, method.unit, method.adjacency) for work in works]
    try:
        for side in sides:
            side.go()
        while all(side.asked is not None for side in sides):
            asked = [side.asked for side in sides if side.asked is not None]
            name, (*given, neighbour) = asked[0].name, [one.arguments for one in asked]
            if any(one.name != name for one in asked):
                raise BenchError("runs call the ledger differently though its answers are the same. See `bench audit`.")
            calls += 1
            if name == "dp_sgd":
                total += candidates_dp_sgd(given, neighbour, true, generator)
                answer, only = None, None
            else:
                compared = [compare(name, one, neighbour) for one in given]
                answer, losses = _answered(compared, true, generator)
                total += losses
                only = partial(_answered, compared) if calls == 1 else None
            for side in sides:
                side.go(None if answer is None else np.array(answer))
        if any(side.asked is not None for side in sides):
            raise BenchError("some runs end while others go on. See `bench audit`.")
    finally:
        for side in sides:
            side.stop()
    if not calls:
        raise next((side.error for side in sides if side.error is not None), BenchError("no call of the ledger"))
    hits = [guess(total, generator) == true]
    if only is not None:
        for number in generator.integers(len(game.pairs), size=draws - 1).tolist():
            hits.append(guess(only(number, generator)[1], generator) == number)
    return hits


def _answered(compared: Sequence[Comparison], true: int, generator: np.random.Generator) -> tuple[NDArray[Any], Floats]:
    """Return an answer on the set with the candidate `true`, and its loss under each candidate over the second set."""
    answer = compared[true].draw(generator, 0.0).answer
    return answer, np.array([one.loss_of(answer) for one in compared])


def release_scores(game: Game, true: int | None, *, silent: bool = False) -> Floats:
    """Return the log odds (n,) of each candidate's label on its image, by a student of a run with noise.

    It trains on the set with the candidate `true`, None for the second set; `silent` leaves the noise out.
    """
    method, pair = class_of(game.method), game.pairs[true or 0]
    draws = np.random.default_rng(secrets.randbits(256))
    executor = Noiseless(Silence(draws)) if silent else Noisy(SeededNoise(draws))
    ledger = Ledger(method.unit, method.adjacency, executor)
    try:
        released = trained(method, pair, 1 if true is None else 0, secrets.randbits(31), {}, new_salt(), ledger)
    except BenchError:  # some answers cannot train a student
        return np.zeros(len(game.pairs))
    return own_odds(released, game.pairs)


def own_odds(released: Released, pairs: Sequence[WorstPair]) -> Floats:
    """Return the student's log odds (n,) of each candidate's label on its own image, for the candidates of `pairs`."""
    images = as_float(torch.cat([pair.first.images[:1] for pair in pairs]))
    labels = torch.cat([pair.first.labels[:1] for pair in pairs]).numpy()
    odds = log_odds(logits_of(released, images[None], torch.device("cpu"))[0], labels)
    return np.nan_to_num(odds, posinf=1e6, neginf=-1e6)


def found(
    instrument: Instrument, candidates: int, hits: Sequence[bool], bound: float, confidence: float,
    silent: tuple[int, int] | None = None,
) -> CandidatesFound:  # fmt: skip
    """Return the share of `hits` with its two-sided Clopper-Pearson interval, and the `bound`."""
    low, high = stats.binomtest(sum(hits), len(hits)).proportion_ci(confidence, "exact")
    return CandidatesFound(
        instrument=instrument, candidates=candidates, runs=len(hits), right=sum(hits), low=float(low),
        high=float(high), bound=bound, confidence=confidence, silent=silent,
    )  # fmt: skip


def informed_attack(
    method: type[Method], cell: Cell, events: Sequence[Event], options: AuditOptions, context: Context
) -> list[CandidatesFound]:
    """Return both attackers' success on a row with these `events`, for each number of candidates.

    Notes say what could not be attacked.
    """
    results: list[CandidatesFound] = []
    place, note = MethodPlace.of(method), context.note
    tests = 2 * len(options.numbers)
    confidence, share = corrected(options.confidence, tests), 60 * options.minutes / tests
    with (
        closing(Crew(context.workers, apart=place is not None)) as crew,
        context.progress.stage("candidates", tests) as stage,
    ):
        for count in options.numbers:
            try:
                pairs = candidate_pairs(method, cell.config, cell.facts, cell.delta, count)
            except BenchError as error:
                note(f"{count} candidates: {error}")
                stage.advance(2)
                continue
            game, bound = Game(place or method, tuple(pairs)), reconstruction(events, 1 / count)
            for attack, instrument in ((_by_transcript, Instrument.TRANSCRIPT), (_by_release, Instrument.RELEASE)):
                until = time.monotonic() + share
                try:
                    with context.progress.stage(f"{count} candidates by {instrument}", RUNS, share) as guesses:
                        hits, silent = attack(game, crew, until, options.power, guesses)
                except BenchError as error:
                    note(f"{count} candidates by {instrument}: {error}")
                else:
                    if hits:
                        results.append(found(instrument, count, hits, bound, confidence, silent))
                    else:
                        note(f"{count} candidates by {instrument}: no run ended in {share:.0f} seconds")
                stage.advance()
    return results


Outcome = tuple[list[bool], tuple[int, int] | None]


def _by_transcript(game: Game, crew: Crew, until: float, power: bool, stage: Stage) -> Outcome:
    found: list[bool] = []

    def more() -> bool:
        return len(found) < RUNS and time.monotonic() < until

    draws = min(RUNS, LIKELIHOODS // len(game.pairs))
    patience = until - time.monotonic()
    for _, some in crew.each([partial(transcript_hits, game, draws)] * RUNS, more, patience):
        found += some
        stage.advance(len(some))
    return found[:RUNS], None


def _by_release(game: Game, crew: Crew, until: float, power: bool, stage: Stage) -> Outcome:
    generator = np.random.default_rng(secrets.randbits(256))
    begin = time.monotonic()

    def played(trues: Sequence[int | None], share: float, *, silent: bool = False) -> list[tuple[int | None, Floats]]:
        calls = [partial(release_scores, game, true, silent=silent) for true in trues]
        end = begin + share * (until - begin)
        ended = []
        for position, scores in crew.each(calls, lambda: time.monotonic() < end, until - begin):
            ended.append((trues[position], scores))
            stage.advance()
        return ended

    def hits(pilot: Sequence[tuple[int | None, Floats]], counted: Sequence[tuple[int | None, Floats]]) -> list[bool]:
        usual = np.array([scores for _, scores in pilot])
        spread = np.maximum(usual.std(axis=0), 1e-3)
        return [guess((scores - usual.mean(axis=0)) / spread, generator) == true for true, scores in counted]

    pilot = played([None] * PILOT, 0.3)
    if len(pilot) < 2:
        return [], None
    silent = None
    if power:
        quiet = played([None] * 4, 0.4, silent=True)
        trues = generator.integers(len(game.pairs), size=SILENT).tolist()
        guesses = hits(quiet, played(trues, 0.5, silent=True)) if len(quiet) > 1 else []
        silent = (sum(guesses), len(guesses)) if guesses else None
    trues = generator.integers(len(game.pairs), size=RUNS).tolist()
    return hits(pilot, played(trues, 1.0)), silent
