"""Adapters of fine-tunings: a file each, whose row stands in `data/adapters.toml`.

`adapt(editor, op)` appends an op of the network to the graph of a `GraphEditor`, and what stands
before and beside it.
"""
