"""Margins by which norms are overestimated before scaling, so that rounding cannot exceed the sensitivity."""

FLOAT32 = 1 + 1e-6
FLOAT64 = 1 + 1e-12
