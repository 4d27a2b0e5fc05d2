"""The help of a command as plain text: aligned columns, no colours, no boxes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # they import rich, which a command without a help does not need
    from cyclopts.help import HelpEntry, HelpPanel

MAX_LABEL_WIDTH = 26
"""Columns of an option with its value; the text of a longer one begins on the next line."""
MIN_TEXT_WIDTH = 20  # on a terminal that is narrower than a label and some words
NO_BREAK = "\N{NO-BREAK SPACE}"
INDENT = "  "
GAP = "  "


class PlainHelp:
    """A formatter of a help, as cyclopts calls it.

    Args:
        describe: makes the description of the command, when its help is asked for.
    """

    show_metavar = True

    def __init__(self, describe: Callable[[], str]) -> None:
        self.describe = describe

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:  # noqa: ARG002  # of cyclopts
        """Write how the command is called."""
        _write_lines(console, f"Usage: {str(usage).strip()}")

    def render_description(self, console: Any, options: Any, description: Any) -> None:  # noqa: ARG002  # of cyclopts
        """Write what the command does, paragraph by paragraph."""
        for paragraph in self.describe().split("\n\n"):
            _write_lines(
                console, "", *textwrap.wrap(" ".join(paragraph.split()), _terminal_width())
            )

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:  # noqa: ARG002  # of cyclopts
        """Write a heading and the options or commands below it."""
        rows = [(_format_label(entry), _format_meaning(entry)) for entry in panel.entries]
        if rows:
            _write_lines(console, "", f"{panel.title}:", *_align_rows(rows, _terminal_width()))


def write_names(console: Any, options: Any, panel: HelpPanel) -> None:  # of cyclopts
    """Write the names of a panel on one line, which leaves the screen to the commands."""
    names = ", ".join(" ".join(entry.all_options) for entry in panel.entries)
    _write_lines(console, "", *textwrap.wrap(f"{panel.title}: {names}", _terminal_width()))


def _terminal_width() -> int:
    from shutil import get_terminal_size

    return get_terminal_size().columns


def _write_lines(console: Any, *lines: str) -> None:
    console.file.writelines(f"{line}\n" for line in lines)


def _format_label(entry: HelpEntry) -> str:
    """Describe how an option is typed: `--out -o FILE`."""
    names = [*entry.positive_names, *entry.positive_shorts]
    return " ".join(filter(None, (*names, entry.metavar)))


def _format_meaning(entry: HelpEntry) -> str:
    text = str(getattr(entry.description, "primary_renderable", entry.description or ""))
    requirement_text = "[required]" if entry.required else f"[default:{NO_BREAK}{entry.default}]"
    has_requirement_text = entry.required or entry.default is not None
    return f"{text} {requirement_text}" if has_requirement_text else text


def _align_rows(rows: list[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield the lines of a table of labels and texts, which are wrapped at the width."""
    label_widths = [len(label) for label, _text in rows if len(label) <= MAX_LABEL_WIDTH]
    label_width = max(label_widths, default=MAX_LABEL_WIDTH)
    text_column = len(INDENT) + label_width + len(GAP)
    for label, text in rows:
        lines = _wrap(text, max(width - text_column, MIN_TEXT_WIDTH)) or [""]
        is_label_long = len(label) > label_width
        if is_label_long:
            yield INDENT + label
        else:
            yield f"{INDENT}{label}".ljust(text_column) + lines.pop(0)
        for line in lines:
            yield " " * text_column + line


def _wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text; a space that no line may break at becomes one."""
    return [line.replace(NO_BREAK, " ") for line in textwrap.wrap(text, width)]
