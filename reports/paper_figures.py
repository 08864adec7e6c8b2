"""A paper's figure, drawn: ours filled and solid, what the paper prints hollow and dashed, gaps marked on the axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reports.evidence import Value
from reports.papers import FigureSpec, Material, Ours, Panel, PicturePanel, Point, Series, Theirs
from reports.style import (
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
    "panel", "series", "whose", "x", "y", "spread", "low", "high", "seeds", "preset", "claimed", "proven", "audited",
    "missing", "keys",
)  # fmt: skip


def draw_figure(
    spec: FigureSpec, panels: Sequence[Panel | PicturePanel], material: Material, stem: Path
) -> tuple[Path, Path]:
    """Draw the panels and write `stem`.pdf and `stem`.png; equal panels and records give equal bytes."""
    wide = spec.wide if spec.wide is not None else len(panels) > 1
    across = min(spec.columns or len(panels), len(panels))
    down = math.ceil(len(panels) / across)
    with paper_style():
        figure = new_figure(TWO_COLUMNS if wide else ONE_COLUMN, spec.height * down)
        grid = figure.add_gridspec(down, across)
        for place, panel in enumerate(panels):
            if isinstance(panel, PicturePanel):
                _draw_pictures(figure, grid[place // across, place % across], panel, material)
            else:
                axes = figure.add_subplot(grid[place // across, place % across])
                _draw_panel(axes, panel, material)
        return save_figure(figure, stem)


def _values(panel: Panel, material: Material) -> list[Value | None]:
    return [material.value(point.y) for series in panel.series for point in series.points]


def _x_of(point: Point, material: Material) -> float | str | None:
    if isinstance(point.x, Ours):
        value = material.value(point.x)
        return None if value is None else value.mean
    return point.x


def _draw_panel(axes: Any, panel: Panel, material: Material) -> None:
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_xscale(panel.x_scale)
    axes.set_yscale(panel.y_scale)
    (_draw_bars if panel.form == "bars" else _draw_lines)(axes, panel, material)
    if panel.y_limits is not None:
        axes.set_ylim(*panel.y_limits)
    elif not any(value is not None and math.isfinite(value.mean) for value in _values(panel, material)):
        axes.set_ylim(0, 1)  # nothing to read off: no numbers at the axis
        axes.set_yticks([])
    if panel.x_ticks:
        axes.set_xticks(panel.x_ticks, [f"{tick:g}" for tick in panel.x_ticks])
        axes.minorticks_off()
    if panel.gap:
        axes.text(0.5, 0.5, panel.gap, transform=axes.transAxes, ha="center", va="center", color=GREY, fontsize=7)
    if any(series.points for series in panel.series):
        axes.legend()


def _draw_lines(axes: Any, panel: Panel, material: Material) -> None:
    absent: list[tuple[float | str, int]] = []
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
        _draw_series(axes, series, points)
    _mark_absent(axes, absent)


def _mark_absent(axes: Any, absent: Sequence[tuple[float | str, int]]) -> None:
    """Mark at the axis what was not run; marks of several series at one place stand above each other."""
    heights: dict[float | str, int] = {}
    for x, slot in absent:
        height = heights.get(x, 0)
        heights[x] = height + 1
        axes.plot([x], [0.035 * height], marker="x", color=COLOURS[slot % len(COLOURS)], clip_on=False, markersize=3.8,
                  transform=axes.get_xaxis_transform(), linestyle="none", zorder=5)  # fmt: skip
    if absent:
        axes.plot([], [], marker="x", color=GREY, linestyle="none", label="not run")


def _errors(value: Value) -> tuple[float, float]:
    if value.spread is not None:
        return value.spread, value.spread
    if value.low is not None and value.high is not None:
        return max(value.mean - value.low, 0.0), max(value.high - value.mean, 0.0)
    return 0.0, 0.0


def _draw_series(axes: Any, series: Series, points: Sequence[tuple[float | str, float, tuple[float, float]]]) -> None:
    colour, marker = COLOURS[series.slot % len(COLOURS)], MARKERS[series.slot % len(MARKERS)]
    x, y = [point[0] for point in points], [point[1] for point in points]
    if series.whose == "formula":
        line = LINES[series.slot % len(LINES)]
        axes.plot(x, y, color=colour, linestyle=LINES[1] if series.dashed else line, label=series.label)
        return
    hollow = series.whose == "theirs"
    axes.plot(
        x, y, color=colour, marker=marker, markerfacecolor="white" if hollow else colour, markeredgecolor=colour,
        linestyle=LINES[1] if hollow or series.dashed else "-", label=series.label, zorder=3 if hollow else 4,
        markeredgewidth=0.9, linewidth=0.9 if hollow else 1.1,
    )  # fmt: skip
    low, high = [point[2][0] for point in points], [point[2][1] for point in points]
    if any(low) or any(high):
        axes.errorbar(x, y, yerr=[low, high], fmt="none", ecolor=colour, elinewidth=0.8, capsize=1.8, zorder=3)


def _draw_bars(axes: Any, panel: Panel, material: Material) -> None:
    names: list[str] = []
    for series in panel.series:
        for point in series.points:
            x = _x_of(point, material)
            if x is not None and str(x) not in names:
                names.append(str(x))
    width = 0.8 / max(len(panel.series), 1)
    absent: list[tuple[float | str, int]] = []
    for number, series in enumerate(panel.series):
        colour = COLOURS[series.slot % len(COLOURS)]
        labelled = False
        for point in series.points:
            value = material.value(point.y)
            x = names.index(str(_x_of(point, material))) - 0.4 + width * (number + 0.5)
            if value is None or not math.isfinite(value.mean):
                absent.append((x, series.slot))
                continue
            theirs = series.whose == "theirs"
            low, high = _errors(value)
            axes.bar(
                x, value.mean, width * 0.92, facecolor="white" if theirs else colour, edgecolor=colour,
                linestyle="--" if theirs else "-", linewidth=0.9, hatch=None if theirs else HATCHES[series.slot % 8],
                label=None if labelled else series.label, yerr=[[low], [high]] if low or high else None,
                error_kw={"elinewidth": 0.8, "capsize": 1.8}, alpha=None if theirs else 0.9,
            )  # fmt: skip
            labelled = True
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.6, max(len(names), 1) - 0.4)
    axes.grid(visible=False, axis="x")
    _mark_absent(axes, absent)


def _draw_pictures(figure: Any, place: Any, panel: PicturePanel, material: Material) -> None:
    from matplotlib.image import imread

    inner = place.subgridspec(1, len(panel.pictures))
    for number, picture in enumerate(panel.pictures):
        axes = figure.add_subplot(inner[0, number])
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(visible=False)
        title = picture.title if number or not panel.title else f"{panel.title}: {picture.title}"
        axes.set_title(title, fontsize=7)
        for spine in axes.spines.values():
            spine.set_visible(True)
            spine.set_color("0.8")
        file = material.picture(picture)
        if file is None:
            axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center", color=GREY)
            continue
        pixels = imread(file)
        if picture.crop is not None:
            high, wide = pixels.shape[:2]
            left, top, right, bottom = picture.crop
            pixels = pixels[int(top * high) : int(bottom * high), int(left * wide) : int(right * wide)]
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
                rows.append((title, picture.title, "ours", *[None] * 10, why, keys))
            continue
        for series in panel.series:
            for point in series.points:
                rows.append((title, series.label, series.whose, *_point_row(point, material)))
    return rows


def _point_row(point: Point, material: Material) -> tuple[object, ...]:
    value, entry = material.value(point.y), point.y
    found = None if isinstance(entry, float | int | Theirs) else material.find(entry.cell)
    missing = material.missing(entry)
    row = None if found is None else found.row
    return (
        _x_of(point, material),
        None if value is None else value.mean,
        None if value is None else value.spread,
        None if value is None else value.low,
        None if value is None else value.high,
        None if found is None or value is None else value.n,
        None if row is None else row.preset,
        None if row is None else row.claimed,
        None if row is None else row.proven,
        None if row is None else row.audited,
        "" if missing is None else missing.why,
        "" if row is None else "; ".join(row.keys),
    )
