"""One offline page of a folder of records: what was found, how close to the limit, and how."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptime.core.errors import one_line


def _to_stderr(text: str) -> None:
    sys.stderr.write(one_line(text) + "\n")


def write_report(
    folder: Path, path: Path, warn: Callable[[str], None] = _to_stderr
) -> dict[str, Any]:
    """Write the report on the records of `folder` to `path`, and return what it says in numbers.

    It is what the ending of `path` says: one HTML page (.html), or Markdown (.md). Raises
    `InputError` for what is no folder of records or no place for a file, `OutsideError` where
    the disk does not take it.
    """
    import shlex

    from steptime.core.errors import unknown
    from steptime.core.files import check_folder, write_whole
    from steptime.records.data import Data
    from steptime.reports.markdown import markdown_page
    from steptime.reports.page import page

    written = {".html": page, ".md": markdown_page}
    ending = path.suffix.lower()
    if ending not in written:
        raise unknown("report format", ending or path.name, written, str(path))
    data = Data.load([folder], warn)
    check_folder(path)
    command = shlex.join(["steptime", "report", str(folder), "-o", str(path)])
    text, document = written[ending](data, folder.resolve().name, command)
    write_whole(path, text)
    return {"path": str(path), **document}
