"""Draw a paper's figure: our results filled and solid, printed ones hollow and dashed, gaps marked on the axis."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from bench.reports.papers.evidence import Value
from bench.reports.papers.notes import Marks, marked_panels, note
from bench.reports.papers.spec import FigureSpec, Material, Ours, Panel, PaperPoint, PicturePanel, Series, Theirs
from bench.reports.papers.style import (
    COLOURS,
    GREY,
    HATCHES,
    LINES,
    MARKERS,
    ONE_COLUMN,
    TWO_COLUMNS,
    new_figure,
    paper_style,
    save_figure,
)

POINT_COLUMNS = (
    "panel", "series", "whose", "x", "y", "spread", "low", "high", "seeds", "preset", "note", "claimed", "proven",
    "audited", "missing", "keys",
)  # fmt: skip


def draw_figure(
    spec: FigureSpec, panels: Sequence[Panel | PicturePanel], material: Material, stem: Path
) -> tuple[Path, Path]:
    """Draw the panels into `stem`.pdf and `stem`.png; equal panels and records give identical bytes."""
    marks = Marks(material)
    panels = marked_panels(panels, marks)
    wide = spec.wide if spec.wide is not None else len(panels) > 1
    across = min(spec.columns or len(panels), len(panels))
    rows = [panels[first : first + across] for first in range(0, len(panels), across)]
    heights = [spec.height + _LEGEND_LINE * max(map(_legend_lines, row)) for row in rows]
    # Each row has the same number of pictures, so that all have the same size.
    most = max((len(panel.pictures) for panel in panels if isinstance(panel, PicturePanel)), default=0)
    told = ["; ".join(marks.lines)] if wide else marks.lines
    below = [line for text in told for line in textwrap.wrap(text, 150 if wide else 72)]
    with paper_style():
        figure = new_figure(TWO_COLUMNS if wide else ONE_COLUMN, sum(heights) + _NOTE_LINE * len(below))
        if below:
            figure.supxlabel("\n".join(below), fontsize=6, color=GREY)
        grid = figure.add_gridspec(len(rows), across, height_ratios=heights)
        for place, panel in enumerate(panels):
            row = place // across
            # A picture that has no neighbour spans the row.
            alone = isinstance(panel, PicturePanel) and len(rows[row]) == 1
            where = grid[row, :] if alone else grid[row, place % across]
            if isinstance(panel, PicturePanel):
                _draw_pictures(figure, where, panel, most, material)
            else:
                draw_panel(figure.add_subplot(where), panel, material)
        return save_figure(figure, stem)


_LEGEND_LINE = 0.15
"""Inches per line of a legend."""
_NOTE_LINE = 0.11
"""Inches per line of the notes below all panels."""


def _legend_columns(panel: Panel) -> int:
    return 1 if any(len(series.label) > 24 for series in panel.series) else 2


def _legend_lines(panel: Panel | PicturePanel) -> int:
    if isinstance(panel, PicturePanel):
        return 0
    return math.ceil((len(panel.series) + 1) / _legend_columns(panel))


def _x_of(point: PaperPoint, material: Material) -> float | str | None:
    if isinstance(point.x, Ours):
        value = material.value(point.x)
        return None if value is None else value.mean
    return point.x


def draw_panel(axes: Any, panel: Panel, material: Material) -> None:
    """Draw a panel on Matplotlib's `axes`, with a cross below the data for each cell that was not run."""
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_xscale(panel.x_scale)
    axes.set_yscale(panel.y_scale)
    absent = (_draw_bars if panel.form == "bars" else _draw_lines)(axes, panel, material)
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    if panel.x_limits is not None:
        axes.set_xlim(*panel.x_limits)
    if panel.x_ticks:
        axes.set_xticks(panel.x_ticks, [f"{tick:g}" for tick in panel.x_ticks])
        axes.minorticks_off()
    _mark_absent(axes, absent)
    handles = [_handle(series, panel.form) for series in panel.series if series.points]
    if absent:
        handles.append(Line2D([], [], marker="x", color=GREY, linestyle="none", label="not run"))
    if handles:
        # Below the axes, ticks and label, because inside the axes it would hide points.
        lines = 1 + bool(panel.x_label) + max(tick.get_text().count("\n") for tick in axes.get_xticklabels())
        down = ScaledTranslation(0, -0.06 - 0.14 * lines, axes.figure.dpi_scale_trans)
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=_legend_columns(panel),
                    bbox_transform=axes.transAxes + down)  # fmt: skip


_Absent = list[tuple[float | str, int]]
"""The x and slot of each missing point."""


def _draw_lines(axes: Any, panel: Panel, material: Material) -> _Absent:
    """Draw the series as lines; return the missing points."""
    absent: _Absent = []
    for series in panel.series:
        points: list[tuple[float | str, float, tuple[float, float]]] = []
        for point in series.points:
            x, value = _x_of(point, material), material.value(point.y)
            if x is None:
                continue
            if value is None or not math.isfinite(value.mean):
                absent.append((x, series.slot))
                continue
            points.append((x, value.mean, _errors(value)))
        if any(isinstance(point.x, Ours) for point in series.points):
            points.sort(key=lambda point: float(point[0]))  # x comes from records
        _draw_series(axes, series, points)
    return absent


def _mark_absent(axes: Any, absent: _Absent) -> None:
    """Draw a cross for each missing point in a separate strip below the data, so that no cross covers a point."""
    if not absent:
        return
    heights: dict[float | str, int] = {}
    for x, slot in absent:
        height = heights.get(x, 0)
        heights[x] = height + 1
        axes.plot([x], [_CROSS * (height + 0.6)], marker="x", color=COLOURS[slot % len(COLOURS)], markersize=3.8,
                  transform=axes.get_xaxis_transform(), linestyle="none", zorder=5)  # fmt: skip
    share = _CROSS * (max(heights.values()) + 0.2)
    low, high = axes.get_ylim()
    ticks = {minor: [t for t in axes.get_yticks(minor=minor) if low <= t <= high] for minor in (False, True)}
    scale = axes.yaxis.get_transform()
    bottom, top = scale.transform([low, high])
    (below,) = scale.inverted().transform([bottom - (top - bottom) * share / (1 - share)])
    axes.axhspan(below, low, color="0.96", linewidth=0, zorder=0)
    for minor, there in ticks.items():
        axes.set_yticks(there, minor=minor)
    axes.set_ylim(below, high)


_CROSS = 0.055
"""Height of a row of crosses, as a share of the axes."""


def _errors(value: Value) -> tuple[float, float]:
    if value.spread is not None:
        return value.spread, value.spread
    if value.low is not None and value.high is not None:
        return max(value.mean - value.low, 0.0), max(value.high - value.mean, 0.0)
    return 0.0, 0.0


def _line_look(series: Series) -> dict[str, Any]:
    colour = COLOURS[series.slot % len(COLOURS)]
    if series.whose == "formula":
        return {"color": colour, "linestyle": LINES[1] if series.dashed else LINES[series.slot % len(LINES)]}
    hollow = series.whose == "theirs"
    return {
        "color": colour,
        "marker": MARKERS[series.slot % len(MARKERS)],
        "markerfacecolor": "white" if hollow else colour,
        "markeredgecolor": colour,
        "markeredgewidth": 0.9,
        "linestyle": LINES[1] if hollow or series.dashed else "-",
        "linewidth": 0.9 if hollow else 1.1,
    }


def _bar_look(series: Series) -> dict[str, Any]:
    colour = COLOURS[series.slot % len(COLOURS)]
    hatch = HATCHES[series.slot % len(HATCHES)]
    if series.whose == "theirs":
        return {"facecolor": "white", "edgecolor": colour, "linestyle": "--", "linewidth": 0.9, "hatch": hatch}
    # A light face keeps the hatch visible in black-and-white print.
    light = tuple(1 - 0.55 * (1 - int(colour[place : place + 2], 16) / 255) for place in (1, 3, 5))
    return {"facecolor": light, "edgecolor": colour, "linewidth": 0.8, "hatch": hatch}


def _handle(series: Series, form: str) -> Any:
    if form == "lines":
        return Line2D([], [], label=series.label, **_line_look(series))
    return Patch(label=series.label, **_bar_look(series))


def _draw_series(axes: Any, series: Series, points: Sequence[tuple[float | str, float, tuple[float, float]]]) -> None:
    x, y = [point[0] for point in points], [point[1] for point in points]
    axes.plot(x, y, zorder=3 if series.whose == "theirs" else 4, **_line_look(series))
    low, high = [point[2][0] for point in points], [point[2][1] for point in points]
    if any(low) or any(high):
        colour = COLOURS[series.slot % len(COLOURS)]
        axes.errorbar(x, y, yerr=[low, high], fmt="none", ecolor=colour, elinewidth=0.8, capsize=1.8, zorder=3)


def _draw_bars(axes: Any, panel: Panel, material: Material) -> _Absent:
    """Draw the series as bars grouped by category; return the missing points like :func:`_draw_lines`."""
    groups: dict[str, list[tuple[Series, Value | None]]] = {}
    for series in panel.series:
        for point in series.points:
            x = _x_of(point, material)
            if x is not None:
                groups.setdefault(str(x), []).append((series, material.value(point.y)))
    width = 0.8 / max(map(len, groups.values()), default=1)
    absent: _Absent = []
    for middle, group in enumerate(groups.values()):
        for place, (series, value) in enumerate(group):
            x = middle + width * (place - (len(group) - 1) / 2)
            if value is None or not math.isfinite(value.mean):
                absent.append((x, series.slot))
                continue
            low, high = _errors(value)
            error = [[low], [high]] if low or high else None
            axes.bar(x, value.mean, width * 0.9, yerr=error, error_kw={"elinewidth": 0.8, "capsize": 1.8},
                     **_bar_look(series))  # fmt: skip
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_xlim(-0.6, max(len(groups), 1) - 0.4)
    axes.grid(visible=False, axis="x")
    return absent


def _draw_pictures(figure: Any, place: Any, panel: PicturePanel, most: int, material: Material) -> None:
    inner = place.subgridspec(1, most)
    for number, picture in enumerate(panel.pictures):
        axes = figure.add_subplot(inner[0, number])
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
        title = picture.title if number or not panel.title else f"{panel.title}: {picture.title}"
        axes.set_title(title)
        for spine in axes.spines.values():
            spine.set_visible(True)
            spine.set_color("0.8")
        file = material.picture(picture)
        assert file is not None  # pictures without a file are left out
        pixels = imread(file)
        if picture.crop is not None:
            high, wide = pixels.shape[:2]
            left, top, right, bottom = picture.crop
            begin, across = int(top * high), (int(left * wide), int(right * wide))
            end = begin + across[1] - across[0] if picture.square else int(bottom * high)
            pixels = pixels[begin:end, across[0] : across[1]]
        axes.imshow(pixels, cmap="gray", interpolation="nearest")


def point_rows(panels: Sequence[Panel | PicturePanel], material: Material) -> list[tuple[object, ...]]:
    """Return the points of a figure in the order of :data:`POINT_COLUMNS`."""
    rows: list[tuple[object, ...]] = []
    for number, panel in enumerate(panels, start=1):
        title = panel.title or str(number)
        if isinstance(panel, PicturePanel):
            for picture in panel.pictures:
                missing = material.missing(picture)
                found = material.find(picture.cell)
                keys = "" if found is None else found.row.keys[0]
                why = "" if missing is None else missing.why
                told = note(picture, material)
                rows.append((title, picture.title, "ours", *[None] * 7, told, *[None] * 3, why, keys))
            continue
        for series in panel.series:
            for point in series.points:
                rows.append((title, series.label, series.whose, *_point_row(point, material)))
    return rows


def _point_row(point: PaperPoint, material: Material) -> tuple[object, ...]:
    value, entry = material.value(point.y), point.y
    found = None if isinstance(entry, float | int | Theirs) else material.find(entry.cell)
    missing = material.missing(entry)
    row = None if found is None else found.row
    numbers = (None,) * 4 if value is None else (value.mean, value.spread, value.low, value.high)
    told = note(entry, material)
    of_row = (None,) * 5 if row is None else (row.preset, told, row.claimed, row.proven, row.audited)
    return (
        _x_of(point, material), *numbers, None if found is None or value is None else value.n, *of_row,
        "" if missing is None else missing.why, "" if row is None else "; ".join(row.keys),
    )  # fmt: skip
