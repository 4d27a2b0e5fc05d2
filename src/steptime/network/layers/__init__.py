"""Composite layers as plain functions over op kinds: `layer(b, x, ..., name) -> tensor name`."""
