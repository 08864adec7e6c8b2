"""Exact Gaussian noise: values on a grid fine enough for what is charged, sums without rounding, secret samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, norm

pytest.importorskip("opendp")

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.accounting.accountants import proven
from bench.privacy.dpsgd.exact_normal import BITS
from bench.privacy.events.conversions import exact_gaussian_epsilon
from bench.privacy.events.events import SampledGaussian, SampledGNMax
from bench.privacy.mechanisms import mechanisms
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SecureNoise
from helpers.draws import DELTA, best

Floats = np.ndarray


class Silent(SecureNoise):
    """Rounds as exact noise does, and adds none; every record is in the sample."""

    def plus_gaussian(self, values: Floats, std: float, step: float) -> Floats:
        assert np.array_equal(values, np.rint(values))
        return values

    def uniform(self, shape: tuple[int, ...], count: int) -> np.ndarray:
        return np.zeros(shape, dtype=np.int64)


def ledger() -> Ledger:
    return Ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, Noisy(SecureNoise()))


noises, norms = st.floats(0.02, 500.0), st.floats(1e-6, 1e6)


@settings(max_examples=50, deadline=None)
@given(multiplier=noises, sensitivity=norms, entries=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_what_moves_by_the_sensitivity_moves_by_no_more_than_the_noise_covers(
    multiplier: float, sensitivity: float, entries: int, seed: int
) -> None:
    """Noise of 2^BITS steps is at least the multiplier times the distance in steps, rounding included."""
    draws, noise = np.random.default_rng(seed), Silent()
    values = draws.normal(size=entries) * sensitivity * 10.0 ** draws.integers(-3, 4)
    moved = draws.normal(size=entries)
    moved *= sensitivity * (1 - 1e-12) / np.linalg.norm(moved)
    one, other = (mechanisms.gaussian(v, sensitivity, multiplier, noise) for v in (values, values + moved))
    assert multiplier * np.linalg.norm(one - other) <= 2**BITS


@pytest.mark.parametrize("bands", [0, 1, 3, 8])
@pytest.mark.parametrize("size", [1.0, 2.0**30, 2.0**53, 1e300])
def test_running_sums_move_by_no_more_than_their_unit(bands: int, size: float) -> None:
    """Sums of floats lose a small value beside large ones that cancel, or move by more than it."""
    draws, multiplier, steps = np.random.default_rng(bands), 1.0, 8

    def releases(leaves: Floats) -> Floats:
        book, found = Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, Noisy(Silent())), []
        taken = Silent.plus_gaussian

        def kept(self: Silent, values: Floats, std: float, step: float) -> Floats:
            found.append(taken(self, values, std, step))
            return found[-1] * step

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Silent, "plus_gaussian", kept)
            for step, leaf in enumerate(leaves):
                given = {"step": step, "steps": steps, "sensitivity": 1.0, "noise_multiplier": multiplier}
                book.banded_sum(leaf, bands=bands, separation=8, **given) if bands else book.tree_sum(leaf, **given)
            (event,) = book.events
        return np.stack(found) / math.sqrt(2 * event.zcdp())  # in units of the charged distance

    for trial in range(20):
        leaves = size * draws.choice([-1.0, 1.0, 0.0, 0.3], (steps, 2))
        if trial < 10:  # large values that cancel, on either side of what floats can hold
            leaves[1:] = 2.0**trial * np.array([size, -size, 0, 0, 0, 0, 0])[:, None]
        leaves[0] = trial % 3 + 1.0
        moved = leaves.copy()
        moved[0] += [1.0, 0.0]
        assert np.linalg.norm(releases(leaves) - releases(moved)) <= 2**BITS


def test_the_rounding_of_a_record_depends_on_no_other() -> None:
    """In another memory order NumPy adds up the squares of one record unlike those of two."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(300, 1, 500))
    for row in values:
        beside = np.concatenate([row, np.zeros((1, 500))])
        alone, other = mechanisms.clipped(row, 1.0), mechanisms.clipped(np.asfortranarray(beside), 1.0)
        assert np.array_equal(alone[0], other[0])


@settings(max_examples=25, deadline=None)
@given(multiplier=noises, norm=norms, records=st.integers(1, 300), seed=st.integers(0, 10**6))
def test_one_record_moves_a_sum_by_itself_alone(multiplier: float, norm: float, records: int, seed: int) -> None:
    """Floating-point sums would round differently without it, and so move by the others' last digits too."""
    draws, noise = np.random.default_rng(seed), Silent()
    values = draws.normal(size=(records + 1, 5)) * norm * 10.0 ** draws.integers(-3, 4, (records + 1, 1))

    def total(rows: Floats) -> Floats:
        return mechanisms.sampled_gaussian(rows[None], norm, 0.5, multiplier, noise)[0]

    own = total(values[:1])
    assert np.array_equal(total(values) - total(values[1:]), own)
    assert multiplier * np.linalg.norm(own) <= 2**BITS
    updates = mechanisms.sampled_updates(lambda n: values[n], records + 1, 5, norm, 0.5, multiplier, noise)
    assert np.array_equal(updates, total(values))


def test_the_noise_of_a_release_is_normal_and_independent_of_its_values() -> None:
    values = np.repeat([0.0, 1.7, -3e6], 20_000)
    drawn = mechanisms.gaussian(values, 3.0, 1.5, SecureNoise()) - values
    for part in np.split(drawn, 3):
        assert kstest(part, norm(scale=4.5).cdf).pvalue > 1e-5


@pytest.mark.parametrize("divided", [1, 2])
def test_an_audit_of_sums_over_samples(divided: int) -> None:
    """With the noise of half the multiplier the same audit refutes what is charged."""
    rate, multiplier, draws = 0.3, 1.0, 60_000
    stated = proven([SampledGaussian(rate, multiplier)], DELTA).epsilon
    sums = [
        mechanisms.sampled_gaussian(np.full((draws, 1, 1), one), 1.0, rate, multiplier / divided, SecureNoise())[:, 0]
        for one in (1.0, 0.0)
    ]
    cuts = np.linspace(0.5, 3.0, 6)
    found = best([(sums[0] > cut, sums[1] > cut) for cut in cuts], DELTA)
    assert (found > stated) == (divided == 2)
    assert found > 0.5 * stated


def test_every_mechanism_on_samples_draws_exact_noise() -> None:
    book = ledger()
    generator = np.random.default_rng(0)
    images, labels = torch.rand(40, 1, 2, 2), torch.arange(40) % 3
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    answers = book.sampled_noisy_max(
        generator.random((6, 40)), labels.numpy(), classes=3, neighbours=5, sampling_rate=0.5, sigma=2.0
    )
    assert set(answers) <= {0, 1, 2}
    options = {"max_norm": 1.0, "sampling_rate": 0.5, "noise_multiplier": 2.0}
    sums = book.sampled_gaussian(generator.random((2, 40, 3)), **options)
    value = book.sampled_function(lambda x, y: np.full(4, len(y) / 40), images, labels, entries=4, **options)
    change = book.sampled_loss_change(net, net, images, labels, bound=1.0, sampling_rate=0.5, noise_multiplier=2.0)
    for drawn, scale in ((sums, 1.0), (value, 2.0), (change, 2.0)):
        steps = drawn / SecureNoise().grid_step(2.0 * scale, scale, drawn.shape[-1])
        assert np.abs(steps - np.rint(steps)).max() < 1e-4
    three = SampledGaussian(0.5, 2.0, 2), SampledGaussian(0.5, 2.0), SampledGaussian(0.5, 2.0)
    assert book.events == (SampledGNMax(0.5, 2.0, 6), *three)


def test_a_sample_by_exact_bits_has_its_rate() -> None:
    noise, count = SecureNoise(), 200_000
    for rate in (1e-3, 0.25, 1.0):
        found = int(mechanisms.poisson_sample((count,), rate, noise).sum())
        assert abs(found - rate * count) <= 5 * math.sqrt(count * rate * (1 - rate))
    for most in (2, 8, 10, 2**53):
        drawn = noise.uniform((2_000,), most)
        assert 0 <= drawn.min() <= drawn.max() < most
        assert drawn.max() > 0.9 * (most - 1)


@pytest.mark.parametrize("multiplier", [1e-4, 1e8])
def test_noise_that_no_grid_is_fine_enough_for_is_refused(multiplier: float) -> None:
    with pytest.raises(
        BenchError, match=r"--noise secure needs a noise multiplier between 0.000244 and 8.22e\+05 here"
    ):
        ledger().gaussian(np.zeros(100), sensitivity=1.0, noise_multiplier=multiplier)


def test_nothing_is_released_of_nothing() -> None:
    assert ledger().gaussian(np.zeros(0), sensitivity=1.0, noise_multiplier=2.0).shape == (0,)


def test_votes_by_exact_noise_cost_the_exact_figure() -> None:
    book = Ledger(PrivacyUnit.RECORD, Adjacency.REPLACE, Noisy(SecureNoise()))
    book.noisy_max_gaussian(np.tile([60.0, 40.0], (100, 1)), teachers=100, sigma=40.0)
    assert proven(book.events, 1e-5).epsilon == pytest.approx(exact_gaussian_epsilon(math.sqrt(200) / 40, 1e-5))
