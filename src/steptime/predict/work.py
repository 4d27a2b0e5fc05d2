"""Work: the FLOP of one kernel and the bytes that it moves; and how work becomes seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Overlap = Literal["none", "layer", "op"]


class Work(NamedTuple):
    """One kernel: floating-point operations, and bytes, one term a tensor that it moves."""

    flop: float
    terms: tuple[float, ...]


@dataclass(frozen=True)
class Rates:
    """What a device does at most. `cycle_s` is the least time of a term, 0 for none.

    `launch_s` is added to every kernel.
    """

    flop_per_s: float
    bytes_per_s: float
    cycle_s: float = 0.0
    launch_s: float = 0.0


class Seconds(NamedTuple):
    """Time of some work: of its arithmetic, of its memory traffic, and in all."""

    compute_s: float
    memory_s: float
    total_s: float


NOTHING = Seconds(0.0, 0.0, 0.0)


def timed(works: Iterable[Work], rates: Rates, overlap: Overlap) -> Seconds:
    """Give the seconds of kernels that run one after another.

    A kernel's arithmetic takes FLOP / rate, its memory the sum of bytes / rate over its terms,
    each term at least a cycle; a kernel without FLOP has no arithmetic. `overlap` says what runs at
    the same time: `none` adds the two, `op` takes the longer of them kernel by kernel, `layer`
    the longer of their sums. 1 GFLOP and 1 GB at 1 GFLOP/s and 1 GB/s take 2 s, 1 s and 1 s.
    """
    flop_per_s, bytes_per_s, cycle = rates.flop_per_s, rates.bytes_per_s, rates.cycle_s
    compute = memory = longer = 0.0
    kernels = 0
    for flop, terms in works:
        arithmetic = max(cycle, flop / flop_per_s) if flop else 0.0
        if cycle:
            traffic = 0.0
            for term in terms:
                traffic += max(cycle, term / bytes_per_s)
        else:
            traffic = sum(terms) / bytes_per_s
        compute += arithmetic
        memory += traffic
        longer += max(traffic, arithmetic)
        kernels += 1
    total = {"none": compute + memory, "op": longer, "layer": max(compute, memory)}[overlap]
    return Seconds(compute, memory, total + kernels * rates.launch_s)
