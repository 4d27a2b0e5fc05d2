"""Sweeps by a scheduler: what to submit, where it is, what became of it."""
