"""Ground: types, units and tables. Standard library only."""
