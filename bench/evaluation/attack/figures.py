"""Figures of attacks: image grids, ROC curves, sweeps. Equal inputs give equal bytes under one matplotlib version."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from bench.core.errors import BenchError
from bench.core.lazy_libraries import Image, backend_agg, matplotlib, style
from bench.privacy.auditing.bounds import allowed_tpr
from bench.results.pictures import LARGEST_PICTURE
from bench.storage.files import write_atomic

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

    from bench.evaluation.attack.robustness_rows import RobustnessRow

_DPI = 120
_GOOD, _BAD, _GREY = "#1a7f37", "#b42318", "#6b7280"
_COLOURS = ("#1d4ed8", "#c2410c", "#7e22ce", "#0f766e", "#a16207", "#be185d")
_CELL = 0.95  # length of an image's longer side in inches


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an image grid: `images` (rows, channels, height, width), float in [0, 1] or uint8.

    `good` colours the captions: True green, False red, None grey. `absent` rows show an empty frame.
    """

    title: str
    images: torch.Tensor
    captions: Sequence[str] = ()
    good: Sequence[bool | None] = ()
    apart: bool = False
    absent: Sequence[bool] = ()


def comparison_grid(
    path: Path, rows: Sequence[str], students: Sequence[Column], references: Sequence[Column], *, title: str,
    note: str = "",
) -> None:  # fmt: skip
    """Write a PNG image grid; `references` show public data only."""
    columns = [*students, *(replace(column, apart=not place) for place, column in enumerate(references))]
    height, width = columns[0].images.shape[-2:]
    longer = max(height, width)
    cell_w, cell_h = _CELL * width / longer, _CELL * height / longer
    captioned = any(column.captions for column in columns)
    step_w, step_h = max(cell_w, 0.82) + 0.1, cell_h + (0.27 if captioned else 0.08)
    left = 0.25 + 0.085 * max(map(len, rows))
    lines = max(column.title.count("\n") + 1 for column in columns)
    notes = textwrap.wrap(note, max(40, int((left + len(columns) * step_w) * 15)))
    head = 0.15 + 0.26 * (title.count("\n") + 1) + 0.17 * len(notes) + 0.17 * lines + (0.14 if notes else 0.04)
    places, x = [], left
    for column in columns:
        x += 0.3 if column.apart else 0.0
        places.append(x)
        x += step_w
    wide, high = max(x + 0.1, 0.25 + 0.1 * max(map(len, title.split("\n")))), head + len(rows) * step_h + 0.08
    figure = _figure(wide, high)
    figure.text(0.12 / wide, 1 - 0.12 / high, title, fontsize=11, fontweight="bold", va="top")
    below = 0.12 + 0.26 * (title.count("\n") + 1)
    figure.text(0.12 / wide, 1 - below / high, "\n".join(notes), fontsize=8, va="top", color=_GREY)
    for column, start in zip(columns, places, strict=True):
        middle = (start + cell_w / 2) / wide
        figure.text(middle, 1 - (head - 0.07) / high, column.title, fontsize=8.5, ha="center", va="bottom")
        for place in range(len(rows)):
            top = head + place * step_h
            _draw(figure, (start / wide, 1 - (top + cell_h) / high, cell_w / wide, cell_h / high), column, place)
            if column.captions:
                verdict = column.good[place] if column.good else None
                colour = _GREY if verdict is None else (_GOOD if verdict else _BAD)
                where = 1 - (top + cell_h + 0.03) / high
                text = column.captions[place]
                figure.text(middle, where, text, fontsize=7.5, ha="center", va="top", color=colour)
    for place, name in enumerate(rows):
        where = 1 - (head + place * step_h + cell_h / 2) / high
        figure.text((left - 0.1) / wide, where, name, fontsize=8.5, ha="right", va="center")
    _save_small(figure, path)


def _draw(figure: Figure, bounds: tuple[float, float, float, float], column: Column, place: int) -> None:
    """Draw an image and its frame at `bounds`. Hundreds of separate axes would take most of an attack's time."""
    cell, across = matplotlib.transforms.Bbox.from_bounds(*bounds), figure.transFigure
    if column.absent and column.absent[place]:
        middle = (cell.x0 + cell.x1) / 2, (cell.y0 + cell.y1) / 2
        figure.text(*middle, "none", ha="center", va="center", fontsize=8, color=_GREY)
    else:
        drawn = matplotlib.image.BboxImage(
            matplotlib.transforms.TransformedBbox(cell, across),
            cmap="gray", norm=matplotlib.colors.Normalize(0, 255), interpolation="nearest", origin="upper",
        )  # fmt: skip
        drawn.set_data(_pixels(column.images[place]))
        figure.add_artist(drawn)
    frame = matplotlib.patches.Rectangle(
        (cell.x0, cell.y0), cell.width, cell.height, transform=across, fill=False, lw=0.5, ec="#9ca3af"
    )
    figure.add_artist(frame)


def _pixels(image: torch.Tensor) -> NDArray[np.uint8]:
    """Return uint8 (height, width) for one channel, (height, width, 3) for three."""
    from bench.experiments.image_grid import as_bytes

    array: NDArray[np.uint8] = as_bytes(image).numpy()
    return array[0] if array.shape[0] == 1 else array.transpose(1, 2, 0)


def roc_figure(
    path: Path, curves: Mapping[str, tuple[ArrayLike, ArrayLike]], epsilon: float, delta: float, *, title: str = ""
) -> None:
    """Write a PNG with ROC curves on logarithmic axes from 1e-4, the ceiling from a finite `epsilon`, and a diagonal.

    `curves` gives false- and true-positive rates by name, as :func:`bench.metrics.roc.roc` does.
    """
    figure, least = _figure(5.6, 5.2), 1e-4
    axes = figure.add_axes((0.13, 0.11, 0.83, 0.8))
    axes.set_xscale("log")
    axes.set_yscale("log")
    grid = np.geomspace(least, 1, 400)
    if math.isfinite(epsilon):
        limit = np.maximum(allowed_tpr(grid, epsilon, delta), least)
        label = f"most that ε = {epsilon:.4g}, δ = {delta:.0e} allows"
        axes.plot(grid, limit, color="black", linewidth=1.4, label=label)
        axes.fill_between(grid, limit, 1.0, color="#e5e7eb", linewidth=0, label="ruled out by the proof")
    for place, (name, (false, true)) in enumerate(curves.items()):
        # Draw a rate of 0 at the start of the logarithmic axis.
        x, y, colour = np.maximum(false, least / 10), np.maximum(true, least / 10), _COLOURS[place % len(_COLOURS)]
        axes.plot(x, y, color=colour, linestyle="-", linewidth=1.6, label=name, drawstyle="steps-post")
    axes.plot(grid, grid, color=_GREY, linewidth=1, linestyle=(0, (4, 3)), label="guessing")
    axes.set_xlim(least, 1)
    axes.set_ylim(least, 1.15)
    axes.set_xlabel("false-positive rate", fontsize=10)
    axes.set_ylabel("true-positive rate", fontsize=10)
    axes.grid(True, which="major", color="#e5e7eb", linewidth=0.6)
    axes.tick_params(labelsize=9)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8.5, loc="lower right", framealpha=0.95)
    axes.set_title(title, fontsize=11, loc="left")
    write_atomic(path, _png(figure, _DPI))


_LINES = {  # label, colour (safe for colour-blind readers), marker
    "fgsm": ("FGSM", "#E69F00", "o"),
    "pgd": ("PGD", "#0072B2", "s"),
    "square": ("Square (no gradients)", "#009E73", "^"),
    "autoattack": ("worst of all (AutoAttack)", "#000000", "D"),
}
_PARTS = ("#CC79A7", "#56B4E9", "#D55E00", "#8C564B")


def robustness_figure(path: Path, rows: Sequence[RobustnessRow], title: str = "") -> None:
    """Write a PNG of accuracy against perturbation size, a line per attack; raise :class:`BenchError` without rows."""
    if not rows:
        raise BenchError("there are no points to draw: run the robustness sweep first.")
    sizes = sorted({row.perturbation for row in rows})
    # Label multiples of half a grey level in grey levels, as in papers on colour images.
    bytes_ = all(abs(size * 510 - round(size * 510)) < 1e-6 for size in sizes) and sizes[-1] * 255 <= 32
    scale = 255.0 if bytes_ else 1.0
    curves: dict[str, list[RobustnessRow]] = {}
    for row in sorted(rows, key=lambda row: row.perturbation):
        curves.setdefault(row.attack, []).append(row)
    # Ignore the user's style: the figure depends only on the rows.
    with style.context("default"):
        figure = _figure(7.0, 4.5, dpi=150, layout="constrained")
        axes = figure.add_subplot()
        parts = [name for name in curves if name not in _LINES]
        for name, points in curves.items():
            x = [point.perturbation * scale for point in points]
            y = [point.accuracy for point in points]
            if name in _LINES:
                label, colour, marker = _LINES[name]
                worst = name == "autoattack"
                # Draw it wide and behind the others, so that coinciding lines stay visible.
                axes.plot(x, y, color=colour, marker=marker, label=label, linewidth=3.2 if worst else 1.8,
                          markersize=8 if worst else 5.5, zorder=2 if worst else 3)  # fmt: skip
                if worst:
                    axes.fill_between(x, [p.low for p in points], [p.high for p in points], color="0.85", zorder=1)
            else:
                colour = _PARTS[parts.index(name) % len(_PARTS)]
                axes.plot(x, y, color=colour, linestyle="--", linewidth=1.2, label=f"  part: {name}", zorder=4)
        axes.set_xlabel("largest change of a value" + (", in 1/255" if bytes_ else " (images in [0, 1])"))
        axes.set_ylabel("accuracy")
        axes.set_xticks([size * scale for size in sizes], [f"{size * scale:g}" for size in sizes])
        axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
        axes.set_ylim(-0.02, 1.02)
        axes.grid(color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
        axes.set_title(title, fontsize=11)
        write_atomic(path, _png(figure, 150))


def _figure(wide: float, high: float, dpi: int = _DPI, layout: Literal["constrained"] | None = None) -> Figure:
    # Avoid pyplot, which has global state, keeps every figure and needs a display.
    figure = matplotlib.figure.Figure(figsize=(wide, high), dpi=dpi, facecolor="white", layout=layout)
    backend_agg.FigureCanvasAgg(figure)
    return figure


def _save_small(figure: Figure, path: Path) -> None:
    """Save a grid of photographs in few colours and, if need be, at a lower resolution, so that it may be published."""
    for dpi in (_DPI, 90, 72, 56):
        drawn = Image.open(io.BytesIO(_png(figure, dpi))).convert("RGB")
        file = io.BytesIO()
        # This method keeps the colours of the few coloured letters in a grey picture.
        drawn.quantize(128, Image.Quantize.MAXCOVERAGE).save(file, "PNG", optimize=True)
        if file.tell() <= LARGEST_PICTURE:
            break
    write_atomic(path, file.getvalue())


def _png(figure: Figure, dpi: int) -> bytes:
    file = io.BytesIO()
    # By default the file contains matplotlib's version, which changes the bytes.
    figure.savefig(file, format="png", dpi=dpi, metadata={"Software": None})
    return file.getvalue()
