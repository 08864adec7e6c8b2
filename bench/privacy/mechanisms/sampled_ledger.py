"""The ledger's mechanisms on Poisson samples of the records; the samples are as secret as the noise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.core.errors import BenchError
from bench.core.types import PrivacyUnit
from bench.privacy.events.base_event import positive, whole
from bench.privacy.events.events import SampledGaussian, SampledGNMax
from bench.privacy.mechanisms import loss_change, mechanisms
from bench.privacy.mechanisms.charging import Charging, mechanism


class SampledMechanisms(Charging):
    """Part of the ledger that draws the samples, so that no method sees who is in one."""

    @mechanism("distances", "labels")
    def sampled_noisy_max(
        self,
        distances: NDArray[Any],
        labels: NDArray[Any],
        *,
        classes: int,
        neighbours: int,
        sampling_rate: float,
        sigma: float,
    ) -> NDArray[np.int64]:
        """Release :func:`bench.privacy.mechanisms.mechanisms.sampled_gnmax`: int64 (queries,).

        `distances` is (queries, records) and `labels` (records,): a record may determine only its own column and label.
        Split many queries over several calls. Raises :class:`BenchError` on another shape.
        """
        self._refuse_again()
        given, votes = np.asarray(distances, dtype=np.float64), np.asarray(labels)
        if given.ndim != 2 or votes.shape != given.shape[1:]:
            raise BenchError(
                f"distances must be (queries, records) and labels (records,), not {given.shape} and {votes.shape}."
            )
        whole("the number of neighbours", neighbours)
        self._charge(SampledGNMax(sampling_rate, sigma, len(given), adjacency=self.adjacency))
        self._sampled_answers += len(given)
        return self._ask(partial(mechanisms.sampled_gnmax, given, votes, classes, neighbours, sampling_rate, sigma))

    @mechanism("values")
    def sampled_gaussian(
        self, values: NDArray[Any], *, max_norm: float, sampling_rate: float, noise_multiplier: float
    ) -> NDArray[np.float64]:
        """Release :func:`bench.privacy.mechanisms.mechanisms.sampled_gaussian` of `values` (sums, records, entries).

        A record may determine only its own ``values[:, i]``. Returns float64 (sums, entries). Raises
        :class:`BenchError` on values of another shape.
        """
        self._refuse_again()
        given = np.asarray(values, dtype=np.float64)
        if given.ndim != 3:
            raise BenchError(f"values must be (sums, records, entries), not {given.shape}.")
        positive("max_norm", max_norm)
        self._charge(SampledGaussian(sampling_rate, noise_multiplier, len(given), adjacency=self.adjacency))
        return self._ask(partial(mechanisms.sampled_gaussian, given, max_norm, sampling_rate, noise_multiplier))

    @mechanism("updates")
    def sampled_updates(
        self,
        updates: Callable[[int], NDArray[np.float64]],
        clients: int,
        *,
        entries: int,
        max_norm: float,
        sampling_rate: float,
        noise_multiplier: float,
    ) -> NDArray[np.float64]:
        """Release :func:`bench.privacy.mechanisms.mechanisms.sampled_updates`: float64 (entries,); unit client.

        `updates` maps the number of one of `clients`, a public count, to its update (entries,). It is called for
        sampled clients only, may use only the named client's data, must keep no trace of calls, and must raise no error
        that depends on them. Raises :class:`BenchError` on another shape, and without clients.
        """
        self._refuse_again()
        whole("the number of clients", clients)
        whole("the number of entries", entries)
        positive("max_norm", max_norm)
        event = SampledGaussian(sampling_rate, noise_multiplier, unit=PrivacyUnit.CLIENT, adjacency=self.adjacency)
        self._charge(event)
        return self._ask(
            partial(mechanisms.sampled_updates, updates, clients, entries, max_norm, sampling_rate, noise_multiplier)
        )

    @mechanism("function", "images", "labels")
    def sampled_function(
        self,
        function: Callable[[torch.Tensor, torch.Tensor], NDArray[np.float64]],
        images: torch.Tensor,
        labels: torch.Tensor,
        *,
        entries: int,
        max_norm: float,
        sampling_rate: float,
        noise_multiplier: float,
    ) -> NDArray[np.float64]:
        """Release :func:`bench.privacy.mechanisms.mechanisms.sampled_function`: float64 (entries,).

        `function` maps the sampled rows of `images` (n, ...) and `labels` (n,) to (entries,), a public number for any
        sample size. It must be deterministic, keep no trace of the sample, use no other private data, and raise no
        error that depends on it. Raises :class:`BenchError` on another shape.
        """
        self._refuse_again()
        whole("the number of entries", entries)
        positive("max_norm", max_norm)
        self._charge(SampledGaussian(sampling_rate, noise_multiplier, adjacency=self.adjacency))
        given = on_rows(function, images, labels), len(images), entries, max_norm, sampling_rate, noise_multiplier
        return self._ask(partial(mechanisms.sampled_function, *given))

    @mechanism("images", "labels")
    def sampled_loss_change(
        self,
        before: torch.nn.Module,
        after: torch.nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        *,
        bound: float,
        sampling_rate: float,
        noise_multiplier: float,
    ) -> NDArray[np.float64]:
        """Release :func:`bench.privacy.mechanisms.loss_change.sampled_loss_change`: float64 (1,), below 0 for a gain.

        `images` (n, ...) and `labels` (n,) are those of :meth:`bench.privacy.mechanisms.ledger.Ledger.dp_sgd`; the
        nets, in evaluation mode, give logits.
        """
        self._refuse_again()
        positive("bound", bound)
        self._charge(SampledGaussian(sampling_rate, noise_multiplier, adjacency=self.adjacency))
        kept = before, after, images, labels, bound, sampling_rate, noise_multiplier
        return self._ask(partial(loss_change.sampled_loss_change, *kept))


def on_rows(
    function: Callable[[torch.Tensor, torch.Tensor], NDArray[np.float64]], images: torch.Tensor, labels: torch.Tensor
) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    """Return `function` as a function of the records' numbers."""

    def of_numbers(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        rows = torch.from_numpy(numbers)
        return function(images[rows], labels[rows])

    return of_numbers
