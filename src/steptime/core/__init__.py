"""Types, units, values that users type, tables and errors; knows nothing of networks."""
