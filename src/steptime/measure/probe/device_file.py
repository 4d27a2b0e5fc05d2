"""From what a probe measured to a device file: the ceilings, and the curves they were read from."""

import math
from collections.abc import Mapping
from typing import Any

from steptime import catalog
from steptime.core.errors import InputError
from steptime.core.hardware import GB, TFLOP
from steptime.measure import machine
from steptime.measure.probe import ceilings

LAUNCH_OP = "add"  # the op whose issue time is the device's launch_us
FAR_OUT_OF_CACHE = 2.0  # arrays of at least so many last-level caches give the bandwidth
SMALL = ceilings.gemm_flop(512, 512, 512)  # a peak of smaller matrices only is called doubtful
NOT_MEASURED = ("details", "tdp_W", "idle_W", "clock_MHz")  # of a shipped device
COUNTED = (
    "GEMM peaks and bandwidth are the best of all shapes and kernels by their least time; bytes "
    "are inputs read once and outputs written once: what a write fetches first is not counted"
)


def device_table(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device, in the datasheet units of a device file, that a worker's answer describes.

    The name is that of the platform (`-probed` behind it where a shipped device has the name); the
    whole curves stand in `measured`. Raises `InputError` where GEMM or bandwidth was not measured.
    """
    curves = answer["curves"]
    peaks = {
        group.partition(".")[2]: max(rate for _, rate in _rates(curve)) / TFLOP
        for group, curve in curves.items()
        if group.startswith("gemm.") and curve
    }
    streams = {
        group: curve for group, curve in curves.items() if group.startswith("memory.") and curve
    }
    if not peaks or not streams:
        lack = f"no {'copy or add' if peaks else 'GEMM'} was measured in {answer['budget_s']:g} s"
        raise InputError(f"probe: {lack}; give it a larger budget")
    platform = machine.platform_name(answer["device"], answer["product"], answer["threads"])
    taken = platform in catalog.device_names(own=False)
    points = [point for curve in streams.values() for point in _rates(curve)]
    out = FAR_OUT_OF_CACHE * (answer["cache_bytes"] or math.inf)  # else the largest arrays
    far = [rate for work, rate in points if work >= out] or [max(points)[1]]
    count = answer["threads"]
    threads = f", {count} thread{'s' if count > 1 else ''}" if answer["kind"] == "cpu" else ""
    table: dict[str, Any] = {
        "name": f"{platform}-probed" if taken else platform,
        "kind": answer["kind"],
        "source": (
            f"measured by steptime probe on {answer['taken_at'][:10]} "
            f"with {answer['backend']} {answer['version']}{threads}"
        ),
        "note": "; ".join((COUNTED, *_doubts(answer, streams))),
        "memory_GB_per_s": max(far) / GB,
    }
    if answer["memory_bytes"]:
        table["memory_GB"] = answer["memory_bytes"] / GB
    issued = curves.get("dispatch", {})
    if LAUNCH_OP in issued.get("op", ()):
        table["launch_us"] = issued["min_s"][issued["op"].index(LAUNCH_OP)] * 1e6
    if answer["kind"] == "cpu":  # its ceilings are of so many threads: its name says them
        table["details"] = {"cores": answer["threads"]}
        if answer["cache_bytes"]:
            table["details"]["last_cache_MiB"] = answer["cache_bytes"] / 2**20
    else:
        said = catalog.device_table(platform) if taken else {}
        table |= {key: said[key] for key in NOT_MEASURED if key in said}
        table["products"] = [answer["product"]]
    table["peak_TFLOP_per_s"] = peaks
    table["measured"] = _measured(answer, platform)
    return table


def _rates(curve: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the work of each case of a curve, and how much that is a second of its least time."""
    return [(work, work / least) for work, least in zip(curve["work"], curve["min_s"], strict=True)]


def _doubts(answer: Mapping[str, Any], streams: Mapping[str, Any]) -> list[str]:
    doubts = []
    load = answer["load"]
    if load is not None and load > machine.BUSY and answer["kind"] == "cpu":
        doubts.append(f"the machine was busy: its load was {load:.0%} of its CPUs")
    cache_bytes = answer["cache_bytes"]
    if cache_bytes is None:
        doubts.append("the last cache is unknown: bandwidth may be of a cache")
    else:
        footprint = max(max(curve["work"]) for curve in streams.values()) / cache_bytes
        if footprint < FAR_OUT_OF_CACHE:
            arrays = f"arrays of {footprint:.2g} last-level caches"
            doubts.append(f"{arrays}: bandwidth may be of a cache")
    doubts += [
        f"{group} is of small matrices only: {why[0]}"
        for group, why in answer["skipped"].items()
        if group.startswith("gemm.") and max(answer["curves"][group].get("work", [SMALL])) < SMALL
    ]
    doubts += [
        f"{group} not measured: {answer['skipped'].get(group, ['no budget'])[0]}"
        for group, curve in answer["curves"].items()
        if not curve
    ]
    return doubts


def _measured(answer: Mapping[str, Any], platform: str) -> dict[str, Any]:
    """Return the facts and curves, `gemm.float32` as a table in a table, without unknowns."""
    facts = ("backend", "version", "device", "product", "threads", "cache_bytes", "taken_at")
    times = ("load", "budget_s", "wall_s")
    table: dict[str, Any] = {
        key: answer[key] for key in (*facts, *times) if answer[key] is not None
    }
    table["platform"] = platform
    for group, curve in answer["curves"].items():
        if curve:
            kind, _, name = group.partition(".")
            (table.setdefault(kind, {}) if name else table)[name or kind] = dict(curve)
    if answer["skipped"]:
        table["skipped"] = {group: list(why) for group, why in answer["skipped"].items()}
    return table
