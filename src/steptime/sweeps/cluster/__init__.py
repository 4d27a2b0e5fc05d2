"""Sweeps under Slurm: their submissions, the states of their cells, their lost cells."""
