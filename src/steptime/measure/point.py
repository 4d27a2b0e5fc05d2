"""One point of a calibration: the step of a small graph, timed on a machine that may be busy.

Where the host's clock is the only one, forward, backward and update are timed apart, in rounds. Of
those that were not disturbed (`disturbance.DISTURBED_RULE`) the median counts; where more than
`BUSY` of all were, the least of each part: what others do to caches, no counter says. One thread on
a CPU is timed by the CPU time of the process, which no other work lengthens by waiting, and which
has the threads that a backend computes in.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from steptime.build import Choice, make_workload
from steptime.core.graph_json import graph_from_json
from steptime.core.json_types import JsonObject
from steptime.measure.contract import Options, Prepared
from steptime.measure.disturbance import CounterWatch, counter_changes
from steptime.measure.timing import median_half_width, part_seconds

ENOUGH_ROUNDS = 15  # undisturbed, if their median is known to `MAX_HALF_WIDTH`
MAX_HALF_WIDTH = 0.01  # half width of the median's interval, as a share
MIN_ROUNDS = 3
WARM_UP_ROUNDS = 2  # which load and allocate
BUSY = 0.1  # of rounds that were disturbed: the machine is not quiet
SAMPLE_S = 0.002  # of a round by a device's own clock


@dataclass(frozen=True)
class _Rounds:
    """The seconds of each part in all rounds, and in those that were not disturbed."""

    all_rounds: list[dict[str, float]]
    quiet_rounds: list[dict[str, float]]

    def is_precise(self) -> bool:
        """Whether the undisturbed rounds are enough for a precise median."""
        totals = sorted(sum(seconds.values()) for seconds in self.quiet_rounds)
        return len(totals) >= ENOUGH_ROUNDS and median_half_width(totals) <= MAX_HALF_WIDTH

    def summarise(self) -> JsonObject:
        """Return the seconds by part: the median, or the minimum on a busy machine."""
        disturbed_share = 1 - len(self.quiet_rounds) / len(self.all_rounds)
        is_quiet = disturbed_share <= BUSY
        seconds: dict[str, float] = {}
        for part in self.all_rounds[0]:
            if is_quiet:
                seconds[part] = median([round_s[part] for round_s in self.quiet_rounds])
            else:  # other work only makes rounds longer: the shortest one is the nearest
                seconds[part] = min(round_s[part] for round_s in self.all_rounds)
        return {"seconds": seconds, "rounds": len(self.all_rounds), "disturbed": disturbed_share}


def time_point(backend: Any, options: Options, request: Mapping[str, Any]) -> JsonObject:
    """Time the step of a graph on a backend's device; errors of the backend pass through.

    Args:
        backend: the module of the backend.
        options: the device and its threads.
        request: `graph`, as of `graph_to_json`; `optimizer`; `budget_s`, the seconds that rounds
            may take; `least_s`, the seconds that they take at least.

    Returns:
        JSON values: `seconds` by part (`forward`, `backward`, `update`), or of the whole `step` if
        the device has a clock of its own; the number of `rounds`; the share `disturbed` of them.
    """
    document = request["graph"]
    # The graph is the request's own: of the workload only types, phase and optimizer are read.
    workload = make_workload(
        Choice("fc", {}),  # any network does
        batch=1,
        dtype=document["dtype"],
        phase=document["phase"],
        optimizer=request["optimizer"],
    )
    prepared: Prepared = backend.prepare(graph_from_json(document), workload, options)
    run_round = _make_round(prepared, options)
    for _ in range(WARM_UP_ROUNDS):
        run_round()
    watch = CounterWatch()
    rounds = _Rounds(all_rounds=[], quiet_rounds=[])
    start_s = time.perf_counter()
    while True:
        counters = watch.read()
        round_start_s = time.perf_counter()
        seconds = run_round()
        rounds.all_rounds.append(seconds)
        changes = counter_changes(counters, watch.read(), time.perf_counter() - round_start_s)
        if not changes["disturbed"]:
            rounds.quiet_rounds.append(seconds)
        elapsed_s = time.perf_counter() - start_s
        may_end = elapsed_s >= request["least_s"] and len(rounds.all_rounds) >= MIN_ROUNDS
        if may_end and (elapsed_s >= request["budget_s"] or rounds.is_precise()):
            return rounds.summarise()


def _make_round(prepared: Prepared, options: Options) -> Callable[[], dict[str, float]]:
    """Return a function that runs one round and returns its seconds by part."""
    timer = prepared.timer
    if timer:  # the device has a clock of its own, which times whole steps alone
        step_s = max(timer(prepared.step, 1), 1e-9)  # never 0
        steps = max(1, int(SAMPLE_S / step_s))
        return lambda: {"step": timer(prepared.step, steps) / steps}
    # The CPU time of a single thread does not count waiting for a CPU that others use.
    is_single_thread = options.device == "cpu" and options.threads == 1
    clock = time.process_time if is_single_thread else time.perf_counter
    return lambda: part_seconds(prepared.parts, prepared.sync, clock)
