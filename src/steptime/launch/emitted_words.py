"""Facts of a job as words of a command, YAML or a script that writes a file."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from steptime.launch.job import Facts


def option_words(facts: Facts, table: Mapping[str, str]) -> list[str]:
    """Return the words of a command for the facts of a table from fact to option."""
    words: list[str] = []
    for fact, option in table.items():
        value = facts.get(fact)
        if value is not None and value is not False:  # a flag is written alone, or not at all
            words += [option] if value is True else [option, str(value)]
    return words


def format_command(words: Iterable[str]) -> str:
    """Return a command with an option a line."""
    lines: list[str] = []
    for word in words:
        quoted_word = shlex.quote(word)
        is_first_word = not lines
        if is_first_word or word.startswith("-"):
            lines.append(quoted_word)
        else:
            lines[-1] = f"{lines[-1]} {quoted_word}"
    return " \\\n  ".join(lines) + "\n"


def format_yaml(values: Mapping[str, Any]) -> str:
    """Return a mapping as YAML, in its order."""
    import yaml

    text: str = yaml.safe_dump(dict(values), sort_keys=False)
    return text


def argument_words(arguments: Mapping[str, Any]) -> list[str]:
    """Return arguments as words of a command line."""
    words: list[str] = []
    for name, value in arguments.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(str(item) for item in values)]
    return words


def prepend_file(path: str, text: str, command: str) -> str:
    """Return a script that writes a file and runs a command."""
    return f"cat > {path} <<'EOF'\n{text}EOF\n{command}"
