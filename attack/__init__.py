"""Attacks on the whole: kills, disks, writers, inputs, texts, archives, mutants.

`python -m attack` runs them and writes docs/reliability.md. They import `steptime`, the helpers of
the tests and the backend that the tests make up; nothing of these imports an attack. This module
lets this process and the processes that it starts find them, so that the command runs in a clone
as it is.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMPORTED_FOLDERS = [str(ROOT / name) for name in ("src", "tests", "tests/null_backend")]

sys.path[1:1] = [folder for folder in IMPORTED_FOLDERS if folder not in sys.path]
_PATHS = os.environ.get("PYTHONPATH", "").split(os.pathsep)
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*IMPORTED_FOLDERS, *(path for path in _PATHS if path and path not in IMPORTED_FOLDERS)]
)
