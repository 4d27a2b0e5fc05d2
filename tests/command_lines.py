"""Every command by the words that a user types for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from steptime.cli.command import output_options
from steptime.cli.commands import build_app, command_names, find_question, kind_names
from steptime.core.signatures.signature import parameters_of


@dataclass(frozen=True)
class Option:
    """A parameter of a command: an option, or an argument, whose name has no dashes.

    `panel` is the heading under which the help lists it, `value` stands for what is typed after the
    name, such as `N`; "" for a flag.
    """

    name: str
    names: tuple[str, ...]
    value: str
    help: str
    is_required: bool
    default: Any
    is_flag: bool
    panel: str

    @property
    def is_argument(self) -> bool:
        """Whether it stands without an option's name."""
        return not self.names[0].startswith("-")


def find_app(line: str) -> Any:
    """Return the command that a line calls, as cyclopts has it, with the texts of its options."""
    app = build_app([*line.split(), "--help"])
    for word in line.split():
        app = app[word]
    return app


@cache
def command_lines() -> dict[str, tuple[Option, ...]]:
    """Return the commands that answer, `fit`, `sweep status`, `analyse roofline`, and options."""
    kinds = [f"analyse {kind}" for kind in kind_names()]
    names = [*(name for name in command_names() if name != "analyse"), *kinds]
    return {name: _options(name) for name in names}


def _options(name: str) -> tuple[Option, ...]:
    question = find_question(name)
    parameters = output_options(question) | {item.name: item for item in parameters_of(question)}
    return tuple(
        Option(
            argument.field_info.name,
            tuple(argument.names),
            "" if argument.is_flag() else argument.parameter.metavar or "",
            parameters[argument.field_info.name].help,
            argument.required,
            parameters[argument.field_info.name].default,
            argument.is_flag(),
            argument.parameter.group[0].name,
        )
        for argument in find_app(name).assemble_argument_collection()
    )


def command_line_name(words: list[str]) -> str:
    """Return the name of the command that a line calls: one word, or two."""
    pair = " ".join(words[:2])
    return pair if pair in command_lines() else words[0]
