"""A network as data: kinds of ops, layers, families, and what a step of one costs."""
