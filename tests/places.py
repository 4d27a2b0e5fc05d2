"""Where things lie that tests read: the root of the project, and the folder of the tests."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
