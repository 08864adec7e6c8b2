"""The bounds of pair audits: rarely above the truth, as high as the runs allow, and stopped on request."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from bench.core.rows import Change
from bench.core.types import Instrument, PrivateData
from bench.evaluation.audit import pair_audit
from bench.evaluation.audit.lockstep import Transcript
from bench.evaluation.audit.release_score import Channels
from bench.privacy.auditing.bounds import many_run_epsilon
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.results.audited import corrected
from bench.storage.cache import Cache
from helpers.pair_audits import CONFIDENCE, DELTA, FACTS, PAIRS, audited


def allowed(audits: int, share: float = 0.05) -> float:
    """The most audits above the truth that a `share` of them explains, up to three standard deviations."""
    return share * audits + 3 * math.sqrt(share * (1 - share) * audits)


# ------------------------------------------------------------------------------------------------------------- the null


def nothing(generator: np.random.Generator) -> Callable[..., Channels]:
    """Runs of a method that releases nothing private: pure chance in two channels, one with heavy tails."""

    def give(pair: str, side: int, seed: int, *, silent: bool) -> Channels:
        draws = {"logits": generator.normal(size=4), "images": generator.standard_cauchy(3)}
        return {name: drawn.astype(np.float32) for name, drawn in draws.items()}

    return give


@pytest.mark.slow
@pytest.mark.parametrize("audits", [100, 1000])
def test_releases_of_nothing_private_are_hardly_ever_above_zero(audits: int) -> None:
    """Including the bound, the early look, and the choices of pair and score."""
    above = 0
    for seed in range(audits):
        (bound,) = audited(nothing(np.random.default_rng(seed)), releases=40, power=False)[0].bounds
        assert bound.runs == (40, 40)
        above += bound.epsilon > 0
    # The two instruments share the 5%.
    assert above <= allowed(audits, 0.025)


def test_transcripts_of_nothing_private_give_exactly_zero() -> None:
    for given, exact in ((Transcript(loss=0.0, calls=2), False), (Transcript(calls=1, exact=(0.0, 0.0)), True)):
        found, _ = audited(transcript=lambda *_, given=given: given)
        (bound,) = found.bounds
        assert (bound.epsilon, bound.exact, bound.pair, found.bypassed) == (0.0, exact, PAIRS[0].name, "")


@pytest.mark.parametrize(
    ("of_small", "exact", "first"), [(0.97, False, "small"), (0.9, False, "large"), (0.97, True, "large")]
)
def test_of_pairs_that_show_as_much_the_one_with_fewer_records_is_run(of_small: float, exact: bool, first: str) -> None:
    """Its runs cost less; where the bound is exact, no further run is needed and the larger one counts."""
    records = {"large": 40, "small": 2}
    pairs = [
        dataclasses.replace(
            PAIRS[0], name=name, first=PrivateData(torch.zeros((n, 1, 1, 1), dtype=torch.uint8), torch.zeros(n), FACTS)
        )
        for name, n in records.items()
    ]
    shown = {"large": 1.0, "small": of_small}

    def give(pair: str, swapped: bool, tilt: float, delta: float) -> Transcript:
        loss = shown[pair]
        return Transcript(loss, calls=1, exact=(loss, loss)) if exact else Transcript(loss, calls=2)

    found, seen = audited(transcript=give, pairs=pairs)
    assert [bound.pair for bound in found.bounds] == [first]
    assert {name for name, *_ in seen[2:]} == ({first} if not exact else set())


def gaussian(mu: float, generator: np.random.Generator) -> Callable[..., Transcript]:
    """Transcripts of adaptive calls whose losses are those of Gaussian noise at distance `mu`, and half on swap."""

    def give(pair: str, swapped: bool, tilt: float, delta: float) -> Transcript:
        shown = mu / 2 if swapped else mu
        loss = generator.normal(shown**2 / 2 + tilt * shown**2, shown)
        return Transcript(loss, -tilt * loss + tilt * (tilt + 1) * shown**2 / 2, calls=3)

    return give


@pytest.mark.slow
@pytest.mark.parametrize("mu", [pytest.param(0.3, marks=pytest.mark.slow), 3.0])
def test_transcripts_of_known_losses_are_hardly_ever_above_the_truth(mu: float) -> None:
    truth, audits, epsilons = exact_gaussian_epsilon(mu, DELTA), 60, []
    for seed in range(audits):
        (bound,) = audited(transcript=gaussian(mu, np.random.default_rng(seed)), pairs=PAIRS[:1])[0].bounds
        assert bound.runs == (pair_audit.TRANSCRIPTS, 0), "the direction with the larger losses"
        epsilons.append(bound.epsilon)
    assert (np.array(epsilons) > truth).sum() <= allowed(audits, 0.025)
    assert np.mean(epsilons) > 0.9 * truth


# ---------------------------------------------------------------------------------------------------------------- power


def told_apart(pair: str, side: int, seed: int, *, silent: bool) -> Channels:
    generator = np.random.default_rng([side, seed, silent])
    noise = generator.normal(size=4).astype(np.float32)
    return {"logits": noise, "images": noise + 100 * side}


def test_runs_that_differ_perfectly_are_refuted_up_to_the_cap() -> None:
    (bound,) = audited(told_apart, target=math.inf, releases=100)[0].bounds
    assert (bound.seen, bound.runs, bound.errors) == ("images", (100, 100), (0, 100, 0, 100))
    wanted = many_run_epsilon(0, 100, 0, 100, DELTA, corrected(CONFIDENCE, 4))
    assert bound.epsilon == bound.cap == pytest.approx(wanted.epsilon)
    assert bound.epsilon > 2.9


def test_the_early_look_stops_at_once_where_the_target_is_refuted() -> None:
    found, seen = audited(told_apart, target=1.0)
    (bound,) = found.bounds
    runs = bound.runs[0]
    assert 1.0 < bound.epsilon == bound.cap
    level = corrected(CONFIDENCE, 4)
    assert many_run_epsilon(0, runs - 1, 0, runs - 1, DELTA, level).cap <= 1.0 + pair_audit.MARGIN < bound.cap
    counted = [seed for _, _, seed in seen if seed >= pair_audit.FIRST_COUNTED]
    assert len(counted) == sum(bound.runs), "no run after the look"
    assert bound.power is None, "what refutes has power"


def test_a_look_in_vain_goes_on_to_all_runs() -> None:
    late = np.random.default_rng(0)

    def half(pair: str, side: int, seed: int, *, silent: bool) -> Channels:
        """Distinguished, except for one counted run in four."""
        wrong = seed >= pair_audit.FIRST_COUNTED and seed % 4 == 0
        return {"logits": (late.normal(size=2) + 100 * (side ^ wrong)).astype(np.float32)}

    (bound,) = audited(half, target=1.0, power=False, releases=60)[0].bounds
    assert bound.runs == (60, 60)
    assert bound.errors == (15, 60, 15, 60)


def test_a_bound_is_what_its_errors_and_its_tests_give() -> None:
    generator = np.random.default_rng(0)

    def shifted(pair: str, side: int, seed: int, *, silent: bool) -> Channels:
        return {"logits": (generator.normal(size=3) + 1.5 * side).astype(np.float32)}

    (bound,) = audited(shifted, target=4.0, power=False, releases=50)[0].bounds
    assert bound.errors is not None
    assert min(bound.errors) > 0
    wanted = many_run_epsilon(*bound.errors, DELTA, corrected(CONFIDENCE, bound.tests))
    assert (bound.epsilon, bound.cap) == (pytest.approx(wanted.epsilon), pytest.approx(wanted.cap))
    assert 0 < bound.epsilon < bound.cap


def test_without_noise_more_is_seen_and_said() -> None:
    generator = np.random.default_rng(0)

    def hidden(pair: str, side: int, seed: int, *, silent: bool) -> Channels:
        return {"logits": (generator.normal(size=3) * (not silent) + 0.1 * side).astype(np.float32)}

    (bound,) = audited(hidden, target=1.0, releases=30)[0].bounds
    assert bound.epsilon == 0.0
    count = pair_audit.SILENT[1]
    assert bound.power == pytest.approx(many_run_epsilon(0, count, 0, count, DELTA, corrected(CONFIDENCE, 4)).cap)
    (bound,) = audited(hidden, target=1.0, power=False, releases=30)[0].bounds
    assert bound.power is None


# ------------------------------------------------------------------------------------ what is chosen, kept and stopped


def test_the_pair_is_chosen_on_runs_that_are_not_counted() -> None:
    _, seen = audited(told_apart, power=False, target=math.inf, releases=30)
    tried = {(name, seed) for name, _, seed in seen if seed < pair_audit.TRIED}
    assert tried == {(pair.name, seed) for pair in PAIRS for seed in range(pair_audit.TRIED)}
    later = [(name, seed) for name, _, seed in seen if seed >= pair_audit.TRIED]
    assert len({name for name, _ in later}) == 1
    counted = {seed for _, seed in later if seed >= pair_audit.FIRST_COUNTED}
    assert len(counted) == 30
    assert len(seen) == len(set(seen)), "no run twice"


def test_kept_runs_are_used_again() -> None:
    cache = Cache(None, {})
    first, ran = audited(told_apart, gaussian(1.0, np.random.default_rng(0)), cache=cache)
    assert len(first.bounds) == 2
    assert ran
    assert audited(told_apart, gaussian(1.0, np.random.default_rng(0)), cache=cache) == (first, [])


def test_exact_losses_are_kept_for_their_delta() -> None:
    cache = Cache(None, {})
    for delta in (1e-5, 1e-3):
        found, _ = audited(
            transcript=lambda *given: Transcript(calls=1, exact=(given[-1], given[-1])), cache=cache, delta=delta
        )
        assert [bound.epsilon for bound in found.bounds] == [delta]


def test_losses_far_above_any_epsilon_take_a_few_runs() -> None:
    (bound,) = audited(transcript=gaussian(60.0, np.random.default_rng(0)))[0].bounds
    assert bound.runs == (pair_audit.TILTED, 0)
    assert 1_000 < bound.epsilon < exact_gaussian_epsilon(60.0, DELTA)


def test_without_time_there_is_no_bound() -> None:
    found, seen = audited(told_apart, gaussian(1.0, np.random.default_rng(0)), minutes=0.0)
    assert (found.bounds, found.bypassed, seen) == ([], "", [])


def test_slow_runs_leave_time_for_transcripts_that_count_and_for_no_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of 15 s in an audit of 10 minutes: 80 runs precede the first release that counts."""
    now, losses = [0.0], gaussian(1.0, np.random.default_rng(0))
    monkeypatch.setattr("bench.evaluation.audit.pair_audit.time.monotonic", lambda: now[0])

    def slow(*given: object) -> Transcript:
        now[0] += 30.0
        return losses(*given)

    found, _ = audited(told_apart, slow, minutes=10.0)
    (bound,) = found.bounds
    assert bound.instrument is Instrument.TRANSCRIPT
    assert 5 <= sum(bound.runs) < 20
    assert found.notes == ("no releases were compared: the 80 runs before those that count take 20 minutes",)
    assert now[0] <= 600 + 30


def test_a_slow_start_of_the_processes_is_not_a_slow_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run waits 20 s for its process, then each takes a tenth of a second."""
    now, losses = [0.0], gaussian(1.0, np.random.default_rng(0))
    monkeypatch.setattr("bench.evaluation.audit.pair_audit.time.monotonic", lambda: now[0])

    def timed(*given: object) -> Transcript:
        now[0] += 0.1 if now[0] else 20.0
        return losses(*given)

    for pairs in (PAIRS, PAIRS[:1]):
        now[0] = 0.0
        found, _ = audited(told_apart, timed, pairs=pairs, minutes=2.0)
        assert {bound.instrument for bound in found.bounds} == {Instrument.RELEASE, Instrument.TRANSCRIPT}
        assert found.notes == ()


def test_the_pair_with_the_largest_losses_is_audited_by_its_larger_direction() -> None:
    def give(pair: str, swapped: bool, tilt: float, delta: float) -> Transcript:
        losses = gaussian(4.0 if swapped else 2.0, np.random.default_rng())
        return losses(pair, False, tilt, delta)

    found, seen = audited(transcript=give)
    (bound,) = found.bounds
    assert bound.runs == (0, pair_audit.TRANSCRIPTS)
    assert bound.epsilon > exact_gaussian_epsilon(2.0, DELTA)
    (tilt,) = {tilt for _, _, tilt, _ in seen[-pair_audit.TRANSCRIPTS :]}
    assert tilt == pytest.approx(exact_gaussian_epsilon(4.0, DELTA) / 16 - 0.5, rel=0.1)


def test_an_exact_loss_is_that_of_the_larger_direction() -> None:
    found, seen = audited(transcript=lambda *given: Transcript(1.0, calls=1, exact=(0.5, 0.75)))
    (bound,) = found.bounds
    assert (bound.epsilon, bound.exact, bound.runs, bound.cap) == (0.75, True, (1, 1), math.inf)
    assert len(seen) == len(PAIRS), "nothing is drawn"


def test_a_difference_on_any_pair_is_said() -> None:
    def give(pair: str, *given: float) -> Transcript:
        return Transcript(1.0, calls=1, exact=(0.5, 0.5), difference="the weights differ" * (pair == PAIRS[1].name))

    assert audited(transcript=give)[0].bypassed == "the weights differ"


def test_what_was_smaller_in_the_pairs_of_both_instruments_is_said() -> None:
    pairs = [
        dataclasses.replace(PAIRS[0], name=name, reduced=(Change.of("records", 9, 1), Change.of("teachers", 9, number)))
        for number, name in ((2, "unused"), (0, "one"), (1, "other"))
    ]

    def release(pair: str, side: int, seed: int, *, silent: bool) -> Channels:
        return told_apart(pair, side if pair == "other" else 0, seed, silent=silent)

    def transcript(pair: str, *given: float) -> Transcript:
        losses = {"one": 3.0, "other": 2.0, "unused": 1.0}
        return Transcript(calls=1, exact=(losses[pair], losses[pair]))

    found, _ = audited(release, transcript, pairs=pairs)
    assert [(bound.instrument, bound.pair) for bound in found.bounds] == [
        (Instrument.RELEASE, "other"), (Instrument.TRANSCRIPT, "one"),
    ]  # fmt: skip
    assert found.reduced == (Change.of("records", 9, 1), Change.of("teachers", 9, 0), Change.of("teachers", 9, 1))
