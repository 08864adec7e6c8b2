"""A public simulator: digits or other characters in matplotlib's fonts, in several sizes and angles.

After DrawText of the authors of Sim-PE (microsoft/DPSDA, pe/api/image/draw_text_api.py), with its sizes, strokes and
angles. Their example downloads a folder of some thousand fonts; this has 22. A character is centred in its image, and
rotation is bilinear.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

SIDE = 28  # pixels; images of another size are resampled
FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-BoldOblique", "-Oblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-BoldOblique", "-Oblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-BoldItalic", "-Italic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "BolIta", "Italic")),
    *("cmb10", "cmmi10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)  # fmt: skip
SIZES = range(10, 30)  # pixels
STROKES = range(3)  # pixels
ANGLES = range(-30, 31)  # degrees
TEXT, FONT, SIZE, STROKE, ANGLE = range(5)  # columns of the image parameters


@dataclass(frozen=True)
class Degrees:
    """How far a variation's parameters may differ from its image's."""

    font: float
    """Probability of another font."""
    size: int
    stroke: int
    angle: int


def random_parameters(count: int, texts: str, draws: torch.Generator) -> Tensor:
    """Return random parameters, int64 (count, 5): indices of text and font, size, stroke and angle."""
    ranges = [range(len(texts)), range(len(FONTS)), SIZES, STROKES, ANGLES]
    return torch.stack([torch.randint(one.start, one.stop, (count,), generator=draws) for one in ranges], 1)


def varied(parameters: Tensor, degrees: Degrees, draws: torch.Generator) -> Tensor:
    """Return a variation of each image's `parameters` (n, 5), with the same text."""
    found, count = parameters.clone(), len(parameters)
    other = torch.rand(count, generator=draws) < degrees.font
    found[:, FONT] = torch.where(other, torch.randint(len(FONTS), (count,), generator=draws), found[:, FONT])
    for column, degree, allowed in (
        (SIZE, degrees.size, SIZES), (STROKE, degrees.stroke, STROKES), (ANGLE, degrees.angle, ANGLES),
    ):  # fmt: skip
        moved = found[:, column] + torch.randint(-degree, degree + 1, (count,), generator=draws)
        found[:, column] = moved.clamp(allowed.start, allowed.stop - 1)
    return found


def rendered(parameters: Tensor, texts: str, shape: tuple[int, int, int]) -> Tensor:
    """Return the images, float (n, *shape) in [0, 1], of `parameters` (n, 5): white on black."""
    upright = _upright(texts)[
        parameters[:, TEXT], parameters[:, FONT], parameters[:, SIZE] - SIZES.start, parameters[:, STROKE]
    ]
    angles = parameters[:, ANGLE] * (math.pi / 180)
    zeros, cosines, sines = torch.zeros(len(angles)), angles.cos(), angles.sin()
    turns = torch.stack([cosines, -sines, zeros, sines, cosines, zeros], 1).view(-1, 2, 3)
    grid = functional.affine_grid(turns, [len(turns), 1, SIDE, SIDE], align_corners=False)
    images = functional.grid_sample(upright[:, None].float() / 255, grid, align_corners=False)
    if shape[1:] != (SIDE, SIDE):
        images = functional.interpolate(images, shape[1:], mode="bilinear", antialias=True)
    return images.clamp(0, 1).expand(-1, shape[0], -1, -1)


@functools.lru_cache(maxsize=1)
def _upright(texts: str) -> Tensor:
    """Return images of all texts, fonts, sizes and strokes: uint8 (texts, fonts, sizes, strokes, SIDE, SIDE)."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    drawn = np.zeros((len(texts), len(FONTS), len(SIZES), len(STROKES), SIDE, SIDE), dtype=np.uint8)
    for font, name in enumerate(FONTS):
        for size in SIZES:
            face = ImageFont.truetype(folder / f"{name}.ttf", size)
            for text, stroke in ((text, stroke) for text in range(len(texts)) for stroke in STROKES):
                image = Image.new("L", (SIDE, SIDE))
                draw = ImageDraw.Draw(image)
                left, top, right, bottom = draw.textbbox((0, 0), texts[text], font=face, stroke_width=stroke)
                place = ((SIDE - left - right) / 2, (SIDE - top - bottom) / 2)
                draw.text(place, texts[text], 255, face, stroke_width=stroke, stroke_fill=255)
                drawn[text, font, size - SIZES.start, stroke] = np.asarray(image)
    return torch.from_numpy(drawn)
