"""The exchanges of Paleo (Qi, Sparks, Talwalkar, ICLR 2017): messages without latency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from steptime.predict.parallel.collectives import COLLECTIVES, Collective, Fabric, rounds


def _whole_s(size_bytes: float, fabric: Fabric) -> float:
    """Return the seconds of a whole gradient over the link."""
    return size_bytes / fabric.between.bytes_per_s / fabric.efficiency


PUBLISHED: Mapping[str, Collective] = {  # the four closed forms
    "one-to-all": lambda size, n, fabric: 2 * (n - 1) * _whole_s(size, fabric),
    "tree": lambda size, n, fabric: 2 * rounds(n) * _whole_s(size, fabric),
    "butterfly": lambda size, n, fabric: rounds(n) * _whole_s(size, fabric),
    "butterfly-mixing": lambda size, n, fabric: _whole_s(size, fabric),  # of one replica, too
}
PALEO: Mapping[str, Collective] = {**COLLECTIVES, **PUBLISHED}


def without_latency(fabric: Fabric) -> Fabric:
    """Return what joins devices as Paleo has it: no latency, and adding up takes no time."""
    inside = None if fabric.inside is None else replace(fabric.inside, latency_s=None)
    between = replace(fabric.between, latency_s=None)
    return replace(fabric, between=between, inside=inside, memory_bytes_per_s=None)
