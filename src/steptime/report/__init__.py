"""One offline page of a folder of records: what was found, how close to the limit, and how."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")


def write_report(
    folder: Path, path: Path, warn: Callable[[str], None] = _to_stderr
) -> dict[str, Any]:
    """Write the report on the records of `folder` to `path`, and return what it says in numbers.

    Raises `InputError` for what is no folder of records or no place for a file, `StoreError` where
    the disk does not take it.
    """
    import shlex

    from steptime.analysis.data import Data
    from steptime.core.files import check_folder
    from steptime.plots.files import write_whole
    from steptime.report.page import page

    data = Data.load([folder], warn)
    check_folder(path)
    command = shlex.join(["steptime", "report", str(folder), "-o", str(path)])
    text, document = page(data, folder.resolve().name, command)
    write_whole(path, text.encode())
    return {"path": str(path), **document}
