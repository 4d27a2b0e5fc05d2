"""Devices, links and clusters, in SI units; one function converts from datasheet units."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Self

from msgspec import Meta

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import packaged
from steptime.core.typed import Above0, Figure, NonNegativeInt, Text, Texts, struct, typed_values
from steptime.core.workload import PHASES
from steptime.hardware.device_checks import BASE_CLOCK, check_clocks, check_measured

GB = 1e9
GIB = 2.0**30
TFLOP = 1e12
DEFAULT_SPREAD = 0.3  # of the rate of a link that nobody measured, in ln
MEASURED_SPREAD = 0.1  # of one that was measured here: judged, as runs differ


@dataclass(frozen=True)
class Device:
    """One device. `None` means unknown, which is never zero.

    `peak_flop_per_s` holds dense peaks of matrix products by dtype (also `tf32`), at the rate that
    frameworks reach: with sums in float32. `vector_flop_per_s` are the peaks of other arithmetic
    where the file says them (`vector_peak`). `launch_s` is the time the host needs to issue one op;
    `clock_hz` the clock of its cores, boosted; `products` are the names under which a driver
    reports it; `unverified` names the figures that should be checked before they are relied on.
    `details` is that table of the file, its numbers with their units in their names;
    `multiprocessors` (AMD: compute units), systolic `arrays` and their `array_side`,
    `cores`, `l2_bytes`, `process_nm`, `maker`, `series` (such as GeForce), `architecture` and
    `memory_type` are taken from there, and `usable_share`, the part of `memory_bytes` that a
    program can have (`usable_bytes`; None: as the maker's other cards). `only_by_name` keeps
    figures of one paper out of what others mean by a word such as "k80". `calibration` is what
    `steptime calibrate` wrote: constants, date, versions, errors. `constants` are those of the
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
    l3_bytes: float | None = None
    l3_of_core_bytes: float | None = None
    l2_bytes: float | None = None
    process_nm: float | None = None
    maker: str | None = None
    series: str | None = None
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

    def in_phase(self, phase: str) -> Self:
        """Return the device with what its calibration says of the steps of a phase alone."""
        own = self.calibration.get(phase)
        return replace(self, calibration={**self.calibration, **own}) if own else self

    @property
    def node_link(self) -> str:
        """What its maker calls the link to others of a node: `NVLink3 x12`, "" where unknown."""
        return str(self.details.get("link", ""))

    @property
    def usable_bytes(self) -> int | None:
        """Bytes that a program can have of its memory, None where that is unknown.

        A maker's GB of memory is a GiB, of which the driver keeps some (`data/usable.toml`): an
        A100 of 80 GB has 79.2 GiB, 85.04e9 bytes. Some keep a larger share of a small memory.
        Without a maker it is `memory_bytes`.
        """
        if self.memory_bytes is None:
            return None
        share = self.usable_share
        if share is None:
            kept = _makers().get(self.maker or "", {"other": GB / GIB})
            kind = "HBM" if (self.memory_type or "").startswith("HBM") else "other"
            is_small = self.memory_bytes < kept.get("small_GB", 0) * GB
            share = kept["small"] if is_small else kept.get(kind, kept["other"])
            share *= GIB / GB
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
    are published to reach as rings, adding up included; where nobody publishes one, it is
    `reached_share` of the rate, and `reached_from` says why. 80 % of installations reach a rate
    within `spread` of it, in ln. Where a switch adds up, `switch_bytes_per_s` is the rate at which
    each part sends to it (`collectives.in_switch`). Its `topology` is a row of
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
    reached_share: float = 1.0
    switch_bytes_per_s: float | None = None
    spread: float = DEFAULT_SPREAD
    reached_from: str = ""

    @property
    def reached(self) -> Self:
        """The link at the bus bandwidth that collectives reach."""
        if self.reached_bytes_per_s is not None:
            measured = {"bus": "published"}
            return replace(self, bytes_per_s=self.reached_bytes_per_s, measured=measured)
        rate = self.bytes_per_s * self.reached_share
        return replace(self, bytes_per_s=rate, reached_share=1.0)

    def faster(self, times: float, hops: float = 1.0) -> Self:
        """Return the link at so many times its rate, of the datasheet and reached.

        That is what a group has of its topology.
        """
        return replace(self.scale_rates(times), topology="", hops=hops)

    def scale_rates(self, times: float) -> Self:
        """Return the link at so many times each of its rates."""
        rates = {
            name: times * rate
            for name in ("bytes_per_s", "reached_bytes_per_s", "switch_bytes_per_s")
            if (rate := getattr(self, name)) is not None
        }
        return replace(self, **rates)


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
    def device_count(self) -> int:
        """The number of devices, which are ranks 0, 1, ..."""
        return math.prod(level.size for level in self.ladder)

    def level_of(self, ranks: Iterable[int]) -> int | None:
        """Return the place of the level whose link a group of ranks crosses, the outermost one.

        None for a single rank. Raises `InputError` for ranks that the cluster does not have.
        """
        group = set(ranks)
        if min(group) < 0 or max(group) >= self.device_count:
            raise InputError(
                f"the cluster has ranks 0 to {self.device_count - 1}, not {max(group)}"
            )
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
OF_DETAILS: Numbers = {
    "multiprocessors": ("multiprocessors", 1),
    "compute_units": ("multiprocessors", 1),
    "arrays": ("arrays", 1),
    "array_side": ("array_side", 1),
    "cores": ("cores", 1),
    "l2_MiB": ("l2_bytes", 2.0**20),
    "l3_MiB": ("l3_bytes", 2.0**20),
    "l3_of_core_MiB": ("l3_of_core_bytes", 2.0**20),
    "last_cache_MiB": ("l2_bytes", 2.0**20),
    "process_nm": ("process_nm", 1.0),
}
_OF_LINK: Numbers = {
    "latency_us": ("latency_s", 1e-6),
    "GB_per_s": ("bytes_per_s", GB),
    "reached_GB_per_s": ("reached_bytes_per_s", GB),
    "switch_GB_per_s": ("switch_bytes_per_s", GB),
}
PEAK_TABLES = {"peak_TFLOP_per_s": "peak_flop_per_s", "vector_TFLOP_per_s": "vector_flop_per_s"}
# read since there were records: unknown, they change no hash
LATER = ("arrays", "array_side", "series", "l3_bytes", "l3_of_core_bytes")
KINDS = ("cpu", "gpu", "tpu", "asic")
_AS_SAID = ("measured", "details", "calibration")  # with keys that nothing reads
PEAK_DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8", "float4")
_WORDS = ("maker", "series", "architecture", "memory_type")
_Count = Annotated[int, Meta(ge=1, le=10**8, description="one positive whole number")]
_Factor = Annotated[float, Meta(gt=1e-15, lt=1e15, description="a number from 1e-15 to 1e15")]
_Log = Annotated[float, Meta(gt=-100, lt=100, description="a log of a ratio of seconds")]
_PEAKS: Any = Annotated[
    struct("Peaks", dict.fromkeys(PEAK_DTYPES, Figure)), Meta(description="a table of dtypes")
]
LEVEL_RATES = tuple([f"{level}_GB_per_s" for level in ("l1", "l2", "l3", "infinity_cache")])
DETAILS = {  # all that the table may have
    "link": Text,
    "used_in": Text,
    **dict.fromkeys(("link_GB_per_s", "tensor_clock_MHz", BASE_CLOCK, *LEVEL_RATES), Figure),
    **{key: _Count if factor == 1 else Figure for key, (_, factor) in OF_DETAILS.items()},
    **dict.fromkeys(("process_nm", "usable_GiB"), Figure),
    **dict.fromkeys(_WORDS, Text),
}
_ENDS = Mapping[str, tuple[_Log, _Log]]
_OF_STEPS = {"constants": Mapping[str, _Factor], "steps": Sequence[tuple[Above0, Above0, _Log]]}
_CALIBRATION = {  # what predictions read of it
    **_OF_STEPS,
    **dict.fromkeys(PHASES, struct("Calibration", {**_OF_STEPS, "intervals": _ENDS})),
    "alone": Mapping[str, _Factor],
    "intervals": _ENDS,
    "products": Mapping[str, Sequence[tuple[Above0, Above0, Above0, Above0, _Log]]],
    **dict.fromkeys(("stack", "date", "backend", "version", "driver"), Text),
    **dict.fromkeys(("threads", "measured_points"), NonNegativeInt),
}
_CURVE: Any = struct(
    "Curve", dict.fromkeys(("work", "min_s"), Sequence[Above0]), "work min_s", closed=False
)
_MEASURED = {"platform": Text, "cache_bytes": Above0, "memory": Mapping[str, _CURVE]}  # is read
_COMMON = {
    **dict.fromkeys(("name", "source", "note"), Text),
    "unverified": Texts,
    "measured": struct("Measured", _MEASURED, closed=False),
}
_LINK = {
    **_COMMON,
    **dict.fromkeys(_OF_LINK, Figure),
    "reached_share": Annotated[float, Meta(gt=0, le=1, description="a number from 0 to 1")],
    "spread": Annotated[float, Meta(gt=0, le=2, description="a number from 0 to 2, in ln")],
    "reached_from": Text,
    "latency_range_us": tuple[Figure, Figure],
    "topology": Text,
}
_DEVICE = {
    **_COMMON,
    **dict.fromkeys(OF_DEVICE, Figure),
    **dict.fromkeys(PEAK_TABLES, _PEAKS),
    "kind": Literal["cpu", "gpu", "tpu", "asic"],
    "products": Texts,
    "only_by_name": bool,
    "details": struct("Details", DETAILS),
    "calibration": struct("Calibration", _CALIBRATION, closed=False),
}
_LINK_FILE = struct("Link", _LINK, "name source GB_per_s")
_DEVICE_FILE = struct("Device", _DEVICE, "name kind source peak_TFLOP_per_s memory_GB_per_s")


_READ_BY_ALL = (  # figures that every method of prediction may read
    *("name", "kind", "peak_flop_per_s", "memory_bytes_per_s", "memory_bytes"),
    *("launch_s", "clock_hz", "idle_w", "peak_w", "measured"),
)


def device_hash(device: Device, reads: Iterable[str] = ()) -> str:
    """Return 12 hexadecimal digits that change with every figure that a method may read.

    `reads` are the fields that a method reads beyond those of all methods (`Method.reads`). So the
    hash of a record stays valid when a file tells more than the method of the record reads.
    """
    from hashlib import sha256  # which loads OpenSSL

    said = asdict(device)
    keys = [key for key in (*_READ_BY_ALL, *reads) if said[key] is not None or key not in LATER]
    text = json.dumps({key: said[key] for key in keys}, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()[:12]


def device_from_table(table: Mapping[str, Any], where: str) -> Device:
    """Return the `Device` that a TOML table in datasheet units says; `where` is named in errors.

    Raises `InputError` for an unknown key, a missing one, or a number that no device has.
    """
    values = typed_values(table, _DEVICE_FILE, where) | {
        key: table[key] for key in _AS_SAID if key in table
    }
    values = _in_si(values, OF_DEVICE)
    idle, most = values.get("idle_w", 0.0), values.get("peak_w", math.inf)
    if idle >= most:
        raise InputError(f"{where}: 'idle_W' must be below 'tdp_W', not {idle:g} of {most:g}")
    check_clocks(table, where)
    check_measured(values, where)
    for key in values.keys() & PEAK_TABLES.keys():
        if not table[key]:
            raise InputError(f"{where}: '{key}' must be a table of dtypes, not empty")
        del values[key]
        values[PEAK_TABLES[key]] = {dtype: peak * TFLOP for dtype, peak in table[key].items()}
    details = values.get("details", {})
    read = {key: details[key] for key in (*_WORDS, *OF_DETAILS) if key in details}
    if "usable_GiB" in details and "memory_bytes" in values:
        values["usable_share"] = details["usable_GiB"] * GIB / values["memory_bytes"]
    return Device(**values, **_in_si(read, OF_DETAILS))


def link_from_table(table: Mapping[str, Any], where: str) -> Link:
    """Return the `Link` that a TOML table in datasheet units says; `where` is named in errors.

    Raises `InputError` for an unknown key, a missing one, or a number that is not positive.
    """
    values = _in_si(typed_values(table, _LINK_FILE, where), _OF_LINK)
    if ends := values.pop("latency_range_us", None):
        low, high = (1e-6 * end for end in ends)
        if not low <= values.get("latency_s", low) <= high:
            what = "must be two numbers around 'latency_us', the lower one first"
            raise InputError(f"{where}: 'latency_range_us' {what}, not {shorten(list(ends))}")
        values["latency_range_s"] = low, high
    measured = table.get("measured", {})
    if measured:
        values.setdefault("spread", MEASURED_SPREAD)
    return Link(**{"latency_s": None, **values, "measured": measured})


def _in_si(values: Mapping[str, Any], numbers: Numbers) -> dict[str, Any]:
    """Return the values, those of keys of numbers by their fields and in SI."""
    found = {}
    for key, value in values.items():
        name, factor = numbers.get(key, (key, None))
        found[name] = value if factor is None else value * factor
    return found
