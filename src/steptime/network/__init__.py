"""Networks as data: kinds of ops, layers, families, and counts of a step."""
