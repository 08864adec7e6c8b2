"""A small variational autoencoder (Kingma and Welling, ICLR 2014, arXiv:1312.6114) for images of any size from 4x4."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.models.generators import DataFreeGenerator
from bench.models.layers import normalise


class VAE(nn.Module):
    """Two strided convolutions encode to a Gaussian over codes (n, `latent`); a generator decodes to Bernoulli pixels.

    Convolutional like the nets of Yu et al. (CVPR 2019, arXiv:1808.06088); the layers are ours.
    """

    def __init__(self, channels: int, height: int, width: int, latent: int = 32, units: int = 64) -> None:
        """Raise BenchError for images below 4x4."""
        super().__init__()
        self.latent = latent
        self.decoder = DataFreeGenerator(channels, height, width, latent, units)
        body = nn.Sequential(
            nn.Conv2d(channels, units, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(units, units, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        with torch.no_grad():
            values = body(torch.zeros(1, channels, height, width)).shape[1]
        self.encoder = nn.Sequential(*body, nn.Linear(values, 2 * latent))

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and standard deviation of the codes, each (n, latent), for `images` in [0, 1]."""
        mean, log_variance = self.encoder(normalise(images)).chunk(2, 1)
        return mean, (0.5 * log_variance.clamp(-20.0, 20.0)).exp()

    def decode(self, codes: Tensor) -> Tensor:
        """Return the images (n, channels, height, width) in [0, 1] of `codes` (n, latent)."""
        images: Tensor = self.decoder(codes)
        return images

    def terms(self, images: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the loss terms ``reconstruction`` and ``divergence``, averaged over images, in nats."""
        mean, deviation = self.encode(images)
        noise = torch.randn(mean.shape, generator=generator, device=generator.device).to(mean.device)
        decoded = self.decode(mean + deviation * noise).clamp(1e-6, 1 - 1e-6)
        count = len(images)
        return {
            "reconstruction": functional.binary_cross_entropy(decoded, images, reduction="sum") / count,
            "divergence": 0.5 * (mean**2 + deviation**2 - 1 - 2 * deviation.log()).sum() / count,
        }
