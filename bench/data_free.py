"""What data-free generators are driven by: the terms of DAFL, as DGD (Eq. 2) and DPSD (Eq. 8) take them over.

A classifier stands in for the discriminator: images count as good where it is sure of each one, finds all classes
equally often, and its last hidden layer is strongly active (Chen et al., ICCV 2019, arXiv:1904.01186).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from torch import Tensor
from torch.nn import functional

from bench.errors import BenchError

Reading = Literal["dafl", "printed"]
"""How the two terms are read that the papers print otherwise than DAFL computes them; see :func:`generator_terms`."""


class NotFiniteError(BenchError):
    """A loss that is not a number any more; the message names the iteration and the term."""


def generator_terms(
    features: Tensor, logits: Tensor, *, norm: Literal[1, 2] = 1, reading: Reading = "dafl"
) -> dict[str, Tensor]:
    """Return the terms ``one_hot``, ``entropy`` and ``activation`` of a batch, each a scalar to be minimised.

    Args:
        features: Last hidden layer (n, features) of the classifier on the generated images.
        logits: Its logits (n, classes).
        norm: Norm of the features: 1 in DGD and DAFL, 2 in DPSD.
        reading: ``dafl`` takes the entropy of the batch's mean prediction, negated, so that classes are balanced, and
            the activations negated, so that they grow: what both papers say in words. ``printed`` is their formulas to
            the letter: the sum over p log p of each image, which pulls every prediction towards uniform, and the
            activations with a plus sign, which makes them small.

    """
    one_hot = functional.cross_entropy(logits, logits.argmax(1))
    strength = features.abs().mean() if norm == 1 else features.norm(dim=1).mean() / math.sqrt(features.shape[1])
    if reading == "printed":
        logs = logits.log_softmax(1)
        return {"one_hot": one_hot, "entropy": (logs.exp() * logs).sum(1).mean(), "activation": strength}
    mean = logits.softmax(1).mean(0)
    return {
        "one_hot": one_hot,
        "entropy": (mean * mean.clamp_min(1e-12).log()).sum(),
        "activation": -strength,
    }


def check_finite(terms: Mapping[str, Tensor], iteration: int, what: str) -> None:
    """Raise :class:`NotFiniteError`, with the iteration and the first such term, unless all of `terms` are finite."""
    for name, value in terms.items():
        if not math.isfinite(float(value.detach())):
            raise NotFiniteError(
                f"{what} diverged at iteration {iteration}: its term {name!r} is {float(value.detach())}. Lower its "
                "learning rate. The state before it is kept among the run's artefacts."
            )
