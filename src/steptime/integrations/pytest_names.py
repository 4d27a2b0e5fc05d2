"""The names that the pytest plugin and its benchmarks share; it imports nothing but pytest."""

import pytest

MARKER = "steptime"
LINES_KEY = pytest.StashKey[list[str]]()
"""The lines of the summary, one a benchmark."""
