"""One point of a calibration: the step of a small graph, timed on a machine that may be busy.

Where the host's clock is the only one, forward, backward and update are timed apart, in rounds. Of
those that were not disturbed (`disturbance.DISTURBED_RULE`) the median counts; where more than
`BUSY` of all were, the least of each part: what others do to caches, no counter says. One thread on
a CPU is timed by the CPU time of the process, which no other work lengthens by waiting, and which
has the threads that a backend computes in.
"""

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from steptime.build import Choice, make_workload
from steptime.core.graph_json import graph_from_json
from steptime.measure.contract import Options, Prepared
from steptime.measure.disturbance import CounterWatch, changes
from steptime.measure.timing import median_half_width, part_seconds

ENOUGH = 15  # undisturbed rounds, if their median is known to a hundredth
NARROW = 0.01
LEAST = 3  # rounds at any rate
BUSY = 0.1  # of rounds that were disturbed: the machine is not quiet
SAMPLE_S = 0.002  # of a round by a device's own clock


def time_point(backend: Any, options: Options, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seconds of a graph's step on a backend's device as JSON values.

    `graph` is that of `graph_to_json`, `optimizer` that of its training; rounds are taken for
    `budget_s`, and at least `least_s`. `seconds` are by part (`forward`, `backward`, `update`), or
    of the whole `step` where the device has a clock of its own. `disturbed` is the share of rounds.
    What the backend raises passes through.
    """
    said = request["graph"]
    how = {"phase": said["phase"], "optimizer": request["optimizer"]}
    workload = make_workload(Choice("fc", {}), 1, dtype=said["dtype"], **how)
    prepared: Prepared = backend.prepare(graph_from_json(said), workload, options)
    timer = prepared.timer
    steps = max(1, int(SAMPLE_S / max(timer(prepared.step, 1), 1e-9))) if timer else 1
    alone = options.device == "cpu" and options.threads == 1
    clock = time.process_time if alone else time.perf_counter

    def rounds() -> dict[str, float]:
        if timer:
            return {"step": timer(prepared.step, steps) / steps}
        return part_seconds(prepared.parts, prepared.sync, clock)

    for _ in range(2):
        rounds()  # what is loaded and allocated at first
    watch, taken, quiet = CounterWatch(), [], []
    began = time.perf_counter()
    while True:
        before, at = watch.read(), time.perf_counter()
        seconds = rounds()
        taken.append(seconds)
        if not changes(before, watch.read(), time.perf_counter() - at)["disturbed"]:
            quiet.append(seconds)
        spent = time.perf_counter() - began
        if spent < request["least_s"] or len(taken) < LEAST:
            continue
        totals = sorted(sum(one.values()) for one in quiet)
        settled = len(totals) >= ENOUGH and median_half_width(totals) <= NARROW
        if spent >= request["budget_s"] or settled:
            break
    disturbed = 1 - len(quiet) / len(taken)
    middle, rows = (median, quiet) if disturbed <= BUSY else (min, taken)
    seconds = {name: middle([one[name] for one in rows]) for name in taken[0]}
    return {"seconds": seconds, "rounds": len(taken), "disturbed": disturbed}
