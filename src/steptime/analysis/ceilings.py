"""The ceilings of a device: how fast each unit computes and each level of memory feeds it.

They are those of its file alone, without any run: a datasheet's, or what a probe measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.core.dtypes import PRECISIONS
from steptime.hardware.device import GB, Device
from steptime.records.row import Row

DRAM = "DRAM"
RATE = "_GB_per_s"  # end of a key of [details] that says how fast a cache is read
RATES = ("flop_per_s", "bytes_per_s")
LINKS = ("link", "interconnect")
NEARER = 1.1  # times as fast as the level behind it, or it is not told from that one


def ceilings_of(device: Device) -> list[Row]:
    """Return a row for each ceiling: `flop_per_s` of a unit and dtype, `bytes_per_s` of a level.

    Levels are the memory, as calibrated where it was, and the caches that `[details]` states
    (`l2_GB_per_s`) or whose curve a probe measured.
    """
    tables = (("matrix", device.peak_flop_per_s), ("vector", device.vector_flop_per_s))
    found = [
        ceiling(device.name, unit=unit, dtype=dtype, flop_per_s=peak)
        for unit, peaks in tables
        for dtype, peak in peaks.items()
    ]
    levels = {DRAM: device.memory_bytes_per_s, **_caches(device)}
    return found + [ceiling(device.name, level=n, bytes_per_s=rate) for n, rate in levels.items()]


def computed_in(dtype: str) -> str:
    """Return the type of arithmetic of a dtype of a run, itself where it is not a known one."""
    return PRECISIONS[dtype].compute if dtype in PRECISIONS else dtype


def ceiling(platform: str, **known: Any) -> Row:
    """Return the row of a ceiling, what is not known of it None."""
    names = ("unit", "dtype", "flop_per_s", "level", "bytes_per_s")
    return {"platform": platform, **dict.fromkeys(names), **known}


def _caches(device: Device) -> dict[str, float]:
    """Return the bytes a second of further levels, by name."""
    found = {}
    for name, share in device.calibration.get("constants", {}).items():
        if name.startswith("stream.share_"):
            found[f"{DRAM} as calibrated"] = device.memory_bytes_per_s * share
    for key, value in device.details.items():
        level = key.removesuffix(RATE)
        if level != key and level not in LINKS and isinstance(value, int | float):
            found[level.replace("_", " ")] = value * GB
    return found | _probed(device)


def _probed(device: Device) -> dict[str, float]:
    """Return what streams reached whose arrays fit into the last cache, and into nearer ones.

    Of those that fill more than a quarter of it, and of smaller ones where those are faster.
    """
    curves: Mapping[str, Any] = device.measured.get("memory", {})
    cache = device.measured.get("cache_bytes")
    if not cache:
        return {}
    points = [
        (work / cache, work / least)
        for curve in curves.values()
        for work, least in zip(curve["work"], curve["min_s"], strict=True)
    ]
    last = max((rate for filled, rate in points if 0.25 < filled <= 1), default=None)
    inner = max((rate for filled, rate in points if filled <= 0.25), default=None)
    behind = device.memory_bytes_per_s * NEARER
    found = {"last cache": last} if last and last > behind else {}
    if inner and inner > NEARER * max(found.get("last cache", 0.0), behind):
        found["inner caches"] = inner
    return found


def ridges(ceilings: Sequence[Row]) -> list[Row]:
    """Return a row for each unit and dtype over each level of memory of its platform.

    `ridge_flop_per_byte` is the intensity from which on the unit is the lower ceiling.
    """
    return [
        {
            **{name: top[name] for name in ("platform", "unit", "dtype")},
            "level": side["level"],
            "peak_flop_per_s": top["flop_per_s"],
            "memory_bytes_per_s": side["bytes_per_s"],
            "ridge_flop_per_byte": top["flop_per_s"] / side["bytes_per_s"],
        }
        for top in ceilings
        for side in ceilings
        if top["platform"] == side["platform"] and top["flop_per_s"] and side["bytes_per_s"]
    ]
