"""The plot of one ranking as a standalone SVG file for the README, with the site's colours and a key."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from markupsafe import escape

from bench.reports.leaderboard import Source
from bench.reports.site.rows import rankings
from bench.reports.site.svg import LARGE, SYMBOLS, scatter

COLUMNS, LINE = 5, 18.0  # columns of the key, and its line height in pixels
STYLE = Path(__file__).parent / "assets" / "plot.css"


def board_picture(source: Source, dataset: str) -> str:
    """Return our rows on `dataset` as SVG, accuracy against proven epsilon, or "" if there are none.

    Colours follow the reader's light or dark setting.
    """
    found = next((r for r in rankings(source) if (r.dataset, r.unit) == (dataset, "record") and r.points), None)
    if found is None:
        return ""
    shown = {point.look for point in found.points}
    key = [(name, look) for name, look in found.key if look in shown]
    plot: str = scatter([replace(point, href="") for point in found.points], found.title, LARGE)
    # Links do not work inside an image, and attributes position the drawing.
    plot = re.sub(r'^<svg class="scatter"', f'<svg class="scatter" width="{LARGE.width}" height="{LARGE.height}"', plot)
    plot = plot.replace("<a ", "<g ").replace("</a>", "</g>").replace(' href=""', "").replace(' tabindex="-1"', "")
    height = LARGE.height + LINE * (1 + -(-len(key) // COLUMNS))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LARGE.width:g} {height:g}" role="img">',
        f"<title>{escape(found.title)}</title>",
        f"<style>{STYLE.read_text(encoding='utf-8')}",
        "text { font-family: system-ui, sans-serif; font-size: 12px; fill: var(--ink); }</style>",
        '<rect width="100%" height="100%" style="fill: var(--paper)"/>',
        plot,
    ]
    for number, (name, look) in enumerate(key):
        x = LARGE.left + number % COLUMNS * (LARGE.width - LARGE.left) / COLUMNS
        y = LARGE.height + LINE * (1 + number // COLUMNS)
        parts.append(
            f'<g class="pt k{look.colour}" transform="translate({x:g} {y:g})">'
            f'<path class="m" d="{SYMBOLS[look.symbol]}"/>'
            f'<text stroke="none" x="9" y="4">{escape(name)}</text></g>'
        )
    return "\n".join([*parts, "</svg>", ""])
