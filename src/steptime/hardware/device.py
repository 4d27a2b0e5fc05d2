"""Devices, links and clusters, in SI units; one function converts from datasheet units."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple, Self

from steptime.core.checks import (
    ABOVE_0,
    FLAG,
    NUMBER,
    TABLE,
    TEXT,
    TEXTS,
    WHOLE,
    Check,
    checked,
    list_of,
    positive,
    row_of,
    table_of,
)
from steptime.core.errors import InputError, one_of, shorten
from steptime.core.toml_files import packaged

GB = 1e9
GIB = 2.0**30
TFLOP = 1e12


@dataclass(frozen=True)
class Device:
    """One device. `None` means unknown, which is never zero.

    `peak_flop_per_s` holds dense peaks of matrix products by dtype (also `tf32`), at the rate that
    frameworks reach: with sums in float32. `vector_flop_per_s` are the peaks of other arithmetic
    where the file says them (`vector_peak`). `launch_s` is the time the host needs to issue one op;
    `clock_hz` the clock of its cores, boosted; `products` are the names under which a driver
    reports it; `unverified` names the figures that should be checked before they are relied on.
    What no method reads stands in `details` as the file says it, its numbers with their units in
    their names; `multiprocessors` (AMD: compute units), systolic `arrays` and their `array_side`,
    `cores`, `l2_bytes`, `process_nm`, `maker`, `architecture` and `memory_type` are taken from
    there, and `usable_share`, the part of `memory_bytes` that a program can have (`usable_bytes`;
    None: as the maker's other cards). `only_by_name` keeps figures of one paper out of what
    others mean by a word such as "k80". `calibration` is
    what `steptime calibrate` wrote: constants, date, versions, errors. `constants` are those of the
    model, which the method `calibrated` fills in from priors and calibration.
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
    arrays: int | None = None
    array_side: int | None = None
    cores: int | None = None
    l2_bytes: float | None = None
    process_nm: float | None = None
    maker: str | None = None
    architecture: str | None = None
    memory_type: str | None = None
    usable_share: float | None = None
    vector_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    only_by_name: bool = False
    calibration: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_own_host(self) -> bool:
        """Whether it issues its ops itself, so that nothing hides the time for that."""
        return self.kind == "cpu"

    @property
    def usable_bytes(self) -> int | None:
        """Bytes that a program can have of its memory, None where that is unknown.

        A maker's GB of memory is a GiB, of which the driver keeps some (`data/usable.toml`): an
        A100 of 80 GB has 79.2 GiB, 85.04e9 bytes. Without a maker it is `memory_bytes`.
        """
        if self.memory_bytes is None:
            return None
        share = self.usable_share
        if share is None:
            kept = _makers().get(self.maker or "", {"other": GB / GIB})
            kind = "HBM" if (self.memory_type or "").startswith("HBM") else "other"
            share = kept.get(kind, kept["other"]) * GIB / GB
        return round(self.memory_bytes * share)

    def vector_peak(self, dtype: str) -> float | None:
        """Return the FLOP/s that arithmetic outside of matrix products reaches, None if unknown.

        It is the file's own for `dtype`, else its vector peak of float32, else the peak of float32.
        """
        of_float32 = self.vector_flop_per_s.get("float32", self.peak_flop_per_s.get("float32"))
        return self.vector_flop_per_s.get(dtype, of_float32)


@cache
def _makers() -> Mapping[str, Mapping[str, float]]:
    return packaged("usable.toml")


@dataclass(frozen=True)
class Link:
    """A connection, one direction: time of a message = latency_s + bytes / bytes_per_s.

    A latency of `None` is not published, which is not zero; `latency_range_s` is between what
    sources and software differ. `reached_bytes_per_s` is the largest bus bandwidth that collectives
    are published to reach, adding up included; None where nobody says. Its `topology` is a row of
    `data/topologies.toml`, "" where each part reaches each other one; a byte of an all-to-all
    passes `hops` links in the mean (`topology.effective_link`).
    """

    name: str
    latency_s: float | None
    bytes_per_s: float
    source: str
    latency_range_s: tuple[float, float] | None = None
    unverified: tuple[str, ...] = ()
    note: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    reached_bytes_per_s: float | None = None
    topology: str = ""
    hops: float = 1.0

    @property
    def reached(self) -> Self:
        """The link at the bus bandwidth that collectives reach, itself where nobody says one."""
        if self.reached_bytes_per_s is None:
            return self
        return replace(self, bytes_per_s=self.reached_bytes_per_s, measured={"bus": "published"})

    def faster(self, times: float, hops: float = 1.0) -> Self:
        """Return the link at so many times its rate, of the datasheet and reached."""
        reached = self.reached_bytes_per_s and times * self.reached_bytes_per_s
        rate = times * self.bytes_per_s
        return replace(self, bytes_per_s=rate, reached_bytes_per_s=reached, hops=hops)


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


Numbers = Mapping[str, tuple[str, float]]  # key of the file: (field, factor to SI)
OF_DEVICE: Numbers = {
    "memory_GB": ("memory_bytes", GB),
    "memory_GB_per_s": ("memory_bytes_per_s", GB),
    "launch_us": ("launch_s", 1e-6),
    "clock_MHz": ("clock_hz", 1e6),
    "idle_W": ("idle_w", 1.0),
    "tdp_W": ("peak_w", 1.0),
}
_OF_LINK: Numbers = {
    "latency_us": ("latency_s", 1e-6),
    "GB_per_s": ("bytes_per_s", GB),
    "reached_GB_per_s": ("reached_bytes_per_s", GB),
}
# read since there were records: unknown, they change no hash
LATER = ("arrays", "array_side")
DETAILS = {  # number of [details]: (field, factor to SI, type)
    "multiprocessors": ("multiprocessors", 1, int),
    "compute_units": ("multiprocessors", 1, int),
    "arrays": ("arrays", 1, int),
    "array_side": ("array_side", 1, int),
    "cores": ("cores", 1, int),
    "l2_MiB": ("l2_bytes", 2.0**20, float),
    "last_cache_MiB": ("l2_bytes", 2.0**20, float),
    "process_nm": ("process_nm", 1.0, float),
    "usable_GiB": ("usable_bytes", GIB, float),
}
DETAILS_IN_WORDS = {"maker": TEXT, "architecture": TEXT, "memory_type": TEXT}
_COMMON = {"name": TEXT, "source": TEXT, "note": TEXT, "unverified": TEXTS, "measured": TABLE}
PEAK_TABLES = {  # table of the file: field
    "peak_TFLOP_per_s": "peak_flop_per_s",
    "vector_TFLOP_per_s": "vector_flop_per_s",
}
_OF_DTYPES: Check = (lambda value: isinstance(value, dict) and bool(value), "a table of dtypes")
_RANGE = "latency_range_us"
_LINK: dict[str, Check] = {
    **_COMMON,
    **dict.fromkeys(_OF_LINK, NUMBER),
    "topology": TEXT,
    _RANGE: list_of(NUMBER[0], "two numbers, the lower one first"),
}
_DEVICE: dict[str, Check] = {
    **_COMMON,
    **dict.fromkeys(OF_DEVICE, NUMBER),
    "kind": TEXT,
    "products": TEXTS,
    "only_by_name": FLAG,
    "details": TABLE,
    "calibration": TABLE,
    **dict.fromkeys(PEAK_TABLES, _OF_DTYPES),
}
KINDS = ("cpu", "gpu", "tpu", "asic")
PEAK_DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8", "float4")
_PEAKS = dict.fromkeys(PEAK_DTYPES, NUMBER)
_LOG: Check = (lambda value: NUMBER[0](value) and -100 < value < 100, "")  # of a ratio of seconds


def _are_ends(row: Any) -> bool:
    return row_of(_LOG, _LOG)(row) and bool(row[0] <= row[1])


def _is_factor(value: Any) -> bool:
    return NUMBER[0](value) and 1e-15 < value < 1e15


_CALIBRATION: dict[str, Check] = {  # what predictions read of it
    **dict.fromkeys(
        ("constants", "alone"),
        table_of(_is_factor, "numbers from 1e-15 to 1e15"),
    ),
    "intervals": table_of(_are_ends, "two logs each, the lower one first"),
    "steps": list_of(row_of(ABOVE_0, ABOVE_0, _LOG), "[host_s, device_s, weight]"),
    "products": table_of(
        list_of(row_of(*[ABOVE_0] * 4, _LOG), "")[0], "lists of [batch, m, n, k, weight]"
    ),
    **dict.fromkeys(("stack", "date", "backend", "version", "driver"), TEXT),
    **dict.fromkeys(("threads", "measured_points"), WHOLE),
}


def _is_curve(one: Any) -> bool:
    lists: list[Any] = [one.get(key) for key in ("work", "min_s")] if isinstance(one, dict) else []
    rows = list_of(ABOVE_0[0], "")[0]
    return bool(lists) and all(map(rows, lists)) and len({*map(len, lists)}) == 1


_MEASURED: dict[str, Check] = {  # what is read of it
    "platform": TEXT,
    "cache_bytes": ABOVE_0,
    "memory": table_of(_is_curve, "curves, each with as many numbers above 0 of 'work' as 'min_s'"),
}


_READ_BY_ALL = (  # figures that every method of prediction may read
    *("name", "kind", "peak_flop_per_s", "memory_bytes_per_s", "memory_bytes"),
    *("launch_s", "clock_hz", "idle_w", "peak_w", "measured"),
)


def device_hash(device: Device, reads: Iterable[str] = ()) -> str:
    """Return 12 hexadecimal digits that change with every figure that a method may read.

    `reads` are the fields that a method reads beyond those of all methods (`Method.reads`). So the
    hash of a record stays valid when a file tells more than the method of the record reads.
    """
    said = asdict(device)
    keys = [key for key in (*_READ_BY_ALL, *reads) if said[key] is not None or key not in LATER]
    text = json.dumps({key: said[key] for key in keys}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def device_from_table(table: Mapping[str, Any], where: str) -> Device:
    """Return the `Device` that a TOML table in datasheet units says; `where` is named in errors.

    Raises `InputError` for an unknown key, a missing one, or a number that no device has.
    """
    required = ("name", "kind", "source", "peak_TFLOP_per_s", "memory_GB_per_s")
    values = _in_si(checked(table, _DEVICE, required, where), OF_DEVICE, where)
    one_of("kind", values["kind"], KINDS, where)
    idle, most = values.get("idle_w", 0.0), values.get("peak_w", math.inf)
    if idle >= most:
        raise InputError(f"{where}: 'idle_W' must be below 'tdp_W', not {idle:g} of {most:g}")
    for part, checks in (("calibration", _CALIBRATION), ("measured", _MEASURED)):
        read = {key: value for key, value in values.get(part, {}).items() if key in checks}
        checked(read, checks, (), where, f"{part}.")
    for table_of_peaks in values.keys() & PEAK_TABLES.keys():
        peaks = values.pop(table_of_peaks)  # by dtype in TFLOP/s
        for dtype in peaks:
            one_of(f"dtype in {table_of_peaks}", dtype, PEAK_DTYPES, where)
        values[PEAK_TABLES[table_of_peaks]] = {
            dtype: positive(peak, TFLOP, f"{table_of_peaks}.{dtype}", where)
            for dtype, peak in checked(peaks, _PEAKS, (), where, f"{table_of_peaks}.").items()
        }
    known = _of_details(values.get("details", {}), where)
    if (usable := known.pop("usable_bytes", None)) and "memory_bytes" in values:
        known["usable_share"] = usable / values["memory_bytes"]
    return Device(**values, **known)


def link_from_table(table: Mapping[str, Any], where: str) -> Link:
    """Return the `Link` that a TOML table in datasheet units says; `where` is named in errors.

    Raises `InputError` for an unknown key, a missing one, or a number that is not positive.
    """
    required = ("name", "source", "GB_per_s")
    values = _in_si(checked(table, _LINK, required, where), _OF_LINK, where)
    if _RANGE in values:
        ends = values.pop(_RANGE)
        found = tuple(positive(end, 1e-6, _RANGE, where) for end in ends)
        if len(found) != 2 or not found[0] <= values.get("latency_s", found[0]) <= found[1]:
            what = "must be two numbers around 'latency_us', the lower one first"
            raise InputError(f"{where}: '{_RANGE}' {what}, not {shorten(list(ends))}")
        values["latency_range_s"] = found
    return Link(**{"latency_s": None, **values})


def _in_si(values: Mapping[str, Any], numbers: Numbers, where: str) -> dict[str, Any]:
    si = dict(values)
    for key, (name, factor) in numbers.items():
        if key in si:
            si[name] = positive(si.pop(key), factor, key, where)
    return si


def _of_details(details: Mapping[str, Any], where: str) -> dict[str, Any]:
    words = {key: details[key] for key in details.keys() & DETAILS_IN_WORDS.keys()}
    values = dict(checked(words, DETAILS_IN_WORDS, (), where, "details."))
    for key in details.keys() & DETAILS.keys():
        name, factor, form = DETAILS[key]
        value = checked({key: details[key]}, {key: NUMBER}, (), where, "details.")[key]
        number = positive(value, factor, f"details.{key}", where)
        if form is int and (number != int(number) or name in values):
            what = "must be one whole number"
            raise InputError(f"{where}: 'details.{key}' {what}, not {shorten(value)}")
        values[name] = form(number)
    return values
