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
from steptime.measure.contract import (
    OutOfMemoryError,
    Prepared,
    ProcessGroup,
    translate_backend_error,
)
from steptime.measure.timing import Samples, Step
from steptime.records.record import Quantity

MAX_PAIRS = 20  # of steps with and without an exchange
MIN_PAIRS = 3


@dataclass
class GroupTimer:
    """Samples of the steps of one process group, and its seconds of communication so far, a rank.

    `take_wait_s`, if given, is asked by each rank for how long its steps waited for their input.
    """

    group: ProcessGroup
    sync: Callable[[], object]
    take_wait_s: Callable[[], float] | None = None
    communication_s: float = 0.0

    def finish_sampling(self, step: Step) -> None:
        """End the sampling of rank 0; the others run until then what it asks for."""
        if self.group.is_rank_zero:
            self.group.broadcast(0)  # which ends the loop of the other ranks
            return
        # Rank 0 runs its first step outside of a sample, in which the others must take part.
        step()
        self.sync()
        # Every rank passes a number and gets that of rank 0, where 0 ends the sampling.
        while steps := self.group.broadcast(0):
            self._time_on_all_ranks(step, steps)
            if self.take_wait_s:
                self.take_wait_s()  # drops the wait for input so far, as rank 0 reads its own

    def time_steps(self, step: Step, steps: int) -> float:
        """Return the seconds of a sample; rank 0 says how many steps it has, and all run them."""
        return self._time_on_all_ranks(step, self.group.broadcast(steps))

    def _time_on_all_ranks(self, step: Step, steps: int) -> float:
        start_s = perf_counter()
        for _ in range(steps):
            step()
        self.sync()
        exchange_s = self.group.communication_s() if self.group.communication_s else 0.0
        times_of_ranks = self.group.gather((perf_counter() - start_s, exchange_s))
        self.communication_s += fmean(exchange_s for _, exchange_s in times_of_ranks)
        return max(float(elapsed_s) for elapsed_s, _ in times_of_ranks)  # the slowest rank's


def gather_group_results(
    backend: Any,
    prepared: Prepared,
    group_timer: GroupTimer,
    samples: Samples | None,
    peak_bytes: int | None,
    request: Mapping[str, Any],
) -> tuple[int | None, dict[str, Quantity], JsonObject]:
    """Return peak memory (of the rank that needs most), communication, and facts."""
    peak_bytes_of_ranks = group_timer.group.gather(peak_bytes)
    communication, meter = _measure_communication(
        backend, prepared, group_timer, samples, budget_s=request["timing"]["budget_s"]
    )
    facts = {
        "peak_memory_bytes_of_ranks": peak_bytes_of_ranks,
        "comm_meter": meter,
        "sample_ends": "with the slowest rank",
        "disturbed_seen_by": "rank 0",
        "input_s_of": "rank 0" if prepared.waited else None,
        "overlap": request["options"]["overlap"]
        and group_timer.group.make_step_without_exchange is not None,
        "comm_backend": group_timer.group.backend,
    }
    has_all_peaks = None not in peak_bytes_of_ranks  # None: a rank without a meter
    max_peak_bytes = max(peak_bytes_of_ranks) if has_all_peaks else None
    quantities = {"communication_s": communication} if communication else {}
    return max_peak_bytes, quantities, facts


def _measure_communication(
    backend: Any,
    prepared: Prepared,
    group_timer: GroupTimer,
    samples: Samples | None,
    budget_s: float,
) -> tuple[Quantity | None, str]:
    """Return the seconds of communication in a step, None for all but rank 0, and how it was timed.

    There is one sample for each sample of the step where exchanges are timed inside of it; else
    the differences of steps with and without an exchange, in turns, as they come: around 0 where
    all of it hides behind the computation.
    """
    group = group_timer.group
    if group.make_step_without_exchange is None:  # exchanges are timed inside of the step
        if samples is None:
            return None, group.comm_meter
        totals_s = samples.columns["communication_s"]  # of all steps of a sample
        step_counts = samples.columns["steps"]
        steps_s = tuple(
            total_s / step_count for total_s, step_count in zip(totals_s, step_counts, strict=True)
        )
        return Quantity(samples=steps_s), group.comm_meter
    step_without_exchange, fault = None, ""
    try:
        step_without_exchange = group.make_step_without_exchange()
    except Exception as error:
        cause = translate_backend_error(backend, error)
        if not isinstance(cause, OutOfMemoryError | MemoryError):
            raise
        fault = f"not measured: no memory for a copy without exchange ({cause})"
    # A rank without memory would let the others wait: then none of them measures.
    faults_of_ranks = [text for text in group.gather(fault) if text]
    if faults_of_ranks or step_without_exchange is None:
        return None, faults_of_ranks[0]
    # Rank 0 alone has samples: it broadcasts `pair_count` below, and `time_steps` its `steps`.
    steps = pair_count = 0
    if samples is not None:
        steps = samples.steps_per_sample
        pair_s = 2 * steps * min(samples.step_s)
        pairs_in_budget = int(budget_s / pair_s)
        pair_count = max(MIN_PAIRS, min(MAX_PAIRS, pairs_in_budget))
    exposed_s = []
    for _ in range(1 + group.broadcast(pair_count)):  # the first pair warms up
        with_exchange_s = group_timer.time_steps(prepared.step, steps)
        without_exchange_s = group_timer.time_steps(step_without_exchange, steps)
        exposed_s.append((with_exchange_s - without_exchange_s) / max(1, steps))
    quantity = Quantity(samples=tuple(exposed_s[1:])) if group.is_rank_zero else None
    return quantity, group.comm_meter


def check_separate_cpus(processes: list[Mapping[str, Any]]) -> None:
    """Raise `InputError` where two processes of one machine share a CPU."""
    rank_by_host_and_cpu: dict[tuple[str, int], int] = {}
    for process in processes:
        rank, host = process["rank"], process["host"]
        for cpu in process["cpus"]:  # none where nothing was bound
            owner = rank_by_host_and_cpu.setdefault((host, cpu), rank)
            if owner != rank:
                pair = f"ranks {owner} and {rank} share CPU {cpu} of {host}"
                raise InputError(f"{pair}: each needs its own")
