"""`--sort` and `--top`: the rows of an answer in another order, and the first of them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import isnan
from typing import Any

from steptime.core.errors import InputError, unknown
from steptime.core.tables.table import Printout, Row, Table

ROW_FIELDS = ("rows", "ops", "pairs", "steps", "cuts", "bounds")  # of a document
_LEADING_NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(e[-+]?\d+)?")

Arrange = Callable[[Iterable[Row], str], Sequence[Row]]


def arrange_printout(
    answer: Printout, sort: str | None, top: int | None, as_json: bool
) -> Printout:
    """Return an answer whose rows are sorted by a column and cut to the first `top` rows.

    Args:
        answer: the answer to sort.
        sort: key or heading of a column; a `-` before it sorts in descending order. Rows without
            a value come last in both orders.
        top: number of rows to keep, None for all.
        as_json: arrange the rows of the JSON document instead of those of the tables.

    Raises:
        InputError: if no rows have the column.
    """
    column_name = (sort or "").removeprefix("-")
    is_descending = (sort or "").startswith("-")

    def arrange(rows: Iterable[Row], key: str) -> Sequence[Row]:
        return list(islice(_sort_rows(rows, key, is_descending), top))

    if as_json:
        return replace(answer, document=_arrange_document(answer, column_name, arrange))
    tables = list(answer.tables)
    key_maps = [_map_names_to_sort_keys(table) for table in tables]
    _check_column(column_name, key_maps)
    arranged_tables = []
    for table, key_map in zip(tables, key_maps, strict=True):
        is_sortable = bool(key_map)
        if is_sortable:
            rows = arrange(table.rows, _find_key(key_map, column_name))
            arranged_tables.append(replace(table, rows=rows, max_rows=top or table.max_rows))
        else:
            arranged_tables.append(table)
    return replace(answer, tables=arranged_tables)


def print_csv_table(answer: Printout, table: Table, has_headings: bool) -> Printout:
    """Return an answer with one table for CSV in place of those that people read.

    Args:
        answer: the answer.
        table: the table for CSV, whose columns have their keys alone.
        has_headings: whether they get the headings that people read, by which rows are sorted.
    """
    if not has_headings:  # the tables that people read are not computed
        return replace(answer, tables=[table])
    # `--sort` takes headings as people read them: CSV gets the same ones
    heading_by_key = {
        column.key: column.label for printed in answer.tables for column in printed.columns
    }
    columns = [
        replace(column, heading=heading_by_key.get(column.key, column.heading))
        for column in table.columns
    ]
    return replace(answer, tables=[replace(table, columns=columns)])


def _map_names_to_sort_keys(table: Table) -> dict[str, str]:
    """Return the keys of the rows by key and heading; none for a table of facts, one a line."""
    columns = (*table.columns, *table.csv_columns)
    first_row = next(iter(table.rows), None)
    first_column = columns[0]
    # Each line of such a table is another property: there is no order to sort it by.
    is_table_of_facts = first_column.key == "name" and not first_column.label
    if first_row is None or is_table_of_facts:
        return {}
    key_by_heading = {column.label.lower(): column.key for column in columns if column.label}
    keys = [*first_row, *(column.key for column in columns)]
    return key_by_heading | {key: key for key in keys}


def _check_column(column_name: str, key_maps: Sequence[Mapping[str, str]]) -> None:
    column_names = {name: None for key_map in key_maps for name in key_map}  # in their order
    if not column_names:
        raise InputError("--sort, --top: this answer has no rows")
    has_column = any(_find_key(key_map, column_name) for key_map in key_maps)
    if column_name and not has_column:
        raise unknown("column", column_name, column_names, "--sort")


def _find_key(key_map: Mapping[str, str], name: str) -> str:
    for spelling in (name, name.lower(), name.replace("-", "_")):
        if key_map.get(spelling):
            return key_map[spelling]
    return ""


def _arrange_document(answer: Printout, name: str, arrange: Arrange) -> Any:
    """Return the document with its rows arranged; a column has its key or a table's heading."""
    document = answer.document
    key_by_heading = _map_headings_to_keys(answer.tables) if name else {}
    is_mapping = isinstance(document, Mapping)
    fields = document if is_mapping else {"rows": document}
    rows_by_field = {
        field: [*fields[field]] for field in ROW_FIELDS if _holds_rows(fields.get(field))
    }
    key_map_by_field = {}  # a column may be typed by its heading in a table, or by its JSON key
    for field, rows in rows_by_field.items():
        path_by_key = _map_keys_to_paths(rows)
        path_by_heading = {
            heading: path_by_key[key]
            for heading, key in key_by_heading.items()
            if key in path_by_key
        }
        key_map_by_field[field] = path_by_heading | path_by_key
    _check_column(name, [*key_map_by_field.values()])
    arranged_rows_by_field = {
        field: arrange(rows, _find_key(key_map_by_field[field], name))
        for field, rows in rows_by_field.items()
    }
    return {**fields, **arranged_rows_by_field} if is_mapping else arranged_rows_by_field["rows"]


def _map_keys_to_paths(rows: Sequence[Row]) -> dict[str, str]:
    """Return the path of each key in a row of a document: `hyperparameters.nodes` for `nodes`."""
    first_row: Row = rows[0] if rows else {}
    path_by_key: dict[str, str] = {}
    for key, value in first_row.items():
        if isinstance(value, Mapping):
            path_by_key |= {inner_key: f"{key}.{inner_key}" for inner_key in value}
    # an outer key wins over an inner one of the same name
    return path_by_key | {key: key for key in first_row}


def _look_up(row: Row, key: str) -> Any:
    """Return the value of a row at a key or a path of two keys, None where there is none."""
    outer_key, _, inner_key = key.partition(".")
    is_nested = bool(inner_key) and key not in row
    inner_table = row.get(outer_key) if is_nested else None
    if isinstance(inner_table, Mapping):
        return inner_table.get(inner_key)
    return row.get(key)


def _map_headings_to_keys(tables: Iterable[Table]) -> dict[str, str]:
    """Return the keys of all columns by their headings in lower case."""
    columns = [column for table in tables for column in table.columns]
    return {column.label.lower(): column.key for column in columns if column.label}


def _holds_rows(value: Any) -> bool:
    if isinstance(value, Iterator):
        return True
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and all(isinstance(row, Mapping) for row in islice(value, 1))


def _sort_rows(rows: Iterable[Row], key: str, is_descending: bool) -> Iterable[Row]:
    if not key:
        return rows
    valued_rows: list[Row] = []
    empty_rows: list[Row] = []
    for row in rows:
        is_empty = _look_up(row, key) is None
        if is_empty:
            empty_rows.append(row)
        else:
            valued_rows.append(row)
    ordered_rows = sorted(
        valued_rows, key=lambda row: _make_sort_key(_look_up(row, key)), reverse=is_descending
    )
    return [*ordered_rows, *empty_rows]


def _make_sort_key(value: Any) -> tuple[bool, float, str]:
    """Return the sort key of a value: numbers and texts that begin with a number come first."""
    if isinstance(value, int | float):
        # NaN comes last, as it compares with nothing.
        return isnan(value), value, ""
    # Texts are sorted by the number that they begin with, `2 GPUs` before `10 GPUs`, then by
    # their letters; those without a number come last.
    text = str(value)
    leading_number = _LEADING_NUMBER.match(text)
    number = float(leading_number[0].replace(",", "")) if leading_number else 0.0
    has_no_number = leading_number is None
    return has_no_number, number, text.lower()
