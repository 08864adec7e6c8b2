"""Margins by which norms are overestimated before scaling, so that rounding cannot exceed the sensitivity."""

FLOAT32 = 1 + 1e-6
FLOAT32_SUMS = 1 + 4e-5  # two norms of 4,096 squares in eight running sums: 512 roundings of 2**-25 each
FLOAT64 = 1 + 1e-12
