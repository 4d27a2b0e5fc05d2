"""A record's JSON line, read and checked by msgspec: the one door of records."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec

from steptime.core.errors import InputError, escape_controls, shorten, unknown
from steptime.core.json_types import JsonObject
from steptime.core.units import QUANTITIES
from steptime.core.workload import Plan, Tuning, Workload, workload_of_parts
from steptime.records.record import (
    ORIGINS,
    PLAIN_FIELDS,
    SCHEMA,
    STATUSES,
    Quantity,
    Record,
    RecordMethod,
    record_to_json,
    to_utc,
)

Item = TypeVar("Item")
MAX_EXAMPLES = 2**53  # of a step
LARGEST = 1e100  # of a quantity: the square of a larger number may not be finite
SMALLEST = 1e-100  # of an amount that is not 0: 1 / a smaller number may not be finite
MAX_CACHED_TEXTS = 1 << 14  # of workloads, methods and environments, which repeat

_SAMPLE_TYPES = {"run": int, "disturbed": bool}
# Communication may be a difference of two steps, and so below 0 if the backward pass hides it.
_AMOUNTS = {name for name, (unit, _) in QUANTITIES.items() if unit != "1"} - {"communication_s"}


class _Workload(msgspec.Struct):
    model: str
    params: dict[str, int | float | str | bool]
    batch_per_replica: Annotated[int, msgspec.Meta(ge=1, le=MAX_EXAMPLES)]
    plan: msgspec.Raw
    dtype: str = "float32"
    phase: str = "train"
    optimizer: str = "sgd"
    file: str = ""
    tuning: msgspec.Raw = msgspec.Raw(b"{}")


class Line(msgspec.Struct):
    """A record as it stands in its line, checked; unknown keys are ignored.

    Method, workload and environment, which repeat from record to record, are texts: `method_of`,
    `workload_of` and `env_of` read each text once. `env`, the options of a method, the parameters
    of a workload and the names of quantities are free.
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
        """The key of its workload, as it stands in the line."""
        return self.workload_key or workload_of(bytes(self.workload)).key


_LINES = msgspec.json.Decoder(Line)
_METHODS = msgspec.json.Decoder(RecordMethod)
_WORKLOADS = msgspec.json.Decoder(_Workload)
_OBJECTS = msgspec.json.Decoder(JsonObject)
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
ZERO_BYTE_FAULT = "a name holds a zero byte"
_FIELD = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def read_line(text: bytes) -> Line:
    """Read the record of a JSON text.

    Raises:
        ValueError: that names the field and the type or the range that was expected.
        InputError: for a schema that this version does not know.
    """
    try:
        line = _decode(_LINES, text)
        _check_line(line)
    except ValueError:
        _refuse_other_schema(text)  # another schema explains any other fault
        raise
    return line


def _decode(decoder: msgspec.json.Decoder[Item], text: bytes, part: str = "") -> Item:
    try:
        return decoder.decode(text)
    except _UNREADABLE as error:
        raise ValueError(_describe_fault(error, part)) from error


def _check_line(line: Line) -> None:
    """Raise `ValueError` for values that the types of fields do not exclude."""
    if line.schema != SCHEMA:
        raise ValueError(f"schema {line.schema}")
    if line.origin not in ORIGINS:
        raise ValueError(str(unknown("origin", line.origin, ORIGINS)))
    if line.status not in STATUSES:
        raise ValueError(str(unknown("status", line.status, STATUSES)))
    # These three are JSON text still; parsing it raises for a fault, and caches the values.
    method_of(bytes(line.method))
    workload_of(bytes(line.workload))
    env_of(bytes(line.env))
    for name, quantity in line.quantities.items():
        if "\0" in name:
            raise ValueError(ZERO_BYTE_FAULT)
        if not _is_plain_amount(quantity):
            _check_quantity(name, quantity)


def _is_plain_amount(quantity: Quantity) -> bool:
    """Whether a quantity is one number of usual size, or nothing, which needs no further check."""
    has_interval = quantity.low is not None or quantity.high is not None
    if has_interval or quantity.samples or quantity.columns:
        return False
    value = quantity.value
    return value is None or value == 0 or SMALLEST <= value <= LARGEST


@lru_cache(MAX_CACHED_TEXTS)
def method_of(text: bytes) -> RecordMethod:
    """Return the method of a JSON text; raises `ValueError` as `read_line`."""
    return _decode(_METHODS, text, "method")


@lru_cache(MAX_CACHED_TEXTS)
def env_of(text: bytes) -> Mapping[str, Any]:
    """Return the environment of a JSON text."""
    env = _decode(_OBJECTS, text, "env")
    if type(env.get("round", 0)) is not int:
        raise ValueError(f"env.round: expected `int`, got {shorten(env['round'])}")
    return env


@lru_cache(MAX_CACHED_TEXTS)
def workload_of(text: bytes) -> Workload:
    """Return the workload of a JSON text."""
    line = _decode(_WORKLOADS, text, "workload")
    if "\0" in "".join(line.params):
        raise ValueError(ZERO_BYTE_FAULT)
    plan: Plan = _read_part(Plan, bytes(line.plan), "workload.plan")
    global_batch = plan.data * line.batch_per_replica
    if global_batch > MAX_EXAMPLES:
        raise ValueError(f"workload.plan.data: {shorten(plan.data)} is too large")
    tuning: Tuning = _read_part(Tuning, bytes(line.tuning), "workload.tuning")
    return workload_of_parts(msgspec.structs.asdict(line), plan, tuning)


def record_of(line: Line) -> Record:
    """Return the record of a line."""
    return Record(
        method=method_of(bytes(line.method)),
        workload=workload_of(bytes(line.workload)),
        quantities=line.quantities,
        env=env_of(bytes(line.env)),
        **{name: getattr(line, name) for name in PLAIN_FIELDS},
    )


def line_from(record: Record) -> Line:
    """Return the line of a record in memory, unchecked."""
    return _LINES.decode(json.dumps(record_to_json(record)))


def record_from_json(table: bytes | Mapping[str, Any]) -> Record:
    """Return the record of a JSON text, or of JSON values; raises as `read_line`."""
    return record_of(read_line(table if isinstance(table, bytes) else json.dumps(table).encode()))


def _check_quantity(name: str, quantity: Quantity) -> None:
    """Raise `ValueError` for a number out of range, and for columns of other samples."""
    amounts = quantity.samples
    if quantity.value is not None:
        amounts = (*amounts, quantity.value)
    # The extremes are checked first: only if they are suspicious is every sample looked at.
    smallest = min(amounts, default=0)
    extremes = (smallest, max(amounts, default=0), quantity.low or 0, quantity.high or 0)
    largest_magnitude = max(map(abs, extremes))
    if largest_magnitude > LARGEST:
        raise ValueError(f"quantities.{shorten(name)}: {shorten(largest_magnitude)} is too large")
    if name in _AMOUNTS and smallest < SMALLEST:
        nonzero_amounts = [amount for amount in amounts if amount]  # 0 itself is allowed
        if nonzero_amounts:
            _check_smallest(name, min(nonzero_amounts))
    if quantity.columns:
        _check_columns(name, quantity)


def _check_smallest(name: str, smallest: float) -> None:
    """Raise `ValueError` for an amount below 0, and for one that is nearly 0."""
    if smallest >= SMALLEST:
        return
    if smallest > 0:
        raise ValueError(f"quantities.{shorten(name)}: {smallest} is too small")
    raise ValueError(f"quantities.{shorten(name)}: less than 0 {QUANTITIES[name][0]}")


@lru_cache(MAX_CACHED_TEXTS)
def _read_part(part_type: type, text: bytes, place: str) -> Any:
    """Return a part of a workload; raises `ValueError` for unknown keys and wrong values."""
    table = _decode(_OBJECTS, text, place)
    defaults = vars(part_type())  # its keys are all valid names
    unknown_names = table.keys() - defaults
    if unknown_names:
        raise ValueError(str(unknown("key", unknown_names.pop(), defaults, place)))
    try:
        msgspec.convert({**defaults, **table}, part_type)
    except (msgspec.ValidationError, InputError) as error:
        raise ValueError(f"{place}: {_describe_fault(error)}") from error
    # Not the converted object: `convert` makes 2.0 of 2, and the workload's key would change.
    return part_type(**table)


def _check_columns(name: str, quantity: Quantity) -> None:
    """Raise `ValueError` for columns of samples of another length or type."""
    for column, values in quantity.columns.items():
        fault = _find_column_fault(column, values, len(quantity.samples))
        if fault:
            place = f"quantities.{shorten(name)}.columns.{shorten(column)}"
            raise ValueError(f"{place}: {fault}")


def _find_column_fault(column: str, values: Sequence[Any], sample_count: int) -> str:
    """Return why a column of samples is wrong, "" if it is not."""
    if len(values) not in (0, sample_count):
        return f"{len(values)} values of {sample_count} samples"
    expected_type = _SAMPLE_TYPES.get(column)
    if expected_type is None or not values:  # any type is right
        return ""
    # `type`, not `isinstance`, for which True would be an int and so a valid number of a run.
    has_other_types = set(map(type, values)) != {expected_type}
    if has_other_types:
        return f"expected `{expected_type.__name__}` for each sample"
    if expected_type is int:
        fits_64_bits = min(values) >= -(2**63) and max(values) < 2**63
        return "" if fits_64_bits else "a number is too large"
    return ""


def _refuse_other_schema(text: bytes) -> None:
    """Raise `InputError` for a record of another schema, even if other fields are wrong, too."""
    try:
        version = _OBJECTS.decode(text).get("schema")
    except _UNREADABLE:
        return
    if type(version) is not int or version == SCHEMA:  # not isinstance: True is no version
        return
    remedy = "upgrade steptime" if version > SCHEMA else "measure or predict again"
    version_text = shorten(version)[1:-1]  # without quotes
    raise InputError(f"has schema {version_text}, this steptime knows schema {SCHEMA}; {remedy}")


def _describe_fault(error: Exception, part: str = "") -> str:
    """Return the field of a part and the fault there: "workload.model: expected `str`"."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    fault, field = _FIELD.fullmatch(str(error)).groups()  # type: ignore[union-attr]  # fits any
    missing = _MISSING.fullmatch(fault)
    if missing:
        fault = f"no '{missing[1]}'"
    place = ".".join(filter(None, (part, escape_controls(field or ""))))
    return f"{place}: {fault}" if place else fault
