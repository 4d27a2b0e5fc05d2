"""Disturbance of a sample by other work: counters of the kernel, read around it.

A reading takes a few microseconds and is made outside the timed interval, so it lengthens the
measurement by less than 0.1 % and changes no time. A counter that this machine does not have is
None with a reason in `CounterWatch.absent`, never 0. Events on an accelerator are not seen here.
"""

import os
import resource
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from steptime.measure.cpus import affinity

MAX_LOST_SHARE = 0.05  # of a sample's time, lost to others
MAX_SWITCHES_PER_S = 100.0  # of each CPU that this process may use: one in 10 ms

DISTURBED_RULE = (
    "throttled; or waited for a CPU, or the machine was not run by its host (steal), for more than "
    "5 % of the sample; or more involuntary context switches than one per CPU and 10 ms"
)

ReadCounter = Callable[[], float]


class AbsentError(Exception):
    """A counter that this machine does not have; the message says why."""


def involuntary_switches() -> ReadCounter:
    """Return a reader of how often a thread of this process was made to give up its CPU."""
    return lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def open_field(path_format: str, index: int, unit: float) -> ReadCounter:
    """Return a reader of one number in the first line of a kernel file, times `unit`."""
    path = path_format.format(cpu=min(affinity()))  # any CPU of the package says the same
    if not Path(path).exists():
        raise AbsentError(f"no {path}")
    file = os.open(path, os.O_RDONLY)  # stays open: opening costs more than reading

    def read() -> float:
        first_line = os.pread(file, 256, 0).split(b"\n", 1)[0]
        return int(first_line.split()[index]) * unit

    try:
        read()  # the file may be unreadable, or lack the field
    except (OSError, ValueError, IndexError) as error:
        os.close(file)
        raise AbsentError(f"cannot read {path}") from error
    weakref.finalize(read, os.close, file)
    return read


_THROTTLES = "/sys/devices/system/cpu/cpu{cpu}/thermal_throttle/package_throttle_count"
COUNTERS: Mapping[str, Callable[[], ReadCounter]] = {
    "involuntary_switches": involuntary_switches,
    "waited_s": partial(open_field, "/proc/thread-self/schedstat", 1, 1e-9),  # ready, without a CPU
    "steal_s": partial(open_field, "/proc/stat", 8, 1 / os.sysconf("SC_CLK_TCK")),  # of all CPUs
    "throttles": partial(open_field, _THROTTLES, 0, 1),  # of the package, to cool down
}


class CounterWatch:
    """The counters of this machine, opened in the thread that takes the samples."""

    def __init__(self, counters: Mapping[str, Callable[[], ReadCounter]] = COUNTERS) -> None:
        self.absent: dict[str, str] = {}
        self._readers: dict[str, ReadCounter | None] = {}
        for name, open_counter in counters.items():
            try:
                self._readers[name] = open_counter()
            except AbsentError as error:
                self._readers[name] = None
                self.absent[name] = str(error)

    def read(self) -> dict[str, float | None]:
        """Return every counter's present value; None where it is absent."""
        return {name: read() if read else None for name, read in self._readers.items()}


def counter_changes(
    before: Mapping[str, float | None], after: Mapping[str, float | None], elapsed_s: float
) -> dict[str, float | bool | None]:
    """Return the rise of each counter during a sample of `elapsed_s` seconds, and `disturbed`.

    `disturbed` follows `DISTURBED_RULE`. Steal is counted by the kernel in ticks of 10 ms, so one
    tick marks a short sample of a small machine and not a long one of a large machine.
    """
    rise_by_counter: dict[str, float | None] = {}
    for name, start in before.items():
        end = after[name]
        # None: a counter that this machine does not have
        rise_by_counter[name] = None if start is None or end is None else end - start
    limits = {
        "throttles": 0.0,  # any throttling disturbs
        "waited_s": MAX_LOST_SHARE * elapsed_s,
        "steal_s": MAX_LOST_SHARE * elapsed_s * (os.cpu_count() or 1),  # summed over all CPUs
        "involuntary_switches": max(1.0, MAX_SWITCHES_PER_S * elapsed_s * len(affinity())),
    }
    is_disturbed = any((rise_by_counter.get(name) or 0.0) > limit for name, limit in limits.items())
    return {**rise_by_counter, "disturbed": is_disturbed}
