"""P3GM's parts: noisy principal components, a noisy Gaussian mixture over codes, and a net that decodes codes to rows.

A record is a row: its pixels in [0, 1], then its one-hot label. Its code is its centred projection onto public
components, clipped to a radius; for images of another size the radius scales with the norm of their rows.

Sensitivities, adding or removing one record. The components come from the sum of ``r r'`` over centred rows clipped to
norm 1: one record adds a matrix of Frobenius norm at most 1, whose upper triangle is released. An EM iteration releases
the components' counts and sums of codes and of squared codes, in units of the radius: one record adds its
responsibilities, of norm at most 1, times 1, its code and the code's squares, each of norm at most 1: sqrt(3) in all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from bench.core import margins
from bench.interface import Ledger, PrivateData, as_float, in_equal_batches

EM_SENSITIVITY = math.sqrt(3)
CHUNK = 2000  # records per chunk


def rows_of(images: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the rows, float32 (n, pixels + classes), of `images` (n, channels, height, width) and their `labels`."""
    return torch.cat([as_float(images).flatten(1), one_hot(labels, classes).float()], 1)


def chunks(private: PrivateData) -> Iterator[Tensor]:
    """Yield the rows of all records in chunks, in float64."""
    for images, labels in zip(torch.split(private.images, CHUNK), torch.split(private.labels, CHUNK), strict=True):
        yield rows_of(images, labels, private.facts.classes).double()


def clipped(rows: Tensor, norm: float = 1.0) -> Tensor:
    """Return `rows` (n, d), each clipped to `norm`."""
    shortened: Tensor = rows / (margins.FLOAT64 * (rows.norm(dim=1, keepdim=True) / norm).clamp_min(1))
    return shortened


def second_moments(private: PrivateData, centre: Tensor) -> Tensor:
    """Return the sum of ``r r'`` of centred rows, each clipped to norm 1: float64 (d, d)."""
    total = torch.zeros(len(centre), len(centre), dtype=torch.float64)
    for rows in chunks(private):
        some = clipped(rows - centre)
        total += some.T @ some
    return total


def components_of(moments: Tensor, count: int, noise_multiplier: float, ledger: Ledger) -> Tensor:
    """Return the first `count` principal components (count, d) of `moments` (d, d) with Gaussian noise."""
    upper = torch.triu_indices(len(moments), len(moments)).unbind()
    given = moments[upper].numpy()
    noisy = torch.zeros_like(moments)
    noisy[upper] = torch.from_numpy(ledger.gaussian(given, sensitivity=1.0, noise_multiplier=noise_multiplier))
    noisy = noisy + noisy.triu(1).T
    _, directions = torch.linalg.eigh(noisy)  # in ascending order
    first: Tensor = directions[:, -count:].flip(1).T.contiguous()
    return first


@dataclass(frozen=True)
class Mixture:
    """Gaussians with `weights` (k,), `means` and `variances` (k, latent)."""

    weights: Tensor
    means: Tensor
    variances: Tensor

    def log_densities(self, codes: Tensor) -> Tensor:
        """Return each component's log density times its weight (n, k), up to a constant."""
        apart = (codes[:, None] - self.means).square() / self.variances + self.variances.log()
        return self.weights.log() - 0.5 * apart.sum(2)

    def draw(self, count: int, draws: torch.Generator) -> Tensor:
        """Return `count` codes."""
        own = torch.multinomial(self.weights, count, replacement=True, generator=draws)
        noise = torch.randn(count, self.means.shape[1], generator=draws, dtype=self.means.dtype)
        return self.means[own] + self.variances[own].sqrt() * noise


def start_mixture(components: int, latent: int, radius: float, draws: torch.Generator) -> Mixture:
    """Return a public initial mixture; a single component is at zero."""
    spread = radius / math.sqrt(latent)
    means = torch.randn(components, latent, generator=draws, dtype=torch.float64) * spread * (components > 1)
    weights = torch.full((components,), 1 / components, dtype=torch.float64)
    return Mixture(weights, means, torch.full_like(means, spread**2))


def statistics(codes: Tensor, mixture: Mixture, radius: float) -> Tensor:
    """Return the counts, sums of codes and sums of squared codes of the components: float64 (k, 1 + 2 latent)."""
    unit = codes / (radius * margins.FLOAT64)
    total = torch.zeros(len(mixture.means), 1 + 2 * codes.shape[1], dtype=torch.float64)
    for some, raw in zip(torch.split(unit, CHUNK), torch.split(codes, CHUNK), strict=True):
        own = mixture.log_densities(raw).softmax(1)
        total += own.T @ torch.cat([torch.ones(len(some), 1, dtype=torch.float64), some, some.square()], 1)
    return total


def noisy_em(
    codes: Tensor, mixture: Mixture, radius: float, iterations: int, noise: float, ledger: Ledger,
    advance: Callable[[], None],
) -> Mixture:  # fmt: skip
    """Return `mixture` after EM on `codes` (n, latent) with noise of standard deviation `noise` on every sum."""
    latent = codes.shape[1]
    least = (1e-3 * radius) ** 2 / latent
    for _ in range(iterations):
        given = statistics(codes, mixture, radius).numpy()
        sums = torch.from_numpy(
            ledger.gaussian(given, sensitivity=EM_SENSITIVITY, noise_multiplier=noise / EM_SENSITIVITY)
        )
        counts = sums[:, :1].clamp_min(1.0)
        # Noise may move a mean outside the codes' ball.
        means = clipped(sums[:, 1 : latent + 1] / counts) * radius
        variances = sums[:, latent + 1 :] / counts * radius**2 - means.square()
        # As in the authors' code, keep the old variance if the new one is not positive.
        variances = torch.where(variances > least, variances, mixture.variances).clamp(max=radius**2)
        mixture = Mixture(counts[:, 0] / counts.sum(), means, variances)
        advance()
    return mixture


def draws_of(rows: Tensor, latent: int, draws: torch.Generator) -> Tensor:
    """Return pseudo-random normal values (n, latent); each row depends only on the same row of `rows` (n, d).

    If they were drawn by position, removing a record would change those of all later ones.
    """
    waves = torch.randn(rows.shape[1], latent, generator=draws, dtype=torch.float64) * 1000
    offset = torch.rand(latent, generator=draws, dtype=torch.float64)
    turned = torch.cat([*in_equal_batches(lambda some: some.double() @ waves + offset, rows, CHUNK)])
    uniform = turned.remainder(1.0)
    return (math.sqrt(2) * torch.erfinv((2 * uniform - 1).clamp(-1 + 1e-9, 1 - 1e-9))).float()


class PhasedVAE(nn.Module):
    """A variational autoencoder of rows; its codes have fixed means and a fixed mixture prior.

    It maps inputs (n, d + 2 latent), rows with their codes and normal draws, to losses (n, 1): squared error plus the
    divergence from the mixture, approximated by the divergences from its components (Hershey and Olsen 2007).
    """

    def __init__(self, codes: Codes, mixture: Mixture, hidden: int) -> None:
        super().__init__()
        latent, size = codes.components.shape
        self.sizes = [size, latent, latent]
        self.encoder = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, size))
        for name, value in {"centre": codes.centre, "components": codes.components, **vars(mixture)}.items():
            self.register_buffer(name, value.float())

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the loss of each example."""
        rows, means, draws = torch.split(inputs, self.sizes, 1)
        logs: Any = self.encoder(rows).clamp(-20.0, 20.0)  # log variances
        error = (self.decoder(means + (0.5 * logs).exp() * draws) - rows).square().sum(1)
        mixture = self.mixture()
        apart = ((means[:, None] - mixture.means).square() + logs.exp()[:, None]) / mixture.variances
        each = 0.5 * (apart - 1 + mixture.variances.log() - logs[:, None]).sum(2)
        divergence = -torch.logsumexp(mixture.weights.log() - each, 1)
        losses: Tensor = (error + divergence)[:, None]
        return losses

    def mixture(self) -> Mixture:
        """Return the prior of the codes."""
        return Mixture(self.weights, self.means, self.variances)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Codes:
    """The map from rows to codes: `components` (latent, d), `centre` (d,), `radius`; all released."""

    components: Tensor
    centre: Tensor
    radius: float

    def of(self, rows: Tensor) -> Tensor:
        """Return the codes (n, latent) of `rows` (n, d)."""
        return clipped((rows - self.centre) @ self.components.T, self.radius)

    def rows(self, codes: Tensor) -> Tensor:
        """Return the rows (n, d) in the components' span that have these `codes`."""
        return codes @ self.components + self.centre
