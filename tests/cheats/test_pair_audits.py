"""What pair audits find of cheats: private data beside the ledger, and too little noise."""

from __future__ import annotations

import numpy as np
import pytest

from bench.core.progress import Progress
from bench.evaluation.audit import pair_audit
from bench.evaluation.audit.pair_audit import PairPlan, audit_pairs
from bench.evaluation.check.check_data import CHECK_FACTS
from bench.interface.method import Method
from bench.privacy.accounting.accountants import proven
from bench.privacy.auditing.bounds import many_run_epsilon
from bench.privacy.auditing.curve_bounds import many_run_by_curve
from bench.privacy.events.base_event import Event
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.privacy.events.events import Gaussian
from bench.results.audited import corrected
from bench.storage.cache import Cache
from cheats import batches, channels, figures
from cheats.honest import Config, Honest

SMALL = Config(teachers=10, queries=10, steps=5)
RUNS = 22
"""The first number of runs on each set whose bound can refute a claim of 1."""


def audited(cheat: type[Method], monkeypatch: pytest.MonkeyPatch) -> tuple[float, float, str]:
    """Return the bounds by release and by transcript, and where private data left beside the ledger."""

    class Here(cheat):  # type: ignore[misc, valid-type]  # local, so that it runs in this process
        pass

    monkeypatch.setattr(pair_audit, "RELEASES", RUNS)
    plan = PairPlan(minutes=5.0, target=1.0, delta=1e-5, confidence=0.95, workers=1, power=False)
    found = audit_pairs(Here, SMALL, CHECK_FACTS, plan, Cache(None, {}), Progress())
    release, transcript = found.bounds
    assert transcript.exact
    return release.epsilon, transcript.epsilon, found.bypassed


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("cheat", "by_release", "bypassed"),
    [
        (Honest, False, ""),
        (figures.Normalisation, True, "the runs differ in the student's mean"),
        (channels.FirstLabels, True, "the runs differ in the released hints"),
        (channels.OptionOrder, False, "the runs differ in student_options"),
        (channels.Memory, None, "the students answer differently"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_which_instrument_finds_which_cheat(
    cheat: type[Method], by_release: bool | None, bypassed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, transcript, found = audited(cheat, monkeypatch)
    assert found.startswith(bypassed)
    assert bool(found) == bool(bypassed)
    if by_release is not None:
        assert (release > 1) == by_release
    # Where answers of the ledger are honest, so are their losses.
    assert transcript == pytest.approx(0.32, abs=0.01)


@pytest.mark.parametrize(
    ("method", "sampling", "refuted", "bypassed"),
    [
        (batches.OwnBatches, "poisson", True, ""),
        (batches.RealisedSizes, "poisson", True, "another sensitivity"),
        pytest.param(batches.OwnFixedBatches, "poisson", True, "", marks=pytest.mark.slow),
        *(
            pytest.param(batches.Batches, sampling, refuted, "", marks=pytest.mark.slow)
            for sampling, refuted in (
                ("poisson", False), ("random-allocation", False), ("fixed", True), ("shuffled", True),
            )
        ),
    ],
    ids=["own", "realised", "own, fixed", "poisson", "random-allocation", "fixed", "shuffled"],
)  # fmt: skip
def test_batches_that_are_not_poissons_refute_its_figure(
    method: type[batches.Batches], sampling: str, refuted: bool, bypassed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"RELEASES": 4, "PILOT": 6, "CUT": 4, "TRANSCRIPTS": 150 if method is batches.Batches else 12}
    for name, number in runs.items():
        monkeypatch.setattr(pair_audit, name, number)
    config = batches.BatchesConfig(sampling)
    planned = method(config, batches.FACTS)
    found = batches.audited(method, config, minutes=10.0)
    shown = max(bound.epsilon for bound in found.bounds)
    assert (shown > planned.claimed(batches.DELTA).epsilon) is refuted
    assert shown <= proven(planned.charges(), batches.DELTA).epsilon or bool(bypassed)
    assert bypassed in found.bypassed
    assert bool(found.bypassed) is bool(bypassed)


def test_half_the_noise_is_beyond_the_proven_curve_where_no_number_of_runs_refutes_epsilon() -> None:
    """A transcript cannot see it, which takes the stated law; the audit of the mechanism draws from the real one."""
    runs, stated = 1_000, 2.0
    events: list[Event] = [Gaussian(1 / stated)]
    generator = np.random.default_rng(0)
    for mu, refuted in ((stated, False), (2 * stated, True)):
        first, second = generator.normal(size=runs), generator.normal(mu, size=runs)
        errors = int((first >= mu / 2).sum()), runs, int((second < mu / 2).sum()), runs
        confidence = corrected(0.95, 4)
        truth = exact_gaussian_epsilon(stated, 1e-5)
        assert many_run_epsilon(*errors, 1e-5, confidence).epsilon < truth
        by_curve = many_run_by_curve(events, *errors, 1e-5, confidence)
        assert by_curve is not None
        assert (by_curve.epsilon > truth) == refuted
