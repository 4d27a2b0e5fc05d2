"""Networks that are code: a user's module, exported to a file, or measured as it is."""
