"""A faulty source of noise, by which an audit of mechanisms shows that it would see the fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.privacy.noise import Noise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class HalfNoise(Noise):
    """Half the noise that is asked for, from `noise`: never for anything that is released."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self.exact = noise.exact

    def laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float64]:
        """See :meth:`bench.privacy.noise.Noise.laplace`; of half the scale."""
        return self._noise.laplace(shape, scale / 2)

    def gaussian(self, shape: tuple[int, ...], std: float) -> NDArray[np.float64]:
        """See :meth:`bench.privacy.noise.Noise.gaussian`; of half the deviation."""
        return self._noise.gaussian(shape, std / 2)

    def keep_or_other(self, positions: NDArray[np.int64], count: int, keep: float) -> NDArray[np.int64]:
        """See :meth:`bench.privacy.noise.Noise.keep_or_other`; with twice the epsilon, as half a Laplace noise has."""
        if count < 2 or keep >= 1:
            return self._noise.keep_or_other(positions, count, keep)
        odds = (keep / (1 - keep) * (count - 1)) ** 2
        return self._noise.keep_or_other(positions, count, odds / (odds + count - 1))

    def uniform(self, shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
        """See :meth:`bench.privacy.noise.Noise.uniform`: as it is."""
        return self._noise.uniform(shape, count)
