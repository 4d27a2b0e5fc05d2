"""How an answer is printed: tables, JSON or CSV on stdout, notes for people on stderr."""

import os
import re
import sys

from steptime.core.errors import escape_controls
from steptime.core.progress import print_note
from steptime.core.tables.printers import PRINTERS, json_parts, write_csv
from steptime.core.tables.table import Printout
from steptime.core.tables.text_table import text, wrap_prose

ALARMING_WORDS = re.compile(  # words, and the mark of what is extrapolated
    r"(?<![\w-])(?:does not fit|out of memory|oom|slower|extrapolated)(?![\w-])"
    r"|(?<!\S)~(?=\d|\s|$)",
    re.MULTILINE,
)
RED, PLAIN = "\x1b[31m", "\x1b[0m"


def print_answer(printout: Printout, output_format: str) -> None:
    """Print an answer: tables or one JSON document on stdout, notes for people on stderr."""
    if output_format == "json":
        if printout.document is not None:
            sys.stdout.writelines(json_parts(printout.document))
            print_text("\n")
    elif output_format == "csv":
        for index, table in enumerate(printout.tables):
            if index > 0:
                print_text("\n")
            write_csv(table, sys.stdout)
        print_text("")  # flushes the rows
    elif output_format != "text":
        print_text("\n".join(PRINTERS[output_format](table) for table in printout.tables))
    else:
        _print_text(printout)


def _print_text(printout: Printout) -> None:
    """Print an answer for people: notes, tables, sentences, a script, and further notes."""
    lines_before = dict.fromkeys(printout.before)  # notes that come before the tables
    for line in lines_before:
        print_note(line)
    width = terminal_width()
    sentences = "\n".join(wrap_prose(printout.text.split("\n"), width))
    tables = "".join(text(table, width) for table in printout.tables)
    print_text(tables + sentences, has_colours())
    print_text(printout.script)
    for line in dict.fromkeys(printout.notes):
        if line not in lines_before:
            print_note(line)


def terminal_width() -> int | None:
    """Return the columns of the terminal; None for a file or a pipe, which must not lose any."""
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() else None


def has_colours() -> bool:
    """Whether what is bad is red: on a terminal, where nobody asked for none (no-color.org)."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not is_plain


def print_text(printed_text: str, coloured: bool = False) -> None:
    """Print a text on stdout without control characters; `coloured` makes alarming words red."""
    lines = "\n".join(map(escape_controls, printed_text.split("\n")))
    if coloured:
        lines = ALARMING_WORDS.sub(rf"{RED}\g<0>{PLAIN}", lines)
    sys.stdout.write(lines)
    sys.stdout.flush()
