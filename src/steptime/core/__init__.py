"""Ground: types, units and tables. Of packages msgspec alone."""
