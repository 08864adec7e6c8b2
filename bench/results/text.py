"""Epsilons and table cells as the board prints them."""

from __future__ import annotations

import math
from typing import Literal


def epsilon_text(epsilon: float | None, toward: Literal["nearest", "up", "down"] = "nearest") -> str:
    """Return an epsilon as the board prints it: an upper bound is rounded up, a lower one down."""
    if epsilon is None:
        return "–"
    if math.isinf(epsilon):
        return "∞"
    if epsilon >= 1e5:  # nobody reads the digits of an epsilon that says nothing
        scale = 10.0 ** (math.floor(math.log10(epsilon)) - 1)
        exact = round(epsilon / scale, 6)
        digits = math.ceil(exact) if toward == "up" else math.floor(exact) if toward == "down" else round(exact)
        return f"{digits * scale:.1e}".replace("e+0", "e").replace("e+", "e")
    # Six digits first: 0.29 * 100 is 28.999999999999996, which must not become 28.
    hundredths = round(epsilon * 100, 6)
    if toward != "nearest":
        hundredths = math.ceil(hundredths) if toward == "up" else math.floor(hundredths)
    return f"{hundredths / 100:.2f}"


def md(text: str) -> str:
    """Return `text` so that it stays text in a Markdown table cell."""
    flat = " ".join(text.split())
    for raw, safe in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("|", "\\|"), ("`", "\\`")):
        flat = flat.replace(raw, safe)
    return flat
