"""Margins for rounding: norms are overestimated before scaling, and equal epsilons may differ in the last bits."""

FLOAT32 = 1 + 1e-6
FLOAT32_SUMS = 1 + 4e-5  # two norms of 4,096 squares in eight running sums: 512 roundings of 2**-25 each
FLOAT64 = 1 + 1e-12


def covered(proven: float, limit: float) -> bool:
    """Return whether `limit`, a claim or a budget, is at least `proven`, up to the rounding of equal sums."""
    return proven <= limit * (1 + 1e-9)
