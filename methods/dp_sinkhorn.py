"""DP-Sinkhorn: a generator follows noisy gradients of its transport distance from Poisson samples of the records.

Cao, Bie, Vahdat, Fidler, Kreis, "Don't Generate Me: Training Differentially Private Generative Models with Sinkhorn
Divergence", NeurIPS 2021 (arXiv:2111.01177). Each step makes images X, half of the divergence's other side X' anew, and
takes the gradient of ``2 W(X, Y) - W(X, X')`` with regard to X, for a Poisson sample Y of the records.

Threat model: the attacker holds all that is released, might hold every noisy gradient, and may know all records but
one. Private: images and labels. Public: the number of records; generated labels are drawn evenly. Released: the
generator, some of its images, the student. Unit record, adjacency add-remove, as zero-out (see :mod:`methods.dp_sgd`).
One record changes the transport plan, and so any row of the gradient: the matrix of all rows is clipped to
`max_grad_norm` as a whole, as in the paper, and moves by twice that at most, to which `noise_multiplier` is relative.

In the authors' code (``compute_loss`` in ``sinkhorn_poisson.py`` of nv-tlabs/DP-Sinkhorn_code) X has as many rows as
the sample has records, so that the shape of the noisy matrix releases the size of the sample without noise. Given that
size k, the rate is k / n, and the size itself tells a little: composed with it, Renyi accounting of the paper's setting
for MNIST gives 10.24 instead of 10.01. Here X always has `batch_size` rows; an empty sample has a gradient of zeros.

Claimed: Renyi accounting of Gaussian releases on Poisson samples. Proven: their PLD.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bench.interface import (
    Adjacency,
    BenchError,
    Budget,
    Claim,
    Context,
    Facts,
    PrivateData,
    PublicData,
    register_method,
    setting,
)
from methods._common import at_least_one, check_latent_size, positive, student_depends
from methods._generative import Generative, GenerativeConfig, Source, balanced

if TYPE_CHECKING:
    from bench.interface import Event, Ledger

PAPER = "Cao et al. 2021, the authors' code nv-tlabs/DP-Sinkhorn_code: "
OURS = "ours: the net of methods/dp_merf.py"


@dataclass(frozen=True)
class DPSinkhornConfig(GenerativeConfig):
    """Settings for MNIST at epsilon 10."""

    steps: int = setting(3_990_000, PAPER + "MNIST, as many as epsilon 10 pays for")
    batch_size: int = setting(50, PAPER + "batch_size")
    max_grad_norm: float = setting(0.5, PAPER + "MNIST, l2_norm_clip")
    noise_multiplier: float = setting(1.1, PAPER + "MNIST, epsilon 10; calibrated to the budget")
    fresh: float = setting(0.2, PAPER + "MNIST, debias_ratio: the share of X' that is not of X")
    l1: float = setting(1.0, PAPER + "mixture_fraction of the L1 cost; 3 in other settings")
    label_weight: float = setting(15.0, PAPER + "embed_multiplier")
    regularisation: float = setting(0.0025, PAPER + "sinkhorn_eps 0.05, squared")
    sinkhorn_steps: int = setting(30, "ours: from the largest cost down")
    generator_lr: float = setting(1e-5, PAPER + "lr, of Adam")
    latent: int = setting(16, PAPER + "latent size")
    generator_units: int = setting(200, OURS)
    generator_maps: int = setting(16, OURS)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "steps", "batch_size", "sinkhorn_steps", "generator_units", "generator_maps")
        positive(self, "max_grad_norm", "noise_multiplier", "label_weight", "regularisation", "generator_lr")
        check_latent_size(self, "latent")
        if not 0 < self.fresh <= 1:
            raise BenchError(f"fresh must lie in (0, 1], not {self.fresh}.")

    @property
    def betas(self) -> tuple[float, float]:
        """Adam's decay rates."""
        return 0.9, 0.999


@register_method("dp-sinkhorn")
class DPSinkhorn(Generative):
    """Noisy gradients of the Sinkhorn divergence, of a constant number of rows."""

    Config: ClassVar[type] = DPSinkhornConfig
    citation = "Cao et al. 2021"
    adjacency = Adjacency.ADD_REMOVE

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        """See :meth:`bench.interface.Method.presets`."""
        given = super().presets(facts)
        batch = min(200, max(8, facts.private_records // 8))
        quick = {"steps": 2000, "batch_size": batch, "generator_lr": 1e-3, "sinkhorn_steps": 20}
        return {"quick": {**given["quick"], **quick}, "tiny": {**given["tiny"], **quick, "steps": 10}}

    @classmethod
    def calibrate(cls, config: Any, budget: Budget, facts: Facts) -> Any:
        """Return `config` with the least noise whose Renyi cost or PLD is in `budget`."""
        from methods.dp_sgd import least_noise

        if not config.batch_size <= facts.private_records:
            raise BenchError(
                f"batch_size {config.batch_size} must be at most the {facts.private_records} private records."
            )

        def events(noise: float) -> Sequence[Event]:
            return cls.charges(dataclasses.replace(config, noise_multiplier=noise), facts)

        sound = "proven" if config.batch_size == facts.private_records else "pld"
        return dataclasses.replace(config, noise_multiplier=least_noise(events, budget, "rdp", sound, tolerance=1e-4))

    @classmethod
    def claimed(cls, config: Any, facts: Facts, delta: float) -> Claim:
        """Return Renyi accounting of all steps."""
        from bench.interface import claim_by

        source = "Cao et al., NeurIPS 2021 (arXiv:2111.01177): Renyi accounting of sampled Gaussian releases"
        return claim_by("rdp", cls.charges(config, facts), delta, source, "")

    @classmethod
    def charges(cls, config: Any, facts: Facts) -> Sequence[Event]:
        """Return all steps."""
        from bench.interface import SampledGaussian

        rate = config.batch_size / facts.private_records
        return [SampledGaussian(rate, config.noise_multiplier, config.steps, adjacency=cls.adjacency)]

    def fit_generator(
        self, config: Any, private: PrivateData, public: PublicData, ledger: Ledger, context: Context
    ) -> Source:
        """Follow the noisy gradients."""
        import torch
        from torch.nn.functional import one_hot

        from bench.training.checkpoint import Loop
        from bench.training.transforms import as_float
        from methods._gan import Forger
        from methods._sinkhorn import costs, transport

        facts, device, rows = private.facts, context.device, config.batch_size
        forger, pixels = Forger(config, facts, context), int(np.prod(facts.shape))
        again = max(1, round(config.fresh * rows))

        def gradient(images: Any, labels: Any, sampled: Any) -> Any:
            if not len(sampled):
                return np.zeros(rows * pixels)
            x = (2 * images[:rows].flatten(1) - 1).requires_grad_()
            y = 2 * as_float(private.images[torch.from_numpy(sampled)].to(device)).flatten(1) - 1
            own = one_hot(labels, facts.classes).float()
            theirs = one_hot(private.labels[torch.from_numpy(sampled)].to(device), facts.classes).float()
            other = torch.cat([x, 2 * images[rows:].flatten(1) - 1])[again:]

            def between(to: Any, marks: Any) -> Any:
                cost = costs(x, to, own[:rows], marks, config.l1, config.label_weight)
                return transport(cost, config.regularisation, config.sinkhorn_steps)

            loss = 2 * between(y, theirs) - between(other, own[again:])
            return torch.autograd.grad(loss, x)[0].flatten().double().cpu().numpy()

        with (
            context.checkpoint("generator", student_depends(config, context)) as checkpoint,
            context.progress.stage("generator", config.steps) as stage,
        ):
            loop = Loop(checkpoint, {"forger": forger}, [private.images, private.labels], device)
            first = loop.start(stage)
            for step in range(config.steps):
                if step < first:
                    with ledger.charging_again():
                        self._answer(ledger, config, lambda _: np.zeros(rows * pixels), len(private), pixels, facts)
                    continue
                images, labels = forger.images(rows)
                more = forger.net(forger.net.codes(labels[:again].cpu(), forger.draws, device))
                whole = torch.cat([images, more]).detach()
                marks = torch.cat([labels, labels[:again]])
                noisy = self._answer(
                    ledger, config, functools.partial(gradient, whole, marks), len(private), pixels, facts
                )
                forger.follow(images, torch.from_numpy(noisy).to(images).view_as(images))
                stage.advance()
                loop.done(step + 1, config.steps)
        return balanced(forger.net, facts.classes, device)

    @staticmethod
    def _answer(ledger: Ledger, config: Any, function: Any, records: int, pixels: int, facts: Facts) -> Any:
        return ledger.sampled_function(
            function, records, entries=config.batch_size * pixels, max_norm=config.max_grad_norm,
            sampling_rate=config.batch_size / facts.private_records, noise_multiplier=config.noise_multiplier,
        )  # fmt: skip
