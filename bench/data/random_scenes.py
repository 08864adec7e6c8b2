"""Coloured images of random processes, to pretrain a net on no data at all.

Three processes, in the proportions of `MIXTURE`:

    style nets      untrained generators with oriented filters, after StyleGAN-oriented (Baradad et al.,
                    arXiv:2106.05963), the process of DP-RandP
    formulas        random functions of the position, as random shaders are (Baradad et al., arXiv:2211.16412)
    dead leaves     shapes of many sizes that cover each other, filled with colours or pieces of the other two
                    (arXiv:2106.05963)

No constant is fitted to any data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

SIDE = 64
MIXTURE = {"style nets": 0.5, "formulas": 0.2, "dead leaves": 0.3}
GROUP = 256  # images that share one style net or the structure of one formula


class Scenes:
    """Draws images on `device` with `seed`; the same seed gives the same images on the same device and software."""

    def __init__(self, device: torch.device, seed: int, side: int = SIDE) -> None:
        self.device, self.side = device, side
        self._draws = torch.Generator(device).manual_seed(seed)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._draws, device=self.device)

    def _uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._draws, device=self.device) * (high - low) + low

    def _choice(self, count: int, *shape: int) -> Tensor:
        return torch.randint(count, shape, generator=self._draws, device=self.device)

    def batches(self, count: int) -> Iterator[Tensor]:
        """Yield at least `count` images in the proportions of `MIXTURE`: uint8 (n, 3, side, side)."""
        textures: list[Tensor] = []
        for name, share in MIXTURE.items():
            made = 0
            while made < share * count:
                batch = self._leaves(torch.cat(textures)) if name == "dead leaves" else self._group(name)
                if name != "dead leaves" and made < 32 * GROUP:
                    textures.append(batch)
                made += len(batch)
                yield batch

    def _group(self, name: str) -> Tensor:
        process: Callable[[], Tensor] = self._style_net if name == "style nets" else self._formula
        return self._coloured(process())

    def _coloured(self, raw: Tensor) -> Tensor:
        """Give each of the float images (n, 3, side, side) a random mean and contrast; return bytes."""
        raw = torch.nan_to_num(raw.float())
        count = len(raw)
        centred = raw - raw.mean((2, 3), keepdim=True)
        centred = centred / centred.flatten(1).std(1).clamp_min(1e-4)[:, None, None, None]
        # From soft fields to shapes with edges.
        gain = torch.exp(self._uniform(-1, 1.5, count, 1, 1, 1))
        centred = torch.tanh(gain * centred) / torch.tanh(gain)
        tint = 0.5 + 0.15 * self._normal(count, 1, 1, 1) + 0.1 * self._normal(count, 3, 1, 1)
        return self._bytes(tint + centred * self._uniform(0.1, 0.3, count, 1, 1, 1))

    def _bytes(self, images: Tensor) -> Tensor:
        """Desaturate each of the float `images` by a random amount and return bytes."""
        grey = images.mean(1, keepdim=True)
        images = grey + (images - grey) * self._uniform(0, 1, len(images), 1, 1, 1)
        return (images.clamp(0, 1) * 255).round().to(torch.uint8)

    def _oriented(self, channels: int, side: int) -> Tensor:
        """Return convolution weights (channels, channels, side, side): an oriented wavelet for each output channel."""
        angle, phase = self._uniform(0, math.pi, channels, 1, 1), self._uniform(0, 2 * math.pi, channels, 1, 1)
        frequency = self._uniform(0.5, 2.5, channels, 1, 1)
        at = torch.arange(side, device=self.device) - (side - 1) / 2
        across = at[None, None, :] * angle.cos() + at[None, :, None] * angle.sin()
        along = at[None, :, None] * angle.cos() - at[None, None, :] * angle.sin()
        shape = torch.exp(-(across**2 + (0.5 * along) ** 2) / (side / 3) ** 2) * torch.cos(frequency * across + phase)
        shape = shape / shape.flatten(1).norm(dim=1)[:, None, None]
        mixed: Tensor = self._normal(channels, channels, 1, 1) * shape[:, None] / math.sqrt(channels)
        return mixed

    def _style_net(self, channels: int = 64) -> Tensor:
        """Return raw images of one untrained generator: upsampling, oriented filters, noise, and styles per image."""
        styles = self._normal(GROUP, 32)
        maps = self._normal(1, channels, 4, 4).expand(GROUP, -1, -1, -1)
        maps = maps + 0.5 * self._normal(GROUP, channels, 4, 4)
        image = torch.zeros(GROUP, 3, 4, 4, device=self.device)
        spread_of_styles, noise = self._uniform(0.3, 1.2, 1), self._uniform(0.0, 0.5, 1)
        while True:
            for _ in range(2):
                weights = self._oriented(channels, 3 if maps.shape[-1] < 8 else 5)
                border = weights.shape[-1] // 2
                maps = functional.conv2d(functional.pad(maps, (border,) * 4, mode="circular"), weights)
                maps = maps + noise * self._normal(1, channels, 1, 1) * self._normal(GROUP, 1, *maps.shape[2:])
                maps = functional.leaky_relu(maps + 0.3 * self._normal(1, channels, 1, 1), 0.2)
                maps = functional.instance_norm(maps)
                scale = 1 + spread_of_styles * styles @ self._normal(32, channels) / math.sqrt(32)
                shift = 0.5 * spread_of_styles * styles @ self._normal(32, channels) / math.sqrt(32)
                maps = maps * scale[:, :, None, None] + shift[:, :, None, None]
            image = image + functional.conv2d(maps, self._normal(3, channels, 1, 1) / math.sqrt(channels))
            if maps.shape[-1] >= self.side:
                return image[..., : self.side, : self.side]
            maps = functional.interpolate(maps, scale_factor=2, mode="bilinear")
            image = functional.interpolate(image, scale_factor=2, mode="bilinear")

    def _fractal(self, count: int) -> Tensor:
        """Return smooth noise of several scales: (count, 2, side, side), with standard deviation about 1."""
        total = torch.zeros(count, 2, self.side, self.side, device=self.device)
        for cells in (2, 4, 8, 16):
            field = self._normal(count, 2, cells, cells)
            total += functional.interpolate(field, self.side, mode="bicubic") * (2 / cells)
        return total

    def _formula(self, width: int = 24) -> Tensor:
        """Return raw images of random functions of the position, with random weights for each image."""
        at = torch.linspace(-1, 1, self.side, device=self.device)
        grid = torch.stack(torch.meshgrid(at, at, indexing="xy")).expand(GROUP, -1, -1, -1)
        grid = grid + self._uniform(0, 0.4, GROUP, 1, 1, 1) * self._fractal(GROUP)
        turn = self._normal(GROUP, 2, 2) * self._uniform(0.7, 3, GROUP, 1, 1)
        points = torch.bmm(turn, grid.flatten(2)) + self._normal(GROUP, 2, 1)
        radius = points.norm(dim=1, keepdim=True)
        values = torch.cat([points, radius], 1)
        functions: list[Callable[[Tensor], Tensor]] = [
            torch.sin, torch.tanh, torch.abs, lambda x: torch.exp(-(x**2)), lambda x: torch.remainder(x, 1),
            lambda x: torch.sign(torch.sin(x)),
        ]  # fmt: skip
        for _ in range(int(self._choice(3, 1)) + 2):
            weights = self._normal(GROUP, width, values.shape[1]) * (1.5 / math.sqrt(values.shape[1]))
            values = torch.bmm(weights, values) + self._normal(GROUP, width, 1)
            parts = torch.split(values, width // len(functions), 1)
            values = torch.cat([made(part) for made, part in zip(functions, parts, strict=True)], 1)
        raw = torch.bmm(self._normal(GROUP, 3, width) / math.sqrt(width), values)
        return raw.view(GROUP, 3, self.side, self.side)

    def _leaves(self, textures: Tensor, shapes: int = 60) -> Tensor:
        """Return images of shapes that cover each other, front to back, sizes with density r^-3."""
        count, side = GROUP, self.side
        at = torch.arange(side, device=self.device).float()
        rows, columns = at[None, :, None], at[None, None, :]
        image = torch.zeros(count, 3, side, side, device=self.device)
        free = torch.ones(count, 1, side, side, dtype=torch.bool, device=self.device)
        least = self._uniform(2, 8, count)
        for number in range(shapes):
            last = number == shapes - 1
            # Inverse transform of the density r^-3 on [least, side / 2].
            share = self._uniform(0, 1, count)
            radius = (1 / least**2 - share * (1 / least**2 - 4 / side**2)).rsqrt()
            centre = self._uniform(0, side, count, 2)
            angle, ratio = self._uniform(0, math.pi, count), self._uniform(0.4, 1, count)
            down, right = rows - centre[:, :1, None], columns - centre[:, 1:, None]
            u = right * angle.cos()[:, None, None] + down * angle.sin()[:, None, None]
            v = (down * angle.cos()[:, None, None] - right * angle.sin()[:, None, None]) / ratio[:, None, None]
            kind = self._choice(3, count)[:, None, None]
            ellipse = u**2 + v**2
            box = 2 * torch.maximum(u.abs(), v.abs()) ** 2
            triangle = torch.maximum(torch.maximum(v, 0.87 * u - 0.5 * v), -0.87 * u - 0.5 * v).clamp_min(0) ** 2 * 4
            inside = (
                torch.where(kind == 0, ellipse, torch.where(kind == 1, box, triangle)) <= radius[:, None, None] ** 2
            )
            new = free & (inside[:, None] | last)
            fill = self._uniform(0, 1, count, 3, 1, 1).expand(-1, -1, side, side)
            pieces = textures[self._choice(len(textures), count)].float() / 255
            fill = torch.where(self._uniform(0, 1, count, 1, 1, 1) < 0.7, pieces, fill)
            image = torch.where(new, fill, image)
            free &= ~new
        return self._bytes(image)
