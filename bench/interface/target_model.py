"""A released student, restricted to an attacker's declared access."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.core.errors import BenchError
from bench.core.transforms import as_float
from bench.core.types import Access, Facts, Released
from bench.training.loop import predict

_LEVEL = {Access.LABELS: 0, Access.CONFIDENCES: 1, Access.WEIGHTS: 2, Access.GENERATOR: 2, Access.SYNTHETIC: 2}


class Target:
    """The student of `released` behind `access`; images (n, channels, height, width) are float in [0, 1] or uint8.

    Every access gives labels, every access but to labels gives confidences, and ``model`` needs more than confidences;
    anything else raises :class:`BenchError`. `queries` counts images; an attack on the weights counts its own steps by
    :meth:`count`.
    """

    def __init__(self, released: Released, facts: Facts, access: Access, device: torch.device | str = "cpu") -> None:
        self.facts, self.access, self.device = facts, access, torch.device(device)
        self.queries = 0
        self._released = released
        # Attacks differentiate with respect to images, not weights.
        self._student = released.student.to(self.device).eval().requires_grad_(False)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.facts.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """The image shape (channels, height, width)."""
        return self.facts.shape

    def count(self, images: int) -> None:
        """Add `images` to the count of queries."""
        self.queries += images

    @torch.no_grad()
    def labels(self, images: Tensor) -> Tensor:
        """Return the predicted classes (n,), int64 on the CPU."""
        return self._ask(images).argmax(1)

    @torch.no_grad()
    def confidences(self, images: Tensor, rounding: float = 0.0) -> Tensor:
        """Return the confidences (n, classes), float32 on the CPU.

        They are rounded to multiples of `rounding` (0: unrounded), as in Fredrikson et al. 2015, section 5.
        """
        self._need(Access.CONFIDENCES, "confidences")
        confidences = self._ask(images).softmax(1)
        return (confidences / rounding).round() * rounding if rounding else confidences

    @property
    def model(self) -> nn.Module:
        """The student in evaluation mode, on the device, for float images in [0, 1]."""
        self._need(Access.WEIGHTS, "weights")
        return self._student

    @property
    def synthetic(self) -> tuple[Tensor, Tensor | None] | None:
        """The released images, float in [0, 1], and their labels; None without released images."""
        if self.access not in (Access.SYNTHETIC, Access.GENERATOR):
            raise BenchError(f"an attack with access to {self.access} cannot read released images.")
        images = self._released.extras.get("synthetic_images")
        if images is None or images.ndim != 4:
            return None
        return as_float(images), self._released.extras.get("synthetic_labels")

    def _ask(self, images: Tensor) -> Tensor:
        self.count(len(images))
        return predict(self._student, images, device=self.device)

    def _need(self, least: Access, what: str) -> None:
        if _LEVEL[self.access] < _LEVEL[least]:
            raise BenchError(f"an attack with access to {self.access} cannot use {what}.")
