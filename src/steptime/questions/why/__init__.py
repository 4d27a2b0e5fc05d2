"""The question `why`: what a step waits for, its most expensive ops, and what would help."""
