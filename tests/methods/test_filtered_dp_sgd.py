"""Spectral-DP and TopAgg: filters after the noise, what they charge, and what the authors' Spectral-DP does instead."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dct

from bench.core.config import Preset, build_config
from bench.core.errors import BenchError
from bench.core.progress import Progress
from bench.core.seeds import Streams
from bench.core.types import Budget, Facts
from bench.interface.registry import METHODS
from bench.methods.dpsgd.dp_sgd import processed
from bench.methods.dpsgd.spectral_dp import filtered, low_pass
from bench.privacy.accounting import accountants, claims
from bench.privacy.accounting.accountants import proven
from bench.privacy.events.events import DPSGD
from bench.privacy.mechanisms.ledger import Ledger
from bench.storage.cache import Cache
from bench.training.context import Context
from helpers.ledgers import seeded_ledger
from helpers.small_sets import SMALL, private_pair, public_set

MNIST = Facts("mnist", 60_000, 0, 10_000, 10, (1, 28, 28), public_benchmark=True)
NAMES = ("spectral-dp", "topagg")


def run(name: str, **change: Any) -> tuple[dict[str, torch.Tensor], Ledger]:
    """Run the tiny preset of `name` with `change` from one start; return the student's weights and the ledger."""
    method = METHODS.get(name)
    config = dataclasses.replace(build_config(method, Preset.TINY, SMALL)[0], **change)
    ledger = seeded_ledger(method.unit, method.adjacency, np.random.default_rng(0))
    context = Context(torch.device("cpu"), Streams(0), Cache(None, {}), Progress())
    released = method(config, private_pair()[0].facts).train_student(private_pair()[0], public_set(), ledger, context)
    return released.student.state_dict(), ledger


SAME = {"noise_multiplier": 1.0, "lr": 0.5, "batch_size": 32, "epochs": 1.0}


def test_with_all_frequencies_or_entries_they_are_dp_sgd() -> None:
    plain, ledger = run("dp-sgd", **SAME)
    top, charged = run("topagg", **SAME, kept=1.0, threshold=0.0)
    assert all(torch.equal(top[name], weights) for name, weights in plain.items())
    assert charged.events == ledger.events
    spectral, charged = run("spectral-dp", **SAME, filter_ratio=1.0)
    for name, weights in plain.items():
        torch.testing.assert_close(spectral[name], weights, rtol=1e-4, atol=1e-5)
    assert charged.events == ledger.events


@pytest.mark.parametrize(("name", "accountant"), [("spectral-dp", "rdp"), ("topagg", "moments")])
def test_the_claim_is_that_of_dp_sgd_by_the_accountant_of_the_paper(name: str, accountant: str) -> None:
    method = METHODS.get(name)
    config = method.Config()
    events = [DPSGD(512 / 60_000, config.noise_multiplier, 4688)]
    assert method(config, MNIST).charges() == events
    wanted = accountants.rdp(events, 1e-5) if accountant == "rdp" else claims.moments_accountant(events, 1e-5)
    assert wanted is not None
    assert method(config, MNIST).claimed(1e-5).epsilon == pytest.approx(wanted.epsilon, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_they_charge_for_the_steps_that_they_take(name: str) -> None:
    method = METHODS.get(name)
    config = build_config(method, Preset.TINY, SMALL)[0]
    assert list(run(name)[1].events) == list(method(config, SMALL).charges())


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("spectral-dp", {"filter_ratio": 0.0}, "filter_ratio must be positive and at most 1"),
        ("spectral-dp", {"filter_ratio": 1.1}, "filter_ratio must be positive and at most 1"),
        ("spectral-dp", {"block_size": 0}, "block_size must be at least 1"),
        ("topagg", {"kept": 0.0}, "kept must be positive and at most 1"),
        ("topagg", {"kept": math.nan}, "kept must be positive and at most 1"),
        ("topagg", {"threshold": -0.1}, "threshold must be at least 0"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(name: str, change: dict[str, Any], words: str) -> None:
    method = METHODS.get(name)
    with pytest.raises(BenchError, match=words):
        method(build_config(method, Preset.PAPER, MNIST, change)[0], MNIST).calibrate(Budget(1.0, 1e-5))


# --------------------------------------------------------------------------------------------------------- the filters


def test_the_student_moves_in_low_frequencies_alone() -> None:
    start, _ = run("spectral-dp", **{**SAME, "lr": 1e-12})
    end, _ = run("spectral-dp", **SAME, filter_ratio=0.5, block_size=8)
    for name, weights in start.items():
        change = end[name] - weights
        assert float(change.norm()) > 0, "noise moves everything"
        torch.testing.assert_close(filtered(change, 8, 0.5), change, rtol=1e-3, atol=1e-5)
    plain, _ = run("dp-sgd", **SAME)
    for name, weights in start.items():
        change = plain[name] - weights
        if change.dim() > 1:
            assert float((filtered(change, 8, 0.5) - change).norm()) > 0.1 * float(change.norm()), "without the filter"


def coefficients(weights: torch.Tensor, block: int) -> np.ndarray:
    """Return the orthonormal cosine transform of kernels in both directions, or of blocks of a layer's inputs."""
    values = weights.double().numpy()
    if weights.dim() == 2:
        return dct(values.reshape(len(values), -1, block), axis=2, norm="ortho")
    return dct(dct(values, axis=2, norm="ortho"), axis=3, norm="ortho")


def test_noise_is_that_of_the_mechanism_on_kept_frequencies_and_none_elsewhere() -> None:
    """Deviation 1 before the filter: 64,000 kept coefficients of each kind give it within 5 errors of 0.3%."""
    generator = torch.Generator().manual_seed(0)
    kernels = coefficients(filtered(torch.randn(500, 8, 8, 8, generator=generator), 8, 0.5), 8)
    layer = coefficients(filtered(torch.randn(400, 320, generator=generator), 8, 0.5), 8)
    for kept, dropped in ((kernels[:, :, :4, :4], kernels[:, :, 4:, :]), (layer[..., :4], layer[..., 4:])):
        assert kept.size == 64_000
        assert kept.std() == pytest.approx(1.0, abs=0.015)
        for place in range(4):
            assert kept[..., place].std() == pytest.approx(1.0, abs=0.03), "the first as well as the others"
        assert abs(dropped).max() < 1e-5


SHAPES = st.sampled_from([(3, 2, 5, 4), (4, 19), (6,), (2, 3, 7), (3, 1)])


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.integers(1, 9), st.floats(0.05, 1.0), st.integers(0, 2**32 - 1))
def test_the_filter_is_an_orthogonal_projection(shape: tuple[int, ...], block: int, ratio: float, seed: int) -> None:
    """So one record moves the projected sum by no more than it moves the sum."""
    first, second = torch.randn(2, *shape, generator=torch.Generator().manual_seed(seed))
    once = filtered(first, block, ratio)
    torch.testing.assert_close(filtered(once, block, ratio), once, rtol=1e-4, atol=1e-5)
    assert float((once - filtered(second, block, ratio)).norm()) <= float((first - second).norm()) * (1 + 1e-5)
    assert float((once * second).sum()) == pytest.approx(
        float((first * filtered(second, block, ratio)).sum()), abs=1e-4
    )
    assert once.shape == first.shape


def test_the_share_of_frequencies_is_that_of_the_authors() -> None:
    assert torch.linalg.matrix_rank(low_pass(55, 55, 0.5)) == 28
    assert torch.linalg.matrix_rank(low_pass(28, 8, 0.5)) == 3 * 4 + 2
    assert torch.equal(low_pass(3, 1, 0.5), torch.eye(3))


def test_entries_below_the_threshold_do_not_move_the_student() -> None:
    start, _ = run("topagg", **{**SAME, "lr": 1e-12})
    steps = {"noise_multiplier": 1.0, "lr": 0.5, "momentum": 0.0, "batch_size": 240, "epochs": 1.0}
    end, _ = run("topagg", **steps, kept=0.01, threshold=2.0)
    still = torch.cat([(end[name] == weights).flatten() for name, weights in start.items()]).double().mean()
    # Of pure noise 95.4% is below two deviations, and 1% of the entries are kept at most by each of 240 records.
    assert 0.85 < float(still) < 0.97


def test_a_filter_skips_weights_without_a_gradient() -> None:
    moving, frozen = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    optimizer = processed(lambda parameters: torch.optim.SGD(parameters, lr=1.0), torch.neg)([moving, frozen])
    moving.grad = torch.ones(2)
    optimizer.step()
    assert moving.tolist() == [1.0, 1.0]
    assert frozen.tolist() == [0.0, 0.0]


# ---------------------------------------------------------------------------------- the authors' code, in a few lines

BLOCK, RATIO = 8, 0.5


def spared(shape: tuple[int, ...], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the authors' code adds noise to a spectrum, and what it does not set to zero."""
    noisy, kept = np.zeros(shape, dtype=bool), np.ones(shape, dtype=bool)
    noisy[tuple(slice(0, size) for _ in shape)] = True
    for axis in range(len(shape)):
        kept[tuple(slice(size, -1) if other == axis else slice(None) for other in range(len(shape)))] = False
    return noisy, kept


def published_block(gradient: np.ndarray, deviation: float, generator: np.random.Generator) -> np.ndarray:
    """Return draws (n, 8) of what a block-circulant layer's block gets."""
    noisy, kept = spared((BLOCK,), math.ceil(BLOCK * RATIO))
    real, imaginary = generator.normal(0, deviation * math.sqrt(0.5), (2, len(gradient), BLOCK))
    return np.fft.ifft((np.fft.fft(gradient, norm="ortho") + (real + 1j * imaginary) * noisy) * kept, norm="ortho").real


def test_the_mirrored_frequency_of_the_published_filter_has_half_of_the_noise() -> None:
    """Noise over signal of each frequency, in a real orthonormal basis, where the accountant takes 1 of all."""
    places = np.arange(BLOCK)
    basis = [np.full(BLOCK, math.sqrt(1 / BLOCK)), *(
        math.sqrt(2 / BLOCK) * np.cos(2 * np.pi * frequency * places / BLOCK) for frequency in (1, 2, 3)
    )]  # fmt: skip
    noise = published_block(np.zeros((40_000, BLOCK)), 1.0, np.random.default_rng(0))
    found = []
    for wave in basis:
        signal = published_block(wave[None], 0.0, np.random.default_rng(0))[0] @ wave
        found.append((noise @ wave).std() / signal)
    assert found == pytest.approx([math.sqrt(0.5), 0.5, 1.0, 1.0], rel=0.02)


def test_the_published_filter_leaves_frequencies_of_kernels_without_noise() -> None:
    size = 9
    noisy, kept = spared((size, size), math.ceil(size * RATIO))
    assert kept[-1, 1]
    assert not noisy[-1, 1]
    generator, gradient = np.random.default_rng(0), np.random.default_rng(1).normal(size=(size, size))
    noise = generator.normal(size=(size, size)) + 1j * generator.normal(size=(size, size))
    spectrum = (np.fft.fft2(gradient, norm="ortho") + noise * noisy) * kept
    released = np.fft.irfft2(spectrum[:, : size // 2 + 1], s=(size, size), norm="ortho")
    shown = np.fft.fft2(released, norm="ortho")
    assert shown[-1, 1] == pytest.approx(np.fft.fft2(gradient, norm="ortho")[-1, 1])
    assert abs(shown[1, 1] - np.fft.fft2(gradient, norm="ortho")[1, 1]) > 0.1


def test_the_published_clip_lets_one_record_move_the_sum_root_b_times_as_far_as_the_noise_covers() -> None:
    """Each gradient of the mean loss is clipped to the bound, and its noise has the bound over B."""
    batch, bound, sigma, size = 250, 0.35, 1.0, 400
    generator = np.random.default_rng(0)

    def published(gradients: np.ndarray) -> np.ndarray:
        of_mean = gradients / batch
        clipped = of_mean / np.maximum(np.linalg.norm(of_mean, axis=1, keepdims=True) / bound, 1.0)
        return (clipped + generator.normal(0, sigma * bound / batch, clipped.shape)).sum(0)

    noise = published(np.zeros((batch, size))).std()
    long = np.zeros((batch, size))
    long[0, 0] = 1e4
    shift = published(long)[0]
    assert shift == pytest.approx(bound, rel=0.3)
    assert noise / bound == pytest.approx(sigma / math.sqrt(batch), rel=0.2)
    # The run of the authors' readme, for epsilon 2, and what it costs such a record.
    rate, steps = batch / 60_000, 30 * 240
    costs = [proven([DPSGD(rate, multiplier, steps)], 1e-5).epsilon for multiplier in (1.0, 1.0 / math.sqrt(batch))]
    assert costs[0] < 2 < 1000 < costs[1]
