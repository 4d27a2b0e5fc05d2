"""The ceilings of a device: how fast each unit computes and each level of memory feeds it.

They are those of its file alone, without any run: a datasheet's, or what a probe measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.core.answer import AnswerRow
from steptime.core.dtypes import PRECISIONS
from steptime.hardware.datasheet import GB
from steptime.hardware.device import Device

DRAM = "DRAM"
RATE_ENDING = "_GB_per_s"  # of a key of [details] that says how fast a cache is read
LINKS = ("link", "interconnect")
MIN_SPEED_RATIO = 1.1  # times as fast as the level behind it, or a level is not told from that one
LAST_CACHE_SHARE = 0.25  # of the last cache, that a working set fills which nearer ones do not hold


class Ceiling(AnswerRow, frozen=True, kw_only=True):
    """A ceiling of a platform: of a unit and data type, or of a level of memory.

    Attributes:
        platform: name of the platform.
        unit: the unit that computes; None for a level of memory.
        dtype: its data type.
        flop_per_s: its peak.
        level: the level of memory; None for a unit.
        bytes_per_s: its bandwidth.
    """

    platform: str
    unit: str | None = None
    dtype: str | None = None
    flop_per_s: float | None = None
    level: str | None = None
    bytes_per_s: float | None = None


class Ridge(AnswerRow, frozen=True, kw_only=True):
    """A unit and data type over a level of memory of its platform.

    Attributes:
        platform: name of the platform.
        unit: the unit that computes.
        dtype: its data type.
        level: the level of memory.
        peak_flop_per_s: peak of the unit.
        memory_bytes_per_s: bandwidth of the level.
        ridge_flop_per_byte: the intensity from which on the unit is the lower ceiling.
    """

    platform: str
    unit: str | None
    dtype: str | None
    level: str | None
    peak_flop_per_s: float
    memory_bytes_per_s: float
    ridge_flop_per_byte: float


def list_ceilings(device: Device) -> list[Ceiling]:
    """Return the ceilings of a device, units first.

    Levels are the memory, as calibrated where it was, and the caches that `[details]` states
    (`l2_GB_per_s`) or whose curve a probe measured.
    """
    tables = (
        ("matrix", device.datasheet.peak_flop_per_s),
        ("vector", device.datasheet.vector_flop_per_s),
    )
    units = [
        Ceiling(platform=device.name, unit=unit, dtype=dtype, flop_per_s=peak)
        for unit, peaks in tables
        for dtype, peak in peaks.items()
    ]
    levels = {DRAM: device.datasheet.memory_bytes_per_s, **_list_caches(device)}
    return units + [
        Ceiling(platform=device.name, level=level, bytes_per_s=rate)
        for level, rate in levels.items()
    ]


def compute_dtype(dtype: str) -> str:
    """Return the type of arithmetic of a dtype of a run, itself if it is not known."""
    return PRECISIONS[dtype].compute if dtype in PRECISIONS else dtype


def _list_caches(device: Device) -> dict[str, float]:
    """Return the bytes a second of further levels, by name."""
    caches = {}
    for name, share in device.calibration.constants.items():
        # Calibrated: the share of the datasheet's bandwidth that streaming kernels reach. A device
        # has one such constant, for its kind of memory (`stream.share_hbm`).
        if name.startswith("stream.share_"):
            caches[f"{DRAM} as calibrated"] = device.datasheet.memory_bytes_per_s * share
    for key, value in device.datasheet.details.items():
        # `l2_GB_per_s` is the rate of level `l2`; a key without the ending is something else.
        level = key.removesuffix(RATE_ENDING)
        if level != key and level not in LINKS and isinstance(value, int | float):
            caches[level.replace("_", " ")] = value * GB
    return caches | _list_probed_caches(device)


def _list_probed_caches(device: Device) -> dict[str, float]:
    """Return the bandwidth of streams whose arrays fit into the last cache, and into nearer ones.

    Those that fill more than a quarter of it are of the last cache, smaller ones of nearer caches
    if they are faster.
    """
    # The probe timed passes over working sets of many sizes. A set within the last cache shows the
    # rate of that cache; one of a quarter of it or less fits the caches before.
    curves: Mapping[str, Any] = device.measured.get("memory", {})
    cache_bytes = device.measured.get("cache_bytes")
    if not cache_bytes:
        return {}
    last_cache_rates = []
    inner_cache_rates = []
    for curve in curves.values():
        for work_bytes, min_s in zip(curve["work"], curve["min_s"], strict=True):
            cache_share = work_bytes / cache_bytes
            if cache_share <= LAST_CACHE_SHARE:
                inner_cache_rates.append(work_bytes / min_s)
            elif cache_share <= 1:
                last_cache_rates.append(work_bytes / min_s)
    caches = {}
    # A level is told apart only if it is clearly faster than the level behind it.
    memory_limit = device.datasheet.memory_bytes_per_s * MIN_SPEED_RATIO
    last_rate = max(last_cache_rates, default=0.0)
    if last_rate > memory_limit:
        caches["last cache"] = last_rate
    inner_rate = max(inner_cache_rates, default=0.0)
    if inner_rate > MIN_SPEED_RATIO * max(caches.get("last cache", 0.0), memory_limit):
        caches["inner caches"] = inner_rate
    return caches


def list_ridges(ceilings: Sequence[Ceiling]) -> list[Ridge]:
    """Return a ridge for each unit and dtype over each level of memory of its platform."""
    return [
        Ridge(
            platform=unit.platform,
            unit=unit.unit,
            dtype=unit.dtype,
            level=memory.level,
            peak_flop_per_s=unit.flop_per_s,
            memory_bytes_per_s=memory.bytes_per_s,
            ridge_flop_per_byte=unit.flop_per_s / memory.bytes_per_s,
        )
        for unit in ceilings
        for memory in ceilings
        if unit.platform == memory.platform and unit.flop_per_s and memory.bytes_per_s
    ]
