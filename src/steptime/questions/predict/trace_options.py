"""A trace of PyTorch's profiler as a question: its file, its device, and what is to differ."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from steptime.core.signatures.kinds import File


class TraceOrigin(NamedTuple):
    """A trace, and what a person says of it.

    Attributes:
        path: its file.
        device: the device of the trace; None where the trace or this machine says it.
        batch: examples of a step; None to find them out.
        steps: number of steps in a trace without marks; None to count those of the optimizer.
    """

    path: File
    device: Any = None
    batch: Any = None
    steps: Any = None


@dataclass(frozen=True)
class TraceRequest:
    """A step of a trace and what is to differ.

    Attributes:
        origin: the trace.
        device: the device that is asked for; None for that of the trace.
        batch: examples of a step; None for those of the trace.
        dtype: the type in place of all floating ones; None for those of the trace.
        threads: threads of the CPU of the trace; None for as many as it had.
        by_op: show all ops.
    """

    origin: TraceOrigin
    device: Any = None
    batch: Any = None
    dtype: str | None = None
    threads: Any = None
    by_op: bool = False
