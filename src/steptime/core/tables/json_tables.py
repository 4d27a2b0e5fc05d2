"""Tables in JSON that are no list of rows: columns as pandas writes them, rows by their names."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from steptime.core.expressions.formula import column_name
from steptime.core.json_types import JsonObject

ROW_NAME = "key"  # the cell that holds the name under which a row stands
MAX_PATH_KEYS = 6


def find_rows_by_name(
    document: JsonObject, mentioned: Collection[str] | None
) -> list[JsonObject] | None:
    """Return the rows of an object that holds a table, None where it holds none.

    Read are lists under the names of columns; `columns` and `data`, as `to_json(orient="split")`
    of pandas writes them; objects of cells by column, its default; and rows by their names, each
    with its name in the cell `key`.

    Args:
        document: the object.
        mentioned: words of the mapping, by which columns are told from rows; None reads no table.
    """
    if mentioned is None or not document:
        return None
    # Names and rows apart, as pandas writes with `orient="split"`.
    names, data = document.get("columns"), document.get("data")
    if isinstance(names, list) and isinstance(data, list):
        return _join_names(list(map(str, names)), data)
    # A list of cells for each column.
    lists = [value for value in document.values() if isinstance(value, list)]
    if len(lists) == len(document):
        is_table = len(set(map(len, lists))) == 1 and _count_mentioned(document, mentioned) > 0
        return join_columns(document) if is_table and lists[0] else None
    return _read_objects(document, mentioned)


def _join_names(names: Sequence[str], data: Sequence[object]) -> list[JsonObject] | None:
    """Return rows of lists of cells under the names of columns, None for rows of other lengths."""
    rows = [row for row in data if isinstance(row, list) and len(row) == len(names)]
    if len(rows) < len(data):
        return None
    return [dict(zip(names, row, strict=True)) for row in rows]


def _read_objects(document: JsonObject, mentioned: Collection[str]) -> list[JsonObject] | None:
    """Return the rows of objects of cells by column, or of cells by row, that have equal keys."""
    objects = {name: value for name, value in document.items() if isinstance(value, dict)}
    key_sets = {frozenset(value) for value in objects.values()}
    if len(objects) < len(document) or len(key_sets) != 1:
        return None
    # Columns may be outside or inside: the names that the user mentions are those of columns.
    inner_names = list(next(iter(objects.values())))
    column_count = _count_mentioned(document, mentioned)
    inner_count = _count_mentioned(inner_names, mentioned)
    if column_count > inner_count:  # objects of cells by column
        columns = {
            column: [cells[name] for name in inner_names] for column, cells in objects.items()
        }
        return join_columns({ROW_NAME: inner_names, **columns})
    if not inner_count:
        return None
    return [{ROW_NAME: name, **cells} for name, cells in objects.items()]


def _count_mentioned(names: Collection[str], mentioned: Collection[str]) -> int:
    return sum(column_name(name) in mentioned for name in names)


def join_columns(columns: Mapping[str, Sequence[Any]]) -> list[JsonObject]:
    """Return columns of equal length as rows."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def list_row_paths(document: Mapping[str, object]) -> list[str]:
    """Return the paths of lists of objects in a document, such as `runs.testcases`."""
    return list(dict.fromkeys(_walk_paths(document, ())))


def _walk_paths(value: object, path: tuple[str, ...]) -> Iterator[str]:
    if len(path) > MAX_PATH_KEYS:
        return
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        yield ".".join(path)
        yield from _walk_paths(value[0], path)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _walk_paths(item, (*path, name))
