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
        end_of_sampling = 0
        if self.group.is_rank_zero:
            self.group.broadcast(end_of_sampling)
            return
        # Rank 0 has run its first step outside of a sample; the others take part in it here.
        step()
        self.sync()
        # Before each sample rank 0 broadcasts its steps; what the others pass does not matter.
        while True:
            steps = self.group.broadcast(0)
            if steps == end_of_sampling:
                return
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
    has_all_peaks = None not in peak_bytes_of_ranks  # else some rank has no meter
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
    make_step_without_exchange = group.make_step_without_exchange
    if make_step_without_exchange is None:  # exchanges are timed inside of the step
        communication = None if samples is None else _communication_of_samples(samples)
        return communication, group.comm_meter
    step_without_exchange: Step | None = None
    fault = ""
    try:
        step_without_exchange = make_step_without_exchange()
    except Exception as error:
        cause = translate_backend_error(backend, error)
        if not isinstance(cause, OutOfMemoryError | MemoryError):
            raise
        fault = f"not measured: no memory for a copy without exchange ({cause})"
    # A rank without memory would let the others wait: then none of them measures.
    faults_of_ranks = [text for text in group.gather(fault) if text]
    if faults_of_ranks or step_without_exchange is None:
        return None, faults_of_ranks[0]
    exposed_s = _time_exposed_exchange(
        prepared.step, step_without_exchange, group_timer, samples, budget_s
    )
    communication = Quantity(samples=exposed_s) if group.is_rank_zero else None
    return communication, group.comm_meter


def _communication_of_samples(samples: Samples) -> Quantity:
    totals_s = samples.columns["communication_s"]  # of all steps of a sample
    step_counts = samples.columns["steps"]
    return Quantity(
        samples=tuple(
            total_s / step_count for total_s, step_count in zip(totals_s, step_counts, strict=True)
        )
    )


def _time_exposed_exchange(
    step: Step,
    step_without_exchange: Step,
    group_timer: GroupTimer,
    samples: Samples | None,
    budget_s: float,
) -> tuple[float, ...]:
    """Return the exposed seconds of an exchange: of steps with it less steps without, in turns.

    Only rank 0 has samples: all ranks time as many pairs, of as many steps, as rank 0 says.
    """
    steps = 0  # on ranks without samples, for which `time_steps` takes the number of rank 0
    pair_count = 0
    if samples is not None:
        steps = samples.steps_per_sample
        pair_s = 2 * steps * min(samples.step_s)
        pair_count = max(MIN_PAIRS, min(MAX_PAIRS, int(budget_s / pair_s)))
    pair_count = group_timer.group.broadcast(pair_count)
    exposed_s = []
    for _ in range(1 + pair_count):  # the first pair warms up
        with_exchange_s = group_timer.time_steps(step, steps)
        without_exchange_s = group_timer.time_steps(step_without_exchange, steps)
        exposed_s.append((with_exchange_s - without_exchange_s) / max(1, steps))
    return tuple(exposed_s[1:])


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
