"""Tables of names and targets, `"name": "module:attribute"`, imported on first use.

Other packages add rows by entry points: the group `steptime.commands` adds commands, and likewise
for every module that resolves its table here. Entry points are read only if a name is not in the
table, or if all names are listed.
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
    """Import the object of `module:attribute`, or the module if the target has no attribute."""
    module, _, attribute = target.partition(":")
    imported = import_module(module)
    return getattr(imported, attribute) if attribute else imported


def describe_target(target: str) -> str:
    """Return the first line that describes `module:attribute`, without importing the module.

    The line is from the docstring of a function, or the first text of a row, `Analysis("...")`.
    Only this definition is parsed; two blank lines end it.
    """
    module, _, attribute = target.partition(":")
    # The text of the module is read, as an import of it takes far longer.
    source = Path(str(getattr(find_spec(module), "origin", ""))).read_text(encoding="utf-8")
    function_start = source.find(f"\ndef {attribute}(")
    row_start = source.find(f"\n{attribute} = ")
    start = max(function_start, row_start)  # there is one of both, and `find` has -1 for the other
    # Two blank lines end the definition; to parse the whole module takes longer.
    definition_text = source[start:].lstrip().partition("\n\n\n")[0]
    definition = ast.parse(definition_text).body[0]
    if isinstance(definition, ast.FunctionDef):
        text = ast.get_docstring(definition) or ""
    else:
        # A row such as `Analysis("...")` is described by its first text.
        constants = (node for node in ast.walk(definition) if isinstance(node, ast.Constant))
        text = str(next(constants).value)
    return text.partition("\n")[0]


@cache
def extension_rows(group: str) -> dict[str, str]:
    """Return the rows that installed packages add to a group, as `module:attribute`."""
    from importlib.metadata import entry_points

    return {
        entry_point.name: entry_point.value
        for entry_point in entry_points(group=f"steptime.{group}")
    }


def list_names(table: Mapping[str, str], group: str) -> list[str]:
    """Return all names of a table, those of other packages last."""
    return list({**table, **extension_rows(group)})


def resolve(table: Mapping[str, str], group: str, noun: str, name: str, place: str = "") -> Any:
    """Import the target of a name; a row of another package never replaces one of ours.

    Args:
        table: our names and targets.
        group: the group of entry points with the names of other packages.
        noun: the kind of name in a message, such as `command`.
        name: the name to import.
        place: the option or key with which a message begins.

    Raises:
        InputError: for an unknown name, with the nearest valid one.
    """
    target = table.get(name) or extension_rows(group).get(name)
    if target is None:
        raise unknown(noun, name, list_names(table, group), place)
    return load(target)
