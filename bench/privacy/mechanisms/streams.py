"""Running sums of values that arrive step by step, released by adding noise to sums of a few values.

A stream turns the values so far into the sum that is released at a step, and the noisy sums into the running total. A
unit in one step moves few of them: :class:`bench.privacy.events.events.TreeSums` and `BandedSums` state by how much.
"""

from __future__ import annotations

import abc
from collections import deque

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Stream(abc.ABC):
    """The state of one run over its steps; all values have one shape."""

    @abc.abstractmethod
    def released(self, values: Floats) -> Floats:
        """Return the sum to release with noise at the step of the private `values`."""

    @abc.abstractmethod
    def total(self, noisy: Floats) -> Floats:
        """Return the estimated sum of all values so far; `noisy` is the noisy answer to :meth:`released`."""


class BinaryTree(Stream):
    """Step t, from 1, releases the sum of the last ``t & -t`` values, a node of a binary tree.

    The sum of t values is that of the nodes at the ones in binary t (Dwork et al. 2010; Chan, Shi and Song 2011).
    """

    def __init__(self) -> None:
        self._private: list[Floats] = []  # the nodes that cover the steps so far, largest first
        self._noisy: list[Floats] = []
        self._steps = 0

    def released(self, values: Floats) -> Floats:
        self._steps += 1
        node = values.copy()
        for _ in range(self._merged):
            node = node + self._private.pop()
        self._private.append(node)
        return node

    def total(self, noisy: Floats) -> Floats:
        """See :meth:`Stream.total`: noise of as many nodes as the number of steps has ones."""
        del self._noisy[len(self._noisy) - self._merged :]
        self._noisy.append(noisy.copy())
        found: Floats = np.sum(self._noisy, axis=0)
        return found

    @property
    def _merged(self) -> int:
        """The number of nodes that the last step's node merges."""
        return (self._steps & -self._steps).bit_length() - 1


class Banded(Stream):
    """Step t releases ``sum over k of coefficients[k] * values[t - k]``: a banded Toeplitz matrix times the values.

    The coefficients start at 1 and decrease, so the inverse is stable. (Choquette-Choo et al. 2023, arXiv:2306.08153.)
    """

    def __init__(self, coefficients: Floats) -> None:
        self._coefficients = coefficients
        self._private: deque[Floats] = deque(maxlen=len(coefficients))  # the last values, newest first
        self._noisy: deque[Floats] = deque(maxlen=len(coefficients))  # estimates of them
        self._total: Floats | None = None

    def released(self, values: Floats) -> Floats:
        self._private.appendleft(values.copy())
        return sum(
            (c * v for c, v in zip(self._coefficients, self._private, strict=False)), start=np.zeros(values.shape)
        )

    def total(self, noisy: Floats) -> Floats:
        """See :meth:`Stream.total`: the estimates of the last values solve the step's equation."""
        earlier = (c * v for c, v in zip(self._coefficients[1:], self._noisy, strict=False))
        estimate = noisy - sum(earlier, start=np.zeros(noisy.shape))
        self._noisy.appendleft(estimate)
        self._total = estimate if self._total is None else self._total + estimate
        return self._total.copy()
