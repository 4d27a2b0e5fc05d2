"""What a backend gives: a prepared step, and how to wait for it, time it and weigh it.

A backend is a module, named in `BACKENDS`, with

* `prepare(graph, workload, options) -> Prepared`, given the forward graph,
* `RUNS`, the table of the op kinds that it can run,
* `version() -> str`, of the framework,
* `device_product(device) -> str`, the name of `cpu`, `cuda[:n]` or `mps` as its driver or system
  reports it; raises `InputError` for a device that is not there, saying what is,
* `device_memory_bytes(device) -> int | None`, an accelerator's memory; None for the host's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from steptime.core.record import Method

BACKENDS = {
    "torch": "steptime.measure.backends.torch_backend",
    "numpy": "steptime.measure.backends.numpy_backend",
}


class UnsupportedError(Exception):
    """The backend cannot run this workload; the message says which kind, dtype or device."""


class OutOfMemoryError(Exception):
    """The device or the host had not enough memory for this workload."""


@dataclass(frozen=True)
class Options:
    """Where and how a backend runs: `device` is cpu, cuda[:n] or mps; `seed` fixes the values."""

    device: str = "cpu"
    threads: int | None = None
    compile: bool = False
    tf32: bool = False
    seed: int = 0


def method(backend: str, version: str, options: Options, runs: int) -> Method:
    """Give the method of a measured record: the framework, and the options that change numbers."""
    chosen = {
        "compile": options.compile,
        "threads": options.threads,
        "tf32": options.tf32,
        "runs": runs,
    }
    return Method(backend, version, chosen)


@dataclass(frozen=True)
class Prepared:
    """A step that is ready to be run again and again, its input resident on the device.

    `parts` run one after the other make one step (`forward`, `backward`, `update`; in inference
    `forward` alone). `memory` gives the peak bytes since `reset_memory` and the meter's name, or
    None and the reason. `timer(step, n)` gives the seconds of n steps by the device's own clock;
    without it the host's clock and `sync` are used. `product` is the device's name.
    """

    step: Callable[[], None]
    sync: Callable[[], None]
    product: str
    memory: Callable[[], tuple[int | None, str]]
    reset_memory: Callable[[], None]
    parts: Mapping[str, Callable[[], None]]
    timer: Callable[[Callable[[], None], int], float] | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
