"""Many cells: in this process, in local processes, on Slurm."""
