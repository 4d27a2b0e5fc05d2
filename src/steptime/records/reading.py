"""A record's JSON line, read and checked: the one door of records.

It stands apart from the record, so that what only writes records loads no msgspec.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from steptime.core.errors import InputError, one_line, shorten, unknown
from steptime.core.units import QUANTITIES
from steptime.core.workload import Plan, Workload, plan_to_json, workload_from_json
from steptime.records.record import (
    AS_IT_STANDS,
    ORIGINS,
    SCHEMA,
    STATUSES,
    Quantity,
    Record,
    RecordMethod,
)

MOST_EXAMPLES = 2**53  # of a step
LARGEST = 1e100  # of a quantity: the square of what is larger may be none
SMALLEST = 1e-100  # of an amount that is not 0: what is divided by less may be none

_OF_SAMPLES = {"run": int, "disturbed": bool}
# What communication takes may be a difference of two steps, and so below 0 where it is hidden.
_AMOUNTS = {name for name, (unit, _) in QUANTITIES.items() if unit != "1"} - {"comm_s"}
_USUAL_PLAN = plan_to_json(Plan())

_Float = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]


class _Quantity(msgspec.Struct, omit_defaults=True):
    value: int | float | None = None
    low: _Float | None = None
    high: _Float | None = None
    samples: list[_Float] = []
    columns: dict[str, list[Any]] = {}


class _Method(msgspec.Struct):
    name: str
    version: str
    options: dict[str, Any] = {}


class _Workload(msgspec.Struct):
    model: str
    params: dict[str, int | float | str | bool]
    batch_per_replica: Annotated[int, msgspec.Meta(ge=1, le=MOST_EXAMPLES)]
    plan: dict[str, int | str | bool | list[int]]
    dtype: str = "float32"
    phase: str = "train"
    optimizer: str = "sgd"
    file: str = ""


class Line(msgspec.Struct):
    """A record as its line has it, types checked; keys of other names are let be."""

    schema: Annotated[int, msgspec.Meta(ge=1)]
    origin: str
    platform: str
    status: str
    method: _Method
    workload: _Workload
    quantities: dict[str, _Quantity]
    scope: str = ""
    cause: str = ""
    note: str = ""
    taken_at: str = ""
    workload_key: str = ""
    env: dict[str, Any] = {}


_LINES = msgspec.json.Decoder(Line)
_SCHEMAS = msgspec.json.Decoder(dict[str, Any])
_FIELD = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def line_from_json(table: bytes | Mapping[str, Any]) -> Line:
    """Return the record of a JSON text, or of JSON values: the one door of records.

    Raises `ValueError` that names the field and what was expected there, `InputError` for a schema
    that is newer than this version knows.
    """
    try:
        is_text = isinstance(table, bytes)
        line = _LINES.decode(table) if is_text else msgspec.convert(table, Line)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        _refuse_newer(table)
        raise ValueError(_reason(error)) from error
    if line.schema > SCHEMA:
        _refuse_newer({"schema": line.schema})
    for what, value, known in (("origin", line.origin, ORIGINS), ("status", line.status, STATUSES)):
        if value not in known:
            raise ValueError(str(unknown(what, value, known)))
    if type(line.env.get("round", 0)) is not int:
        raise ValueError(f"env.round: expected `int`, got {shorten(line.env['round'])}")
    if any("\0" in name for name in (*line.workload.params, *line.quantities)):
        raise ValueError("a name holds a zero byte")
    for name, one in line.quantities.items():
        if abs(one.value or 0) > LARGEST:
            raise ValueError(f"quantities.{shorten(name)}.value: {shorten(one.value)} is too large")
        least = min(filter(None, (one.value, *one.samples)), default=1.0)
        if name in _AMOUNTS and least < SMALLEST:
            why = f"{least} is too small" if least > 0 else f"less than 0 {QUANTITIES[name][0]}"
            raise ValueError(f"quantities.{shorten(name)}: {why}")
        if one.columns:
            _check_columns(name, one)
    if line.workload.plan != _USUAL_PLAN or bool in map(type, line.workload.plan.values()):
        _check_plan(line.workload)
    return line


def _check_plan(workload: _Workload) -> None:
    """Raise `ValueError` for a plan that there is not, or of more examples than are counted."""
    usual = vars(Plan())
    for name in workload.plan.keys() - usual:
        raise ValueError(str(unknown("key", name, usual, "workload.plan")))
    try:
        plan = msgspec.convert(usual | workload.plan, Plan)
    except (msgspec.ValidationError, InputError) as error:
        raise ValueError(f"workload.plan: {_reason(error)}") from error
    if plan.data * workload.batch_per_replica > MOST_EXAMPLES:
        raise ValueError(f"workload.plan.data: {shorten(plan.data)} is too large")


def with_key(line: Line) -> Line:
    """Return a record that has the key of its workload."""
    if not line.workload_key:
        line.workload_key = _workload(line).key
    return line


def _workload(line: Line) -> Workload:
    return workload_from_json(msgspec.structs.asdict(line.workload))


def _check_columns(name: str, one: _Quantity) -> None:
    """Raise `ValueError` where facts of samples are of another number or type."""
    for column, held in one.columns.items():
        where = f"quantities.{shorten(name)}.columns.{shorten(column)}"
        if len(held) not in (0, len(one.samples)):
            raise ValueError(f"{where}: {len(held)} values of {len(one.samples)} samples")
        if (kind := _OF_SAMPLES.get(column)) and not {*map(type, held)} <= {kind}:
            raise ValueError(f"{where}: expected `{kind.__name__}` for each sample")
        if kind and held and not -(2**63) <= min(held) <= max(held) < 2**63:
            raise ValueError(f"{where}: a number is too large")


def _refuse_newer(table: bytes | Mapping[str, Any]) -> None:
    """Raise `InputError` for a schema of a later version, whatever else it has changed."""
    try:
        version = (_SCHEMAS.decode(table) if isinstance(table, bytes) else table).get("schema")
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return
    if type(version) is int and version > SCHEMA:
        knows = f"this steptime knows up to {SCHEMA}; upgrade steptime"
        raise InputError(f"has schema {shorten(version)[1:-1]}, {knows}")


def _reason(error: Exception) -> str:
    """Return in which field what was expected."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    said, field_ = _FIELD.fullmatch(str(error)).groups()  # type: ignore[union-attr]  # fits any
    if missing := _MISSING.fullmatch(said):
        said = f"no '{missing[1]}'"
    return f"{one_line(field_)}: {said}" if field_ else said


def record_from_json(table: bytes | Mapping[str, Any]) -> Record:
    """Return the record of a JSON text, or of JSON values; raises as `line_from_json`."""
    line = line_from_json(table)
    quantities = {}
    for name, one in line.quantities.items():
        columns = {column: tuple(held) for column, held in one.columns.items()}
        quantities[name] = Quantity(one.value, tuple(one.samples), one.low, one.high, columns)
    said = {name: getattr(line, name) for name in (*AS_IT_STANDS, "env")}
    method = RecordMethod(line.method.name, line.method.version, line.method.options)
    return Record(method=method, workload=_workload(line), quantities=quantities, **said)
