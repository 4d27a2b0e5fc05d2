"""Tables of measured times as cases: what a mapping file says of their columns.

A text may hold formulas of columns in braces (`{device}`), and sizes and seconds are formulas
(`2 * hidden`), of `steptime.core.formula`. A table without a mapping has the columns of `RowKeys`
themselves, as JSON lines that name kind, shapes, device and seconds do.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from steptime.build import make_workload, read_model, validated
from steptime.calibration.cases import PRICED, Case, Unasked, leave_out, op_kernels
from steptime.calibration.mapping_keys import Keys, OpOf, PartsTable, RowKeys, Size
from steptime.calibration.recorded import step_kernels
from steptime.core.dtypes import dtype_named
from steptime.core.errors import InputError, one_of, shorten, unknown
from steptime.core.formula import filled, formula
from steptime.core.ranges import truth
from steptime.core.table import picked
from steptime.core.table_files import Words, table_rows
from steptime.core.toml_files import shown
from steptime.core.workload import OPTIMIZERS, Workload
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.network.ops.table import ShapeError
from steptime.prediction.kernel import Kernel
from steptime.prediction.method import stack_option

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class TimesMapping:
    """A mapping: which rows are what, and what the table's words mean, by column."""

    rows: tuple[RowKeys, ...]
    words: Words
    where: str


def mapping(table: Mapping[str, Any], where: str = "mapping") -> TimesMapping:
    """Return the mapping that a table says; raises `InputError` with all faults on one line."""
    keys: Keys = _valid(Keys, table, where)
    common = {name: value for name, value in table.items() if name in _COMMON}
    rows = tuple(_valid(RowKeys, common | one, f"{where}: rows") for one in keys.rows or ({},))
    for one in rows:
        if sum(map(bool, (one.kind, one.ops, one.parts, one.model))) != 1:
            raise InputError(f"{where}: rows are one of kind, ops, parts or model")
    return TimesMapping(rows, keys.words, where)


def _keys_of(model: type[BaseModel]) -> dict[str, str]:
    return {field.alias or name: name for name, field in model.model_fields.items()}


_COMMON = frozenset(_keys_of(RowKeys))


def _valid(model: Any, table: Mapping[str, Any], where: str) -> Any:
    """Return a table as a model of pydantic has it."""
    for key in table:
        one_of("key", key, _keys_of(model), where)
    return validated(table, model, where)


def plain_cases(
    path: Path, device: Device | None = None, unasked: Unasked | None = None
) -> list[Case]:
    """Return the cases of a table whose columns are the keys of `RowKeys`: JSON lines, say.

    Rows that are none go to the list `unasked`; without one the first of them is an `InputError`.
    """
    rows = list(table_rows(path))
    if rows and "seconds" not in rows[0][1]:
        raise InputError(f"{path}: no column 'seconds'; --map MAP.toml says what columns mean")
    return listed(((f"{path.name}:{line}", row) for line, row in rows), device, unasked)


def listed(
    rows: Iterable[tuple[str, Row]], device: Device | None, unasked: Unasked | None
) -> list[Case]:
    """Return the cases of rows with their places, as `plain_cases` does."""
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
        said["channels_last"] = str(truth(said["channels_last"], f"{place}: channels_last"))
    rows: RowKeys = _valid(RowKeys, said, place)
    for name in ("seconds", *(() if device else ("device",))):
        if row.get(name) is None:
            raise InputError(f"{place}: '{name}' is missing")
    if not (rows.kind or rows.model):
        raise InputError(f"{place}: a row has a kind of op or a model")
    try:
        case = _case(rows, row, None, place, device)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error.__cause__
    if case is None:
        raise InputError(f"{place}: 'seconds' is empty")
    return case


_SAID = _COMMON.difference(("seconds", "device", "unit", "file", "where", "ops", "parts"))


def cases_of(
    table: Path | Iterable[Row],
    said: TimesMapping,
    most: int | None = None,
    unasked: Unasked | None = None,
) -> Iterator[Case]:
    """Yield the cases of a table, of rows, or of the files of a folder that the mapping names.

    At most `most` of each entry of `rows` on each device, drawn by chance with a fixed seed. Rows
    that are not what the mapping says go to `unasked`; without that list the first is an
    `InputError`, naming the line.
    """
    folder = table if isinstance(table, Path) and table.is_dir() else None
    if folder and not all(one.file for one in said.rows):
        raise InputError(f"{said.where}: rows of a folder need 'file'")
    for file in dict.fromkeys(one.file for one in said.rows):
        at = folder / file if folder else table
        name = f"{at.name}:" if isinstance(at, Path) else "row "
        place = f"{shown(at)}:" if isinstance(at, Path) else name
        beside = at.parent if isinstance(at, Path) else Path()
        entries = [one for one in said.rows if one.file == file]
        parts = [_Parts(beside, one.parts, said.words) if one.parts else None for one in entries]
        for line, row, i in _drawn(at, entries, said.words, most):
            try:
                case = _case(entries[i], row, parts[i], f"{name}{line}")
            except InputError as error:
                leave_out(unasked, f"{place}{line}", error)
                continue
            if case is not None:
                yield case


def _drawn(
    table: Path | Iterable[Row], entries: Sequence[RowKeys], words: Words, most: int | None
) -> Iterator[tuple[int, Row, int]]:
    """Yield line, values and entry of the rows of a table, at most `most` of each device."""
    fitting = (
        (line, row, i)
        for line, row in table_rows(table, words)
        for i, one in enumerate(entries)
        if not one.where or formula(one.where)(row)
    )
    if most is None:
        yield from fitting
        return
    groups: dict[tuple[str, int], list[tuple[int, Row, int]]] = defaultdict(list)
    for found in fitting:
        groups[filled(entries[found[2]].device, found[1]), found[2]].append(found)
    for some in groups.values():
        random.Random(0).shuffle(some)  # noqa: S311  # a draw of rows keeps no secret
        yield from some[:most]


class _Parts:
    """The kernels of networks, from a table that lists their ops."""

    def __init__(self, folder: Path, said: PartsTable, words: Words) -> None:
        self.said = said
        self.rows: dict[Any, list[Row]] = defaultdict(list)
        for _, row in table_rows(folder / said.file, words):
            self.rows[row.get(said.by)].append(row)
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
                if not op.where or formula(op.where)(part)
                for kernel in _kernels(op, part, dtype, tf32)
            )
        return self.known[key]


def _case(
    said: RowKeys,
    row: Row,
    parts: _Parts | None,
    place: str,
    device: Device | None = None,
) -> Case | None:
    """Return the case of a row, None where its seconds are empty or NaN."""
    seconds = formula(said.seconds)(row)
    if seconds in ("", None) or str(seconds).lower() == "nan":
        return None
    if not isinstance(seconds, int | float) or not 0 < seconds < 1e300:
        raise InputError(f"{said.seconds} must be above 0, not {shorten(seconds)}")
    scale = UNITS[said.unit]
    dtype = _dtype(said.dtype, row)
    rivals = {
        name: value * scale
        for name, text in said.rivals.items()
        if isinstance(value := formula(text)(row), int | float) and value > 0
    }
    asked = _asked(said, row)
    workload, kernels = _network(said, row, parts, dtype, asked)
    group = filled(said.group, row) if said.group else ""
    return Case(
        kernels,
        device or _device(filled(said.device, row)),
        seconds * scale,
        group or (workload.model if workload else filled(said.kind, row) or "network"),
        **picked(said, "condition calibrates copies timing"),
        family=filled(said.family, row),
        stack=filled(said.stack, row),
        workload=workload,
        rivals=rivals,
        place=place,
        asked=asked,
    )


def _asked(said: RowKeys, row: Row) -> dict[str, str]:
    """Return what a row asks of methods beside the stack, as texts by option."""
    found = {"tf32": filled(said.tf32, row), "host": filled(said.host, row)}
    if said.channels_last and said.model:
        last = truth(formula(said.channels_last)(row), "channels_last of a model")
        found["channels_last"] = "yes" if last else "no"
    return {name: text for name, text in found.items() if text}


def _network(
    said: RowKeys,
    row: Row,
    parts: _Parts | None,
    dtype: str,
    asked: Mapping[str, str],
) -> tuple[Workload | None, tuple[Kernel, ...]]:
    """Return the workload of a row that names a model that can be built, and a row's kernels."""
    if said.model:
        return _step(said, row, dtype, asked)
    tf32 = asked.get("tf32", "")
    if parts is not None:
        return None, parts.kernels(row, dtype, tf32)
    ops = [one for one in said.ops or [said] if not one.where or formula(one.where)(row)]
    return None, tuple([kernel for op in ops for kernel in _kernels(op, row, dtype, tf32)])


def _step(
    said: RowKeys, row: Row, dtype: str, asked: Mapping[str, str]
) -> tuple[Workload, tuple[Kernel, ...]]:
    """Return the step of a row's model, and its kernels."""
    batch = _size(said.batch, row, "batch") if said.batch else None
    optimizer = one_of("optimizer", filled(said.optimizer, row), OPTIMIZERS)
    model = read_model(filled(said.model, row))
    workload = make_workload(model, batch, dtype, filled(said.phase, row), optimizer)
    return workload, step_kernels(workload, stack_option(filled(said.stack, row)) | dict(asked))


def _dtype(text: str, row: Row) -> str:
    return dtype_named(filled(text, row) or "float32")


def _kernels(op: OpOf, row: Row, dtype: str, tf32: str = "") -> tuple[Kernel, ...]:
    """Return the kernels of an op, as often as it runs."""
    shapes = tuple(tuple(_size(size, row) for size in shape) for shape in op.shapes)
    attrs = {name: _attr(value, row) for name, value in op.attrs.items()}
    own = _dtype(op.dtype, row) if op.dtype else dtype
    kind = filled(op.kind, row)
    try:
        settings = PRICED.under({"tf32": tf32} if tf32 else {}).settings
        one = op_kernels(kind, shapes, attrs, own, op.pass_, op.gradients, settings)
    except (ShapeError, TypeError, ValueError, IndexError) as error:
        said = str(error).partition("outputs() ")
        reason = f"{kind}: {said[2] or said[0]}"
        of_shapes = f"{kind} of {shorten(shapes)}: {said[2] or said[0]}"
        raise InputError(of_shapes) from InputError(reason)
    return one * _size(op.count, row, "count", 2**20)


def _size(said: Size, row: Row, what: str = "a size", below: int = 2**63) -> int:
    value = said if isinstance(said, int) else formula(said)(row)
    if not isinstance(value, int | float) or not 0 <= value < below or value != int(value):
        most = f"2^{below.bit_length() - 1}"
        name = what if str(value) == str(said) else said
        raise InputError(f"{name} is a whole number below {most}, not {shorten(value)}")
    return int(value)


def _attr(said: object, row: Row) -> Any:
    if isinstance(said, tuple):
        return tuple(_attr(part, row) for part in said)
    return formula(said)(row) if isinstance(said, str) else said


@lru_cache(maxsize=256)
def _device(name: str) -> Device:
    found = catalog.device(name)  # the "k80" of a table is the card, not a paper's figures
    return catalog.device(catalog.platform_of(name) or name) if found.only_by_name else found
