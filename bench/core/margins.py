"""Margins by which norms are overestimated before scaling, so that rounding cannot exceed the sensitivity."""

FLOAT32 = 1 + 1e-6
FLOAT32_SUMS = 1 + 4e-5  # of 8,192 squares in eight running sums: 1,024 roundings of 2**-24, halved by the root
FLOAT64 = 1 + 1e-12
