"""Inline SVG of the site. Its log axes reserve places for epsilons beyond the last decade and for infinity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from markupsafe import Markup, escape

LOWEST, HIGHEST = -2, 3
"""Decades of a row's picture, identical in every row so that rows are comparable."""
DECADES = {-2: "0.01", -1: "0.1", 0: "1", 1: "10", 2: "100", 3: "1000"}
"""Labels of the decades."""

WIDTH, HEIGHT, _LEFT, _DECADE = 184, 18, 4.0, 30.0
_END = _LEFT + (HIGHEST - LOWEST) * _DECADE
_FAR = _END + 9.0


def row_place(epsilon: float) -> float:
    """Return the x coordinate of `epsilon` in a row's picture, in pixels from the left."""
    if epsilon > 10.0**HIGHEST:
        return _FAR
    if epsilon <= 10.0**LOWEST:
        return _LEFT
    return _LEFT + (math.log10(epsilon) - LOWEST) * _DECADE


def row_picture(said: str, *, claimed: float, proven: float, covered: bool, audited: float | None = None) -> Markup:
    """Return a row's picture: a bar from audited to proven epsilon, which contains the true one, and the claim's mark.

    A failing claim is a red diamond, a `covered` one a dot; `said` is the alternative text.
    """
    parts = [
        f'<svg class="eps" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{escape(said)}</title>"
    ]
    start = _LEFT - 2 if audited is None else row_place(audited)
    parts.append(_bar(start, proven))
    if audited is not None:
        parts.append(f'<path class="cap" d="M{start:.4g} 2V16"/>')
    if math.isfinite(claimed):
        x = row_place(claimed)
        if covered:
            parts.append(f'<circle class="c" cx="{x:.4g}" cy="9" r="4"/>')
        else:
            parts.append(f'<path class="u" d="M{x:.4g} 2l6.5 7l-6.5 7l-6.5-7z"/>')
    parts.append("</svg>")
    return Markup("".join(parts))


def _bar(start: float, proven: float) -> str:
    if math.isinf(proven):
        return f'<path class="b open" d="M{start:.4g} 5H{WIDTH - 9}V1L{WIDTH - 1} 9L{WIDTH - 9} 17V13H{start:.4g}z"/>'
    if proven > 10.0**HIGHEST:
        end = _FAR + 5
        # Break the bar, because the number is beyond the axis.
        return (
            f'<path class="b" d="M{start:.4g} 5H{_END + 1:.4g}l-3 8H{start:.4g}z'
            f'M{_END + 5:.4g} 5H{end:.4g}V13H{_END + 2:.4g}z"/>'
        )
    return f'<path class="b" d="M{start:.4g} 5H{max(row_place(proven), start + 1):.4g}V13H{start:.4g}z"/>'


@cache
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
"""Number of method colours in the style sheet; one more colour is for systems that only papers report."""
_CYCLE = (0, 2, 3, 4, 1, 5)
"""Order of colours in which neighbours differ most, because neighbouring methods share a symbol."""

SYMBOLS = {
    "circle": "M-4.3 0a4.3 4.3 0 1 0 8.6 0a4.3 4.3 0 1 0-8.6 0z",
    "square": "M-3.9-3.9H3.9V3.9H-3.9z",
    "triangle-up": "M0-5.2L5.2 3.8H-5.2z",
    "cross": "M-1.7-5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7z",
    "triangle-down": "M0 5.2L5.2-3.8H-5.2z",
    "star": "M0-5.8L1.5-2L5.5-1.8L2.4 0.8L3.4 4.7L0 2.5L-3.4 4.7L-2.4 0.8L-5.5-1.8L-1.5-2z",
    "hourglass": "M-4.6-4.8H4.6L1 0L4.6 4.8H-4.6L-1 0z",
    "triangle-right": "M5.2 0L-3.8-5.2V5.2z",
    "triangle-left": "M-5.2 0L3.8-5.2V5.2z",
    "bowtie": "M-4.8-4.6V4.6L0 1L4.8 4.6V-4.6L0-1z",
    "x": "M-4.8-2.4L-2.4-4.8L0-2.4L2.4-4.8L4.8-2.4L2.4 0L4.8 2.4L2.4 4.8L0 2.4L-2.4 4.8L-4.8 2.4L-2.4 0z",
}
"""SVG path of each symbol."""


class Look(NamedTuple):
    """A method's colour number in the style sheet, and its symbol."""

    colour: int
    symbol: str


ONLY_REPORTED = Look(COLOURS, "circle")
"""The look of systems that are not on the board."""


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Return each method's look by sorted name: 66 distinct ones (6 and 11 are coprime); neighbours differ in both."""
    symbols = list(SYMBOLS)
    return {name: Look(_CYCLE[i % COLOURS], symbols[i % len(symbols)]) for i, name in enumerate(sorted(set(methods)))}


def mark(look: Look, hollow: bool = False) -> Markup:
    """Return a method's symbol for a plot key."""
    return Markup(
        f'<svg class="mark k{look.colour}{" hollow" if hollow else ""}" viewBox="-6.5 -6.5 13 13" '
        f'aria-hidden="true"><path d="{SYMBOLS[look.symbol]}"/></svg>'
    )


@dataclass(frozen=True, slots=True)
class Point:
    """One row in the plot of its ranking; accuracies are in percent."""

    row: str
    said: str
    href: str
    accuracy: float
    low: float
    high: float
    """Ends of the error bar; both equal the accuracy if there is none."""
    claimed: float
    proven: float
    reported: bool
    fails: bool
    """Whether the claim fails."""
    ranked: bool = True
    """Whether the row may be on the Pareto front."""
    look: Look = ONLY_REPORTED
    rest: bool = False
    """Whether it is drawn as a small grey dot, because its method is not among the best."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The epsilon axis: decades `low` to `high`, then bands for larger values (if any) and for infinity."""

    low: int
    high: int
    beyond: bool

    def place(self, epsilon: float) -> float:
        """Return the position of `epsilon`, in decades."""
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
    """Return an axis for `epsilons` that spans at most 0.01 to 1000."""
    finite = [epsilon for epsilon in epsilons if math.isfinite(epsilon) and epsilon > 0]
    low = min(max(math.floor(math.log10(min(finite, default=0.1))), LOWEST), HIGHEST - 2)
    high = max(min(math.ceil(math.log10(max(finite, default=10.0))), HIGHEST), low + 2)
    return Axis(low, high, any(epsilon > 10.0**high for epsilon in finite))


def front(points: Iterable[Point]) -> list[Point]:
    """Return the Pareto front by ascending proven epsilon: ranked points more accurate than all cheaper ones."""
    found: list[Point] = []
    for p in sorted(points, key=lambda p: (p.proven, -p.accuracy)):
        if p.ranked and math.isfinite(p.proven) and (not found or p.accuracy > found[-1].accuracy):
            found.append(p)
    return found


class Size(NamedTuple):
    """Width, height, left margin and bottom margin of a plot, in pixels."""

    width: float
    height: float
    left: float
    below: float


LEVELS = (99.5, 99, 98, 95, *range(90, -1, -10))
"""Accuracies that may get a grid line, in percent."""
CARD, LARGE = Size(320, 176, 30, 34), Size(720, 400, 48, 50)


def scatter(points: Sequence[Point], title: str, size: Size = LARGE) -> Markup:
    """Return accuracy against proven epsilon as SVG, with the Pareto front; the y axis is logarithmic in the error.

    A thin line leads from each point to its ghost at the claimed epsilon. The points are links that the tab key skips,
    because the table has the same links.
    """
    axis = axis_of(epsilon for point in points for epsilon in (point.claimed, point.proven))
    left, top, right, bottom = size.left, 8.0, size.width - 8, size.height - size.below
    small = size is CARD
    unit = (right - left) / (axis.end - axis.low)
    errors = [100 - p.accuracy for p in points] or [1.0, 100.0]
    # Show at least errors from 0.5% to 1%, even if all rows are at 100%.
    least, most = 0.8 * max(min(errors), 0.5), min(100.0, max(1.1 * max(errors), 1.0))

    def x(epsilon: float) -> float:
        return left + (axis.place(epsilon) - axis.low) * unit

    def y(accuracy: float) -> float:
        return top + math.log(min(max(100 - accuracy, least), most) / least) / math.log(most / least) * (bottom - top)

    parts = [
        f'<svg class="scatter{" small" * small}" viewBox="0 0 {size.width:g} {size.height:g}" role="group" '
        f'aria-label="{escape(title)}">'
    ]
    band = x(math.inf) - unit / 2
    parts.append(
        f'<rect class="band" x="{band:.5g}" y="{top:.5g}" width="{right - band:.5g}" height="{bottom - top:.5g}"/>'
    )
    above = -math.inf
    for accuracy in (accuracy for accuracy in LEVELS if least <= 100 - accuracy <= most):
        if y(accuracy) - above >= 14:
            above = y(accuracy)
            parts.append(f'<path class="grid" d="M{left:.5g} {above:.4g}H{right:.5g}"/>')
            parts.append(f'<text class="tick" x="{left - 5:.5g}" y="{above + 4:.4g}">{accuracy:g}</text>')
    for place, label in ticks(axis):
        at = left + (place - axis.low) * unit
        if place == int(place):
            parts.append(f'<path class="grid" d="M{at:.5g} {top:.5g}V{bottom:.5g}"/>')
        parts.append(f'<text class="tick mid" x="{at:.5g}" y="{bottom + 0.42 * size.below:.5g}">{label}</text>')
    parts.append(
        f'<text class="name mid" x="{(left + band) / 2:.5g}" y="{size.height - 4:.5g}">proven epsilon</text>'
        f'<text class="name tick" x="{right:.5g}" y="{size.height - 4:.5g}">none proven</text>'
    )
    if not small:
        parts.append(
            f'<text class="name mid y-name" transform="translate(13 {(top + bottom) / 2:.5g}) rotate(-90)">'
            "accuracy in %</text>"
        )
    steps = "".join(f"{'H' if i else 'M'}{x(p.proven):.5g}{'V' if i else ' '}{y(p.accuracy):.4g}"
                    for i, p in enumerate(front(points)))  # fmt: skip
    parts.append(f'<path class="front" data-end="{band:.5g}" d="{steps and f"{steps}H{band:.5g}"}"/>')
    # Draw the best methods last, above the others, and our points above the reported ones.
    for p in sorted(points, key=lambda p: (not p.rest, not p.reported)):
        at, height = x(p.proven), y(p.accuracy)
        bar = (
            f'<path d="M0 {y(p.low) - height:.3g}V{y(p.high) - height:.3g}"/>'
            if y(p.low) - y(p.high) > 9 and not p.rest and not small
            else ""
        )
        shift = x(p.claimed) - at
        # Skip the ghost if the claim is close to the proof or if nothing is claimed.
        ghost = (
            f'<g class="ghost"><path d="M0 0H{shift:.4g}"/><path transform="translate({shift:.4g} 0)" '
            f'd="{SYMBOLS[p.look.symbol]}"/></g>'
        ) * (abs(shift) > 8 and math.isfinite(p.claimed) and not p.rest)
        kinds = ("rest" if p.rest else f"k{p.look.colour}") + " hollow" * p.reported + " fails" * p.fails
        spot = f' data-x="{at:.5g}" data-y="{height:.4g}"' * (p.ranked and math.isfinite(p.proven))
        parts.append(
            f'<a class="pt {kinds}" tabindex="-1" href="{escape(p.href)}" data-row="{escape(p.row)}"{spot} '
            f'transform="translate({at:.5g} {height:.4g})"><title>{escape(p.said)}</title>{ghost}{bar}'
            f'<path class="m" d="{SYMBOLS["circle" if p.rest else p.look.symbol]}"/></a>'
        )
    parts.append("</svg>")
    return Markup("\n".join(parts))


def ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return the position (in decades) and label of each tick of `axis`."""
    found: list[tuple[float, str]] = [(decade, DECADES[decade]) for decade in range(axis.low, axis.high + 1)]
    if axis.beyond:
        # The label of the last decade would not fit next to it.
        found[-1] = (axis.high, "")
        found.append((axis.high + 0.5, f"> {DECADES[axis.high]}"))
    found.append((axis.end - 0.5, "∞"))
    return found
