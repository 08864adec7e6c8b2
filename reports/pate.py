"""PATE's tables and figures: Papernot et al., ICLR 2017."""

from __future__ import annotations

from reports.papers import Paper

PAPER = Paper("pate", "PATE (Papernot et al., ICLR 2017)", tables=(), figures=())
