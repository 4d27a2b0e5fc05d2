"""Devices, links and clusters, in SI units."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self

from steptime.core.errors import InputError
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device_calibration import DeviceCalibration

DEFAULT_SPREAD = 0.3  # of the rate of a link that nobody measured, in ln
MEASURED_SPREAD = 0.1  # of one that was measured here: judged, as runs differ


@dataclass(frozen=True)
class Device:
    """One device: what is stated of it, what was measured on it, and the constants in use.

    Attributes:
        name: the name in the catalogue, or that of the user's file.
        kind: cpu, gpu, tpu or asic.
        datasheet: the figures that the maker or a paper states.
        measured: figures that `steptime calibrate --only ceilings` measured on one device: its
            platform, the bandwidth of its memory by size.
        calibration: what `steptime calibrate` fitted for one device.
        constants: the constants that the predictor uses, by full name. They are empty until the
            method `calibrated` resolves them from architecture, stack and calibration.
    """

    name: str
    kind: str
    datasheet: Datasheet
    measured: Mapping[str, Any] = field(default_factory=dict)
    calibration: DeviceCalibration = field(default_factory=DeviceCalibration)
    constants: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_cpu(self) -> bool:
        """Whether it issues its ops itself, so that nothing hides the time for that."""
        return self.kind == "cpu"

    @property
    def is_calibrated(self) -> bool:
        """Whether it has a calibration."""
        return bool(self.calibration.table)

    def with_figures(self, **figures: Any) -> Self:
        """Return the device with other figures in its datasheet."""
        return replace(self, datasheet=replace(self.datasheet, **figures))

    def with_calibration(self, table: Mapping[str, Any]) -> Self:
        """Return the device with the calibration of a table; {} is none (`DeviceCalibration`)."""
        return replace(self, calibration=DeviceCalibration.from_table(table))

    def in_phase(self, phase: str) -> Self:
        """Return the device with what its calibration says of the steps of a phase alone."""
        return replace(self, calibration=self.calibration.phases.get(phase, self.calibration))


@dataclass(frozen=True)
class Link:
    """A connection, one direction: time of a message = latency_s + bytes / bytes_per_s.

    A latency of `None` is not published, which is not zero; `latency_range_s` is between what
    sources and software differ. `bus_bytes_per_s` is the largest bus bandwidth that collectives
    are published to reach as rings, adding up included; where nobody publishes one, it is
    `bus_share` of the rate, and `bus_source` says why. 80 % of installations reach a rate
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
    bus_bytes_per_s: float | None = None
    topology: str = ""
    hops: float = 1.0
    bus_share: float = 1.0
    switch_bytes_per_s: float | None = None
    spread: float = DEFAULT_SPREAD
    bus_source: str = ""

    @property
    def for_collectives(self) -> Self:
        """The link at the bus bandwidth that collectives reach."""
        if self.bus_bytes_per_s is not None:
            measured = {"bus": "published"}
            return replace(self, bytes_per_s=self.bus_bytes_per_s, measured=measured)
        rate = self.bytes_per_s * self.bus_share
        return replace(self, bytes_per_s=rate, bus_share=1.0)

    def faster(self, times: float, hops: float = 1.0) -> Self:
        """Return the link at so many times its rate, of the datasheet and reached.

        That is what a group has of its topology.
        """
        return replace(self.scale_rates(times), topology="", hops=hops)

    def scale_bus(self, times: float) -> Self:
        """Return the link where collectives reach so many times as much of its rate."""
        if self.bus_bytes_per_s is not None:
            return replace(self, bus_bytes_per_s=times * self.bus_bytes_per_s)
        return replace(self, bus_share=times * self.bus_share)

    def scale_rates(self, times: float) -> Self:
        """Return the link at so many times each of its rates."""
        rates = {
            name: times * rate
            for name in ("bytes_per_s", "bus_bytes_per_s", "switch_bytes_per_s")
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
        """Return the index of the level whose link a group of ranks crosses, the outermost one.

        None for a single rank. Raises `InputError` for ranks that the cluster does not have.
        """
        group = set(ranks)
        if min(group) < 0 or max(group) >= self.device_count:
            raise InputError(
                f"the cluster has ranks 0 to {self.device_count - 1}, not {max(group)}"
            )
        outermost_index = None
        part_size = 1  # devices of a part that the level joins
        for index, level in enumerate(self.ladder):
            crosses_parts = len({rank // part_size for rank in group}) > 1
            if crosses_parts:
                outermost_index = index
            part_size *= level.size
        return outermost_index

    def link_of(self, ranks: Iterable[int]) -> Link | None:
        """Return the link that a group of ranks crosses, None for a single rank."""
        level_index = self.level_of(ranks)
        return None if level_index is None else self.ladder[level_index].link


KINDS = ("cpu", "gpu", "tpu", "asic")
# Fields that are younger than the first records: where they are unknown, they change no hash.
_HASHED_UNLESS_NONE = ("arrays", "array_side", "series", "l3_bytes", "l3_of_core_bytes")
_FIELDS_READ_BY_ALL = (  # figures that every method of prediction may read
    *("name", "kind", "peak_flop_per_s", "memory_bytes_per_s", "memory_bytes"),
    *("launch_s", "clock_hz", "idle_w", "peak_w", "measured"),
)


def device_hash(device: Device, reads: Iterable[str] = ()) -> str:
    """Return 12 hexadecimal digits that change with every figure that a method may read.

    So the hash of a record stays valid when a file has further figures.

    Args:
        device: the device.
        reads: the fields that a method reads beyond those of all methods (`Method.reads`).
    """
    from hashlib import sha256  # which loads OpenSSL

    device_fields = asdict(device)
    figures = device_fields | device_fields["datasheet"] | {"calibration": device.calibration.table}
    # A field that came later counts only if it has a value, so that older hashes stay valid.
    names = [
        name
        for name in (*_FIELDS_READ_BY_ALL, *reads)
        if figures[name] is not None or name not in _HASHED_UNLESS_NONE
    ]
    text = json.dumps({name: figures[name] for name in names}, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()[:12]
