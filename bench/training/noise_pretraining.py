"""Pretrain ``noise_wrn`` on images of random processes: no labels and no record of any data set.

    python -m bench.training.noise_pretraining noise_wrn.safetensors --minutes 7 --device cuda --compile

The loss pulls the features of two augmented views of an image together, and spreads those of different images evenly on
the sphere (alignment and uniformity in equal parts, Wang and Isola, arXiv:2005.10242), as in DP-RandP
(arXiv:2306.06076). The learning rate follows the time that is left, so the same command on another machine gives other
weights; the published file is pinned by its SHA-256. It comes from 5,202 steps in 7 minutes of an NVIDIA H100 that also
trained teachers. The statistics of :class:`Whitening` are then computed on new scenes.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from bench.core.progress import echo
from bench.data.random_scenes import Scenes
from bench.models.noise_wrn import MEAN, SIDE, STD, WIDTHS, NoiseWRN
from bench.models.weight_packages import SCALE, unpacked
from bench.models.weight_store import read_state
from bench.storage.files import write_atomic
from bench.training.divergence import descend

LEARNING_RATE = 0.12 / 256  # per image of a batch
RIDGE = 0.1  # as for the public covariance of dp-fc


class Projected(nn.Module):
    """The net below a projection head, which is dropped after training (Chen et al., arXiv:2002.05709)."""

    def __init__(self, net: NoiseWRN, width: int = 512, outputs: int = 128) -> None:
        super().__init__()
        self.net = net
        self.head = nn.Sequential(
            nn.Linear(WIDTHS[-1], width, bias=False), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, outputs)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (n, 3, h, w) to unit vectors (n, outputs)."""
        vectors: Tensor = self.head(self.net.maps(images)[1].mean((2, 3)))
        return functional.normalize(vectors.float(), dim=1)


def view(images: Tensor, draws: torch.Generator) -> Tensor:
    """Return an augmented view, normalised float (n, 3, SIDE, SIDE), of uint8 `images` (n, 3, h, w).

    A crop of 8% to 100% of the area, a flip, changes of brightness, contrast, saturation and hue, and sometimes grey:
    the augmentations of SimCLR without the blur, as is usual for images of this size.
    """
    count, device = len(images), images.device

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(count, generator=draws, device=device) * (high - low) + low

    area, ratio = uniform(0.08, 1), torch.exp(uniform(math.log(3 / 4), math.log(4 / 3)))
    wide, tall = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
    flip = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    theta = torch.zeros(count, 2, 3, device=device)
    theta[:, 0, 0], theta[:, 0, 2] = wide * flip, uniform(-1, 1) * (1 - wide)
    theta[:, 1, 1], theta[:, 1, 2] = tall, uniform(-1, 1) * (1 - tall)
    grid = functional.affine_grid(theta, [count, 3, SIDE, SIDE], align_corners=False)
    x = functional.grid_sample(images.float() / 255, grid, padding_mode="reflection", align_corners=False)

    jittered = (uniform(0, 1) < 0.8).float()

    def factor(strength: float) -> Tensor:
        return (1 + jittered * uniform(-strength, strength))[:, None, None, None]

    x = (x * factor(0.4)).clamp(0, 1)
    middle = x.mean((1, 2, 3), keepdim=True)
    x = (middle + (x - middle) * factor(0.4)).clamp(0, 1)
    # Saturation and hue: scale and turn the colour around the axis of greys.
    luma = x.new_tensor([0.299, 0.587, 0.114])
    grey = torch.einsum("nchw,c->nhw", x, luma)[:, None]
    angle = jittered * uniform(-0.1, 0.1) * 2 * math.pi
    kept = (uniform(0, 1) >= 0.2).float()[:, None, None, None]
    colour = (x - grey) * factor(0.4)
    cosine, sine = angle.cos()[:, None, None, None], angle.sin()[:, None, None, None]
    turned = colour.roll(1, 1) - colour.roll(-1, 1)
    axis = colour.mean(1, keepdim=True)
    colour = cosine * colour + sine * turned / math.sqrt(3) + (1 - cosine) * axis
    x = (grey + kept * colour).clamp(0, 1)
    return normalised(x)


def normalised(images: Tensor) -> Tensor:
    """Return `images` in [0, 1], (n, 3, h, w), normalised for the net."""
    mean, std = images.new_tensor(MEAN)[:, None, None], images.new_tensor(STD)[:, None, None]
    return ((images - mean) / std).contiguous(memory_format=torch.channels_last)


def loss_of(first: Tensor, second: Tensor) -> Tensor:
    """Return alignment plus uniformity of the unit vectors (n, d) of two views of the same images."""
    alignment = (first - second).square().sum(1).mean()

    def uniformity(vectors: Tensor) -> Tensor:
        near = torch.exp(4 * (vectors @ vectors.T - 1))  # exp(-2 d^2), for unit vectors
        count = len(vectors)
        return ((near.sum() - count) / (count * (count - 1))).log()

    return alignment + (uniformity(first) + uniformity(second)) / 2


def pretrain(
    into: Path, seconds: float, images: int, batch: int, device: torch.device, seed: int, compiled: bool
) -> None:
    """Pretrain for `seconds` on that many `images`; write the weights every minute, and at the end with whitening."""
    begin = time.monotonic()
    pool = torch.cat(list(Scenes(device, seed).batches(images)))
    echo(f"{len(pool)} images in {time.monotonic() - begin:.0f} s", err=True)
    torch.manual_seed(seed)
    net = Projected(NoiseWRN()).to(device)
    for weight in net.parameters():
        if weight.ndim == 4:  # the layout of the views
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    run = torch.compile(net) if compiled else net
    decayed = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim == 1]
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": 1e-4}, {"params": others, "weight_decay": 0.0}],
        lr=0.0, momentum=0.9, nesterov=True,
    )  # fmt: skip
    draws, step, kept = torch.Generator(device).manual_seed(seed), 0, time.monotonic()
    start, losses = time.monotonic(), []
    while (passed := (time.monotonic() - begin) / seconds) < 1:
        done = (time.monotonic() - start) / (seconds - (start - begin))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * batch * min(done / 0.03, 0.5 * (1 + math.cos(math.pi * done)))
        chosen = pool[torch.randint(len(pool), (batch,), generator=draws, device=device)]
        views = torch.cat([view(chosen, draws), view(chosen, draws)])
        with torch.autocast(device.type, torch.bfloat16):
            vectors = run(views)
        loss = loss_of(*torch.split(vectors, batch))
        descend(optimizer, loss)
        losses.append(loss.detach())
        step += 1
        if step % 20 == 0 and device.type == "cuda":
            torch.cuda.synchronize()  # so that the clock includes the queued work
        if step % 500 == 0:
            mean, pace = float(torch.stack(losses[-500:]).mean()), step / (time.monotonic() - start)
            echo(f"{passed:4.0%}: step {step}, loss {mean:.4f}, {pace:.1f} steps a second", err=True)
        if time.monotonic() - kept > 60:
            keep(net.net, into)
            kept = time.monotonic()
    echo(f"{step} steps of {batch} images in {time.monotonic() - begin:.0f} s", err=True)
    finish(net.net, into, device, seed + 1)


def finish(net: NoiseWRN, into: Path, device: torch.device, seed: int) -> None:
    """Write `net` with its weights rounded, and the whitening fitted to the rounded net."""
    keep(net, into)
    net.load_state_dict(unpacked(read_state(into)))
    whiten(net, device, seed)
    keep(net, into)


def whiten(net: NoiseWRN, device: torch.device, seed: int, images: int = 2_500) -> None:
    """Fit the whitening of `net` to new scenes at the size of the net's input."""
    scenes = torch.cat(list(Scenes(device, seed).batches(images)))
    small = functional.interpolate(scenes.float() / 255, SIDE, mode="area")
    net.eval().to(device)
    with torch.no_grad():
        net.white.fit(torch.cat([net.quarters(normalised(piece)) for piece in torch.split(small, 100)]), RIDGE)


def keep(net: NoiseWRN, into: Path) -> None:
    """Write the weights of `net` atomically: convolutions as int8 with a scale per output, all else as float16."""
    state: dict[str, Tensor] = {}
    for name, tensor in net.state_dict().items():
        values = tensor.detach().cpu().contiguous()
        if values.ndim == 4:
            scale = (values.flatten(1).abs().amax(1) / 127).clamp_min(1e-12)
            state[f"{name}{SCALE}"] = scale
            state[name] = (values / scale[:, None, None, None]).round().to(torch.int8)
        else:
            state[name] = values.half() if values.is_floating_point() else values
    write_atomic(into, save({name: state[name] for name in sorted(state)}))


def main() -> None:
    """Pretrain as the command line specifies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("into", type=Path, help="safetensors file to write")
    parser.add_argument("--minutes", type=float, default=7.0, help="duration, including the drawing of the images")
    parser.add_argument("--images", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=1024, help="images per step, each in two views")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile the net with torch's compiler")
    parser.add_argument("--pretrained", type=Path, help="weights that stay, so that only their whitening is fitted")
    given = parser.parse_args()
    device = torch.device(given.device)
    if given.pretrained:
        net = NoiseWRN()
        net.load_state_dict(unpacked(read_state(given.pretrained)), strict=False)
        finish(net, given.into, device, given.seed + 1)
        return
    torch.backends.cudnn.benchmark = True
    pretrain(given.into, 60 * given.minutes, given.images, given.batch, device, given.seed, given.compile)


if __name__ == "__main__":
    main()
