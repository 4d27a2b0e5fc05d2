"""A record's JSON line, read and checked: the one door of records.

It stands apart from the record, so that what only writes records loads no msgspec.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec

from steptime.core.errors import InputError, escape_controls, shorten, unknown
from steptime.core.units import QUANTITIES
from steptime.core.workload import Plan, Tuning, Workload, workload_of_parts
from steptime.records.record import (
    AS_IT_STANDS,
    ORIGINS,
    SCHEMA,
    STATUSES,
    Quantity,
    Record,
    RecordMethod,
    record_to_json,
    to_utc,
)

Item = TypeVar("Item")
MOST_EXAMPLES = 2**53  # of a step
LARGEST = 1e100  # of a quantity: the square of what is larger may be none
SMALLEST = 1e-100  # of an amount that is not 0: what is divided by less may be none
PARTS = 1 << 14  # texts of workloads, methods, environments that are read once

_OF_SAMPLES = {"run": int, "disturbed": bool}
# What communication takes may be a difference of two steps, and so below 0 where it is hidden.
_AMOUNTS = {name for name, (unit, _) in QUANTITIES.items() if unit != "1"} - {"communication_s"}


class _Workload(msgspec.Struct):
    model: str
    params: dict[str, int | float | str | bool]
    batch_per_replica: Annotated[int, msgspec.Meta(ge=1, le=MOST_EXAMPLES)]
    plan: msgspec.Raw
    dtype: str = "float32"
    phase: str = "train"
    optimizer: str = "sgd"
    file: str = ""
    tuning: msgspec.Raw = msgspec.Raw(b"{}")


class Line(msgspec.Struct):
    """A record as its line has it, checked; keys of other names are let be.

    What repeats between records is text, which `method_of`, `workload_of` and `env_of` read once.
    """

    origin: str
    method: msgspec.Raw
    workload: msgspec.Raw
    platform: str
    quantities: dict[str, Quantity]
    schema: Annotated[int, msgspec.Meta(ge=1)]
    status: str
    cause: str = ""
    note: str = ""
    scope: str = ""
    env: msgspec.Raw = msgspec.Raw(b"{}")
    taken_at: str = ""
    workload_key: str = ""

    def __post_init__(self) -> None:
        self.taken_at = to_utc(self.taken_at)

    @property
    def key(self) -> str:
        """The key of its workload, as the line has it."""
        return self.workload_key or workload_of(bytes(self.workload)).key


_LINES = msgspec.json.Decoder(Line)
_METHODS = msgspec.json.Decoder(RecordMethod)
_WORKLOADS = msgspec.json.Decoder(_Workload)
_OBJECTS = msgspec.json.Decoder(dict[str, Any])
_NOT_READ = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_ZERO = "a name holds a zero byte"
_FIELD = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def read_line(text: bytes) -> Line:
    """Return the record of a JSON text. This is the one door of records.

    Raises `ValueError` that names the field and what was expected there, `InputError` for a schema
    that is newer than this version knows.
    """
    try:
        line = _read(_LINES, text)
        _check_line(line)
    except ValueError:
        _refuse_other_schema(text)
        raise
    return line


def _read(decoder: msgspec.json.Decoder[Item], text: bytes, part: str = "") -> Item:
    try:
        return decoder.decode(text)
    except _NOT_READ as error:
        raise ValueError(_reason(error, part)) from error


def _check_line(line: Line) -> None:
    """Raise `ValueError` for what no type says of a record."""
    if line.schema != SCHEMA:
        raise ValueError(f"schema {line.schema}")
    for what, value, known in (("origin", line.origin, ORIGINS), ("status", line.status, STATUSES)):
        if value not in known:
            raise ValueError(str(unknown(what, value, known)))
    method_of(bytes(line.method))
    workload_of(bytes(line.workload))
    env_of(bytes(line.env))
    for name, one in line.quantities.items():
        if "\0" in name:
            raise ValueError(_ZERO)
        stated = one.low is one.high is None and not one.samples and not one.columns
        if not (stated and SMALLEST <= (one.value or 1) <= LARGEST):  # as most are
            _check_quantity(name, one)


@lru_cache(PARTS)
def method_of(text: bytes) -> RecordMethod:
    """Return the method of a JSON text; raises `ValueError` as `read_line`, and so do others."""
    return _read(_METHODS, text, "method")


@lru_cache(PARTS)
def env_of(text: bytes) -> Mapping[str, Any]:
    """Return the environment of a JSON text."""
    env = _read(_OBJECTS, text, "env")
    if type(env.get("round", 0)) is not int:
        raise ValueError(f"env.round: expected `int`, got {shorten(env['round'])}")
    return env


@lru_cache(PARTS)
def workload_of(text: bytes) -> Workload:
    """Return the workload of a JSON text."""
    line = _read(_WORKLOADS, text, "workload")
    if "\0" in "".join(line.params):
        raise ValueError(_ZERO)
    plan: Plan = _part(Plan, bytes(line.plan), "workload.plan")
    if plan.data * line.batch_per_replica > MOST_EXAMPLES:
        raise ValueError(f"workload.plan.data: {shorten(plan.data)} is too large")
    tuning: Tuning = _part(Tuning, bytes(line.tuning), "workload.tuning")
    return workload_of_parts(msgspec.structs.asdict(line), plan, tuning)


def record_of(line: Line) -> Record:
    """Return the record of a line."""
    return Record(
        method=method_of(bytes(line.method)),
        workload=workload_of(bytes(line.workload)),
        quantities=line.quantities,
        env=env_of(bytes(line.env)),
        **{name: getattr(line, name) for name in AS_IT_STANDS},
    )


def line_from(record: Record) -> Line:
    """Return what the line of a record at hand says, which nobody checks."""
    return _LINES.decode(json.dumps(record_to_json(record)))


def record_from_json(table: bytes | Mapping[str, Any]) -> Record:
    """Return the record of a JSON text, or of JSON values; raises as `read_line`."""
    return record_of(read_line(table if isinstance(table, bytes) else json.dumps(table).encode()))


def _check_quantity(name: str, one: Quantity) -> None:
    """Raise `ValueError` for a number that none can be, and for facts of other samples."""
    amounts = one.samples if one.value is None else (*one.samples, one.value)
    ends = min(amounts, default=0), max(amounts, default=0), one.low or 0, one.high or 0
    if (most := max(map(abs, ends))) > LARGEST:
        raise ValueError(f"quantities.{shorten(name)}: {shorten(most)} is too large")
    if name in _AMOUNTS and ends[0] < SMALLEST:
        least = min(filter(None, amounts), default=1.0)
        if least < SMALLEST:
            why = f"{least} is too small" if least > 0 else f"less than 0 {QUANTITIES[name][0]}"
            raise ValueError(f"quantities.{shorten(name)}: {why}")
    if one.columns:
        _check_columns(name, one)


@lru_cache(PARTS)
def _part(kind: type, text: bytes, where: str) -> Any:
    """Return a part of a workload; raises `ValueError` for one that there is not."""
    table, usual = _read(_OBJECTS, text, where), vars(kind())
    for name in table.keys() - usual:
        raise ValueError(str(unknown("key", name, usual, where)))
    try:
        msgspec.convert({**usual, **table}, kind)
    except (msgspec.ValidationError, InputError) as error:
        raise ValueError(f"{where}: {_reason(error)}") from error
    return kind(**table)  # 2 stays 2 where 2.0 may stand: keys hang on it


def _check_columns(name: str, one: Quantity) -> None:
    """Raise `ValueError` where facts of samples are of another number or type."""
    for column, held in one.columns.items():
        kind, fault = _OF_SAMPLES.get(column), ""
        if len(held) not in (0, len(one.samples)):
            fault = f"{len(held)} values of {len(one.samples)} samples"
        elif kind and not {*map(type, held)} <= {kind}:
            fault = f"expected `{kind.__name__}` for each sample"
        elif kind is int and held and not -(2**63) <= min(held) <= max(held) < 2**63:
            fault = "a number is too large"
        if fault:
            where = f"quantities.{shorten(name)}.columns.{shorten(column)}"
            raise ValueError(f"{where}: {fault}")


def _refuse_other_schema(text: bytes) -> None:
    """Raise `InputError` for a record of another schema, whatever else it has changed."""
    try:
        version = _OBJECTS.decode(text).get("schema")
    except _NOT_READ:
        return
    if type(version) is not int or version == SCHEMA:
        return
    remedy = "upgrade steptime" if version > SCHEMA else "measure or predict again"
    found = shorten(version)[1:-1]
    raise InputError(f"has schema {found}, this steptime knows schema {SCHEMA}; {remedy}")


def _reason(error: Exception, part: str = "") -> str:
    """Return in which field, of a part of a record, what was expected."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    said, field = _FIELD.fullmatch(str(error)).groups()  # type: ignore[union-attr]  # fits any
    if missing := _MISSING.fullmatch(said):
        said = f"no '{missing[1]}'"
    where = ".".join(filter(None, (part, escape_controls(field or ""))))
    return f"{where}: {said}" if where else said
