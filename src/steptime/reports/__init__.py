"""Charts, and one offline page of a folder of records."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptime.core.progress import note


def write_report(folder: Path, path: Path, warn: Callable[[str], None] = note) -> dict[str, Any]:
    """Write the report on the records of `folder` to `path`, and return what it says in numbers.

    It is what the ending of `path` says: one HTML page (.html), or Markdown (.md). Raises
    `InputError` for what is no folder of records or no place for a file, `OutsideError` where
    the disk does not take it.
    """
    import shlex

    from steptime.core.files import check_ending, write_atomically
    from steptime.records import store
    from steptime.records.data import Data
    from steptime.reports.markdown import markdown_page
    from steptime.reports.page import page

    written = {".html": page, ".md": markdown_page}
    store.paths(folder)  # there is nothing to report of a folder that is not there
    ending = check_ending(path, written, "report format")
    data = Data.load([folder], warn)
    command = shlex.join(["steptime", "report", str(folder), "-o", str(path)])
    text, document = written[ending](data, folder.resolve().name, command)
    write_atomically(path, text)
    return {"path": str(path), **document}
