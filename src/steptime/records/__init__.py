"""Records: what was measured, predicted or published, folders of them, and rows of a table."""
