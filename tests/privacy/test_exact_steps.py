"""Exact DP-SGD: the law of the noise, whole-numbered gradients, exact sums, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn.functional import cross_entropy

from bench.core.errors import BenchError
from bench.core.types import Adjacency, PrivacyUnit
from bench.privacy.dpsgd import exact_normal
from bench.privacy.dpsgd.clipping import Adaptive, Clipping, Flat, PerLayer, TopK
from bench.privacy.dpsgd.dp_sgd import DPSGDRun, NoisySteps, train
from bench.privacy.dpsgd.exact_normal import BOUNDS, Words, floored_normals
from bench.privacy.dpsgd.exact_steps import ExactSteps
from bench.privacy.mechanisms.executors import Noisy
from bench.privacy.mechanisms.ledger import Ledger
from bench.privacy.mechanisms.noise import SeededNoise

CHANCE = 1e-6


def words_of(seed: int) -> Callable[[int], Words]:
    generator = np.random.default_rng(seed)
    return lambda count: generator.integers(0, 2**64, count, dtype=np.uint64)


def given(*values: int) -> Callable[[int], Words]:
    """Return a source of these words, then of random ones."""
    left, more = list(values), words_of(0)

    def words(count: int) -> Words:
        first, left[:count] = left[:count], []
        return np.concatenate([np.array(first, dtype=np.uint64), more(count - len(first))])

    return words


@pytest.mark.parametrize("bits", [0, 1, 24, 48])
def test_the_noise_is_the_floor_of_normal_noise(bits: int) -> None:
    draws = floored_normals(200_000, bits, words_of(bits))
    if bits < 2:
        values = np.arange(-6 * 2**bits, 6 * 2**bits)
        expected = np.diff(stats.norm.cdf(np.append(values, values[-1] + 1) / 2**bits)) * len(draws)
        seen = np.array([(draws == value).sum() for value in values])
        many = expected > 5
        statistic = ((seen - expected)[many] ** 2 / expected[many]).sum()
        assert stats.chi2.sf(statistic, many.sum() - 1) > CHANCE
    else:
        assert stats.kstest((draws + 0.5) / 2**bits, "norm").pvalue > CHANCE


def test_far_tails_have_their_share() -> None:
    draws = floored_normals(1_000_000, 24, words_of(1)) / 2**24
    for sign in (-1, 1):
        seen = int((sign * draws > 3.5).sum())
        assert stats.binomtest(seen, len(draws), stats.norm.sf(3.5)).pvalue > CHANCE


def test_the_lowest_bits_of_the_noise_are_uniform() -> None:
    seen = np.bincount(floored_normals(100_000, 30, words_of(2)) % 16, minlength=16)
    assert stats.chisquare(seen).pvalue > CHANCE


@pytest.mark.parametrize("whole", [0, 1, 2, 5])
@pytest.mark.parametrize("part", [0.0, 0.25, 0.9])
def test_a_deviate_is_accepted_with_its_probability(whole: int, part: float) -> None:
    count = 50_000
    high = np.full(count, int(part * 2**64), dtype=np.uint64)
    accepted = exact_normal._accepted(
        np.full(count, whole), exact_normal._Uniform(high, np.zeros(count, dtype=np.uint64)), words_of(whole)
    )
    wanted = math.exp(-part * (2 * whole + part) / (2 * whole + 2))
    assert stats.binomtest(int(accepted.sum()), count, wanted).pvalue > CHANCE


@pytest.mark.parametrize("number", [0, 1, 8, 12])
def test_whole_parts_are_exact_to_the_last_bit(number: int) -> None:
    def whole(value: int) -> int:
        high, low = (np.array([half], dtype=np.uint64) for half in divmod(value, 2**64))
        return int(exact_normal._whole(exact_normal._Uniform(high, low))[0])

    assert (whole(BOUNDS[number] - 1), whole(BOUNDS[number])) == (number, number + 1)
    assert BOUNDS[0] / 2**128 == pytest.approx(1 / sum(math.exp(-k * k / 2) for k in range(20)), rel=1e-15)


def test_small_whole_numbers_are_uniform_and_their_excess_is_drawn_again() -> None:
    limits = np.full(60_000, 6)
    assert stats.chisquare(np.bincount(exact_normal._below(limits, words_of(3)))).pvalue > CHANCE
    # 2^64 is 4 more than a multiple of 6: the last four words would favour 0 to 3.
    last = 2**64 - 1
    assert exact_normal._below(np.full(3, 6), given(last - 4, last - 3, last, 11, 8)).tolist() == [5, 5, 2]


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(144, 16), torch.nn.Tanh(),
        torch.nn.Linear(16, 10),
    )  # fmt: skip


def run_of(clipping: Clipping, steps: int = 1, multiplier: float = 1.0) -> DPSGDRun:
    return DPSGDRun(lambda some: torch.optim.SGD(some, lr=0.1), cross_entropy, multiplier, clipping, 100, steps, 100)


def records(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(1)
    return (
        torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=draws),
        torch.randint(10, (count,), generator=draws),
    )


def first_sum(steps_of: type[NoisySteps], clipping: Clipping, present: list[int]) -> torch.Tensor:
    images, labels = records(100)
    seen: list[list[torch.Tensor]] = []

    class Watching(steps_of):  # type: ignore[misc, valid-type]
        def step(self) -> None:
            seen.append(self.sums)
            super().step()

    train(
        net(), images[present], labels[present], run_of(clipping), randomness=np.random.default_rng(0),
        make_steps=Watching,
    )  # fmt: skip
    return torch.cat([one.flatten() for one in seen[0]])


@pytest.mark.parametrize("clipping", [Flat(0.1), PerLayer(0.1), TopK(0.1, 0.3)], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("left_out", [0, 63, 70, 99])
def test_a_record_changes_a_sum_by_its_own_gradient_to_the_last_bit(clipping: Clipping, left_out: int) -> None:
    everyone = list(range(100))
    others = [one for one in everyone if one != left_out]
    change = first_sum(ExactSteps, clipping, everyone) - first_sum(ExactSteps, clipping, others)
    assert change.dtype == torch.int64
    assert torch.equal(change, first_sum(ExactSteps, clipping, [left_out]))
    longest = math.floor(2**24 / 1.0)
    assert 0.99 * longest < change.double().norm() <= longest


def test_floating_point_sums_round_the_others_differently() -> None:
    """Otherwise the exact sums would mend nothing."""
    everyone = list(range(100))
    change = first_sum(NoisySteps, Flat(0.1), everyone) - first_sum(NoisySteps, Flat(0.1), everyone[1:])
    assert not torch.equal(change, first_sum(NoisySteps, Flat(0.1), [0]))


def test_no_gradient_is_longer_than_the_sensitivity() -> None:
    weight = torch.nn.Parameter(torch.zeros(50))
    steps = ExactSteps(torch.optim.SGD([weight]), Flat(2.0), run_of(Flat(2.0), multiplier=3.0), None)
    draws = np.random.default_rng(0)
    sizes = 10.0 ** draws.integers(-45, 38, (500, 1))
    hostile = torch.from_numpy((draws.standard_normal((500, 50)) * sizes).astype(np.float32))
    hostile[:3, 0] = torch.tensor([math.inf, -math.inf, math.nan])
    (whole,) = steps.rounded([hostile])
    squares = [sum(int(entry) ** 2 for entry in row) for row in whole.tolist()]
    assert max(squares) <= steps.longest**2 <= (2**24 / 3.0) ** 2
    assert max(squares) > 0.999 * steps.longest**2
    assert squares[:3] == [0, 0, 0]


def test_a_gradient_that_clipping_left_too_long_counts_as_zeros() -> None:
    class Careless(Flat):
        def clipped(self, samples):
            return samples, [torch.ones(len(samples[0])) for _ in samples]

    weight = torch.nn.Parameter(torch.zeros(4))
    steps = ExactSteps(torch.optim.SGD([weight]), Careless(1.0), run_of(Flat(1.0)), None)
    (whole,) = steps.rounded([torch.tensor([[0.5, 0, 0, 0], [0.8, 0.8, 0, 0], [3e4, 0, 0, 0], [1e30, 0, 0, 0]])])
    assert whole.any(1).tolist() == [True, False, False, False]


def test_a_step_adds_noise_of_the_stated_scale() -> None:
    weight = torch.nn.Parameter(torch.zeros(100_000))
    run = run_of(Flat(2.0), multiplier=3.0)
    steps = ExactSteps(torch.optim.SGD([weight], lr=1.0), run.clipping, run, None)
    steps.words = words_of(4)
    steps.add([torch.zeros(0, 100_000)])
    steps.step()
    # The mean over an expected batch of 100; the grid may make the noise a little larger, never smaller.
    assert 1 <= 2**24 / (3.0 * steps.longest) < 1 + 1e-6
    assert float(weight.detach().std()) == pytest.approx(3.0 * 2.0 / 100, rel=0.02)


def exact_ledger() -> Ledger:
    class Exact(SeededNoise):
        exact = True

    return Ledger(PrivacyUnit.RECORD, Adjacency.ADD_REMOVE, Noisy(Exact(np.random.default_rng(0))))


def test_the_ledger_takes_exact_steps_and_charges_for_them_as_for_others() -> None:
    images, labels = records(100)
    book, model = exact_ledger(), net()
    before = [parameter.clone() for parameter in model.parameters()]
    book.dp_sgd(model, images, labels, run_of(Flat(1.0), steps=3))
    assert list(book.events) == [run_of(Flat(1.0)).event(3)]
    assert all(not torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (run_of(Adaptive(1.0, 0.5, 0.2, 5.0)), "Adaptive clipping, only with Flat"),
        (run_of(Flat(1.0), multiplier=0.01), "a noise multiplier of at least 0.015625, not 0.01"),
    ],
)
def test_what_exact_sums_do_not_cover_is_refused_before_anything_is_charged(run: DPSGDRun, message: str) -> None:
    book = exact_ledger()
    with pytest.raises(BenchError, match=message):
        book.dp_sgd(net(), *records(100), run)
    assert not book.events


def test_a_net_whose_gradients_depend_on_their_place_is_refused() -> None:
    class Placed(torch.nn.Module):
        """Passes gradients whose last digits depend on the place in the pass, as some kernels do."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x):
            return self.inner(x + 1e-6 * torch.arange(len(x), dtype=torch.float32).view(-1, 1, 1, 1))

    with pytest.raises(BenchError, match="depends on the other examples in its pass"):
        train(Placed(), *records(100), run_of(Flat(1.0)), randomness=np.random.default_rng(0), make_steps=ExactSteps)


def test_a_net_with_dropout_is_refused() -> None:
    """A record that leaves would change the masks of the others."""
    model = torch.nn.Sequential(net(), torch.nn.Dropout(0.5), torch.nn.Linear(10, 10))
    with pytest.raises(BenchError, match="as with dropout"):
        train(model, *records(100), run_of(Flat(1.0)), randomness=np.random.default_rng(0), make_steps=ExactSteps)


@pytest.mark.parametrize("every", [2, 4, 64])
def test_what_depends_on_the_place_alone_is_refused(every: int) -> None:
    class Periodic(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x):
            places = torch.arange(len(x), dtype=torch.float32).view(-1, 1, 1, 1)
            return self.inner(x + 1e-6 * (places % every))

    for _ in range(5):
        with pytest.raises(BenchError, match="depends on the other examples in its pass"):
            train(
                Periodic(), *records(9), run_of(Flat(1.0)), randomness=np.random.default_rng(0), make_steps=ExactSteps
            )


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 1.1, 2**24 / 9_999_991, 7.0])
def test_the_noise_is_never_below_the_multiplier_times_the_sensitivity(multiplier: float) -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    steps = ExactSteps(torch.optim.SGD([weight]), Flat(1.0), run_of(Flat(1.0), multiplier=multiplier), None)
    assert Fraction(multiplier) * steps.longest <= 2**24 < Fraction(multiplier) * (steps.longest + 1)


def test_large_gradients_keep_their_norm() -> None:
    """In float32 the sum of so many squares falls short by a thousandth and more."""
    size = 2_000_000
    weight = torch.nn.Parameter(torch.zeros(size))
    steps = ExactSteps(torch.optim.SGD([weight]), Flat(1.0), run_of(Flat(1.0)), None)
    (whole,) = steps.rounded([torch.stack([torch.full((size,), 0.1), torch.linspace(-1, 1, size)])])
    lengths = whole.double().norm(dim=1) / steps.longest
    assert ((lengths > 0.99) & (lengths <= 1)).all()
    (clipped,) = Flat(1.0).summed([torch.full((1, size), 0.1)])
    assert float(clipped.double().norm()) <= 1
