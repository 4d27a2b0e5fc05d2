"""Charts, and one offline page of a folder of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steptime.core.json_types import JsonObject
from steptime.core.progress import print_note

if TYPE_CHECKING:
    from steptime.records.data import Data
    from steptime.reports.findings import Section


def write_report(folder: Path, path: Path, warn: Callable[[str], None] = print_note) -> JsonObject:
    """Write the report on the records of a folder, and return its numbers.

    Args:
        folder: the folder of records, or a .jsonl file of records.
        path: the file of the report: one HTML page (.html), or Markdown (.md).
        warn: gets remarks on lines that are no records.

    Raises:
        InputError: for a path without records, and if there is no place for the file.
        OutsideError: if the disk does not take the file.
    """
    import shlex

    from steptime.records.data import Data

    check_report_path(path)
    data = Data.load([folder], warn)
    command = shlex.join(["steptime", "report", str(folder), "-o", str(path)])
    return write_page(data, folder.resolve().name, path, command)


def check_report_path(path: Path) -> str:
    """Return the ending of a report's file.

    Raises:
        InputError: for an ending of no form of reports.
    """
    from steptime.core.files import check_ending

    return check_ending(path, (".html", ".md"), "report format")


def write_page(
    data: Data, name: str, path: Path, command: str, first_sections: Sequence[Section] = ()
) -> JsonObject:
    """Write the report on records, and return its numbers.

    Args:
        data: the records.
        name: the heading: the name of their folder or file.
        path: the file of the report, .html or .md.
        command: the command line that writes the report, as the page shows it.
        first_sections: sections with which the page begins.

    Raises:
        InputError: if there are no records, and if there is no place for the file.
        OutsideError: if the disk does not take the file.
    """
    from steptime.core.files import write_atomically
    from steptime.reports.markdown import markdown_page
    from steptime.reports.page import page

    write = page if check_report_path(path) == ".html" else markdown_page
    text, document = write(data, name, command, first_sections)
    write_atomically(path, text)
    return {"path": str(path), **document}
