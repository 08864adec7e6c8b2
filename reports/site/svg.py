"""Inline SVG of the site; epsilons beyond the last decade and infinite ones have their own places on the log axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

LOWEST, HIGHEST = -2, 3
"""Decades of a row's picture, the same in every row so that rows compare."""
DECADES = {-2: "0.01", -1: "0.1", 0: "1", 1: "10", 2: "100", 3: "1000"}
"""Labels of the decades."""

WIDTH, HEIGHT, _LEFT, _DECADE = 184, 18, 4.0, 30.0
_END = _LEFT + (HIGHEST - LOWEST) * _DECADE
_FAR = _END + 9.0


def row_place(epsilon: float) -> float:
    """Return the x of `epsilon` in a row's picture, in pixels from the left."""
    if epsilon > 10.0**HIGHEST:
        return _FAR
    if epsilon <= 10.0**LOWEST:
        return _LEFT
    return _LEFT + (math.log10(epsilon) - LOWEST) * _DECADE


def row_picture(
    said: str, *, claimed: float | None, proven: float | None = None, audited: float | None = None,
    hollow: bool = False, covered: bool | None = None,
) -> Markup:  # fmt: skip
    """Return a row's picture: a bar from audited to proven epsilon (the true one is inside), a mark at the claimed one.

    A covered claim is a dot, others a red diamond; `hollow` if not checked by a run here; `said` is the text.
    """
    covered = (proven is not None and claimed is not None and proven <= claimed) if covered is None else covered
    parts = [
        f'<svg class="eps" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{escape(said)}</title>"
    ]
    if proven is not None:
        start = _LEFT - 2 if audited is None else row_place(audited)
        parts.append(_bar(start, proven))
        if audited is not None:
            parts.append(f'<path class="cap" d="M{start:.4g} 2V16"/>')
    if claimed is not None and math.isfinite(claimed):
        x = row_place(claimed)
        kind = ("c" if covered else "u") + (" hollow" if hollow else "")
        if covered:
            parts.append(f'<circle class="{kind}" cx="{x:.4g}" cy="9" r="4"/>')
        else:
            parts.append(f'<path class="{kind}" d="M{x:.4g} 2l6.5 7l-6.5 7l-6.5-7z"/>')
    parts.append("</svg>")
    return Markup("".join(parts))


def _bar(start: float, proven: float) -> str:
    if math.isinf(proven):
        return f'<path class="b open" d="M{start:.4g} 5H{WIDTH - 9}V1L{WIDTH - 1} 9L{WIDTH - 9} 17V13H{start:.4g}z"/>'
    if proven > 10.0**HIGHEST:
        end = _FAR + 5
        # A break in the bar: the number is beyond the axis.
        return (
            f'<path class="b" d="M{start:.4g} 5H{_END + 1:.4g}l-3 8H{start:.4g}z'
            f'M{_END + 5:.4g} 5H{end:.4g}V13H{_END + 2:.4g}z"/>'
        )
    return f'<path class="b" d="M{start:.4g} 5H{max(row_place(proven), start + 1):.4g}V13H{start:.4g}z"/>'


def row_axis() -> Markup:
    """Return the axis above the pictures of rows."""
    parts = [f'<svg class="axis" width="{WIDTH}" height="14" viewBox="0 0 {WIDTH} 14" aria-hidden="true">']
    for decade, label in DECADES.items():
        x = _LEFT + (decade - LOWEST) * _DECADE
        anchor = "start" if decade == LOWEST else "end" if decade == HIGHEST else "middle"
        shift = -3 if decade == LOWEST else 6 if decade == HIGHEST else 0
        parts.append(f'<text x="{x + shift:.4g}" y="9" text-anchor="{anchor}">{label}</text>')
        parts.append(f'<path d="M{x:.4g} 11v3"/>')
    parts.append(f'<text x="{WIDTH - 6}" y="9" text-anchor="middle">∞</text></svg>')
    return Markup("".join(parts))


COLOURS = 6
"""Method colours in the style sheet; one more is for systems that only papers report."""

SYMBOLS = {
    "circle": "M-4.3 0a4.3 4.3 0 1 0 8.6 0a4.3 4.3 0 1 0-8.6 0z",
    "square": "M-3.9-3.9H3.9V3.9H-3.9z",
    "triangle-up": "M0-5.2L5.2 3.8H-5.2z",
    "cross": "M-1.7-5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7z",
    "triangle-down": "M0 5.2L5.2-3.8H-5.2z",
    "star": "M0-5.8L1.5-2L5.5-1.8L2.4 0.8L3.4 4.7L0 2.5L-3.4 4.7L-2.4 0.8L-5.5-1.8L-1.5-2z",
    "x": "M-4.8-2.4L-2.4-4.8L0-2.4L2.4-4.8L4.8-2.4L2.4 0L4.8 2.4L2.4 4.8L0 2.4L-2.4 4.8L-4.8 2.4L-2.4 0z",
}
"""SVG path of each symbol. No diamond: it frames an uncovered claim."""


class Look(NamedTuple):
    """A method's colour number in the style sheet, and its symbol."""

    colour: int
    symbol: str


ONLY_REPORTED = Look(COLOURS, "circle")
"""For systems that are not on the board."""


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Return each method's look, by sorted name: 42 differ (6, 7 coprime), neighbours in both colour and symbol."""
    symbols = list(SYMBOLS)
    return {name: Look(i % COLOURS, symbols[i % len(symbols)]) for i, name in enumerate(sorted(set(methods)))}


def mark(look: Look, hollow: bool = False) -> Markup:
    """Return a method's symbol for the key below a plot."""
    return Markup(
        f'<svg class="mark k{look.colour}{" hollow" if hollow else ""}" viewBox="-6.5 -6.5 13 13" '
        f'aria-hidden="true"><path d="{SYMBOLS[look.symbol]}"/></svg>'
    )


@dataclass(frozen=True, slots=True)
class Point:
    """One row in its ranking's plot; accuracies in percent."""

    row: str
    said: str
    href: str
    accuracy: float
    spread: float | None
    claimed: float
    proven: float
    reported: bool
    uncovered: bool
    look: Look = ONLY_REPORTED


@dataclass(frozen=True, slots=True)
class Axis:
    """The epsilon axis: decades `low` to `high`, a band for values beyond them if any, then one for infinity."""

    low: int
    high: int
    beyond: bool

    def place(self, epsilon: float) -> float:
        """Return the place of `epsilon`, in decades."""
        if math.isinf(epsilon):
            return self.high + (1.5 if self.beyond else 0.5)
        if epsilon > 10.0**self.high:
            return self.high + 0.5
        return max(math.log10(epsilon), self.low) if epsilon > 0 else self.low

    @property
    def end(self) -> float:
        """The end of the axis, in decades."""
        return self.high + (2.0 if self.beyond else 1.0)


def axis_of(epsilons: Iterable[float]) -> Axis:
    """Return an axis for `epsilons`, at most from 0.01 to 1000."""
    finite = [epsilon for epsilon in epsilons if math.isfinite(epsilon) and epsilon > 0]
    low = max(math.floor(math.log10(min(finite, default=0.1))), LOWEST)
    high = min(math.ceil(math.log10(max(finite, default=10.0))), HIGHEST)
    high = max(high, low + 1)
    return Axis(low, high, any(epsilon > 10.0**high for epsilon in finite))


PLOT_WIDTH, PLOT_HEIGHT = 960, 320
_BOX = (52.0, 12.0, PLOT_WIDTH - 12.0, PLOT_HEIGHT - 44.0)


def scatter(points: Sequence[Point], axis: Axis, title: str) -> Markup:
    """Return accuracy against epsilon as SVG. Points are links that the tab key skips: the table has the same links."""
    left, top, right, bottom = _BOX
    unit = (right - left) / (axis.end - axis.low)
    least = min((p.accuracy - (p.spread or 0) for p in points), default=0.0)
    floor = max(0.0, 10 * math.floor((least - 2) / 10))

    def x(epsilon: float) -> float:
        return left + (axis.place(epsilon) - axis.low) * unit

    def y(accuracy: float) -> float:
        return bottom - (max(accuracy, floor) - floor) / (100 - floor) * (bottom - top)

    parts = [
        f'<svg class="scatter" viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" role="group" aria-label="{escape(title)}">'
    ]
    step = 10 if 100 - floor > 40 else 5
    for accuracy in range(int(floor), 101, step):
        parts.append(f'<path class="grid" d="M{left:.5g} {y(accuracy):.4g}H{right:.5g}"/>')
        parts.append(f'<text class="tick" x="{left - 7:.5g}" y="{y(accuracy) + 4:.4g}">{accuracy}</text>')
    for place, label in ticks(axis):
        at = left + (place - axis.low) * unit
        if place == int(place):
            parts.append(f'<path class="grid" d="M{at:.5g} {top:.5g}V{bottom:.5g}"/>')
        parts.append(f'<text class="tick mid" x="{at:.5g}" y="{bottom + 16:.5g}">{label}</text>')
    band = left + (axis.high - axis.low) * unit
    parts.append(
        f'<rect class="band" x="{band:.5g}" y="{top:.5g}" width="{right - band:.5g}" height="{bottom - top:.5g}"/>'
    )
    parts.append(
        f'<text class="name mid x-name" x="{(left + band) / 2:.5g}" y="{PLOT_HEIGHT - 8}">'
        "proven epsilon, replace-one</text>"
        f'<text class="name mid" transform="translate(14 {(top + bottom) / 2:.5g}) rotate(-90)">accuracy in %</text>'
    )
    for p in points:
        half = 0.0 if p.spread is None else p.spread / (100 - floor) * (bottom - top)
        bar = f'<path d="M0 {-half:.3g}V{half:.3g}"/>' if half > 4.5 else ""
        frame = '<path class="frame" d="M0-9.5l9.5 9.5l-9.5 9.5l-9.5-9.5z"/>' if p.uncovered else ""
        kinds = f"k{p.look.colour}" + (" hollow" if p.reported else "") + (" uncovered" if p.uncovered else "")
        proven = "Infinity" if math.isinf(p.proven) else f"{p.proven:.6g}"
        parts.append(
            f'<a class="pt {kinds}" tabindex="-1" href="{escape(p.href)}" '
            f'data-row="{escape(p.row)}" data-p="{x(p.proven):.5g}" data-c="{x(p.claimed):.5g}" '
            f'data-y="{y(p.accuracy):.4g}" data-proven="{proven}" '
            f'transform="translate({x(p.proven):.5g} {y(p.accuracy):.4g})">'
            f'<title>{escape(p.said)}</title>{bar}<path class="m" d="{SYMBOLS[p.look.symbol]}"/>{frame}</a>'
        )
    parts.append("</svg>")
    return Markup("\n".join(parts))


def ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return place (in decades) and label of each tick of `axis`."""
    found: list[tuple[float, str]] = [(decade, DECADES[decade]) for decade in range(axis.low, axis.high + 1)]
    if axis.beyond:
        found.append((axis.high + 0.5, f"> {DECADES[axis.high]}"))
    found.append((axis.end - 0.5, "∞"))
    return found
