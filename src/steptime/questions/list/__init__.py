"""The question `list`: what there is."""
