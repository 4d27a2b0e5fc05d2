"""Measured rows as cases: rows of a table with a mapping, of records, or with our own keys.

A row without a mapping has the keys of `RowKeys`, such as a JSON line with kind, shapes, device
and seconds.
"""

import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from steptime.calibration.cases import (
    CALIBRATED,
    Case,
    Refusals,
    add_refusal,
    op_kernels,
    step_kernels,
)
from steptime.calibration.record_cases import SEVERAL_REPLICAS, list_record_cases
from steptime.core.dtypes import find_dtype
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.expressions.formula import fill_braces, formula
from steptime.core.tables import table_files
from steptime.core.tables.table_files import Words, table_cells, table_rows, values_of
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
from steptime.records.readers.mapping_keys import Condition, OpOf, PartsTable, RowKeys
from steptime.records.readers.sources import RecordSource, Unread, list_sources
from steptime.records.row import group_by

Row = Mapping[str, Any]
Options = Mapping[str, str]  # of methods
Table = Path | RecordSource | Iterable[Row]
NumberedRow = tuple[int, MappedRow | InputError]  # the number of a line, and its row
# Of `RowKeys`, those that say how a table is read.
TABLE_KEYS = frozenset(
    ("seconds", "device", "unit", "file", "where", "ops", "parts", "quantities", "status")
)
PLAIN_KEYS = ROW_KEYS - TABLE_KEYS
MAX_COUNT = 2**20  # runs of one op in a row


def read_cases(
    rows: str | Path | Iterable[Row],
    mapping: str | Path | None = None,
    device: Device | None = None,
    max_rows: int | None = None,
    warn: Callable[[str], None] = warnings.warn,
    refusals: Refusals | None = None,
) -> list[Case]:
    """Read the cases of rows, of a table, or of a folder of records or tables.

    Args:
        rows: mappings, a DataFrame, or a path.
        mapping: what the columns of a table mean; without one, columns are the keys of `RowKeys`.
        device: the device of rows that name none.
        max_rows: rows of each kind on each device to draw from tables with a mapping; None for all.
        warn: is called with remarks on records that cannot be used.
        refusals: gets the rows that cannot be predicted, with their causes.

    Raises:
        InputError: for what is no such table; without `refusals`, also for the first row that
            cannot be predicted.
    """
    table = Path(rows) if isinstance(rows, str | Path) else _rows_of_frame(rows)
    if mapping is not None:
        return list(cases_of(table, read_mapping(Path(mapping)), max_rows, refusals))
    if max_rows is not None:  # only a mapping has kinds of rows
        raise InputError("rows are drawn from tables with a mapping: --map MAP.toml")
    if isinstance(table, Path) and table.is_dir():
        return list_record_cases(table, warn, refusals)
    if not isinstance(table, Path):  # rows of a script
        placed_rows = ((f"row {index}", row) for index, row in enumerate(table))
        return _read_plain_cases(placed_rows, device, refusals)
    plain_rows = list(_read_plain_rows(table, refusals))
    if plain_rows and "seconds" not in plain_rows[0][1]:
        raise InputError(f"{table}: no column 'seconds'; --map MAP.toml says what columns mean")
    placed_rows = ((f"{table.name}:{line}", row) for line, row in plain_rows)
    return _read_plain_cases(placed_rows, device, refusals)


def _read_plain_rows(table: Path, refusals: Refusals | None) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a table with our own keys; broken lines are added to the refusals."""
    for line, cells in table_cells(table):
        if isinstance(cells, InputError):
            add_refusal(refusals, f"{table.name}:{line}", cells)
        else:
            yield line, values_of(cells, place=str(table))


def _rows_of_frame(rows: Any) -> Iterable[Row]:
    """Return the rows of a DataFrame as mappings, empty cells (NaN) as None; others as they are."""
    if not hasattr(rows, "to_dict"):
        plain_rows: Iterable[Row] = rows
        return plain_rows
    return [
        {name: None if _is_nan(cell) else cell for name, cell in row.items()}
        for row in rows.to_dict("records")
    ]


def _is_nan(cell: object) -> bool:
    return isinstance(cell, float) and isnan(cell)


def _read_plain_cases(
    rows: Iterable[tuple[str, Row]], device: Device | None, refusals: Refusals | None
) -> list[Case]:
    """Return the cases of rows with their places, as `plain_case` does."""
    cases = []
    for place, row in rows:
        try:
            cases.append(plain_case(row, place, device))
        except InputError as error:
            add_refusal(refusals, place, error)
    return cases


def plain_case(row: Row, place: str = "row", device: Device | None = None) -> Case:
    """Return the case of a row with the keys of `RowKeys`, sizes as numbers, seconds in SI.

    Args:
        row: the row.
        place: the row's place, for messages.
        device: the device if the row names none.

    Raises:
        InputError: if a key is missing, unknown or has a bad value.
    """
    default_device = None if row.get("device") else device
    keys = _plain_keys(row, place)
    required = ["seconds"] if default_device else ["seconds", "device"]
    for name in required:
        if row.get(name) is None:
            raise InputError(f"{place}: '{name}' is missing")
    if not (keys.kind or keys.model):
        raise InputError(f"{place}: a row has a kind of op or a model")
    try:
        # With our own keys nothing is renamed or converted: all stages of reading are the row.
        mapped_row = MappedRow(keys, raw=row, cells=row, values=row, line=0)
        case = _make_case(mapped_row, network_kernels=None, place=place, device=default_device)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error.__cause__
    if case is None:
        raise InputError(f"{place}: 'seconds' is empty")
    return case


def _plain_keys(row: Row, place: str) -> RowKeys:
    """Return the keys of a row, whose values become the formulas that a mapping would have."""
    # In `RowKeys`, as in a mapping, attributes and rivals are formulas: a value is a literal there.
    values = {key: row[key] for key in row if key in PLAIN_KEYS and row[key] is not None}
    if "attrs" in values:
        values["attrs"] = {
            name: repr(value) if isinstance(value, str) else value
            for name, value in dict(values["attrs"]).items()
        }
    rivals = dict(row.get("rivals") or {})
    values["rivals"] = {name: repr(value) for name, value in rivals.items()}
    if "batch" in values:
        values["batch"] = str(values["batch"])
    if "channels_last" in values:
        is_last = parse_truth(values["channels_last"], f"{place}: channels_last")
        values["channels_last"] = str(is_last)
    return keys_of(values, RowKeys, place)


def cases_of(
    table: Path | Iterable[Row],
    mapping: TableMapping,
    max_rows: int | None = None,
    refusals: Refusals | None = None,
) -> Iterator[Case]:
    """Yield the cases of a table, of rows, or of the tables of a folder or an archive.

    Args:
        table: the table.
        mapping: what its columns mean.
        max_rows: rows of each entry of the mapping on each device, drawn with a fixed seed; None
            for all.
        refusals: gets the rows that are not as the mapping says.

    Raises:
        InputError: without `refusals`, for the first such row, with its line.
    """
    mapping.check_complete()
    for source in _list_tables(table, mapping, refusals):
        folder = source.table.parent if isinstance(source.table, Path) else Path()
        network_kernels_by_entry = {
            id(entry): _NetworkKernels(folder, entry.parts, mapping.words)
            for entry in source.mapping_entries
            if entry.parts
        }
        all_rows = mapping.rows_of(source.table, source.mapping_entries)
        rows = all_rows if max_rows is None else _draw_rows(all_rows, max_rows)
        for line, row in rows:
            try:
                if isinstance(row, InputError):  # an unreadable line
                    raise row
                network_kernels = network_kernels_by_entry.get(id(row.keys))  # keys: the entry
                case = _make_case(row, network_kernels, f"{source.row_prefix}{line}")
            except InputError as error:
                add_refusal(refusals, f"{source.message_prefix}{line}", error)
                continue
            if case is not None:
                yield case


class _TableSource(NamedTuple):
    """A table of a mapping.

    Attributes:
        table: the table.
        mapping_entries: the entries of the mapping that read it.
        row_prefix: the start of a row's place in tables: "name.csv:".
        message_prefix: the same in messages, with the path.
    """

    table: Table
    mapping_entries: Sequence[RowKeys]
    row_prefix: str
    message_prefix: str


def _list_tables(
    table: Path | Iterable[Row], mapping: TableMapping, refusals: Refusals | None
) -> Iterator[_TableSource]:
    """Yield the tables that a mapping reads; unreadable sources are added to the refusals."""
    if not isinstance(table, Path):
        yield _TableSource(table, mapping.rows, row_prefix="row ", message_prefix="row ")
    elif table.is_dir() and all(entry.file for entry in mapping.rows):
        # The mapping names the files of the folder, and which of its entries read each of them.
        for file in dict.fromkeys(entry.file for entry in mapping.rows):
            path = table / file
            entries = [entry for entry in mapping.rows if entry.file == file]
            yield _TableSource(path, entries, f"{path.name}:", f"{format_path(path)}:")
    elif table_files.is_table_name(table.name) and not table.is_dir():
        yield _TableSource(table, mapping.rows, f"{table.name}:", f"{format_path(table)}:")
    else:
        for source in list_sources(table):
            if isinstance(source, Unread):
                add_refusal(refusals, source.file, InputError(source.reason))
            elif mapping.recognises(source):  # other files of the folder are passed over
                prefix = f"{source.name}:"
                yield _TableSource(source, mapping.rows, row_prefix=prefix, message_prefix=prefix)
            elif table.is_file() and not source.archive:
                reason = f"{NO_FORMAT}: {describe_source(source, mapping)}"
                raise InputError(f"{format_path(table)}: {reason}")


def _draw_rows(rows: Iterable[NumberedRow], max_rows: int) -> Iterator[NumberedRow]:
    """Draw rows of each device and entry, with a fixed seed; broken rows are all yielded."""
    rows_by_device_and_entry: dict[tuple[str, int], list[NumberedRow]] = defaultdict(list)
    for line, row in rows:
        if isinstance(row, InputError):  # refused later, not drawn
            yield line, row
        else:
            rows_by_device_and_entry[row.text(row.keys.device), id(row.keys)].append((line, row))
    for group in rows_by_device_and_entry.values():
        random.Random(0).shuffle(group)  # noqa: S311  # a draw of rows keeps no secret
        yield from group[:max_rows]


class _NetworkKernels:
    """The kernels of networks, from a second table that lists the ops of each network."""

    def __init__(self, folder: Path, layout: PartsTable, words: Words) -> None:
        self.layout = layout
        rows = (row for _, row in table_rows(folder / layout.file, words))
        self.rows_by_network = group_by(rows, lambda row: row.get(layout.by))
        self._kernels: dict[tuple[Any, ...], tuple[Kernel, ...]] = {}

    def kernels(self, row: Row, dtype: str, options: Options) -> tuple[Kernel, ...]:
        """Return the kernels of a row's network."""
        network = row.get(self.layout.by)  # `by` is the column that names the network
        if network not in self.rows_by_network:
            networks = map(str, self.rows_by_network)
            raise unknown(self.layout.by, network, networks, self.layout.file)
        key = network, dtype, tuple(options.items())
        if key not in self._kernels:
            part_rows = self.rows_by_network[network]
            kernels = [_kernels_of_ops(self.layout.ops, part, dtype, options) for part in part_rows]
            self._kernels[key] = tuple(chain.from_iterable(kernels))
        return self._kernels[key]


def _make_case(
    row: MappedRow,
    network_kernels: _NetworkKernels | None,
    place: str,
    device: Device | None = None,
) -> Case | None:
    """Return the case of a row, None where its seconds are empty or NaN."""
    keys = row.keys
    if row.seconds is None:
        return None
    stack = row.text(keys.stack)
    family = row.text(keys.family)
    workload = None
    if keys.model:
        workload = row.workload
        if workload.plan.data > 1 or row.options.get("device_count", 1) != 1:
            raise InputError(SEVERAL_REPLICAS)
        stack = stack or str(row.options.get("stack", ""))
        if keys.quantities and not family:  # a table of steps: left out of a fit by network
            family = workload.label
        kernels = step_kernels(workload, stack_option(stack) | _method_options(row))
    else:
        kernels = _list_op_kernels(row, network_kernels)
    default_kind = workload.model if workload else row.text(keys.kind)
    default_condition: Condition = "step" if keys.quantities else "isolated"
    return Case(
        kernels=kernels,
        device=device or _find_device(row.text(keys.device)),
        seconds=row.seconds,
        kind=row.text(keys.group) or default_kind or "network",
        condition=keys.condition or default_condition,
        calibrates=keys.calibrates,
        copies=keys.copies,
        timing=keys.timing,
        family=family,
        stack=stack,
        workload=workload,
        published_s_by_method=row.rival_times_s,
        place=place,
        method_options=_method_options(row),
    )


def _list_op_kernels(row: MappedRow, network_kernels: _NetworkKernels | None) -> tuple[Kernel, ...]:
    """Return the kernels of a row's ops, or of its network from a second table."""
    keys = row.keys
    dtype = find_dtype(row.text(keys.dtype) or "float32")
    options = {**stack_option(row.text(keys.stack)), **_method_options(row)}
    if network_kernels is not None:
        return network_kernels.kernels(row.values, dtype, options)
    return _kernels_of_ops(keys.ops or [keys], row.values, dtype, options)


def _method_options(row: MappedRow) -> dict[str, str]:
    """Return the options of methods of a row beside the stack, as texts by name."""
    keys = row.keys
    options = {"tf32": row.text(keys.tf32), "host": row.text(keys.host)}
    if keys.channels_last and keys.model:
        value = formula(keys.channels_last)(row.values)
        is_last = parse_truth(value, "channels_last of a model")
        options["channels_last"] = "yes" if is_last else "no"
    return {name: text for name, text in options.items() if text}


def _kernels_of_ops(
    ops: Iterable[OpOf], row: Row, dtype: str, options: Options
) -> tuple[Kernel, ...]:
    """Return the kernels of all ops whose filter takes the row."""
    used_ops = [op for op in ops if not op.row_filter or formula(op.row_filter)(row)]
    return tuple(chain.from_iterable(_op_kernels(op, row, dtype, options) for op in used_ops))


def _op_kernels(op: OpOf, row: Row, dtype: str, options: Options) -> tuple[Kernel, ...]:
    """Return the kernels of an op, as often as it runs."""
    shapes = tuple(tuple(size_of(size, row) for size in shape) for shape in op.shapes)
    attrs = {name: _evaluate_attr(value, row) for name, value in op.attrs.items()}
    op_dtype = find_dtype(fill_braces(op.dtype, row)) if op.dtype else dtype
    kind = fill_braces(op.kind, row)
    settings = CALIBRATED.with_options(options).settings
    try:
        kernels = op_kernels(kind, shapes, attrs, op_dtype, op.pass_, op.gradients, settings)
    except (ShapeError, TypeError, ValueError, IndexError) as error:
        # A TypeError names the op's inner function: "<...>.outputs() missing 1 required ...".
        full_text, _, text_behind_function = str(error).partition("outputs() ")
        reason = text_behind_function or full_text
        message = f"{kind} of {shorten(shapes)}: {reason}"
        # The cause leaves out the shapes, so that rows with the same fault are counted together.
        raise InputError(message) from InputError(f"{kind}: {reason}")
    run_count = size_of(op.count, row, "count", MAX_COUNT)
    return kernels * run_count


def _evaluate_attr(attr: object, row: Row) -> Any:
    """Return an attribute in which texts are formulas of the row's columns."""
    if isinstance(attr, tuple):
        return tuple(_evaluate_attr(part, row) for part in attr)
    return formula(attr)(row) if isinstance(attr, str) else attr


_find_device = lru_cache(maxsize=256)(catalog.device)
