"""The training loop, checkpoints, teacher ensembles and frozen features."""
