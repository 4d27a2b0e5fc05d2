"""Devices, links and clusters, in SI units; one function converts from datasheet units."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from steptime.core.errors import InputError, shorten, unknown

GB = 1e9
TFLOP = 1e12


@dataclass(frozen=True)
class Device:
    """One device. `None` means unknown, which is never zero.

    `peak_flop_per_s` holds dense peaks by dtype (also `tf32`); `launch_s` is the time the host
    needs to issue one op; `clock_hz` the clock of its cores; `products` are the names under which
    a driver reports it; `unverified` names the figures that should be checked before they are
    relied on. What no method reads yet stands in `details` as the file says it, its numbers with
    their units in their names; `multiprocessors` (AMD: compute units), `cores`, `l2_bytes` and
    `process_nm` are taken from there. `only_by_name` keeps figures of one paper out of what others
    mean by a word such as "k80".
    """

    name: str
    kind: str
    peak_flop_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    source: str
    memory_bytes: float | None = None
    launch_s: float | None = None
    clock_hz: float | None = None
    idle_w: float | None = None
    peak_w: float | None = None
    products: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    note: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    multiprocessors: int | None = None
    cores: int | None = None
    l2_bytes: float | None = None
    process_nm: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    only_by_name: bool = False

    @property
    def is_own_host(self) -> bool:
        """Whether it issues its ops itself, so that nothing hides the time for that."""
        return self.kind == "cpu"


@dataclass(frozen=True)
class Link:
    """A connection, one direction: time of a message = latency_s + bytes / bytes_per_s.

    A latency of `None` is not published, which is not zero.
    """

    name: str
    latency_s: float | None
    bytes_per_s: float
    source: str
    unverified: tuple[str, ...] = ()
    note: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)


class Level(NamedTuple):
    """`size` parts that a link joins: devices in a node, nodes in a cluster.

    Each part has `links` such links to the others.
    """

    size: int
    link: Link
    links: int = 1


@dataclass(frozen=True)
class Cluster:
    """Devices of one kind, joined level by level from the inside out.

    `levels=((8, nvlink), (16, infiniband))` are 16 nodes of 8 devices; rank 8 is the first device
    of the second node. A device alone is a cluster without levels. Raises `InputError` for a level
    of less than one part or link.
    """

    device: Device
    levels: tuple[Level | tuple[int, Link] | tuple[int, Link, int], ...] = ()

    def __post_init__(self) -> None:
        for size, _, links in self.ladder:
            if min(size, links) < 1:
                raise InputError(f"a level has at least 1 part and link, not {min(size, links)}")

    @property
    def ladder(self) -> tuple[Level, ...]:
        """The levels with the number of links that each states or leaves at 1."""
        return tuple(Level(*level) for level in self.levels)

    @property
    def devices(self) -> int:
        """The number of devices, which are ranks 0, 1, ..."""
        return math.prod(level.size for level in self.ladder)

    def level_of(self, ranks: Iterable[int]) -> int | None:
        """Return the place of the level whose link a group of ranks crosses, the outermost one.

        None for a single rank. Raises `InputError` for ranks that the cluster does not have.
        """
        group = set(ranks)
        if min(group) < 0 or max(group) >= self.devices:
            raise InputError(f"the cluster has ranks 0 to {self.devices - 1}, not {max(group)}")
        outermost, size = None, 1
        for place, level in enumerate(self.ladder):
            if len({rank // size for rank in group}) > 1:
                outermost = place
            size *= level.size
        return outermost

    def link_of(self, ranks: Iterable[int]) -> Link | None:
        """Return the link that a group of ranks crosses, None for a single rank."""
        place = self.level_of(ranks)
        return None if place is None else self.ladder[place].link


_NUMBERS = {  # key of the file: (field, factor to SI)
    "memory_GB": ("memory_bytes", GB),
    "memory_GB_per_s": ("memory_bytes_per_s", GB),
    "launch_us": ("launch_s", 1e-6),
    "clock_MHz": ("clock_hz", 1e6),
    "idle_W": ("idle_w", 1.0),
    "tdp_W": ("peak_w", 1.0),
}
_DETAILS = {  # key of [details]: (field, factor to SI, type)
    "multiprocessors": ("multiprocessors", 1, int),
    "compute_units": ("multiprocessors", 1, int),
    "cores": ("cores", 1, int),
    "l2_MiB": ("l2_bytes", 2.0**20, float),
    "process_nm": ("process_nm", 1.0, float),
}
_TEXTS = ("name", "kind", "source", "note")
_LISTS = ("products", "unverified")
_KEYS = (*_TEXTS, *_LISTS, *_NUMBERS, "peak_TFLOP_per_s", "details", "measured", "only_by_name")
KINDS = ("cpu", "gpu", "tpu", "asic")
PEAK_DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8", "float4")


def device_from_table(table: Mapping[str, Any], where: str) -> Device:
    """Return the `Device` that a TOML table in datasheet units says; `where` is named in errors.

    Raises `InputError` for an unknown key, a missing one, or a number that is not positive.
    """
    required = ("name", "kind", "source", "peak_TFLOP_per_s", "memory_GB_per_s")
    _check_keys(table, _KEYS, required, where)
    values: dict[str, Any] = _texts(table, _TEXTS, where) | _lists(table, _LISTS, where)
    if values["kind"] not in KINDS:
        raise unknown("kind", values["kind"], KINDS, where)
    for key, (name, factor) in _NUMBERS.items():
        if key in table:
            values[name] = _positive(table[key], factor, key, where)
    peaks = table["peak_TFLOP_per_s"]
    if not isinstance(peaks, dict) or not peaks:
        raise InputError(f"{where}: 'peak_TFLOP_per_s' must be a table of dtypes")
    for dtype in peaks:
        if dtype not in PEAK_DTYPES:
            raise unknown("dtype in peak_TFLOP_per_s", dtype, PEAK_DTYPES, where)
    values["peak_flop_per_s"] = {
        dtype: _positive(peak, TFLOP, f"peak_TFLOP_per_s.{dtype}", where)
        for dtype, peak in peaks.items()
    }
    only_by_name = table.get("only_by_name", False)
    if not isinstance(only_by_name, bool):
        raise InputError(f"{where}: 'only_by_name' must be true or false")
    values |= _details(table, where)
    return Device(**values, measured=_table(table, "measured", where), only_by_name=only_by_name)


def _details(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of a device that its table `details` says, and that table."""
    details = _table(table, "details", where)
    values: dict[str, Any] = {"details": details}
    for key, value in details.items():
        name, factor, form = _DETAILS.get(key, ("", 1.0, float))
        if not name:
            continue
        number = _positive(value, factor, f"details.{key}", where)
        if form is int and (number != int(number) or name in values):
            raise InputError(
                f"{where}: 'details.{key}' must be one whole number, not {shorten(value)}"
            )
        values[name] = form(number)
    return values


def link_from_table(table: Mapping[str, Any], where: str) -> Link:
    """Return the `Link` that a TOML table in datasheet units says; `where` is named in errors.

    Raises `InputError` for an unknown key, a missing one, or a number that is not positive.
    """
    known = ("name", "source", "note", "unverified", "latency_us", "GB_per_s", "measured")
    _check_keys(table, known, ("name", "source", "GB_per_s"), where)
    values: dict[str, Any] = _texts(table, ("name", "source", "note"), where)
    values |= _lists(table, ("unverified",), where)
    latency = table.get("latency_us")
    return Link(
        **values,
        latency_s=None if latency is None else _positive(latency, 1e-6, "latency_us", where),
        bytes_per_s=_positive(table["GB_per_s"], GB, "GB_per_s", where),
        measured=_table(table, "measured", where),
    )


def _check_keys(
    table: Mapping[str, Any], known: Sequence[str], required: Sequence[str], where: str
) -> None:
    for key in table:
        if key not in known:
            raise unknown("key", key, known, where)
    for key in required:
        if key not in table:
            raise InputError(f"{where}: '{key}' is missing")


def _table(table: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    inner = table.get(key, {})
    if not isinstance(inner, dict):
        raise InputError(f"{where}: '{key}' must be a table, not {shorten(inner)}")
    return inner


def _texts(table: Mapping[str, Any], keys: Sequence[str], where: str) -> dict[str, str]:
    for key in keys:
        value = table.get(key, "")
        if not isinstance(value, str) or (key in table and not value.strip()):
            raise InputError(f"{where}: '{key}' must be a text, not {shorten(value)}")
    return {key: table.get(key, "") for key in keys}


def _lists(table: Mapping[str, Any], keys: Sequence[str], where: str) -> dict[str, tuple[str, ...]]:
    for key in keys:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise InputError(f"{where}: '{key}' must be a list of texts")
    return {key: tuple(table.get(key, ())) for key in keys}


def _positive(value: object, factor: float, key: str, where: str) -> float:
    """Return `value * factor`: a datasheet's number in SI."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: '{key}' must be a number, not {shorten(value)}")
    try:
        scaled = float(value) * factor
    except OverflowError:
        scaled = inf
    if not 0 < scaled < inf:
        raise InputError(f"{where}: '{key}' must be positive and finite, not {shorten(value)}")
    return scaled
