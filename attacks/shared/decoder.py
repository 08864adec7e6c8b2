"""The decoder of the inversion network, from a student's answer back to the image."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.core.progress import Stage
from bench.core.seeds import seeded
from bench.interface import as_float
from bench.storage.checkpoint import Checkpoint, Loop, Part
from bench.training.divergence import check_finite, descend

SHIFT = 50.0  # added to log confidences; the published code adds more to answers that would still be negative


class Decoder(nn.Module):
    """(n, classes) -> maps of about 4x4 -> transposed convolutions, each doubling the sides -> images in [0, 1].

    At 64x64 and `width` 128 these are the published layers: 1024, 512, 256, 128 maps, each with batch normalisation and
    tanh. Other sizes have more or fewer layers; the last is cropped.
    """

    def __init__(self, classes: int, shape: tuple[int, int, int], width: int) -> None:
        super().__init__()
        channels, self.high, self.wide = shape
        doublings = max(1, math.ceil(math.log2(max(min(shape[1:]), 8) / 4)))
        low = (math.ceil(self.high / 2**doublings), math.ceil(self.wide / 2**doublings))
        maps = width * 2 ** (doublings - 1)
        layers: list[nn.Module] = [
            nn.Unflatten(1, (classes, 1, 1)), nn.ConvTranspose2d(classes, maps, low), nn.BatchNorm2d(maps), nn.Tanh(),
        ]  # fmt: skip
        for _ in range(doublings - 1):
            layers += [nn.ConvTranspose2d(maps, maps // 2, 4, 2, 1), nn.BatchNorm2d(maps // 2), nn.Tanh()]
            maps //= 2
        self.net = nn.Sequential(*layers, nn.ConvTranspose2d(maps, channels, 4, 2, 1), nn.Sigmoid())

    def forward(self, codes: Tensor) -> Tensor:
        images: Tensor = self.net(codes)
        return images[:, :, : self.high, : self.wide]


def encode(confidences: Tensor, truncation: int = 0) -> Tensor:
    """Return the decoder's input for answers (n, classes): truncated, in logarithms, shifted, scaled to [0, 1].

    `truncation` is the number of largest confidences to keep (0: all); others, and those below e^-50, become 0.
    """
    if 0 < truncation < confidences.shape[1]:
        kept = confidences.topk(truncation, dim=1)
        confidences = torch.zeros_like(confidences).scatter(1, kept.indices, kept.values)
    return (confidences.clamp_min(1e-30).log() + SHIFT).clamp_min(0.0) / SHIFT


@torch.no_grad()
def decode(decoder: nn.Module, codes: Tensor, device: torch.device) -> Tensor:
    """Return the images (n, channels, height, width) of `codes` (n, classes), clamped to [0, 1], on the CPU."""
    parts = [decoder(part.to(device)).float().cpu() for part in torch.split(codes, 500)]
    return torch.cat(parts).clamp(0, 1)


def train_decoder(
    decoder: Decoder,
    codes: Tensor,
    images: Tensor,
    generator: torch.Generator,
    *,
    epochs: float,
    batch_size: int,
    rate: float,
    validation: float,
    device: torch.device,
    stage: Stage,
    checkpoint: Checkpoint | None = None,
) -> Decoder:
    """Train `decoder` in place and return it in evaluation mode, in the state that did best on held-out images.

    `codes` (n, classes) are the inputs, `images` (uint8 or float in [0, 1], four or more) the targets. The share
    `validation` is held out; after every epoch on the others it decides whether to keep the state. `stage` advances
    :func:`decoder_steps` times. With a `checkpoint`, stopped training resumes at the start of an epoch.
    """
    order = torch.randperm(len(images), generator=generator)
    held = _held_out(len(images), validation)
    tests, trains = order[:held], order[held:]
    decoder.to(device).train()
    optimizer = torch.optim.Adam(decoder.parameters(), rate, (0.5, 0.999), amsgrad=True)
    best, lowest = copy.deepcopy(decoder), torch.tensor(math.inf, dtype=torch.float64)
    parts: dict[str, Part] = {
        "decoder": decoder, "best": best, "lowest": lowest, "optimizer": optimizer, "order": generator
    }  # fmt: skip
    loop = Loop(checkpoint, parts, [codes, images], device)
    total = decoder_steps(len(images), epochs, batch_size, validation)
    with seeded(generator, device):
        done = loop.start(stage)
        while done < total:
            shuffled = trains[torch.randperm(len(trains), generator=generator)]
            # Skip a last batch of one image, which has no batch statistics.
            for index in [part for part in torch.split(shuffled, batch_size) if len(part) > 1]:
                if done == total:
                    break
                made = decoder(codes[index].to(device))
                loss = functional.mse_loss(made, as_float(images[index].to(device)))
                check_finite({"squared error": loss}, done, "the inversion network")
                descend(optimizer, loss)
                done += 1
                stage.advance()
            error = float(functional.mse_loss(decode(decoder.eval(), codes[tests], device), as_float(images[tests])))
            decoder.train()
            if error < float(lowest):
                best.load_state_dict(decoder.state_dict())
                lowest.fill_(error)
            loop.done(done, total)
    decoder.load_state_dict(best.state_dict())
    return decoder.eval()


def decoder_steps(records: int, epochs: float, batch_size: int, validation: float) -> int:
    """Return the number of steps of :func:`train_decoder`."""
    trains = records - _held_out(records, validation)
    batches = trains // batch_size + (trains % batch_size > 1)
    return max(1, round(epochs * batches))


def _held_out(records: int, validation: float) -> int:
    return min(max(1, round(records * validation)), records - 2)
