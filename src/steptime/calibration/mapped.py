"""Rows that were measured as cases: of a table by a mapping, of records, or with our own keys.

A row without a mapping has the keys of `RowKeys` themselves, as JSON lines that name kind, shapes,
device and seconds do.
"""

import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import isnan
from pathlib import Path
from typing import Any

from steptime.calibration.cases import PRICED, Case, Unasked, leave_out, op_kernels, step_kernels
from steptime.calibration.record_cases import SEVERAL_REPLICAS, list_record_cases
from steptime.core.dtypes import find_dtype
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.formula import filled, formula
from steptime.core.table_files import Words, is_table_name, table_cells, table_rows, values_of
from steptime.core.toml_files import format_path
from steptime.core.values import parse_truth
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.network.ops.table import ShapeError
from steptime.prediction.kernel import Kernel
from steptime.prediction.method import stack_option
from steptime.records.readers import NO_FORMAT, describe_source
from steptime.records.readers.mapped_row import MappedRow, size_of
from steptime.records.readers.mapping import ROW_KEYS, TableMapping, keys_of, read_mapping
from steptime.records.readers.mapping_keys import OpOf, PartsTable, RowKeys
from steptime.records.readers.sources import RecordSource, Unread, list_sources
from steptime.records.row import grouped

Row = Mapping[str, Any]
Table = Path | RecordSource | Iterable[Row]


def cases(
    rows: str | Path | Iterable[Row],
    mapping: str | Path | None = None,
    device: Device | None = None,
    most: int | None = None,
    warn: Callable[[str], None] = warnings.warn,
    unasked: Unasked | None = None,
) -> list[Case]:
    """Return the cases of rows, of a table, or of a folder of records or tables.

    `device` is that of rows that name none, `most` the number of rows of each kind on each device
    that are drawn from tables with a mapping. `warn` is told of records that cannot be used. Rows
    that no prediction can be asked for go to the list `unasked` with their causes; without one the
    first of them is an `InputError`. Raises `InputError`.
    """
    table = Path(rows) if isinstance(rows, str | Path) else _framed(rows)
    if mapping is not None:
        return list(cases_of(table, read_mapping(Path(mapping)), most, unasked))
    if most is not None:
        raise InputError("rows are drawn from tables with a mapping: --map MAP.toml")
    if isinstance(table, Path) and table.is_dir():
        return list_record_cases(table, warn, unasked)
    if not isinstance(table, Path):
        return _listed(((f"row {i}", row) for i, row in enumerate(table)), device, unasked)
    plain = list(_plain_rows(table, unasked))
    if plain and "seconds" not in plain[0][1]:
        raise InputError(f"{table}: no column 'seconds'; --map MAP.toml says what columns mean")
    return _listed(((f"{table.name}:{line}", row) for line, row in plain), device, unasked)


def _plain_rows(table: Path, unasked: Unasked | None) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a table with our own keys; lines that are no rows go to `unasked`."""
    for line, cells in table_cells(table):
        if isinstance(cells, InputError):
            leave_out(unasked, f"{table.name}:{line}", cells)
        else:
            yield line, values_of(cells, place=str(table))


def _framed(rows: Any) -> Iterable[Row]:
    """Return rows as mappings; those of a DataFrame, whose empty cells are NaN, too."""
    every: Iterable[Row] = rows
    if hasattr(rows, "to_dict"):
        every = [
            {name: None if isinstance(cell, float) and isnan(cell) else cell for name, cell in row}
            for row in map(dict.items, rows.to_dict("records"))
        ]
    return every


def _listed(
    rows: Iterable[tuple[str, Row]], device: Device | None, unasked: Unasked | None
) -> list[Case]:
    """Return the cases of rows with their places, as `plain_case` does."""
    found = []
    for place, row in rows:
        try:
            found.append(plain_case(row, place, device))
        except InputError as error:
            leave_out(unasked, place, error)
    return found


def plain_case(row: Row, place: str = "row", device: Device | None = None) -> Case:
    """Return the case of a row whose keys are those of `RowKeys`, sizes as they are, seconds in SI.

    `device` is that of a row that names none. Raises `InputError` for what is no such row.
    """
    device = None if row.get("device") else device
    said = {key: value for key, value in row.items() if key in _SAID and value is not None}
    if "attrs" in said:
        attrs = dict(said["attrs"]).items()
        said["attrs"] = {name: repr(v) if isinstance(v, str) else v for name, v in attrs}
    said["rivals"] = {name: repr(value) for name, value in dict(row.get("rivals") or {}).items()}
    if "batch" in said:
        said["batch"] = str(said["batch"])
    if "channels_last" in said:
        said["channels_last"] = str(parse_truth(said["channels_last"], f"{place}: channels_last"))
    keys = keys_of(said, RowKeys, place)
    for name in ("seconds", *(() if device else ("device",))):
        if row.get(name) is None:
            raise InputError(f"{place}: '{name}' is missing")
    if not (keys.kind or keys.model):
        raise InputError(f"{place}: a row has a kind of op or a model")
    try:
        case = _case(MappedRow(keys, row, row, row, 0), None, place, device)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error.__cause__
    if case is None:
        raise InputError(f"{place}: 'seconds' is empty")
    return case


_OF_TABLES = ("seconds", "device", "unit", "file", "where", "ops", "parts", "quantities", "status")
_SAID = ROW_KEYS.difference(_OF_TABLES)


def cases_of(
    table: Path | Iterable[Row],
    said: TableMapping,
    most: int | None = None,
    unasked: Unasked | None = None,
) -> Iterator[Case]:
    """Yield the cases of a table, of rows, or of the tables of a folder or an archive.

    At most `most` of each entry of `rows` on each device, drawn by chance with a fixed seed. Rows
    that are not what the mapping says go to `unasked`; without that list the first is an
    `InputError`, naming the line.
    """
    said.check_complete()
    for name, place, at, entries in _tables(table, said, unasked):
        beside = at.parent if isinstance(at, Path) else Path()
        parts = {id(one): _Parts(beside, one.parts, said.words) for one in entries if one.parts}
        rows = said.rows_of(at, entries)
        for line, row in rows if most is None else _drawn(rows, most):
            try:
                if isinstance(row, InputError):
                    raise row
                case = _case(row, parts.get(id(row.keys)), f"{name}{line}")
            except InputError as error:
                leave_out(unasked, f"{place}{line}", error)
                continue
            if case is not None:
                yield case


def _tables(
    table: Path | Iterable[Row], said: TableMapping, unasked: Unasked | None
) -> Iterator[tuple[str, str, Table, Sequence[RowKeys]]]:
    """Yield the tables that a mapping is for, how places begin in them, and their entries."""
    if not isinstance(table, Path):
        yield "row ", "row ", table, said.rows
    elif table.is_dir() and all(one.file for one in said.rows):
        for file in dict.fromkeys(one.file for one in said.rows):
            at = table / file
            own = [one for one in said.rows if one.file == file]
            yield f"{at.name}:", f"{format_path(at)}:", at, own
    elif is_table_name(table.name) and not table.is_dir():
        yield f"{table.name}:", f"{format_path(table)}:", table, said.rows
    else:
        for source in list_sources(table):
            if isinstance(source, Unread):
                leave_out(unasked, source.file, InputError(source.reason))
            elif said.recognises(source):
                yield f"{source.name}:", f"{source.name}:", source, said.rows
            elif table.is_file() and not source.archive:
                reason = f"{NO_FORMAT}: {describe_source(source, said)}"
                raise InputError(f"{format_path(table)}: {reason}")


def _drawn(
    rows: Iterable[tuple[int, MappedRow | InputError]], most: int
) -> Iterator[tuple[int, MappedRow | InputError]]:
    """Yield at most `most` rows of each device and entry, by chance, and what is no row."""
    groups: dict[tuple[str, int], list[tuple[int, MappedRow | InputError]]] = defaultdict(list)
    for line, row in rows:
        if isinstance(row, InputError):
            yield line, row
        else:
            groups[row.text(row.keys.device), id(row.keys)].append((line, row))
    for some in groups.values():
        random.Random(0).shuffle(some)  # noqa: S311  # a draw of rows keeps no secret
        yield from some[:most]


class _Parts:
    """The kernels of networks, from a table that lists their ops."""

    def __init__(self, folder: Path, said: PartsTable, words: Words) -> None:
        self.said = said
        rows = (row for _, row in table_rows(folder / said.file, words))
        self.rows = grouped(rows, lambda row: row.get(said.by))
        self.known: dict[tuple[Any, str, str], tuple[Kernel, ...]] = {}

    def kernels(self, row: Row, dtype: str, tf32: str) -> tuple[Kernel, ...]:
        """Return the kernels of a row's network."""
        key = row.get(self.said.by), dtype, tf32
        if key[0] not in self.rows:
            raise unknown(self.said.by, key[0], map(str, self.rows), self.said.file)
        if key not in self.known:
            self.known[key] = tuple(
                kernel
                for part in self.rows[key[0]]
                for op in self.said.ops
                if not op.row_filter or formula(op.row_filter)(part)
                for kernel in _kernels(op, part, dtype, tf32)
            )
        return self.known[key]


def _case(
    row: MappedRow, parts: _Parts | None, place: str, device: Device | None = None
) -> Case | None:
    """Return the case of a row, None where its seconds are empty or NaN."""
    keys, values, seconds = row.keys, row.values, row.seconds
    if seconds is None:
        return None
    dtype = find_dtype(row.text(keys.dtype) or "float32")
    asked = _asked(row)
    workload = None
    tf32 = asked.get("tf32", "")
    stack, family = row.text(keys.stack), row.text(keys.family)
    if keys.model:
        workload, of_row = row.workload, row.options
        if workload.plan.data > 1 or of_row.get("device_count", 1) != 1:
            raise InputError(SEVERAL_REPLICAS)
        stack = stack or str(of_row.get("stack", ""))
        kernels = step_kernels(workload, stack_option(stack) | asked)
        family = family or (workload.label if keys.quantities else "")
    elif parts is not None:
        kernels = parts.kernels(values, dtype, tf32)
    else:
        ops = [
            one
            for one in keys.ops or [keys]
            if not one.row_filter or formula(one.row_filter)(values)
        ]
        kernels = tuple([one for op in ops for one in _kernels(op, values, dtype, tf32)])
    group = row.text(keys.group) or (workload.model if workload else row.text(keys.kind))
    return Case(
        kernels,
        device or _device(row.text(keys.device)),
        seconds,
        group or "network",
        keys.condition or ("step" if keys.quantities else "isolated"),
        calibrates=keys.calibrates,
        copies=keys.copies,
        timing=keys.timing,
        family=family,
        stack=stack,
        workload=workload,
        rivals=row.rivals,
        place=place,
        asked=asked,
    )


def _asked(row: MappedRow) -> dict[str, str]:
    """Return what a row asks of methods beside the stack, as texts by option."""
    keys = row.keys
    found = {"tf32": row.text(keys.tf32), "host": row.text(keys.host)}
    if keys.channels_last and keys.model:
        last = parse_truth(formula(keys.channels_last)(row.values), "channels_last of a model")
        found["channels_last"] = "yes" if last else "no"
    return {name: text for name, text in found.items() if text}


def _kernels(op: OpOf, row: Row, dtype: str, tf32: str = "") -> tuple[Kernel, ...]:
    """Return the kernels of an op, as often as it runs."""
    shapes = tuple(tuple(size_of(size, row) for size in shape) for shape in op.shapes)
    attrs = {name: _attr(value, row) for name, value in op.attrs.items()}
    own = find_dtype(filled(op.dtype, row)) if op.dtype else dtype
    kind = filled(op.kind, row)
    try:
        settings = PRICED.under({"tf32": tf32} if tf32 else {}).settings
        one = op_kernels(kind, shapes, attrs, own, op.pass_, op.gradients, settings)
    except (ShapeError, TypeError, ValueError, IndexError) as error:
        said = str(error).partition("outputs() ")
        reason = f"{kind}: {said[2] or said[0]}"
        of_shapes = f"{kind} of {shorten(shapes)}: {said[2] or said[0]}"
        raise InputError(of_shapes) from InputError(reason)
    return one * size_of(op.count, row, "count", 2**20)


def _attr(said: object, row: Row) -> Any:
    if isinstance(said, tuple):
        return tuple(_attr(part, row) for part in said)
    return formula(said)(row) if isinstance(said, str) else said


_device = lru_cache(maxsize=256)(catalog.device)
