"""Rows of tables by name: `"name": "module:attribute"`, imported when asked for.

Another package adds rows by entry points: the group `steptime.commands` adds commands, and so for
every room that resolves its table here. They are looked at only where a name is not found, and
where names are listed.
"""

import ast
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from steptime.core.errors import unknown


def load(target: str) -> Any:
    """Return what `module:attribute` names, or the module where no attribute is named."""
    module, _, attribute = target.partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def about(target: str) -> str:
    """Return the first line of the first text of what `module:attribute` names, without running it.

    That is of the docstring of a function, or the first value of a row, `Analysis("...")`. Of the
    module no more is read than this definition: two blank lines end it.
    """
    module, _, attribute = target.partition(":")
    source = Path(str(getattr(find_spec(module), "origin", ""))).read_text(encoding="utf-8")
    start = max(source.find(f"\n{word}") for word in (f"def {attribute}(", f"{attribute} = "))
    made = ast.parse(source[start:].lstrip().partition("\n\n\n")[0]).body[0]
    if isinstance(made, ast.FunctionDef):
        text = ast.get_docstring(made) or ""
    else:
        text = next(str(one.value) for one in ast.walk(made) if isinstance(one, ast.Constant))
    return text.partition("\n")[0]


@cache
def added(room: str) -> dict[str, str]:
    """Return the rows that installed packages add to a room, as `module:attribute`."""
    from importlib.metadata import entry_points

    return {one.name: one.value for one in entry_points(group=f"steptime.{room}")}


def names(table: Mapping[str, str], room: str) -> list[str]:
    """Return all names of a table, those of other packages last."""
    return list({**table, **added(room)})


def resolve(table: Mapping[str, str], room: str, what: str, name: str, where: str = "") -> Any:
    """Return what a name stands for; raises `InputError` with the nearest name for an unknown one.

    A row of another package never replaces one of ours.
    """
    target = table.get(name) or added(room).get(name)
    if target is None:
        raise unknown(what, name, names(table, room), where)
    return load(target)
