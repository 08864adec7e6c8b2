"""Launchers that run many cells: inline, in local processes, or on Slurm."""
