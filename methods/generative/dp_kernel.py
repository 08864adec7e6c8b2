"""DP-Kernel: a generator minimises a noisy kernel distance from private batches, in a sum of Gaussian kernels.

Jiang, Sun, Yu, "Functional Renyi Differential Privacy for Generative Modeling", NeurIPS 2023; algorithm and settings of
the authors' code. Each step takes a Poisson sample of records and evaluates its mean embedding f(y), the mean of
``k(x, y)`` over the sample, at records and generated images, with each one's label in the kernel; a Gaussian process
draw is added to the values, and the generator minimises the square of the squared distance computed from them.

Threat model: the attacker holds all that is released and may know all records but one. Private: images and labels.
Public: the number of records; generated labels are drawn evenly. Released: the generator, some of its images, the
student. Unit record, adjacency add-remove, as zero-out (see :mod:`bench.methods.dpsgd.dp_sgd`), the adjacency of the
claim; for m kernels an image's embedding has norm sqrt(m) in the kernel's norm.

Claimed: Renyi accounting of a Gaussian release on Poisson samples, as if each step released f plus the process. Proven:
nothing. The noise is a sample that autograd does not differentiate (``mmd.py``: mvn_Dxy.sample()): the generator gets
the exact gradient of f on the private batch times one noisy number, the distance, whose scale RMSprop removes.
:func:`distance` follows the code, including its covariance: ``coeff * K`` has standard deviation sqrt(coeff), not
coeff. DPImageBench's port (models/dp_kernel.py) uses the private labels for generated images and skips the noise if the
draw fails; neither is done here. Repaired: `dp-kernel-sound`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bench.interface import (
    Adjacency,
    Budget,
    Context,
    Facts,
    Ledger,
    PrivateData,
    PublicData,
    as_float,
    register_method,
    setting,
)
from bench.methods.generative.family import Generative, GenerativeConfig, Source, source_of
from bench.methods.generative.gan_parts import ForgerConfig, new_generator
from bench.methods.shared.calibration import ClaimedBy, with_least_noise
from bench.methods.shared.settings_checks import check_batch, student_depends
from bench.privacy.events.events import DPSGD as Steps
from bench.storage.checkpoint import Loop, Part
from bench.training.divergence import check_finite, descend

CODE = "the authors' code dihjiang/DP-kernel, util.py: "
PORT = "DPImageBench, configs/DP-Kernel/mnist_28_eps10.0.yaml: sigma_list, 1 to 16 for pixels in [-1, 1]"


@dataclass(frozen=True)
class DPKernelConfig(GenerativeConfig, ForgerConfig):
    """Settings of DP-Kernel for MNIST."""

    bandwidth: float = setting(0.5, f"{PORT}; the least standard deviation, of pixels in [0, 1]", gt=0)
    kernels: int = setting(5, f"{PORT}; each has twice the deviation of the one before", ge=1)
    batch_size: int = setting(60, CODE + "batch_size", ge=1)
    iterations: int = setting(200_002, CODE + "max_iter", ge=1)
    noise_multiplier: float = setting(0.6, CODE + "noise; calibrated to the budget", gt=0)
    generator_lr: float = setting(5e-5, CODE + "lr, of RMSprop", gt=0)
    latent: int = setting(10, CODE + "nz", ge=1, le=4096)
    generator_units: int = setting(
        200, "ours: DP-MERF's net, wider, instead of a transposed CNN for 32x32 pixels", ge=1
    )
    generator_maps: int = setting(32, "ours, as above", ge=1)

    @property
    def deviations(self) -> list[float]:
        """The standard deviations of the kernels."""
        return [self.bandwidth * 2**number for number in range(self.kernels)]


@register_method("dp-kernel")
class DPKernel(ClaimedBy, Generative):
    """The authors' training, whose gradients have no noise."""

    config: DPKernelConfig
    citation = "Jiang et al. 2023"
    bypass: ClassVar[str] = (
        "the generator follows the gradient of the private batch's mean embedding without noise; the noise changes its "
        "length and sign only"
    )
    claimed_by = "rdp"  # of subsampled Gaussian releases; for the authors' noise of 0.6 it gives 9.7
    claimed_in = "Jiang, Sun, Yu, NeurIPS 2023: functional Renyi accounting of subsampled Gaussian releases"
    claim_note = f"does not hold: {bypass}"
    adjacency = Adjacency.ADD_REMOVE
    repaired_by = "dp-kernel-sound"

    @classmethod
    def presets(cls, facts: Facts) -> Mapping[str, Mapping[str, Any]]:
        given = super().presets(facts)
        batch = min(60, max(8, facts.private_records // 8))
        quick = {"iterations": 2000, "generator_lr": 1e-3, "batch_size": batch, "generator_maps": 16}
        return {"quick": {**given["quick"], **quick}, "tiny": {**given["tiny"], **quick, "iterations": 10}}

    def calibrate(self, budget: Budget) -> Any:
        """Return `config` with the least noise whose claim is within `budget`."""
        check_batch(self)
        return with_least_noise(self, budget, self.claimed_by, "rdp", tolerance=1e-4)

    def claimed_charges(self) -> list[Steps]:
        """Return what the paper charges for: one Gaussian release on a Poisson sample per step."""
        config = self.config
        return [Steps(config.batch_size / self.facts.private_records, config.noise_multiplier, config.iterations)]

    def fit_generator(self, private: PrivateData, public: PublicData, ledger: Ledger, context: Context) -> Source:
        """Train the generator as the authors' code does, declared as a bypass."""
        ledger.bypass(self.bypass)
        facts, device, draws = private.facts, context.device, context.streams.torch("generator/draws")
        net = new_generator(self.config, facts, context)
        net.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]  # faster
        optimizer = torch.optim.RMSprop(net.parameters(), self.config.generator_lr)
        rate = self.config.batch_size / facts.private_records
        depends = student_depends(self.config, context)
        with context.stage("generator", depends, self.config.iterations) as (checkpoint, stage):
            held: dict[str, Part] = {"net": net, "optimizer": optimizer, "draws": draws}
            loop = Loop(checkpoint, held, [private.images, private.labels], device)
            for step in range(loop.start(stage), self.config.iterations):
                batch = (torch.rand(len(private), generator=draws) < rate).nonzero().flatten()
                if len(batch) > 1:
                    x, own = as_float(private.images[batch].to(device)).flatten(1), private.labels[batch]
                    labels = torch.randint(facts.classes, (len(batch),), generator=draws)
                    y = net(net.codes(labels, draws, device)).flatten(1)
                    kinds = one_hot(torch.cat([own, labels]), facts.classes).float().to(device)
                    noise = torch.randn(2 * len(batch), generator=draws).to(device)
                    loss = distance(x, y, kinds, self.config.deviations, self.config.noise_multiplier, noise).square()
                    if step % 100 == 0:
                        check_finite({"squared distance": loss}, step, "the generator")
                    descend(optimizer, loss)
                stage.advance()
                loop.done(step + 1, self.config.iterations)
        return source_of(net, lambda count, draws: torch.randint(facts.classes, (count,), generator=draws), device)


def distance(
    x: Tensor, y: Tensor, kinds: Tensor, deviations: Sequence[float], noise_multiplier: float, noise: Tensor
) -> Tensor:
    """Return the noisy squared distance of records x (n, d) from images y (m, d), as ``mmd.py`` computes it.

    `kinds` (n + m, classes) holds the one-hot labels of both; `noise` (n + m,) is standard normal. Its factor is not
    differentiated, so the result's gradient is exact.
    """
    both = torch.cat([x, y])
    squares = torch.cdist(both, both, compute_mode="use_mm_for_euclid_dist").square()
    k = sum(torch.exp(-squares / (2 * deviation**2)) for deviation in deviations) * (kinds @ kinds.T)
    assert isinstance(k, torch.Tensor)
    values = k[: len(x)].mean(0)
    coefficient = math.sqrt(2 * len(deviations)) / len(x) * noise_multiplier
    with torch.no_grad():
        spread, directions = torch.linalg.eigh(coefficient * k.double())  # Cholesky may fail: k is rounded
        process = directions @ (spread.clamp_min(0).sqrt() * noise.double())
    noisy = values + process.float()
    result: Tensor = noisy[: len(x)].mean() - 2 * noisy[len(x) :].mean() + k[len(x) :, len(x) :].mean()
    return result
