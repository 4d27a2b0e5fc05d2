"""Records compared in pairs: platforms, folders and levels of a column, with verdicts."""
