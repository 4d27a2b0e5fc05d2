"""Analyses of records: frame in, answer out."""
