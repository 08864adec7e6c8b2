"""P3GM: its centre without noise, the repaired form's sensitivities and noise, the parts that fit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, kl_divergence

from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Basis, Budget, Facts, PrivateData, TargetAdjacency
from bench.evaluation.audit.pairs import worst_pairs
from bench.methods.generative.p3gm import P3GM, P3GMConfig
from bench.methods.generative.p3gm_sound import P3GMSound, P3GMSoundConfig
from bench.methods.generative.pca_vae import (
    EM_SENSITIVITY,
    Codes,
    Mixture,
    PhasedVAE,
    clipped,
    components_of,
    draws_of,
    noisy_em,
    rows_of,
    second_moments,
    start_mixture,
    statistics,
)
from bench.privacy.accounting.accountants import proven
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers import outside_accountant
from helpers.settings import configured
from helpers.small_sets import SMALL, private_pair

MNIST = Facts("mnist", 60_000, 9_000, 1_000, 10, (1, 28, 28))
FEW = Facts("few", 21, 0, 0, 4, (1, 4, 4))
METHODS = (P3GM, P3GMSound)


class Heard(Ledger):
    """A ledger that keeps what it releases."""

    def __init__(self, seed: int) -> None:
        super().__init__(P3GM.unit, P3GM.adjacency, Noisy(SeededNoise(np.random.default_rng(seed))))
        self.released: list[Any] = []

    def gaussian(self, *args: Any, **kwargs: Any) -> Any:
        self.released.append(super().gaussian(*args, **kwargs))
        return self.released[-1]


def few(present: bool, *, blank: bool = False, others: int = 20) -> PrivateData:
    """Return blank records of one class and, if `present`, a first one of another class, white or blank."""
    images = torch.zeros(others + 1, *FEW.shape, dtype=torch.uint8)
    images[0] = 0 if blank else 255
    labels = torch.zeros(others + 1, dtype=torch.int64)
    labels[0] = 1
    return PrivateData(images[0 if present else 1 :], labels[0 if present else 1 :], FEW)


def fitted(method: type[P3GM], private: PrivateData, noise: int) -> PhasedVAE:
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress(), note=lambda text: None)
    config = method.Config(**{**method.presets(FEW)["tiny"], "hidden": 4, "batch_size": 4, "warm_start_steps": 2})
    source = method(config, private.facts).fit_generator(private, None, Heard(noise), context)  # type: ignore[arg-type]
    assert isinstance(source.net, PhasedVAE)
    return source.net


# ----------------------------------------------------------------------------------------------------------- the claim


def test_the_authors_setting_costs_what_they_say_and_the_claim_does_not_hold() -> None:
    claim = P3GM(P3GMConfig(), MNIST).claimed(1e-5)
    assert claim.epsilon == pytest.approx(0.993, abs=5e-4)
    assert "does not hold" in claim.note
    same = P3GMSoundConfig(em_iterations=20)
    assert P3GMSound(same, MNIST).claimed(1e-5).epsilon == pytest.approx(claim.epsilon), "one Gaussian: 3 releases"
    assert proven(P3GMSound(same, MNIST).charges(), 1e-5).epsilon == pytest.approx(0.9067, abs=5e-4)


def test_its_proven_cost_is_that_of_an_accountant_from_outside() -> None:
    events = P3GMSound(P3GMSoundConfig(), MNIST).charges()
    theirs = outside_accountant.epsilon([event.as_dict() for event in events], 1e-5)
    assert proven(events, 1e-5).epsilon == pytest.approx(theirs, abs=1e-3)


def test_a_budget_multiplies_all_noise_by_one_factor() -> None:
    config = P3GM(P3GMConfig(), MNIST).calibrate(Budget(10.0, 1e-5, Basis.CLAIMED))
    assert 0.4 < config.noise_multiplier < 0.6
    assert config.pca_noise == pytest.approx(5 / 1.4 * config.noise_multiplier, abs=1e-3)
    assert config.em_noise == pytest.approx(100 / 1.4 * config.noise_multiplier, abs=1e-3)
    assert 9.9 < P3GM(config, MNIST).claimed(1e-5).epsilon <= 10


def test_full_batches_have_an_exact_cost_to_calibrate_to() -> None:
    facts = dataclasses.replace(MNIST, private_records=500)
    bound = P3GMSound(P3GMSoundConfig(batch_size=500), facts)
    found = P3GMSound(bound.calibrate(Budget(10.0, 1e-5, Basis.PROVEN, TargetAdjacency.OWN)), facts)
    assert 9.9 < proven(found.charges(), 1e-5).epsilon <= 10


# ------------------------------------------------------------------------------------------------------------ the flaw


def test_the_released_centre_tells_adjacent_sets_apart_whatever_the_noise() -> None:
    centres = [[fitted(P3GM, few(present), noise).centre for noise in (0, 1)] for present in (True, False)]
    assert all(torch.equal(*same) for same in centres), "it has no noise"
    assert float((centres[0][0] - centres[1][0]).norm()) > 0.1
    repaired = [fitted(P3GMSound, few(present), 0).centre for present in (True, False)]
    assert torch.equal(*repaired)


def test_one_record_moves_the_centred_second_moments_by_far_more_than_the_noise_is_for() -> None:
    """All others move with the mean: of n blank records and a white one, every row is as long as clipping allows."""
    private = [few(present, others=3) for present in (True, False)]
    means = [rows_of(one.images, one.labels, FEW.classes).double().mean(0) for one in private]
    published = [second_moments(one, mean) for one, mean in zip(private, means, strict=True)]
    assert float((published[0] - published[1]).norm()) > 3.9, "four records of norm 1"
    zeros = torch.zeros_like(means[0])
    repaired = [second_moments(one, zeros) for one in private]
    assert float((repaired[0] - repaired[1]).norm()) <= 1


# ---------------------------------------------------------------------------------------- sensitivities and their noise


@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.01, 1.0, 30.0]), kinds=st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_one_record_moves_every_release_by_at_most_its_sensitivity(seed: int, scale: float, kinds: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    rows = torch.randn(1, 6, generator=draws, dtype=torch.float64) * scale
    unit = clipped(rows)
    assert float((unit.T @ unit).norm()) <= 1
    mixture = start_mixture(kinds, 6, 2.0, draws)
    assert float(statistics(clipped(rows, 2.0), mixture, 2.0).norm()) <= EM_SENSITIVITY


def test_a_record_on_an_axis_moves_them_by_all_of_it() -> None:
    zeros = torch.zeros(20, dtype=torch.float64)
    moved = second_moments(few(True, blank=True), zeros) - second_moments(few(False), zeros)
    assert float(moved.triu().norm()) == pytest.approx(1, abs=1e-6)
    code = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64)
    one = statistics(code, start_mixture(1, 3, 2.0, torch.Generator()), 2.0)
    assert float(one.norm()) == pytest.approx(EM_SENSITIVITY, abs=1e-6)


def test_releases_have_the_noise_that_they_are_charged_for() -> None:
    """On adjacent sets: differences have the mean of the data and the variance of twice the noise."""
    zeros = torch.zeros(20, dtype=torch.float64)
    moments = [second_moments(few(present, blank=True), zeros) for present in (True, False)]
    codes = torch.zeros(20, 3, dtype=torch.float64)
    codes[0, 0] = 2.0
    start = start_mixture(1, 3, 2.0, torch.Generator())
    ledger = Heard(0)
    for _ in range(400):
        for one in moments:
            components_of(one, 2, 0.5, ledger)
        for some in (codes, codes[1:]):
            noisy_em(some, start, 2.0, 1, 0.5, ledger, lambda: None)
    for first, sensitivity in ((0, 1.0), (2, EM_SENSITIVITY)):
        pairs = np.array([ledger.released[first::4], ledger.released[first + 1 :: 4]]).reshape(2, 400, -1)
        direction = (pairs[0] - pairs[1]).mean(0)
        direction = np.where(np.abs(direction) > 0.5, direction.round(), 0.0)  # of ones
        gap = (pairs[0] - pairs[1]) @ direction / np.linalg.norm(direction)
        assert gap.mean() == pytest.approx(sensitivity, abs=5 * math.sqrt(2 * 0.5**2 / 400))
        assert gap.std() == pytest.approx(math.sqrt(2) * 0.5, rel=0.15)
    noises = {event.noise_multiplier for event in ledger.events}  # type: ignore[attr-defined]
    assert noises == {0.5, 0.5 / EM_SENSITIVITY}


# ------------------------------------------------------------------------------------------------------------ the parts


def test_components_are_the_largest_in_order() -> None:
    directions, _ = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    moments = directions @ torch.diag(torch.tensor([1.0, 90, 3, 40, 2, 1, 1, 1], dtype=torch.float64)) @ directions.T
    found = components_of(moments, 2, 1e-3, Heard(0))
    assert torch.allclose((found @ directions[:, [1, 3]]).abs(), torch.eye(2, dtype=torch.float64), atol=1e-3)


def test_em_finds_the_gaussians_of_codes() -> None:
    draws = torch.Generator().manual_seed(0)
    means = torch.tensor([[2.0, 0.0], [-2.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([0.7, 0.3], dtype=torch.float64)
    truth = Mixture(weights, means, torch.full_like(means, 0.09))
    codes = clipped(truth.draw(3000, draws), 4.0)
    found = noisy_em(codes, start_mixture(2, 2, 4.0, draws), 4.0, 20, 1.0, Heard(0), lambda: None)
    order = found.means[:, 0].argsort(descending=True)
    assert torch.allclose(found.means[order], means, atol=0.1)
    assert torch.allclose(found.weights[order], weights, atol=0.03)
    assert torch.allclose(found.variances, truth.variances, atol=0.05)


def test_noise_leaves_variances_positive() -> None:
    found = noisy_em(
        torch.zeros(9, 5).double(), start_mixture(1, 5, 1.0, torch.Generator()), 1.0, 4, 50.0, Heard(0), int
    )
    assert float(found.variances.min()) > 0
    assert float(found.means.norm(dim=1).max()) <= 1


def net_of(mixture: Mixture) -> PhasedVAE:
    torch.manual_seed(0)
    components = torch.eye(6, dtype=torch.float64)[: mixture.means.shape[1]]
    return PhasedVAE(Codes(components, torch.zeros(6, dtype=torch.float64), 1.0), mixture, 7)


def test_the_loss_of_a_row_is_its_error_and_its_divergence_from_the_mixture() -> None:
    draws = torch.Generator().manual_seed(0)
    mean, variance = torch.randn(1, 3, generator=draws), torch.rand(1, 3, generator=draws) + 0.5
    net = net_of(Mixture(torch.ones(1), mean, variance))
    rows, codes, noise = (torch.randn(5, size, generator=draws) for size in (6, 3, 3))
    logs = net.encoder(rows)
    decoded = net.decoder(codes + (0.5 * logs).exp() * noise)
    own = Independent(Normal(codes, (0.5 * logs).exp()), 1)
    divergence = kl_divergence(own, Independent(Normal(mean, variance.sqrt()), 1))
    expected = (decoded - rows).square().sum(1) + divergence
    assert torch.allclose(net(torch.cat([rows, codes, noise], 1))[:, 0], expected, atol=1e-4)
    doubled = net_of(Mixture(torch.full((2,), 0.5), mean.repeat(2, 1), variance.repeat(2, 1)))
    assert torch.allclose(doubled(torch.cat([rows, codes, noise], 1))[:, 0], expected, atol=1e-4), "equal Gaussians"


def test_draws_are_normal_and_follow_their_row_alone() -> None:
    private, _ = private_pair()
    rows = rows_of(private.images, private.labels, 10)
    made = draws_of(rows, 30, torch.Generator().manual_seed(0))
    again = draws_of(rows[1:], 30, torch.Generator().manual_seed(0))
    assert torch.allclose(made[1:], again, atol=1e-4)
    assert float(made.mean()) == pytest.approx(0, abs=0.05)
    assert float(made.std()) == pytest.approx(1, abs=0.05)
    assert float(torch.corrcoef(made.T).fill_diagonal_(0).abs().max()) < 0.35  # 5.4 deviations


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"components": 0}, "components must be at least 1"),
        ({"radius": 0.0}, "radius must be positive"),
        ({"warm_start_steps": -1}, "warm_start_steps must be at least 0"),
        ({"latent": 795}, "latent must be at most"),
        ({"batch_size": 500}, "batch_size 500 must lie between"),
    ],
)
def test_wrong_settings_get_a_clear_error(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BenchError, match=says):
        P3GM(configured("p3gm", {"batch_size": 20, **changes}), SMALL).calibrate(Budget(10.0, 1e-5))


@pytest.mark.parametrize("method", METHODS)
def test_audits_find_worst_pairs_of_the_rows_cost(method: type[P3GM]) -> None:
    config = method(method.Config(**method.presets(MNIST)["tiny"]), MNIST).calibrate(Budget(10.0, 1e-5))
    assert worst_pairs(method, config, MNIST, 1e-5)


def test_another_ledger_draws_other_noise() -> None:
    """So that equal centres above are no sign of equal noise."""
    assert not torch.equal(*(fitted(P3GM, few(True), noise).components for noise in (0, 1)))
