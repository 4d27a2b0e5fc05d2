"""From an experiment file to the cells that are missing, and from cells to records."""
