"""Interfaces of attacks on a released student."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.core.errors import BenchError
from bench.core.types import ROBUSTNESS, Access, Knowledge, PublicData, Reconstructions, Signals
from bench.interface.bound import Bound, C_co
from bench.training.context import Context

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from bench.interface.target_model import Target


class Attack(abc.ABC, Bound[C_co]):
    """An attack on a released student. Returns reconstructions or scores, never statistics.

    Each file in ``attacks/`` registers one :class:`InversionAttack`, :class:`MembershipAttack`, :class:`ReleaseAttack`
    or :class:`RobustnessAttack`. ``class Mine(InversionAttack[MyConfig])`` names the frozen dataclass of its settings:
    the paper's values are the defaults, each with its source. Hooks read ``self.config`` and ``self.facts``.
    """

    goal: ClassVar[str]
    """The attacker's goal, as named in records."""
    access: ClassVar[Access | None]
    """The part of the student that it may use; None if no attacker is assumed (likewise `knowledge`)."""
    knowledge: ClassVar[Knowledge | None] = Knowledge.NONE


class InversionAttack(Attack[C_co]):
    """An attack that reconstructs training images."""

    goal = "inversion"
    access: ClassVar[Access]
    tunable: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    """The values of each setting that an adaptive attacker tries on shadow students, never on the target."""

    least_side: ClassVar[int] = 1
    """Smallest side of images, in pixels."""
    least_auxiliary: ClassVar[int] = 2
    """Smallest number of the attacker's own images, if the attack uses them."""

    def own_images(self, auxiliary: PublicData | None) -> torch.Tensor:
        """Return the attacker's own images; raise :class:`BenchError`, before any training, if they do not suit."""
        shape, count = self.facts.shape, 0 if auxiliary is None else len(auxiliary)
        if min(shape[1:]) < self.least_side:
            least = f"{self.least_side}x{self.least_side}"
            raise BenchError(f"{self.name} takes images of {least} pixels or more, not {shape[1]}x{shape[2]}.")
        if auxiliary is None or count < self.least_auxiliary:
            raise BenchError(
                f"{self.name} needs at least {self.least_auxiliary} auxiliary images and was given {count}. Choose a "
                "data set whose split has public images, or an attack that needs none (mi-face, data-free)."
            )
        if tuple(auxiliary.images.shape[1:]) != shape:
            raise BenchError(
                f"{self.name} takes auxiliary images of the target's shape {shape}, not "
                f"{tuple(auxiliary.images.shape[1:])}. Resize them, or use auxiliary images of the same data set."
            )
        return auxiliary.images

    @property
    def knows(self) -> Knowledge:
        """What the attacker knows besides the student; a `subspace` needs the attacker's own images."""
        return Knowledge.AUXILIARY if getattr(self.config, "subspace", 0) else self.knowledge or Knowledge.NONE

    @abc.abstractmethod
    def run(
        self, target: Target, auxiliary: PublicData | None, observed: torch.Tensor | None, context: Context
    ) -> Reconstructions:
        """Return reconstructions of every class.

        `auxiliary` is the attacker's public data, None if `knowledge` is none. `observed` (m, classes) holds the
        target's confidences on images that the attacker does not see; an attack on single answers returns one image for
        each.
        """


class MembershipAttack(Attack[C_co]):
    """An attack that separates the pipeline's training records from other records."""

    goal = "membership"
    references: ClassVar[int] = 0
    """Minimum number of references."""

    @abc.abstractmethod
    def score(self, signals: Signals) -> NDArray[np.float64]:
        """Return a score (n,), higher for likelier members; raise :class:`BenchError` on too few references."""


@dataclass(frozen=True, slots=True)
class ReleasedImages:
    """The images of a release, or of a control in its place: float (k, channels, height, width) in [0, 1].

    `generator` maps `inputs` (m, values) to the last m of the images; both are None without a known generator. The
    first `free` values of an input are noise, the rest encode the class.
    """

    images: torch.Tensor
    generator: torch.nn.Module | None = None
    inputs: torch.Tensor | None = None
    free: int = 0


class ReleaseAttack(Attack[C_co]):
    """An attack on released images and generators."""

    goal = "release"
    of_images: ClassVar[bool] = False
    """Whether a score belongs to an image (does it copy one of the records?), not to a record (was it trained on?)."""

    @abc.abstractmethod
    def score(
        self, release: ReleasedImages, records: torch.Tensor, others: torch.Tensor, context: Context
    ) -> NDArray[np.float64]:
        """Return a score per record (n,), higher for likelier members, or per image (k,), higher for nearer ones.

        `records` (n, channels, height, width) and `others`, further images that no student saw, are in [0, 1].
        """


class RobustnessAttack(Attack[C_co]):
    """A search for small changes of images that the student then misclassifies; it measures no leak."""

    goal = ROBUSTNESS
    access = None
    knowledge = None

    @abc.abstractmethod
    def withstood(
        self, student: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, context: Context
    ) -> Mapping[str, Mapping[float, torch.Tensor]]:
        """Return which images (n,) the student still gets right, by attack and by size of change, rising from 0.

        `images` (m, channels, height, width) are uint8 or float in [0, 1], `labels` int64 (m,); n of them are used.
        """
