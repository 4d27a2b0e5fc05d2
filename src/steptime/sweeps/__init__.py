"""Experiments: the cells of an experiment file, and the runs that turn them into records."""
