"""Training loop, checkpoints, teacher ensembles and frozen features."""
