"""From the times of all-reduces to a link file: latency and bandwidth of the link between replicas.

A ring of n passes 2 (n - 1) messages of bytes / n, one after the other, and a message takes
latency + bytes / bandwidth (Patarasuk and Yuan 2009; it is the collective `ring` of `steptime
scale`):

    t = 2 (n - 1) (latency + bytes / n / bandwidth)

is a line in bytes. It is fitted by least squares of relative errors, so that small sizes count as
much as large ones. What comes out is the link as software reaches it, its own work included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from steptime.catalog import LOCAL
from steptime.core.errors import InputError
from steptime.core.exchange import ring_messages
from steptime.core.hardware import GB
from steptime.core.units import size

SIZES_BYTES = tuple(1024 * 4**step for step in range(9))  # 1 kB to 67 MB


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

    relative = [[1 / t, x / t] for x, t in zip(sizes_bytes, times_s, strict=True)]
    start, slope = map(float, nnls(relative, [1.0] * len(relative))[0])  # neither is below 0
    if slope <= 0:
        raise InputError("probe: larger all-reduces were not slower; give it a larger budget")
    messages, share = ring_messages(processes)
    latency_s = start / messages
    bytes_per_s = messages * share / slope
    fitted = [ring_s(x, processes, latency_s, bytes_per_s) for x in sizes_bytes]
    errors = tuple(f / t - 1 for f, t in zip(fitted, times_s, strict=True))
    return Fit(latency_s or None, bytes_per_s, errors)


def link_table(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the link `local`, in the units of a link file, that a worker's answer describes."""
    processes, times = answer["processes"], answer["all_reduce_s"]
    sizes = [int(text) for text in times]
    medians = [median(samples) for samples in times.values()]
    found = fit(sizes, medians, processes)
    worst = max(zip(sizes, found.errors, strict=True), key=lambda pair: abs(pair[1]))
    table: dict[str, Any] = {
        "name": LOCAL,
        "source": (
            f"measured by steptime probe --collectives on {answer['taken_at'][:10]} on "
            f"{', '.join(sorted(set(answer['hosts'])))} with torch {answer['version']} "
            f"({answer['comm_backend']}), {processes} processes of {answer['threads']} threads"
        ),
        "note": (
            "what a ring all-reduce needs of a link to take the measured times; median "
            f"error {median(map(abs, found.errors)):.0%}, {worst[1]:+.0%} at {size(worst[0])}"
        ),
        "GB_per_s": found.bytes_per_s / GB,
    }
    if found.latency_s is not None:
        table["latency_us"] = found.latency_s * 1e6
    table["measured"] = {
        "processes": processes,
        "comm_backend": answer["comm_backend"],
        "taken_at": answer["taken_at"],
        "rounds": min(map(len, times.values())),
        "bytes": sizes,
        "all_reduce_s": medians,
        "fit_error": list(found.errors),
    }
    return table
