"""The one record that measured, predicted and published numbers share; `reading.py` reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from steptime.core.workload import Workload, workload_to_json

SCHEMA = 2
ORIGINS = ("measured", "predicted", "published")
STATUSES = ("ok", "oom", "timeout", "unsupported", "failed")
DONE = ("ok", "oom", "timeout", "unsupported")  # a second sweep does not try these again

PROFILER = "-profiler"  # behind a backend's name: what its profiler says of ops
NO_OP, UNATTRIBUTED = "no op", "unattributed"
"""Scopes of a profile beside its ops: what ran no kernel, and kernels of no op that is known."""


def now() -> str:
    """Return the time in UTC, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


UTC_ENDINGS = ("+00:00", "Z")


def to_utc(taken_at: str) -> str:
    """Return a time in UTC, so that texts sort as instants: "2026-01-01T09:00:00+09:00" is 00:00.

    A day, a time without a zone, and any other text stay as they are.
    """
    if len(taken_at) <= len("2026-01-01") or taken_at.endswith(UTC_ENDINGS):
        return taken_at
    try:
        instant = datetime.fromisoformat(taken_at)
    except ValueError:
        return taken_at
    if instant.tzinfo is None:
        return taken_at
    return instant.astimezone(UTC).isoformat()


@dataclass(frozen=True)
class Quantity:
    """One quantity in SI: raw `samples` of a measurement, or one `value`, perhaps an interval.

    `columns` holds further facts of each sample (its run, disturbances), as long as `samples`.
    """

    value: int | float | None = None
    samples: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    columns: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def runs(self) -> Sequence[int]:
        """The run of each sample, all of them the first where nothing says which."""
        return self.columns.get("run") or (0,) * len(self.samples)

    @property
    def marks(self) -> Sequence[bool]:
        """Whether each sample was disturbed, which none was where nothing says so."""
        return self.columns.get("disturbed") or (False,) * len(self.samples)


@dataclass(frozen=True)
class RecordMethod:
    """How numbers were obtained: a name, its version, and every option that changes them."""

    name: str
    version: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Its name in tables, which tells software stacks apart: `torch-compile`."""
        from steptime.hardware.stack import label_of  # which loads what reads files of stacks

        return label_of(self.name, self.options.get("compile"))


@dataclass(frozen=True)
class Record:
    """One result of one workload on one platform: for the whole step (`scope` "") or one op.

    `platform` is a name from the device data, never a host; the host goes into `env`, and so does
    the `op_kind` of an op.
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
    env: Mapping[str, Any] = field(default_factory=dict)
    taken_at: str = ""
    schema: int = SCHEMA


def in_one_run(samples: Sequence[float], **columns: tuple[Any, ...]) -> Quantity:
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


AS_IT_STANDS = ("schema", "origin", "platform", "scope", "status", "cause", "note", "taken_at")


def record_to_json(record: Record) -> dict[str, Any]:
    """Return the record as JSON values; what is empty in a quantity is left out."""
    table = {name: getattr(record, name) for name in AS_IT_STANDS}
    table["method"] = asdict(record.method)
    table["workload"] = workload_to_json(record.workload)
    table["workload_key"] = record.workload.key
    table["quantities"] = {
        name: _quantity_to_json(quantity) for name, quantity in record.quantities.items()
    }
    table["env"] = dict(record.env)
    return table


def _quantity_to_json(quantity: Quantity) -> dict[str, Any]:
    numbers = {name: getattr(quantity, name) for name in ("value", "low", "high")}
    table = {name: value for name, value in numbers.items() if value is not None}
    if quantity.samples:
        table["samples"] = list(quantity.samples)
    if quantity.columns:
        table["columns"] = {name: list(column) for name, column in quantity.columns.items()}
    return table
