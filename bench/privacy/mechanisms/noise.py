"""Noise sources for mechanisms: reproducible floating point, or exact noise on a grid."""

from __future__ import annotations

import abc
import math
import secrets
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.seeds import Streams, salted_digest
from bench.privacy.dpsgd.exact_normal import BITS, floored_normals, system_words

GRANULARITY = 1024
"""Secure Laplace noise is a multiple of 1/GRANULARITY: it costs what continuous noise does; votes need no rounding."""
FURTHEST = 2.0**46
"""Values are clipped to this many grid steps, 4 million deviations of the noise; there a quotient rounds by 2^-7."""

Law = Literal["gumbel", "exponential"]
"""The noise distributions for choosing a candidate."""


class Noise(abc.ABC):
    """A source of noise; results are float64 (noise) or int64 (labels)."""

    exact: bool
    """Whether draws are exact samples on a grid, to which values are rounded first."""

    @abc.abstractmethod
    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        """Return independent draws from the Laplace distribution with location 0 and this scale."""

    @abc.abstractmethod
    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        """Return independent draws from the normal distribution with mean 0 and this standard deviation."""

    def grid_step(self, std: float, sensitivity: float, moved: float) -> float:
        """Return the step of the grid of :meth:`plus_gaussian`, 0 for a source without a grid.

        A unit moves at most `moved` entries, by `sensitivity` in L2. Rounded to the grid, they move farther; noise of
        deviation 2^BITS steps covers that, and costs what noise of deviation `std` does without rounding. Raises
        :class:`BenchError` if no grid is fine enough.
        """
        return 0.0

    def plus_gaussian(self, values: NDArray[np.float64], std: float, step: float) -> NDArray[np.float64]:
        """Return `values` plus :meth:`gaussian`; `values` are in units of `step` unless it is 0; the result is not."""
        return values + self.gaussian(values.shape, std)

    @abc.abstractmethod
    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        """Return each position (in 0..count-1) with probability `keep`, else a uniform other one."""

    @abc.abstractmethod
    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        """Return independent uniform draws from 0..count-1."""

    @abc.abstractmethod
    def largest(self, scores: NDArray[np.float64], scale: float, law: Law) -> NDArray[np.int64]:
        """Return the index of the largest of each row of finite `scores` after noise of `law` and `scale` on each."""


class ZeroNoise(Noise):
    """No noise, and the first position for every uniform draw; `exact` is copied from the source it replaces."""

    def __init__(self, exact: bool) -> None:
        self.exact = exact

    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        return np.zeros(shape)

    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        return np.zeros(shape)

    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        return positions.copy()

    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        return np.zeros(shape, dtype=np.int64)

    def largest(self, scores: NDArray[np.float64], scale: float, law: Law) -> NDArray[np.int64]:
        places: NDArray[np.int64] = np.argmax(scores, axis=1)
        return places


class SeededNoise(Noise):
    """Reproducible: protects only from attackers without the seed, up to known weaknesses of floating point."""

    exact = False

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        return self._generator.laplace(0.0, scale, shape)

    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        return self._generator.normal(0.0, std, shape)

    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        stays = self._generator.random(positions.shape) < keep
        # A shift by 1..count-1 modulo count is uniform over the other positions.
        shift = self._generator.integers(1, max(count, 2), positions.shape)
        return np.where(stays, positions, (positions + shift) % count)

    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        return self._generator.integers(0, count, shape)

    def largest(self, scores: NDArray[np.float64], scale: float, law: Law) -> NDArray[np.int64]:
        draw = self._generator.gumbel if law == "gumbel" else self._generator.exponential
        noise = draw(size=scores.shape) * scale
        places: NDArray[np.int64] = np.argmax(scores + noise, axis=1)
        return places


class Silence(ZeroNoise):
    """No noise, for checks and power runs; uniform draws (samples, answers outside a set) come from `generator`.

    Sums keep a `share` of their noise: with none, rounding errors would set directions of low-rank matrices.
    """

    def __init__(self, generator: np.random.Generator, share: float = 0.0) -> None:
        super().__init__(exact=False)
        self._source, self._share = SeededNoise(generator), share

    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        return self._source.laplace(shape, self._share * scale)

    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        return self._source.gaussian(shape, self._share * std)

    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        return self._source.uniform(shape, count)


def salted_noise(salt: str | None, seed: int, key: str) -> SeededNoise:
    """Return the noise of the cell `key`; without a salt, anyone who knows seed and key can reproduce it."""
    if salt is None:
        return SeededNoise(Streams(seed).numpy(f"noise/{key}"))
    entropy = int.from_bytes(salted_digest(salt, "noise", seed, key), "big")
    return SeededNoise(np.random.Generator(np.random.PCG64(entropy)))


class DiscardedNoise(ZeroNoise):
    """No noise, but every draw advances `source`, unless it is exact, hence unrepeatable."""

    def __init__(self, source: Noise) -> None:
        super().__init__(source.exact)
        self._source = ZeroNoise(exact=True) if source.exact else source

    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        self._source.laplace(shape, scale)
        return super().laplace(shape, scale)

    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        self._source.gaussian(shape, std)
        return super().gaussian(shape, std)

    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        self._source.keep_or_other(positions, count, keep)
        return super().keep_or_other(positions, count, keep)

    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        self._source.uniform(shape, count)
        return super().uniform(shape, count)

    def largest(self, scores: NDArray[np.float64], scale: float, law: Law) -> NDArray[np.int64]:
        self._source.largest(scores, scale, law)
        return super().largest(scores, scale, law)


class SecureNoise(Noise):
    """Exact samplers on the system's generator, irreproducible; :class:`BenchError` without OpenDP.

    Normal noise is that of :mod:`bench.privacy.dpsgd.exact_normal`, all other noise OpenDP's.
    """

    exact = True

    def __init__(self) -> None:
        try:
            import opendp.prelude as dp
        except ImportError as error:
            raise BenchError(
                "--noise secure needs OpenDP: pip install 'private-student-bench[secure]'. "
                "--noise seeded works without it."
            ) from error
        dp.enable_features("contrib")
        self._dp = dp

    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        """See :meth:`Noise.laplace`: discrete Laplace of parameter 1/(scale * GRANULARITY) on the grid."""
        dp = self._dp
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
        draw, zeros = dp.m.make_laplace(*space, scale=scale * GRANULARITY), [0] * math.prod(shape)
        return np.asarray(draw(zeros) if zeros else [], dtype=np.float64).reshape(shape) / GRANULARITY

    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        """See :meth:`Noise.gaussian`: rounded down to a multiple of ``std / 2^BITS``."""
        return self.plus_gaussian(np.zeros(shape), std, std / 2**BITS)

    def grid_step(self, std: float, sensitivity: float, moved: float) -> float:
        """See :meth:`Noise.grid_step`: rounding moves a distance by at most 1.02 steps for each entry that moves."""
        multiplier, rounding = std / sensitivity, 1.02 * math.sqrt(max(moved, 1))
        least, most = 2.0**-12, 2.0 ** (BITS - 1) / rounding
        if not least <= multiplier <= most:
            raise BenchError(
                f"--noise secure needs a noise multiplier between {least:.3g} and {most:.3g} here, not "
                f"{multiplier:g}. Use another --eps, or --noise seeded."
            )
        return std / (2.0**BITS - multiplier * rounding)

    def plus_gaussian(self, values: NDArray[np.float64], std: float, step: float) -> NDArray[np.float64]:
        drawn = floored_normals(values.size, BITS).reshape(values.shape)
        return (values + drawn) * step

    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        """See :meth:`Noise.keep_or_other`; exact for a `keep` that is a multiple of 2^-53."""
        if count < 2:
            return positions.copy()
        stays = self.uniform(positions.shape, 2**53) < keep * 2**53
        return np.where(stays, positions, (positions + 1 + self.uniform(positions.shape, count - 1)) % count)

    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        if count & (count - 1) == 0 and count > 1:  # a power of two, as for samples of the records
            words = system_words(math.prod(shape)) >> np.uint64(65 - count.bit_length())
            return words.astype(np.int64).reshape(shape)
        flat = [secrets.randbelow(count) for _ in range(math.prod(shape))]
        return np.asarray(flat, dtype=np.int64).reshape(shape)

    def largest(self, scores: NDArray[np.float64], scale: float, law: Law) -> NDArray[np.int64]:
        """See :meth:`Noise.largest`: OpenDP's noisy max, which compares exact draws to as many digits as it needs."""
        dp = self._dp
        space = dp.vector_domain(dp.atom_domain(T="f64", nan=False)), dp.linf_distance(T="f64")
        measure = dp.zero_concentrated_divergence() if law == "gumbel" else dp.max_divergence()
        choose = dp.m.make_noisy_max(*space, measure, scale=scale)
        return np.asarray([choose(row.tolist()) for row in scores], dtype=np.int64)
