"""Runs of many cells: in this process, in local processes, on Slurm."""
