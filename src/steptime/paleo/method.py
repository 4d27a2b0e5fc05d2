"""Paleo as published (Qi, Sparks, Talwalkar, ICLR 2017), its faults included.

Convolutions, dense layers, pooling and dropout cost time, everything else nothing; compute and
memory time of a layer are added. It is the analytic model with every correction switched off.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from steptime.core.dtypes import precision
from steptime.core.errors import shorten
from steptime.core.graph import Graph
from steptime.hardware.device import Device, Link
from steptime.paleo.layers import unknown_work
from steptime.paleo.lower import lower
from steptime.paleo.price import apply_figures, price_overlapped, price_sequential
from steptime.paleo.rules import ALGORITHMS, settings_of
from steptime.prediction.collectives import COLLECTIVES, Collective, rounds
from steptime.prediction.fabric import Fabric
from steptime.prediction.kernel import Settings
from steptime.prediction.method import EFFICIENCIES, Method, Option, choice_option

FAULTS = {  # fault of Paleo: the correction. In the order of `explain`
    "gigabyte": "a GB/s of memory is 1e9 bytes a second, not 2^30",
    "cycle": "compute and memory time of a kernel may be shorter than a clock cycle",
    "padding": "a convolution does not read its padding",
    "backward": "a gradient costs as much as its convolution; inserted zeros do not count",
    "first": "an op has an input gradient only if a weight before it is trained",
    "update": "the chosen optimizer reads and writes the weights and its own states",
    "dtype": "size of an element and peak FLOP/s are those of the chosen data type",
    "ops": "every op has FLOP and bytes: bias, activation, norm, concatenation, loss, pooling, ...",
    "overlap": "a kernel computes while it moves its bytes: the longer time counts",
    "dispatch": "a step takes at least as long as the host needs to launch it, if known",
}
EXACT, PALEO = "exact", "paleo"


def _gradient_s(size_bytes: float, fabric: Fabric) -> float:
    """Return the seconds of a whole gradient over the link."""
    return size_bytes / fabric.between.bytes_per_s / fabric.efficiency


PUBLISHED: Mapping[str, Collective] = {  # the four closed forms
    "one-to-all": lambda size, n, fabric: 2 * (n - 1) * _gradient_s(size, fabric),
    "tree": lambda size, n, fabric: 2 * rounds(n) * _gradient_s(size, fabric),
    "butterfly": lambda size, n, fabric: rounds(n) * _gradient_s(size, fabric),
    "butterfly-mixing": lambda size, n, fabric: _gradient_s(size, fabric),  # of one replica, too
}
EXCHANGES: Mapping[str, Collective] = {**COLLECTIVES, **PUBLISHED}


def without_latency(fabric: Fabric) -> Fabric:
    """Remove latencies from a fabric, and the time of adding up, as Paleo does."""
    inside = replace(fabric.inside, latency_s=None) if isinstance(fabric.inside, Link) else None
    between = replace(fabric.between, latency_s=None)
    return replace(fabric, between=between, inside=inside, memory_bytes_per_s=None)


def with_faults(method: Method, faults: Collection[str]) -> Method:
    """Return a method with exactly these faults of Paleo."""
    # Paleo knows no host: only its correction lets one run ahead of the device.
    host: Any = "no" if "dispatch" in faults else "ahead"
    settings = replace(settings_of(method.settings), faults=frozenset(faults), host=host)
    price = price_sequential if "overlap" in faults else price_overlapped
    return replace(
        method, lower=lower, price=price, derate=apply_figures, notes=notes, settings=settings
    )


def notes(graph: Graph, dtype: str, device: Device, settings: Settings) -> tuple[str, ...]:
    """Return remarks on the work that the rules of Paleo that are kept leave out or ignore."""
    faults = settings_of(settings).faults  # those of Paleo that are not corrected
    remarks = []
    if "dtype" in faults and precision(dtype).compute != "float32":
        remarks.append(f"Paleo counts elements of 4 bytes at the float32 peak, not {dtype}")
    if "update" in faults and any(op.part == "update" and op.kind != "sgd" for op in graph.ops):
        remarks.append("Paleo updates by plain SGD, whatever the optimizer")
    unpriced_kinds = unknown_work(graph) if "ops" in faults else ()
    if unpriced_kinds:
        remarks.append(f"Paleo knows no {', '.join(unpriced_kinds)}: they count nothing")
    if "cycle" in faults and device.datasheet.clock_hz is None:
        remarks.append(f"{device.name}: no clock is known, so no kernel takes at least a cycle")
    return tuple(remarks)


def _correction(name: str) -> Option:
    """Return the option that switches a correction off: `exact` or `paleo`."""

    def read(method: Method, text: str) -> Method:
        if text not in (EXACT, PALEO):
            raise ValueError(f"is {EXACT} or {PALEO}, not {shorten(text)}")
        faults = settings_of(method.settings).faults
        return with_faults(method, faults | {name}) if text == PALEO else method

    return Option(FAULTS[name], EXACT, read)


CORRECTIONS = {name: _correction(name) for name in FAULTS}
METHOD = with_faults(
    Method(
        "paleo",
        "1",
        arrays=True,
        options={
            **EFFICIENCIES,
            "pipeline": choice_option(
                "a layer's compute and memory time overlap: Paleo's lower bound",
                "pipelined",
                {"true": True, "false": False, "yes": True, "no": False},
                "false",
            ),
            "conv": choice_option(
                "algorithm of convolutions", "algorithm", {n: n for n in ALGORITHMS}, "gemm"
            ),
        },
        collective="tree",
        collectives=EXCHANGES,
        links=without_latency,
        latency=False,
        too_few=lambda n, batch: f"{n} replicas compute one example each, {n} and not {batch}",
    ),
    FAULTS,
)
