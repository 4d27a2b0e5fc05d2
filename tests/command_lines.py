"""Every command by the words that a user types for it."""

from __future__ import annotations

from typing import Any

from steptime.cli.main import names, tree


def command_lines() -> dict[str, Any]:
    """Return the commands that answer: `fit`, `sweep status`, `analyse roofline`."""
    root = tree()
    commands = {name: root.get_command(None, name) for name in names()}
    kinds = commands.pop("analyse")
    for name in kinds.list_commands(None):
        commands[f"analyse {name}"] = kinds.get_command(None, name)
    return commands


def command_line_name(words: list[str]) -> str:
    """Return the name of the command that a line calls: one word, or two."""
    pair = " ".join(words[:2])
    return pair if pair in command_lines() else words[0]
