"""The figure of a robustness sweep: accuracy against the size of the changes, one line for each attack."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.core.errors import BenchError
from bench.storage.files import write_atomic

if TYPE_CHECKING:
    from attacks.robustness import RobustnessRow

_LINES = {  # label, colour (told apart by the colour-blind too), marker
    "fgsm": ("FGSM", "#E69F00", "o"),
    "pgd": ("PGD", "#0072B2", "s"),
    "square": ("Square (no gradients)", "#009E73", "^"),
    "autoattack": ("worst of all (AutoAttack)", "#000000", "D"),
}
_PARTS = ("#CC79A7", "#56B4E9", "#D55E00", "#8C564B")


class Point(NamedTuple):
    """A place on a curve; `low` and `high` are the bounds of the accuracy."""

    perturbation: float
    accuracy: float
    low: float
    high: float


def curves_of(rows: Iterable[RobustnessRow]) -> dict[str, list[Point]]:
    """Return the rows as one curve for each attack, sizes rising."""
    curves: dict[str, list[Point]] = {}
    for row in rows:
        curves.setdefault(row.attack, []).append(Point(row.perturbation, row.accuracy, row.low, row.high))
    return {name: sorted(points) for name, points in curves.items()}


def robustness_figure(path: Path, curves: Mapping[str, Sequence[Point]], title: str = "") -> None:
    """Write the curves, by attack, to `path` as a PNG; equal curves give equal bytes with the same matplotlib.

    The worst case is black, with its bounds as a band. Parts of AutoAttack are thin and dashed.
    """
    if not any(curves.values()):
        raise BenchError("there are no points to draw: run the robustness sweep first.")
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    sizes = sorted({point.perturbation for points in curves.values() for point in points})
    # Steps of half a grey value are told in grey values, as papers on colour images do.
    bytes_ = all(abs(size * 510 - round(size * 510)) < 1e-6 for size in sizes) and sizes[-1] * 255 <= 32
    scale = 255.0 if bytes_ else 1.0
    # No pyplot and no style of the user: the figure depends on the curves alone.
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(7.0, 4.5), dpi=150, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        parts = [name for name in curves if name not in _LINES]
        for name, points in curves.items():
            x = [point.perturbation * scale for point in points]
            y = [point.accuracy for point in points]
            if name in _LINES:
                label, colour, marker = _LINES[name]
                worst = name == "autoattack"
                # Behind the others, wide: lines that coincide with it stay visible on top.
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
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(-0.02, 1.02)
        axes.grid(color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
        if title:
            axes.set_title(title, fontsize=11)
        data = io.BytesIO()
        # The version of matplotlib would be in the file otherwise.
        canvas.print_png(data, metadata={"Software": None})  # type: ignore[no-untyped-call]
    write_atomic(path, data.getvalue())
