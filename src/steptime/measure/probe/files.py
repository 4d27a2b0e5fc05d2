"""Files of a device, with its ceilings, and of a link, from the measurements of a probe.

The times of all-reduces give the latency and the bandwidth of a link. A ring of n passes 2 (n - 1)
messages of bytes / n, one after the other, and a message takes latency + bytes / bandwidth
(Patarasuk and Yuan 2009; it is the collective `ring` of `steptime scale`):

    t = 2 (n - 1) (latency + bytes / n / bandwidth)

is a line in bytes. It is fitted by least squares of relative errors, so that small sizes count as
much as large ones. What comes out is the link as software reaches it, its own work included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from steptime.core.errors import InputError
from steptime.core.exchange import ring_messages
from steptime.core.json_types import JsonObject
from steptime.core.units import format_bytes, format_count, format_percent
from steptime.hardware import catalog, device_words
from steptime.hardware.datasheet import GB, GIB, TFLOP
from steptime.measure import machine
from steptime.measure.probe import ceilings

SIZES_BYTES = tuple(1024 * 4**step for step in range(9))  # 1 kB to 67 MB
FAR_OUT_OF_CACHE = 2.0  # arrays of at least so many last-level caches give the bandwidth
SMALL = ceilings.gemm_flop(512, 512, 512)  # a peak of smaller matrices only is called doubtful
NOT_MEASURED = ("details", "tdp_W", "idle_W", "clock_MHz")  # of a shipped device
COUNTED = (
    "GEMM peaks and bandwidth are the best of all shapes and kernels by their least time; bytes "
    "are inputs read once and outputs written once: what a write fetches first is not counted"
)


def device_table(answer: Mapping[str, Any]) -> JsonObject:
    """Return the device file, in datasheet units, that a worker's answer describes.

    The name is that of the platform, with `-probed` where a shipped device has the name; the
    complete curves stand in `measured`.

    Raises:
        InputError: if no GEMM or no bandwidth was measured.
    """
    curves = answer["curves"]
    peaks = _peaks(curves)
    streams = {
        group: curve for group, curve in curves.items() if group.startswith("memory.") and curve
    }
    if not peaks or not streams:
        missing = "copy or add" if peaks else "GEMM"
        fault = f"no {missing} was measured in {answer['budget_s']:g} s"
        raise InputError(f"calibrate: {fault}; give it more --minutes")
    platform = machine.platform_name(answer["device"], answer["product"], answer["threads"])
    is_shipped = platform in catalog.device_names(with_user_files=False)
    is_cpu = answer["kind"] == "cpu"
    threads = f", {format_count(answer['threads'], 'thread')}" if is_cpu else ""
    table: JsonObject = {
        "name": f"{platform}-probed" if is_shipped else platform,
        "kind": answer["kind"],
        "source": (
            f"measured by steptime calibrate --only ceilings on {answer['taken_at'][:10]} "
            f"with {answer['backend']} {answer['version']}{threads}"
        ),
        "note": "; ".join((COUNTED, *_list_doubts(answer, streams))),
        "memory_GB_per_s": _bandwidth(streams, answer["cache_bytes"]) / GB,
    }
    if answer["memory_bytes"]:
        table["memory_GB"] = answer["memory_bytes"] / GB
    dispatch = curves.get("dispatch")
    if dispatch:  # a single case
        table["launch_us"] = dispatch["min_s"][0] * 1e6
    if is_cpu:
        table |= _cpu_details(answer)
    else:  # what no probe measures comes from the shipped file of the device
        shipped_table = catalog.device_table(platform) if is_shipped else {}
        table |= _accelerator_details(answer, shipped_table)
    table["peak_TFLOP_per_s"] = peaks
    table["measured"] = _parse_measurements(answer, platform)
    return table


def _peaks(curves: Mapping[str, Any]) -> dict[str, float]:
    """Return the highest rate of GEMMs by type, in TFLOP/s."""
    return {
        group.partition(".")[2]: max(rate for _, rate in _rates(curve)) / TFLOP
        for group, curve in curves.items()
        if group.startswith("gemm.") and curve
    }


def _bandwidth(streams: Mapping[str, Any], cache_bytes: int | None) -> float:
    """Return the highest bandwidth far out of the last cache, in bytes/s.

    Without such arrays, or with an unknown cache, it is that of the largest arrays.
    """
    rates_out_of_cache = []
    if cache_bytes:
        for curve in streams.values():
            for work_bytes, rate in _rates(curve):
                if work_bytes >= FAR_OUT_OF_CACHE * cache_bytes:
                    rates_out_of_cache.append(rate)
    if rates_out_of_cache:
        return max(rates_out_of_cache)
    # No array is known to be out of the cache: the best rate of the largest arrays, the last of
    # each curve, comes nearest.
    sizes_and_rates = []
    for curve in streams.values():
        _, last_rate = _rates(curve)[-1]
        sizes_and_rates.append((curve["array_bytes"][-1], last_rate))
    _, best_rate = max(sizes_and_rates)
    return best_rate


def _cpu_details(answer: Mapping[str, Any]) -> JsonObject:
    """Return cores and cache; ceilings of a CPU are of so many threads, which its name says."""
    details: JsonObject = {"cores": answer["threads"]}
    if answer["cache_bytes"]:
        details["last_cache_MiB"] = answer["cache_bytes"] / 2**20
    return {"details": details}


def _accelerator_details(answer: Mapping[str, Any], shipped_table: Mapping[str, Any]) -> JsonObject:
    """Return the product, its memory as the driver has it, and figures of the shipped device."""
    table = {key: shipped_table[key] for key in NOT_MEASURED if key in shipped_table}
    if answer["memory_bytes"]:
        usable = {"usable_GiB": answer["memory_bytes"] / GIB}
        table["details"] = {**table.get("details", {}), **usable}
    table["products"] = [answer["product"]]
    return table


def _rates(curve: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the work of each case of a curve, and how much that is a second of its least time."""
    return [(work, work / min_s) for work, min_s in zip(curve["work"], curve["min_s"], strict=True)]


def _list_doubts(answer: Mapping[str, Any], streams: Mapping[str, Any]) -> list[str]:
    doubts = []
    load = answer["load"]
    if load is not None and load > machine.BUSY_LOAD and answer["kind"] == "cpu":
        doubts.append(f"the machine was busy: its load was {format_percent(load)} of its CPUs")
    cache_bytes = answer["cache_bytes"]
    if cache_bytes is None:
        doubts.append("the last cache is unknown: bandwidth may be of a cache")
    else:
        # The work of a copy or an addition is the bytes of its arrays.
        footprint = max(max(curve["work"]) for curve in streams.values()) / cache_bytes
        if footprint < FAR_OUT_OF_CACHE:
            arrays = f"arrays of {footprint:.2g} last-level caches"
            doubts.append(f"{arrays}: bandwidth may be of a cache")
    # A peak needs large matrices; a device that is too slow for them ends at small ones.
    for group, reasons in answer["skipped"].items():
        curve = answer["curves"][group]
        if group.startswith("gemm.") and curve and max(curve["work"]) < SMALL:
            doubts.append(f"{group} is of small matrices only: {reasons[0]}")
    for group, curve in answer["curves"].items():
        if not curve:
            reason, *_ = answer["skipped"].get(group, ["no budget"])
            doubts.append(f"{group} not measured: {reason}")
    return doubts


def _parse_measurements(answer: Mapping[str, Any], platform: str) -> JsonObject:
    """Return the facts and curves, `gemm.float32` as a table in a table, without unknowns."""
    facts = ("backend", "version", "device", "product", "threads", "cache_bytes", "taken_at")
    times = ("load", "budget_s", "wall_s")
    table: JsonObject = {key: answer[key] for key in (*facts, *times) if answer[key] is not None}
    table["platform"] = platform
    for group, curve in answer["curves"].items():
        if not curve:  # nothing was measured
            continue
        kind, _, name = group.partition(".")  # `gemm.float32`, or `dispatch` alone
        if name:
            table.setdefault(kind, {})[name] = dict(curve)
        else:
            table[kind] = dict(curve)
    if answer["skipped"]:
        table["skipped"] = {group: list(why) for group, why in answer["skipped"].items()}
    return table


@dataclass(frozen=True)
class Fit:
    """What a link must be for a ring of all-reduces to take the measured times.

    `latency_s` is None where the times show none. `errors` are fitted / measured - 1, by size.
    """

    latency_s: float | None
    bytes_per_s: float
    errors: tuple[float, ...]


def ring_s(size_bytes: float, processes: int, latency_s: float, bytes_per_s: float) -> float:
    """Return the seconds of an all-reduce of `size_bytes` by a ring, as this module's page says."""
    messages, share = ring_messages(processes)
    return messages * (latency_s + size_bytes * share / bytes_per_s)


def fit(sizes_bytes: Sequence[float], times_s: Sequence[float], processes: int) -> Fit:
    """Return the link whose ring takes `times_s`; raises `InputError` if larger is not slower."""
    from scipy.optimize import nnls

    # Least squares of relative errors: start_s / time_s + byte_s * size_bytes / time_s is 1.
    measured = list(zip(sizes_bytes, times_s, strict=True))
    relative_rows = [[1 / time_s, size_bytes / time_s] for size_bytes, time_s in measured]
    solution, _ = nnls(relative_rows, [1.0] * len(relative_rows))  # neither is below 0
    start_s, byte_s = map(float, solution)  # of an all-reduce of no bytes, and of one more byte
    if byte_s <= 0:
        raise InputError("calibrate: larger all-reduces were not slower; give it more --minutes")
    # A ring takes messages x (latency + message_share x size_bytes / bandwidth).
    messages, message_share = ring_messages(processes)
    latency_s = start_s / messages
    bytes_per_s = messages * message_share / byte_s
    errors = tuple(
        ring_s(size_bytes, processes, latency_s, bytes_per_s) / time_s - 1
        for size_bytes, time_s in measured
    )
    return Fit(latency_s or None, bytes_per_s, errors)  # 0: the times show no latency


def link_table(answer: Mapping[str, Any]) -> JsonObject:
    """Return the link `local`, in the units of a link file, that a worker's answer describes."""
    processes = answer["processes"]
    times = answer["all_reduce_s"]  # samples by bytes
    sizes_bytes = [int(text) for text in times]
    medians_s = [median(samples) for samples in times.values()]
    link = fit(sizes_bytes, medians_s, processes)
    median_error = median(map(abs, link.errors))
    worst_error = max(link.errors, key=abs)
    worst_bytes = sizes_bytes[link.errors.index(worst_error)]
    worst_text = f"{format_percent(worst_error, '+')} at {format_bytes(worst_bytes)}"
    errors_text = f"{format_percent(median_error)}, {worst_text}"
    note = f"what a ring all-reduce needs of a link for these times; median error {errors_text}"
    table: JsonObject = {
        "name": device_words.LOCAL,
        "source": (
            f"measured by steptime calibrate --only link on {answer['taken_at'][:10]} on "
            f"{', '.join(sorted(set(answer['hosts'])))} with torch {answer['version']} "
            f"({answer['comm_backend']}), {processes} processes of {answer['threads']} threads"
        ),
        "note": note,
        "GB_per_s": link.bytes_per_s / GB,
    }
    if link.latency_s is not None:
        table["latency_us"] = link.latency_s * 1e6
    table["measured"] = {
        "processes": processes,
        "comm_backend": answer["comm_backend"],
        "taken_at": answer["taken_at"],
        "rounds": min(map(len, times.values())),
        "bytes": sizes_bytes,
        "all_reduce_s": medians_s,
        "fit_error": list(link.errors),
    }
    return table
