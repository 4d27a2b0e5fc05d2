"""The question `sweep`: the cells of an experiment file."""
