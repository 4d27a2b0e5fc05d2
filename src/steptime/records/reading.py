"""A record's JSON line, read and checked: the one door of records.

It stands apart from the record, so that what only writes records loads no msgspec.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from steptime.core.errors import InputError, one_line, shorten, unknown
from steptime.core.units import QUANTITIES
from steptime.core.workload import Plan, Tuning, plan_to_json, workload_from_json
from steptime.records.record import (
    ORIGINS,
    SCHEMA,
    STATUSES,
    Quantity,
    Record,
)

MOST_EXAMPLES = 2**53  # of a step
LARGEST = 1e100  # of a quantity: the square of what is larger may be none
SMALLEST = 1e-100  # of an amount that is not 0: what is divided by less may be none

_OF_SAMPLES = {"run": int, "disturbed": bool}
# What communication takes may be a difference of two steps, and so below 0 where it is hidden.
_AMOUNTS = {name for name, (unit, _) in QUANTITIES.items() if unit != "1"} - {"comm_s"}
_USUAL_PLAN = plan_to_json(Plan())
_TUNING = vars(Tuning()).keys()


class _Workload(msgspec.Struct):
    model: str
    params: dict[str, int | float | str | bool]
    batch_per_replica: Annotated[int, msgspec.Meta(ge=1, le=MOST_EXAMPLES)]
    plan: dict[str, int | str | bool | list[int]]
    dtype: str = "float32"
    phase: str = "train"
    optimizer: str = "sgd"
    file: str = ""
    tuning: dict[str, int | float | str] = {}


@dataclass(frozen=True)
class _Line(Record):
    """A record as its line has it, types checked; keys of other names are let be."""

    workload: _Workload  # type: ignore[assignment]  # as JSON says it
    schema: Annotated[int, msgspec.Meta(ge=1)] = SCHEMA
    workload_key: str = ""


_LINES = msgspec.json.Decoder(_Line)
_SCHEMAS = msgspec.json.Decoder(dict[str, Any])
_FIELD = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def stored_from_json(table: bytes | Mapping[str, Any]) -> tuple[Record, str]:
    """Return the record of a JSON text, or of JSON values, and the key of its workload there.

    This is the one door of records. Raises `ValueError` that names the field and what was expected
    there, `InputError` for a schema that is newer than this version knows.
    """
    try:
        is_text = isinstance(table, bytes)
        line = _LINES.decode(table) if is_text else msgspec.convert(table, _Line)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        _refuse_newer(table)
        raise ValueError(_reason(error)) from error
    for name in ("schema", "status"):
        if name not in vars(line):  # it has no default in a line
            raise ValueError(f"no '{name}'")
    if line.schema > SCHEMA:
        _refuse_newer({"schema": line.schema})
    for what, value, known in (("origin", line.origin, ORIGINS), ("status", line.status, STATUSES)):
        if value not in known:
            raise ValueError(str(unknown(what, value, known)))
    if type(line.env.get("round", 0)) is not int:
        raise ValueError(f"env.round: expected `int`, got {shorten(line.env['round'])}")
    if "\0" in "".join((*line.workload.params, *line.quantities)):
        raise ValueError("a name holds a zero byte")
    for name, one in line.quantities.items():
        stated = one.low is one.high is None and not one.samples and not one.columns
        if not (stated and SMALLEST <= (one.value or 1) <= LARGEST):  # as most are
            _check_quantity(name, one)
    if line.workload.plan != _USUAL_PLAN or bool in map(type, line.workload.plan.values()):
        _check_plan(line.workload)
    _check_tuning(line.workload)
    workload = workload_from_json(msgspec.structs.asdict(line.workload))
    fields = {**vars(line), "workload": workload}
    key = fields.pop("workload_key", "")  # a default is not among them
    return Record(**fields), key or workload.key


def record_from_json(table: bytes | Mapping[str, Any]) -> Record:
    """Return the record of a JSON text, or of JSON values; raises as `stored_from_json`."""
    return stored_from_json(table)[0]


def _check_quantity(name: str, one: Quantity) -> None:
    """Raise `ValueError` for a number that none can be, and for facts of other samples."""
    amounts = [*one.samples, *([] if one.value is None else [one.value])]
    numbers = amounts if one.low is one.high is None else [*amounts, one.low or 0, one.high or 0]
    if (most := max(map(abs, numbers), default=0)) > LARGEST:
        raise ValueError(f"quantities.{shorten(name)}: {shorten(most)} is too large")
    if name in _AMOUNTS and min(amounts, default=1) < SMALLEST:
        least = min(filter(None, amounts), default=1.0)
        if least < SMALLEST:
            why = f"{least} is too small" if least > 0 else f"less than 0 {QUANTITIES[name][0]}"
            raise ValueError(f"quantities.{shorten(name)}: {why}")
    if one.columns:
        _check_columns(name, one)


def _check_tuning(workload: _Workload) -> None:
    """Raise `ValueError` for a fine-tuning that there is not."""
    if workload.tuning:
        try:
            msgspec.convert(workload.tuning, Tuning)
        except (msgspec.ValidationError, InputError) as error:
            raise ValueError(f"workload.tuning: {error}") from error
    for name in workload.tuning.keys() - _TUNING:
        raise ValueError(str(unknown("key", name, _TUNING, "workload.tuning")))


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


def _check_columns(name: str, one: Quantity) -> None:
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
