"""Timing a step that several processes run together: rank 0 decides, the others follow.

Before each sample rank 0 tells how many steps it has; 0 ends the sampling. Every process takes the
time from there to the end of its own steps, device included, and the sample is that of the slowest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter
from typing import Any

from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.measure.contract import OutOfMemoryError, Prepared, ProcessGroup, meaning
from steptime.measure.timing import Samples, Step
from steptime.records.record import Quantity

MAX_PAIRS = 20  # of steps with and without an exchange
MIN_PAIRS = 3


@dataclass
class Pace:
    """Samples of the steps of one process group, and its seconds of communication so far, a rank.

    `waited`, if given, is asked by each rank for how long its steps waited for their input.
    """

    group: ProcessGroup
    sync: Callable[[], object]
    waited: Callable[[], float] | None = None
    communication_s: float = 0.0

    def end(self, step: Step) -> None:
        """End the sampling of rank 0; the others run until then what it asks for."""
        if self.group.is_zero:
            self.group.agree(0)
            return
        step()
        self.sync()
        while steps := self.group.agree(0):
            self._sample(step, steps)
            if self.waited:
                self.waited()

    def take(self, step: Step, steps: int) -> float:
        """Return the seconds of a sample; rank 0 says how many steps it has, and all run them."""
        return self._sample(step, self.group.agree(steps))

    def _sample(self, step: Step, steps: int) -> float:
        began = perf_counter()
        for _ in range(steps):
            step()
        self.sync()
        exchange_s = self.group.communication_s() if self.group.communication_s else 0.0
        times = self.group.gather((perf_counter() - began, exchange_s))
        self.communication_s += fmean(comm_s for _, comm_s in times)
        return max(float(elapsed_s) for elapsed_s, _ in times)


def shared_results(
    backend: Any,
    prepared: Prepared,
    pace: Pace,
    samples: Samples | None,
    peak_bytes: int | None,
    request: Mapping[str, Any],
) -> tuple[int | None, dict[str, Quantity], JsonObject]:
    """Return peak memory (of the rank that needs most), communication, and facts."""
    peaks = pace.group.gather(peak_bytes)
    comm, meter = _communication(backend, prepared, pace, samples, request["timing"]["budget_s"])
    facts = {
        "peak_memory_bytes_of_ranks": peaks,
        "comm_meter": meter,
        "sample_ends": "with the slowest rank",
        "disturbed_seen_by": "rank 0",
        "input_s_of": "rank 0" if prepared.waited else None,
        "overlap": request["options"]["overlap"] and pace.group.alone is not None,
        "comm_backend": pace.group.backend,
    }
    peak = None if None in peaks else max(peaks)
    return peak, {"communication_s": comm} if comm else {}, facts


def _communication(
    backend: Any, prepared: Prepared, pace: Pace, samples: Samples | None, budget_s: float
) -> tuple[Quantity | None, str]:
    """Return the seconds of communication in a step, None for all but rank 0, and how it was timed.

    There is one sample for each sample of the step where exchanges are timed inside of it; else
    the differences of steps with and without an exchange, in turns, as they come: around 0 where
    all of it hides behind the computation.
    """
    group = pace.group
    if group.alone is None:
        if samples is None:
            return None, group.comm_meter
        counted = zip(samples.columns["communication_s"], samples.columns["steps"], strict=True)
        return Quantity(samples=tuple(s / n for s, n in counted)), group.comm_meter
    alone, lack = None, ""
    try:
        alone = group.alone()
    except Exception as error:
        cause = meaning(backend, error)
        if not isinstance(cause, OutOfMemoryError | MemoryError):
            raise
        lack = f"not measured: no memory for a copy without exchange ({cause})"
    lacks = [text for text in group.gather(lack) if text]
    if lacks or alone is None:
        return None, lacks[0]
    steps = pairs = 0
    if samples is not None:
        steps = samples.steps_per_sample
        fitting = int(budget_s / (2 * steps * min(samples.step_s)))
        pairs = max(MIN_PAIRS, min(MAX_PAIRS, fitting))
    exposed_s = []
    for _ in range(1 + group.agree(pairs)):  # the first pair warms up
        with_exchange_s = pace.take(prepared.step, steps)
        without_exchange_s = pace.take(alone, steps)
        exposed_s.append((with_exchange_s - without_exchange_s) / max(1, steps))
    quantity = Quantity(samples=tuple(exposed_s[1:])) if group.is_zero else None
    return quantity, group.comm_meter


def check_separate_cpus(ranks: list[Mapping[str, Any]]) -> None:
    """Raise `InputError` where two processes of one machine share a CPU."""
    owners: dict[tuple[str, int], int] = {}
    for process in ranks:
        rank, host = process["rank"], process["host"]
        for cpu in process["cpus"]:
            owner = owners.setdefault((host, cpu), rank)
            if owner != rank:
                pair = f"ranks {owner} and {rank} share CPU {cpu} of {host}"
                raise InputError(f"{pair}: each needs its own")
