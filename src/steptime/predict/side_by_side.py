"""Devices side by side: their figures, and those of their hosts, as arrays for grids."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from steptime.core.hardware import Device
from steptime.predict.host import Host
from steptime.predict.step_model import StepModel


def alike_of(models: Sequence[StepModel]) -> Iterator[list[StepModel]]:
    """Yield the models side by side as far as the same figures of their devices are known.

    Devices with constants of their own are priced one at a time.
    """

    def known(on: StepModel) -> tuple[object, ...]:
        alone = id(on) if on.seen.constants else None
        peaks = frozenset(on.seen.peak_flop_per_s)
        return alone, peaks, on.issue_s is None, on.seen.launch_s is None, on.seen.clock_hz is None

    for _, alike in groupby(models, known):
        yield list(alike)


def beside(devices: Sequence[Device]) -> Device:
    """Return devices as one whose figures, as far as prices ask for them, are arrays."""

    def figures(values: Iterable[float | None]) -> Any:
        return _column([[[value]] for value in values])

    return replace(
        devices[0],
        peak_flop_per_s={
            name: figures(one.peak_flop_per_s[name] for one in devices)
            for name in devices[0].peak_flop_per_s
        },
        memory_bytes_per_s=figures(one.memory_bytes_per_s for one in devices),
        launch_s=figures(one.launch_s for one in devices),
        clock_hz=figures(one.clock_hz for one in devices),
    )


def hosts_beside(hosts: Sequence[Host | None]) -> Host | None:
    """Return hosts as one whose times are arrays, a row a device; None where they are not known."""
    known = [one for one in hosts if one is not None]
    if len(known) < 2:
        return known[0] if known else None
    issued: Any = tuple(
        _column([[seconds] for seconds in passes])
        for passes in zip(*[one.issued_s for one in known], strict=True)
    )
    base: Any = _column([[one.base_s] for one in known])
    return Host(issued, base, known[0].waits)


def _column(values: Sequence[Any]) -> Any:
    """Return an array of numbers, None where they are not known."""
    import numpy as np

    found = np.array(values)
    return None if found.flat[0] is None else found
