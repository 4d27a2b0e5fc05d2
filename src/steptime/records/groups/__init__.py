"""Groups of records of the same step, and columns over them."""
