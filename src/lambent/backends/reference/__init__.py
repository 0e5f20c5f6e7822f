"""The NumPy meaning of a graph: the yardstick for everything else."""
