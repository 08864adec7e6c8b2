"""The style of all paper figures: colour-blind safe (Okabe and Ito 2008), with a distinct marker per colour."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure

from bench.storage.files import write_atomic

ONE_COLUMN, TWO_COLUMNS = 3.5, 7.16
"""Column widths of two-column journals, in inches."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "ooo", "**")
LINES = ("-", (0, (5, 1.5)), (0, (3, 1.2, 1, 1.2)), (0, (1, 1)))
GREY = "0.45"
_DPI = 200
_STYLE = Path(__file__).with_name("style.mplstyle")


def paper_style() -> AbstractContextManager[None]:
    """Draw in this style, ignoring the user's style."""
    return matplotlib.style.context(["default", _STYLE])


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of this size in inches that is not in pyplot's global state."""
    return Figure(figsize=(width, height), layout="constrained", dpi=_DPI)


def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.pdf and `stem`.png without dates or versions; return both. Call inside :func:`paper_style`."""
    # Avoid savefig, which draws each format twice. The first drawing computes the layout of both.
    png, pdf = io.BytesIO(), io.BytesIO()
    canvas: Any = FigureCanvasAgg(figure)
    canvas.print_png(png, metadata={"Software": None})
    figure.set_layout_engine("none")
    canvas = FigureCanvasPdf(figure)
    canvas.print_pdf(pdf, metadata=dict.fromkeys(("CreationDate", "ModDate", "Creator", "Producer")))
    paths = stem.with_name(f"{stem.name}.pdf"), stem.with_name(f"{stem.name}.png")
    for path, data in zip(paths, (pdf, png), strict=True):
        write_atomic(path, data.getvalue())
    return paths
