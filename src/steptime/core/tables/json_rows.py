"""Rows in JSON documents, in lines of JSON and in lines of logs."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.expressions.formula import column_name
from steptime.core.tables.json_tables import find_rows_by_name, list_row_paths
from steptime.core.tables.table_layout import Cells, TableLayout

MAX_DEPTH = 6  # of objects within a row
MAX_PATHS_LISTED = 4
MAX_LINE_CHARACTERS = 10_000  # of a line of a log that patterns read
HEAD_CHARACTERS = 100_000  # of a file, among which its first lines are looked for
JsonRow = tuple[int, Cells | InputError]


def json_rows(text: str, name: str, source: str, layout: TableLayout) -> Iterator[JsonRow]:
    """Yield line or place and cells of each row of JSON, or the fault of it.

    Raises `InputError` for a document that is not JSON or that holds no rows.
    """
    rows: Iterable[JsonRow] | None = None
    if layout.prefix or name.lower().endswith((".jsonl", ".ndjson")):
        rows = _read_line_rows(text, layout)
    else:
        try:
            rows = _document_rows(json.loads(text), source, layout)
        except RecursionError as error:
            raise InputError(f"{source}:1: not JSON: {error}") from None
        except ValueError as error:
            if not _is_json_lines(text):
                raise InputError(f"{source}:1: not JSON: {error}") from None
            rows = _read_line_rows(text, layout)
    # `has_names`: rows get the names of inner objects, and keys that only other rows have.
    yield from _complete_names(rows) if layout.has_names else rows


def _is_json_lines(text: str) -> bool:
    """Return whether the first two lines that are not blank are objects of their own."""
    head = text[:HEAD_CHARACTERS]
    first_lines = [line for line in head.splitlines() if line.strip()][:2]
    are_objects = all(isinstance(_parse_line(line), dict) for line in first_lines)
    return len(first_lines) == 2 and are_objects


def _parse_line(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return InputError(f"not JSON: {error}")


def _read_line_rows(text: str, layout: TableLayout) -> Iterator[JsonRow]:
    """Yield the objects of lines; those without the prefix are passed over."""
    facts: dict[str, object] = {}
    lines = re.split(r"\r\n|\n|\r", text)
    for number, line in enumerate(lines, start=1):
        content = line
        if layout.prefix:
            _, prefix, content = line.partition(layout.prefix)
            if not prefix:  # another program's line in the log
                continue
        if not content.strip():
            continue
        row = _parse_line(content)
        # The text behind the last line end is "" unless the file ends within a line.
        lacks_newline = number == len(lines) and line != ""
        if isinstance(row, InputError) and lacks_newline:
            row = InputError(f"the file ends within the line: {row}")
        if not isinstance(row, dict | InputError):
            row = InputError(f"a row is an object, not {shorten(row)}")
        if isinstance(row, dict) and layout.facts:
            # A line such as {"key": NAME, "value": VALUE} is a fact of all later rows.
            fact_name, fact_value = (row.get(key) for key in layout.facts)
            row = facts | row
            if isinstance(fact_name, str) and isinstance(fact_value, str | int | float):
                facts[fact_name] = fact_value
        yield number, row


def _document_rows(document: Any, source: str, layout: TableLayout) -> Iterator[JsonRow]:
    """Yield the rows of a document: a list, a list within objects, or an object alone."""
    # Values beside the list of rows are cells of each row, if the layout `has_names`: such a
    # layout finds columns by itself, while others take rows exactly as they are.
    tables_with_cells: list[tuple[Cells, Any]] = [({}, document)]
    for key in filter(None, layout.rows_path.split(".")):
        inner_tables: list[tuple[Cells, Any]] = []
        for outer_cells, value in tables_with_cells:
            inner_tables += _enter_key(outer_cells, value, key, source)
        tables_with_cells = inner_tables
    if layout.has_names and not layout.rows_path:  # search for the rows
        tables_with_cells = [_find_rows(document, source, layout)]
    row_number = 0
    for outer_cells, table in tables_with_cells:
        is_single_row = (
            isinstance(table, dict) and layout.has_names and any(map(_is_scalar, table.values()))
        )
        rows = [table] if is_single_row else table
        if not isinstance(rows, list):
            raise InputError(f"{source}: a table is a list of rows, not {shorten(rows)}")
        for row in rows:
            row_number += 1
            if isinstance(row, dict):
                yield row_number, {**outer_cells, **row} if layout.has_names else row
            else:
                yield row_number, InputError(f"a row is an object, not {shorten(row)}")


def _enter_key(
    outer_cells: Cells, value: Any, key: str, source: str
) -> Iterator[tuple[Cells, Any]]:
    """Yield the value of a key, and the cells beside it, of an object or of each in a list."""
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict) or key not in item:
            keys = item if isinstance(item, dict) else ()
            raise unknown("key", key, keys, f"{source}: rows_at")
        inner_cells = _flatten({name: cell for name, cell in item.items() if name != key})
        yield {**outer_cells, **inner_cells}, item[key]


def _find_rows(document: Any, source: str, layout: TableLayout) -> tuple[Cells, Any]:
    """Return the rows of a document with the cells beside them.

    Raises:
        InputError: for several lists of objects, and for one that `rows_at` has to name.
    """
    if not isinstance(document, dict):
        return {}, document
    key = _find_key_of_rows(document, source)
    if key:
        outer_values = {name: value for name, value in document.items() if name != key}
        return _flatten(outer_values), document[key]
    if any(map(_is_scalar, document.values())):
        return {}, document
    rows = find_rows_by_name(document, layout.mentioned)
    if rows is not None:
        return {}, rows
    paths = list_row_paths(document)
    if paths:
        names = " or ".join(f"rows_at = {shorten(path)}" for path in paths[:MAX_PATHS_LISTED])
        raise InputError(f"{source}: lists of rows lie deeper: say {names} in the mapping")
    is_nested_row = any(isinstance(value, dict) and value for value in document.values())
    return {}, [document] if is_nested_row else document


def _find_key_of_rows(document: Mapping[str, Any], source: str) -> str:
    """Return the key of the only list of objects, "" without one; raises `InputError` for two."""
    keys = [key for key, value in document.items() if _is_list_of_objects(value)]
    if len(keys) > 1:
        names = " or ".join(f"rows_at = {shorten(key)}" for key in keys)
        raise InputError(f"{source}: several lists of rows: say {names} in the mapping")
    return keys[0] if keys else ""


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float)


def _flatten(row: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Return the values of a row and of the objects in it, by dotted names: `stats.median`."""
    cells: dict[str, object] = {}
    for name, value in row.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and depth < MAX_DEPTH:
            cells |= _flatten(value, f"{path}.", depth + 1)
        else:
            cells[path] = value
    return cells


def _complete_names(rows: Iterable[JsonRow]) -> Iterator[JsonRow]:
    """Yield rows with names for values of inner objects; a key that a row lacks is empty there."""
    flat_rows = [
        (row_number, row if isinstance(row, InputError) else _flatten(row))
        for row_number, row in rows
    ]
    readable_rows = [row for _, row in flat_rows if not isinstance(row, InputError)]
    empty_cells = {name: "" for row in readable_rows for name in row}
    name_by_ending = _find_unique_endings(empty_cells)  # `loss` for `metrics.loss`
    for row_number, row in flat_rows:
        if isinstance(row, InputError):
            yield row_number, row
        else:
            cells = {**empty_cells, **row}
            yield (
                row_number,
                cells | {ending: cells[name] for ending, name in name_by_ending.items()},
            )


def _find_unique_endings(names: Iterable[str]) -> dict[str, str]:
    """Return the ends of dotted names that only one name has: `median` of `stats.median`."""
    names_by_ending: dict[str, list[str]] = {}  # of a.b.c: b.c and c
    for name in names:
        parts = name.split(".")
        for start in range(1, len(parts)):
            ending = ".".join(parts[start:])
            names_by_ending.setdefault(ending, []).append(name)
    unique_names = {
        ending: full_names[0]
        for ending, full_names in names_by_ending.items()
        if len(full_names) == 1
    }
    # A formula must not mean two columns by a name: not a whole name, and not another ending.
    columns = set(map(column_name, names))
    ending_counts = Counter(map(column_name, unique_names))
    return {
        ending: name
        for ending, name in unique_names.items()
        if column_name(ending) not in columns and ending_counts[column_name(ending)] == 1
    }


def log_rows(text: str, layout: TableLayout) -> Iterator[JsonRow]:
    """Yield the lines of a log that match the pattern of rows, with the facts of lines above."""
    row_pattern = re.compile(layout.row_pattern)
    fact_patterns = [re.compile(pattern) for pattern in layout.fact_patterns]
    patterns = (row_pattern, *fact_patterns)
    empty_cells = {name: "" for pattern in patterns for name in pattern.groupindex}
    facts: dict[str, str] = {}
    for number, long_line in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        line = long_line[:MAX_LINE_CHARACTERS]
        for pattern in fact_patterns:
            fact = pattern.search(line)
            if fact is not None:
                facts |= _matched_cells(fact)
        row = row_pattern.search(line)
        if row is not None:
            yield number, {**empty_cells, **facts, **_matched_cells(row)}


def _matched_cells(match: re.Match[str]) -> dict[str, str]:
    return {name: text for name, text in match.groupdict().items() if text is not None}
