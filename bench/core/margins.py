"""By what norms are overestimated before something is scaled to them: rounding must leave it within its sensitivity."""

FLOAT32 = 1 + 1e-6
FLOAT64 = 1 + 1e-12
