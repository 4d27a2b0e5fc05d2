"""The record that measured, predicted and published numbers share; `reading.py` reads it."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from steptime.core.copying import replace
from steptime.core.json_types import JsonObject
from steptime.core.workload import Workload, workload_to_json

SCHEMA = 2
ORIGINS = ("measured", "predicted", "published")
STATUSES = ("ok", "oom", "timeout", "unsupported", "failed")
FINAL_STATUSES = ("ok", "oom", "timeout", "unsupported")  # a second sweep does not try these again
LARGEST_DISTURBED_SHARE = 0.25  # of a step's samples, beyond which a remark says so
ID_BYTES = 8  # of a record's identity: among 10^6 records two are alike once in 10^7 folders

PROFILER = "-profiler"  # suffix of a backend's name: times of its ops by its profiler
NO_OP, UNATTRIBUTED = "no op", "unattributed"
"""Scopes of a profile beside its ops: time without a kernel, and kernels of unknown ops."""


def current_time() -> str:
    """Return the time in UTC, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


UTC_ENDINGS = ("+00:00", "Z")


def to_utc(taken_at: str) -> str:
    """Return a time in UTC, so that texts sort as instants: "2026-01-01T09:00:00+09:00" is 00:00.

    A day, a time without a zone, and any other text stay as they are.
    """
    if len(taken_at) <= len("2026-01-01") or taken_at.endswith(UTC_ENDINGS):
        return taken_at  # a day alone, or in UTC already
    try:
        instant = datetime.fromisoformat(taken_at)
    except ValueError:
        return taken_at
    if instant.tzinfo is None:
        return taken_at
    return instant.astimezone(UTC).isoformat()


class Quantity(Struct, frozen=True):
    """A quantity in SI: raw samples of a measurement, or a value, perhaps with an interval.

    Attributes:
        value: the value, if the samples are unknown.
        samples: the samples.
        low: low end of a stated interval.
        high: high end of a stated interval.
        columns: further facts of each sample (its run, disturbances), as long as `samples`.
    """

    value: int | float | None = None
    samples: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    columns: Mapping[str, tuple[Any, ...]] = {}

    @property
    def runs(self) -> Sequence[int]:
        """The run of each sample; all are of the first run if no column says it."""
        return self.columns.get("run") or (0,) * len(self.samples)

    @property
    def disturbed_samples(self) -> Sequence[bool]:
        """Whether each sample was disturbed; none was if no column says it."""
        return self.columns.get("disturbed") or (False,) * len(self.samples)

    @property
    def is_disturbed(self) -> bool:
        """Whether other work disturbed so many samples that a reader must know it."""
        return sum(self.disturbed_samples) > LARGEST_DISTURBED_SHARE * len(self.samples)


class RecordMethod(Struct, frozen=True):
    """A cost model or a framework that numbers come from.

    Attributes:
        name: its name.
        version: its version.
        options: every option that changes the numbers.
    """

    name: str
    version: str
    options: Mapping[str, Any] = {}

    @property
    def label(self) -> str:
        """Its name in tables, which tells software stacks apart: `torch-compile`."""
        from steptime.hardware.stack import label_of  # its imports read files of stacks

        return label_of(self.name, self.options.get("compile"))


class Record(Struct, frozen=True):
    """One result of one workload on one platform.

    Attributes:
        origin: measured, predicted or published.
        method: the cost model or the framework.
        workload: the step.
        platform: a name from the device data, never a host; the host is in `env`.
        quantities: the measured, predicted or published numbers, by name.
        status: ok, or why there is no number.
        cause: the kind of failure.
        note: the failure in words.
        scope: the op; "" for the whole step.
        env: facts about the process and the machine, and the `op_kind` of an op.
        taken_at: when, in UTC.
        schema: the version of the format.
    """

    origin: str
    method: RecordMethod
    workload: Workload
    platform: str
    quantities: Mapping[str, Quantity]
    status: str = "ok"
    cause: str = ""
    note: str = ""
    scope: str = ""
    env: Mapping[str, Any] = {}
    taken_at: str = ""
    schema: int = SCHEMA

    @property
    def record_id(self) -> str:
        """The identity of the record: 16 hex digits, a hash of its line. Copies have the same."""
        return hash_line(record_to_line(self).encode())


def single_run(samples: Sequence[float], **columns: tuple[Any, ...]) -> Quantity:
    """Return samples with the column that says the run of each: one worker is one run."""
    return Quantity(samples=tuple(samples), columns={"run": (0,) * len(samples), **columns})


def measured_stack(method: RecordMethod) -> str:
    """Return the software stack that ran a measured step: the option `stack`, else the backend."""
    stack = method.options.get("stack")
    if isinstance(stack, str) and stack:
        return stack
    return replace(method, name=method.name.removesuffix(PROFILER)).label


def stack_of(record: Record) -> str | None:
    """Return the software stack that ran a step, or that one was predicted for; None is unknown."""
    if record.origin == "measured":
        return measured_stack(record.method)
    return record.env.get("stack")


PLAIN_FIELDS = ("schema", "origin", "platform", "scope", "status", "cause", "note", "taken_at")


def record_to_json(record: Record) -> JsonObject:
    """Return the record as JSON values, without the empty fields of quantities."""
    table: JsonObject = {name: getattr(record, name) for name in PLAIN_FIELDS}
    table["method"] = method_to_json(record.method)
    table["workload"] = workload_to_json(record.workload)
    table["workload_key"] = record.workload.key
    table["quantities"] = {
        name: _quantity_to_json(quantity) for name, quantity in record.quantities.items()
    }
    table["env"] = dict(record.env)
    return table


def method_to_json(method: RecordMethod) -> JsonObject:
    """Return the name, the version and the options of a method as JSON values."""
    return asdict(method) | {"options": dict(method.options)}


def _quantity_to_json(quantity: Quantity) -> JsonObject:
    numbers = {"value": quantity.value, "low": quantity.low, "high": quantity.high}
    table: JsonObject = {name: value for name, value in numbers.items() if value is not None}
    if quantity.samples:
        table["samples"] = list(quantity.samples)
    if quantity.columns:
        table["columns"] = {name: list(column) for name, column in quantity.columns.items()}
    return table


def record_to_line(record: Record) -> str:
    """Return the line of a record, without its end.

    Raises:
        ValueError: for a number that is not finite.
    """
    return json.dumps(record_to_json(record), separators=(",", ":"), allow_nan=False)


def hash_line(line: bytes) -> str:
    """Return the identity of the record that stands in a line: 16 hex digits."""
    return blake2b(line.rstrip(), digest_size=ID_BYTES).hexdigest()
