"""What the verbs of a prediction are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from steptime import catalog


@dataclass(frozen=True)
class Settings:
    """What the verbs are told; the defaults are those of `analytic`.

    `host` says whether the host issues kernels `ahead` of the device, or the time for that is
    `added` to each, or left out (`no`). `stack` is the software that runs the step, a name or a
    file; `fuse` lets elementwise ops run in any kernel that makes their input. `pipelined` overlaps
    all arithmetic of a row with all its traffic. The efficiencies are the shares of the peaks that
    are reached; that of the update is None where it is that of all computing. `faults` and
    `algorithm` are Paleo's: the rules of the original that are kept, and how it counts
    convolutions.
    """

    host: Literal["ahead", "added", "no"] = "ahead"
    stack: str = catalog.DEFAULT_STACK
    fuse: bool = False
    tf32: bool = False
    pipelined: bool = False
    compute_efficiency: float = 1.0
    update_efficiency: float | None = None
    link_efficiency: float = 1.0
    faults: frozenset[str] = frozenset()
    algorithm: str = "gemm"
