"""Tables of any columns, read by a mapping file: the one reader of `import`, `evaluate`, ...

A text may hold columns and formulas of them in braces (`{device}`); sizes, seconds and quantities
are formulas (`2 * hidden`), of `steptime.core.expressions.formula`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from steptime.core.errors import InputError, check_choice, shorten
from steptime.core.expressions.formula import column_name, formula
from steptime.core.signatures.validated import validate_table
from steptime.core.tables.table_files import (
    Words,
    is_table_name,
    rows_of_text,
    table_cells,
    values_by_name,
)
from steptime.core.tables.table_layout import Cells, TableLayout, find_headings
from steptime.core.toml_files import read_packaged_toml
from steptime.formats import read_table
from steptime.records.readers.dates import read_date
from steptime.records.readers.mapped_row import MappedRow
from steptime.records.readers.mapping_cells import ConvertedCells, NumberFormat
from steptime.records.readers.mapping_keys import Keys, RowKeys
from steptime.records.readers.mapping_names import list_columns_read, list_words
from steptime.records.readers.mapping_remarks import (
    describe_lines,
    describe_repeats,
    describe_replaced,
    describe_units,
)
from steptime.records.readers.sources import Reading, RecordSource, Unread, platform_of
from steptime.records.record import Record, RecordMethod
from steptime.records.repeats import RepeatRow, pool_repeats

FOLDER = "mappings"  # of the package's data
OLD_KEYS = {"platform": "device"}
Model = TypeVar("Model", bound=BaseModel)


class _ReadRows(NamedTuple):
    """The rows of a table that are steps, as records and as rows, and the lines that are none."""

    repeat_rows: list[RepeatRow]
    mapped_rows: list[MappedRow]
    unread: list[Unread]


@dataclass(frozen=True)
class TableMapping:
    """A reader of tables by a mapping.

    Attributes:
        keys: the keys of the mapping.
        rows: its entries of rows.
        place: its file, for messages.
        name: its name.
        SOURCE: who published the tables.
        sha256: hash of the content of a user's file; "" for the mappings of the house.
        missing_keys: keys that neither the files of the tool nor the user give.
        command_keys: keys that the command gives.
        replaced_keys: texts of columns that `command_keys` replace, by key.
    """

    keys: Keys
    rows: tuple[RowKeys, ...]
    place: str
    name: str
    SOURCE: str  # named like that of the readers that are modules
    sha256: str = ""
    missing_keys: tuple[str, ...] = ()
    command_keys: Mapping[str, str] = field(default_factory=dict)
    replaced_keys: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def words(self) -> Words:
        """The meanings of the words of the table, by the names of columns in formulas."""
        return {column_name(column): meaning for column, meaning in self.keys.words.items()}

    def recognises(self, source: RecordSource) -> bool:
        """Return whether a file is a table of the mapping: by its marks or columns, or its name."""
        keys = self.keys
        if keys.marks or keys.prefix:  # a log that holds certain texts
            return all(map(source.contains, filter(None, (*keys.marks, keys.prefix))))
        if keys.columns:
            return {*keys.columns} <= source.columns_under(keys.layout)
        return is_table_name(source.name) or bool(keys.row_pattern)

    def read(self, source: RecordSource) -> Reading:
        """Return a record for each step, and the lines that are none, with the reasons."""
        self.check_complete()
        rows = self._read_rows(source)
        unread = [Unread(source.name, None, reason) for reason in self._unknown_columns(source)]
        unread += rows.unread
        if not rows.repeat_rows:
            unread = _merge_reasons(source, unread) or self._describe_no_rows(source)
        records = tuple(pool_repeats(rows.repeat_rows))
        remarks = [
            *describe_lines(source, rows.repeat_rows, self.layout),
            *describe_replaced(self.replaced_keys, self.command_keys),
            *describe_units(rows.mapped_rows),
            *describe_repeats(rows.repeat_rows, len(records), rows.mapped_rows, self.layout),
        ]
        return Reading(records, tuple(unread), tuple(remarks))

    def _read_rows(self, source: RecordSource) -> _ReadRows:
        """Return the rows that fit an entry of the mapping, and the faults of the others."""
        rows = _ReadRows([], [], [])
        file_name = source.name.rpartition("/")[2]
        entries = [row for row in self.rows if row.file.removesuffix(".gz") in ("", file_name)]
        for line, row in self.rows_of(source, entries):
            try:
                if isinstance(row, InputError):
                    raise row  # a line that cannot be read, like one that makes no record
                rows.repeat_rows.append(self._make_record(row))
                rows.mapped_rows.append(row)
            except InputError as error:
                rows.unread.append(Unread(source.name, line, str(error)))
        return rows

    def _describe_no_rows(self, source: RecordSource) -> list[Unread]:
        """Return why a table has no row: the line that was taken for the headings."""
        layout = self.layout
        if source.is_json or layout.prefix or layout.row_pattern:
            return [Unread(source.name, line=None, reason="no row fits the mapping")]
        headings = find_headings(source.text, layout, source.name.lower().endswith(".tsv"))
        if headings is None:
            return [Unread(source.name, line=None, reason="an empty table")]
        line = f"line {headings.line}, {shorten(headings.text.strip())}"
        reason = f"no row fits the mapping; {line}, names the columns"
        return [Unread(source.name, line=None, reason=reason)]

    def check_complete(self) -> None:
        """Raise `InputError` for keys that a tool's files lack and that nobody gave."""
        if self.missing_keys:
            names = " and ".join(self.missing_keys)
            options = " ".join(f"--{key} {key.upper()}" for key in self.missing_keys)
            remedy = f"give {options}, or a mapping with base = {shorten(self.name)}"
            raise InputError(f"files of {self.name} say no {names}: {remedy}")

    def _unknown_columns(self, source: RecordSource) -> list[str]:
        """Return a reason for each column that the mapping does not name."""
        keys = self.keys
        if not keys.columns or keys.open or source.is_json:
            return []
        expected = {*keys.columns, *keys.optional_columns}
        unknown_columns = sorted(source.columns_under(keys.layout) - expected)
        return [f"column {shorten(column)} is not known" for column in unknown_columns]

    def rows_of(
        self, table: Path | RecordSource | Iterable[Cells], entries: Sequence[RowKeys]
    ) -> Iterator[tuple[int, MappedRow | InputError]]:
        """Yield line and row for each entry that a row of a table fits, or the fault of the row."""
        number_format = NumberFormat(self.keys.decimal, self.keys.thousands)
        for line, cells in self._read_cells(table):
            if isinstance(cells, InputError):
                yield line, cells
                continue
            row = self._convert_cells(cells, number_format)
            try:
                values = values_by_name(row.ours, row.values, place=f"row {line}")
            except InputError as error:
                yield line, error
                continue
            for entry in entries:
                try:
                    fits = not entry.row_filter or formula(entry.row_filter)(values)
                    if fits:
                        yield line, MappedRow(entry, row.raw, row.ours, values, line)
                except InputError as error:
                    yield line, error

    @cached_property
    def layout(self) -> TableLayout:
        """How the rows stand in the file, with the columns that formulas read."""
        return replace(
            self.keys.layout,
            needed=list_columns_read(self.rows[0]),
            mentioned=list_words(self.rows),
        )

    def _convert_cells(self, cells: Cells, number_format: NumberFormat) -> ConvertedCells:
        """Return the cells of a row in plain numbers, in our words and as values of formulas."""
        raw = cells
        if not number_format.is_plain:
            raw = {column: number_format.to_plain_text(cell) for column, cell in cells.items()}
        ours = raw
        if self.words:
            ours = {column: self._in_our_words(column, cell) for column, cell in raw.items()}
        values = {
            column: number_format.to_value(cells[column], cell) for column, cell in ours.items()
        }
        return ConvertedCells(raw, ours, values)

    def _in_our_words(self, column: str, cell: object) -> object:
        return self.words.get(column_name(column), {}).get(str(cell), cell)

    def _read_cells(
        self, table: Path | RecordSource | Iterable[Cells]
    ) -> Iterator[tuple[int, Cells | InputError]]:
        if not isinstance(table, RecordSource):
            return table_cells(table, self.layout)
        return rows_of_text(table.text, table.name, table.name, self.layout)

    def _make_record(self, row: MappedRow) -> RepeatRow:
        """Return the record of a row that is a step; raises `InputError` for another."""
        keys = row.keys
        if not keys.model:  # an entry of single ops
            raise InputError("an op, no step of a network; steptime evaluate reads it")
        status, cause = row.outcome
        measured = row.measured if status == "ok" else {}
        if status == "ok" and not measured:
            raise InputError(f"{keys.seconds}: no time is said")
        device = row.text(keys.device).strip()
        if not device:
            raise InputError("device: empty")
        stack = _name_stack(row)
        options = {"stack": stack, **row.options} if stack else row.options
        taken_at = _read_taken_at(row)
        record = Record(
            origin=keys.origin,
            method=RecordMethod(self.name, row.text(keys.version), options),
            workload=row.workload,
            platform=platform_of(device),
            quantities={name: amount.quantity for name, amount in measured.items()},
            status=status,
            cause=cause,
            note=row.text(keys.note),
            scope=row.text(keys.scope),
            env=self._environment(row, stack, taken_at),
            taken_at=taken_at,
        )
        return RepeatRow(record, row.text(keys.repeat) if keys.repeat else None)

    def _environment(self, row: MappedRow, stack: str, taken_at: str) -> dict[str, object]:
        """Return the facts beside a record: its line, what `env` says, date, stack and mapping."""
        facts = {name: row.text(text) for name, text in row.keys.env.items()}
        defaults = {"date": taken_at[:10], "stack": stack, "mapping": self._identity}
        env = {name: text for name, text in defaults.items() if text}
        return {"source_entry": row.line, **env, **facts}

    @cached_property
    def _identity(self) -> str:
        """A text that tells mappings apart: their content and what the command gave beside."""
        keys = json.dumps(dict(self.command_keys), sort_keys=True) if self.command_keys else ""
        return self.sha256 + (sha256(keys.encode()).hexdigest() if keys else "")


def _merge_reasons(source: RecordSource, unread: list[Unread]) -> list[Unread]:
    """Return one entry for the file where all its lines are unread for one reason."""
    have_common_reason = len(unread) > 1 and len({entry.reason for entry in unread}) == 1
    if not have_common_reason:
        return unread
    return [Unread(source.name, line=None, reason=unread[0].reason)]


def _name_stack(row: MappedRow) -> str:
    """Return the stack of a row, by its key or else by its option; "" if nothing says it."""
    return row.text(row.keys.stack) or str(row.options.get("stack", ""))


def _read_taken_at(row: MappedRow) -> str:
    """Return the date of a row, "" where the table has none."""
    date = row.text(row.keys.date).strip() if row.keys.date else ""
    return read_date(date) if date else ""


def read_mapping(path: Path, command_keys: Mapping[str, str] | None = None) -> TableMapping:
    """Return the mapping of a user's file, or the house's mapping of that name.

    Args:
        path: a file, or a name such as `hyperfine`.
        command_keys: keys that a command gives beside: model, batch, device, ...

    Raises:
        InputError: with all faults on one line.
    """
    names = shipped_names()
    is_file = path.exists()
    if str(path) in names and not is_file:
        return read_shipped_mapping(str(path), command_keys)
    looks_like_name = not path.suffix and len(path.parts) == 1
    if looks_like_name and not is_file:  # raises, with the nearest name
        check_choice("mapping", str(path), names)
    table = read_table(str(path), "mapping")
    mapping = mapping_of(table, str(path), path.stem, command_keys)
    return replace(mapping, sha256=sha256(repr(table).encode()).hexdigest())


def shipped_names() -> list[str]:
    """Return the names of the mappings of the house."""
    from steptime.core.toml_files import DATA

    return sorted(path.stem for path in (DATA / FOLDER).glob("*.toml"))


def read_shipped_mapping(name: str, command_keys: Mapping[str, str] | None = None) -> TableMapping:
    """Return a mapping of the house by its name."""
    return mapping_of(read_packaged_toml(f"{FOLDER}/{name}.toml"), name, name, command_keys)


def mapping_of(
    table: object,
    place: str = "mapping",
    name: str = "mapping",
    command_keys: Mapping[str, str] | None = None,
) -> TableMapping:
    """Return the mapping of a table of keys.

    Args:
        table: the keys of the mapping.
        place: the file, for messages.
        name: its name if the table has none.
        command_keys: keys that replace those of the table and of its rows.

    Raises:
        InputError: with all faults on one line.
    """
    if not isinstance(table, dict):
        raise InputError(f"{place}: a mapping is a table, not {shorten(table)}")
    key_texts = dict(command_keys or {})
    table = _add_base(table, place)
    keys = keys_of({**table, **key_texts}, Keys, place)
    missing_keys = tuple(k for k in keys.required_keys if not table.get(k) and k not in key_texts)
    # An entry of rows has the keys of the whole mapping, its own, and those of the command, of
    # which the last win. A mapping without `rows` has one entry, without keys of its own.
    shared_keys = {key: value for key, value in table.items() if OLD_KEYS.get(key, key) in ROW_KEYS}
    # Keys that are missing have placeholders: the mapping can be read, not used.
    shared_keys |= {key: text for key, text in _PLACEHOLDERS.items() if key in missing_keys}
    entry_keys = keys.rows or ({},)
    entries = [_read_entry({**shared_keys, **row, **key_texts}, place) for row in entry_keys]
    return TableMapping(
        keys,
        tuple(entries),
        place,
        keys.name or name,
        keys.source or name,
        missing_keys=missing_keys,
        command_keys=key_texts,
        replaced_keys=_list_replaced_columns([shared_keys, *entry_keys], key_texts),
    )


def _add_base(table: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """Return the keys of a mapping, completed by those of the mapping of the house it names."""
    if "base" not in table:
        return table
    base = check_choice("base", table["base"], shipped_names(), place)
    return {**read_packaged_toml(f"{FOLDER}/{base}.toml"), **table}


def _list_replaced_columns(
    tables: Sequence[Mapping[str, Any]], command_keys: Mapping[str, str]
) -> dict[str, str]:
    """Return the texts with columns ("{name}") in whose place the command has other texts."""
    replaced_texts: dict[str, str] = {}
    for table in tables:  # the last one counts
        replaced_texts |= {key: table[key] for key in command_keys if key in table}
    return {key: text for key, text in replaced_texts.items() if "{" in str(text)}


_PLACEHOLDERS = {"model": "unknown", "batch": "1"}  # of keys that nobody gave yet


def _read_entry(table: Mapping[str, Any], place: str) -> RowKeys:
    """Return an entry of `rows`; raises `InputError` if it is of no kind or of several."""
    row = keys_of(table, RowKeys, f"{place}: rows")
    stated_contents = [text for text in (row.kind, row.ops, row.parts, row.model) if text]
    if len(stated_contents) != 1:
        raise InputError(f"{place}: rows are one of kind, ops, parts or model")
    if row.model and row.quantities and not row.batch:
        raise InputError(f"{place}: quantities of a model need its 'batch'")
    return row


def keys_of(table: Mapping[str, Any], model: type[Model], place: str) -> Model:
    """Return a table as the keys of a mapping, of old names, too; raises `InputError`."""
    return validate_table({OLD_KEYS.get(k, k): v for k, v in table.items()}, model, place)


ROW_KEYS = frozenset(field.alias or name for name, field in RowKeys.model_fields.items())
