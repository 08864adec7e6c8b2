"""Sources of the mechanisms' noise: reproducible floating point, or exact discrete noise by OpenDP."""

from __future__ import annotations

import abc
import json
import math
from typing import TYPE_CHECKING

import numpy as np

from bench.core.errors import BenchError

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRANULARITY = 1024
"""Secure noise is a multiple of 1/GRANULARITY: it costs like continuous Laplace noise, and votes need no rounding."""


class Noise(abc.ABC):
    """A source of noise; results are float64 (noise) or int64 (labels)."""

    exact: bool
    """Whether draws are exact discrete samples on the grid of 1/GRANULARITY."""

    @abc.abstractmethod
    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        """Return independent draws from the Laplace distribution with location 0 and this scale."""

    @abc.abstractmethod
    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        """Return independent draws from the normal distribution with mean 0 and this standard deviation."""

    @abc.abstractmethod
    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        """Return each position (in 0..count-1) with probability `keep`, else one of the others, uniformly."""

    @abc.abstractmethod
    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        """Return independent uniform draws from 0..count-1."""

    def position(self) -> bytes:
        """Return the position of a reproducible source in its stream, empty for another source. Secret."""
        return b""

    def move_to(self, position: bytes) -> None:
        """Move to what :meth:`position` returned; an empty position changes nothing."""
        if position:
            raise ValueError("this source of noise cannot be moved.")


class ZeroNoise(Noise):
    """No noise, and the first position for every uniform draw; `exact` is that of the source it replaces."""

    def __init__(self, exact: bool) -> None:
        self.exact = exact

    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        """Return zeros."""
        return np.zeros(shape)

    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        """Return zeros."""
        return np.zeros(shape)

    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        """Return a copy of the positions."""
        return positions.copy()

    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        """Return zeros."""
        return np.zeros(shape, dtype=np.int64)


class SeededNoise(Noise):
    """Reproducible: protects only from attackers without the seed, up to known weaknesses of floating point."""

    exact = False

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        """See :meth:`Noise.laplace`."""
        return self._generator.laplace(0.0, scale, shape)

    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        """See :meth:`Noise.gaussian`."""
        return self._generator.normal(0.0, std, shape)

    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        """See :meth:`Noise.keep_or_other`."""
        stays = self._generator.random(positions.shape) < keep
        # A shift by 1..count-1 modulo count is uniform over the other positions.
        shift = self._generator.integers(1, max(count, 2), positions.shape)
        return np.where(stays, positions, (positions + shift) % count)

    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        """See :meth:`Noise.uniform`."""
        return self._generator.integers(0, count, shape)

    def position(self) -> bytes:
        """See :meth:`Noise.position`."""
        return json.dumps(self._generator.bit_generator.state).encode()

    def move_to(self, position: bytes) -> None:
        """See :meth:`Noise.move_to`."""
        if position:
            self._generator.bit_generator.state = json.loads(position)


class SecureNoise(Noise):
    """Exact discrete OpenDP samplers on the system's generator, unrepeatable; :class:`BenchError` without OpenDP."""

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
        return self._draw(dp.m.make_laplace(*space, scale=scale * GRANULARITY), shape)

    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        """See :meth:`Noise.gaussian`: discrete Gaussian of standard deviation std * GRANULARITY on the grid."""
        dp = self._dp
        space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
        return self._draw(dp.m.make_gaussian(*space, scale=std * GRANULARITY), shape)

    def _draw(self, measurement: object, shape: tuple[int, ...]) -> NDArray[np.float64]:
        zeros = [0] * math.prod(shape)
        drawn = measurement(zeros) if zeros else []  # type: ignore[operator]  # OpenDP is untyped
        return np.asarray(drawn, dtype=np.float64).reshape(shape) / GRANULARITY

    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        """See :meth:`Noise.keep_or_other`: OpenDP's randomised response over the positions."""
        if count < 2:
            return positions.copy()
        respond = self._dp.m.make_randomized_response(list(range(count)), keep)
        flat = [respond(int(position)) for position in positions.ravel()]
        return np.asarray(flat, dtype=np.int64).reshape(positions.shape)

    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        """See :meth:`Noise.uniform`."""
        import secrets

        flat = [secrets.randbelow(count) for _ in range(math.prod(shape))]
        return np.asarray(flat, dtype=np.int64).reshape(shape)
