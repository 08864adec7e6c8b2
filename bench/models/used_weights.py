"""The pretrained weights that this process has asked for: a method that uses some must declare them."""

from __future__ import annotations

used: list[str] = []
"""The backbones, in order."""
