"""One cell: its network is prepared, its steps are timed, and what else was asked is metered."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from steptime.build import build
from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.formats import located
from steptime.measure import machine, ranks, timing
from steptime.measure.contract import INPUTS, Feed, MissingFileError, Options, Prepared, refuse
from steptime.measure.disturbance import COUNTERS, CounterWatch
from steptime.measure.meters import LEAST_S, meters, take_energy
from steptime.measure.process_group import Pace, shared_results
from steptime.measure.timing import Samples
from steptime.network.ops.execution import dequantised
from steptime.records.record import Quantity, single_run

Tell = Callable[..., object]  # how far a cell is, for those who wait: an event and its numbers


@dataclass
class Measurement:
    """The quantities of a cell by name, and the facts beside them."""

    quantities: dict[str, Quantity] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def _open_feed(
    graph: Graph, workload: Workload, options: Options
) -> tuple[Any, Feed | None, Mapping[str, Any]]:
    """Open the input of a measurement: the data set, its batches, and facts for the record.

    Both are None for input that is made on the device; the data set is None for a loader of the
    user's.
    """
    rank = ranks.here().rank
    if options.input == "dataset":
        from steptime.measure.data.sources import open_input  # with numpy

        dataset = open_input(graph, workload, options, rank, workload.plan.data)
        return dataset, dataset.feed, dataset.facts
    if options.input not in INPUTS:
        from steptime.measure.data.iterable import open_loader  # with numpy

        feed, facts = open_loader(graph, workload, options.input, options.seed, rank)
        return None, feed, facts
    return None, None, {}


def measure_cell(
    backend: Any, workload: Workload, options: Options, request: Mapping[str, Any], tell: Tell
) -> Measurement:
    """Return what a backend measures of a workload; nothing for a rank that only takes part.

    Raises `UnsupportedError`, `OutOfMemoryError`, and the errors of its input.
    """
    if workload.file and not Path(located(workload.file, workload.sha256)).exists():
        raise MissingFileError(f"model '{workload.file}': no such file")
    graph = dequantised(build(workload))
    _refuse(graph, workload, options, request)
    with ExitStack() as held:
        given, feed, facts = _open_feed(graph, workload, options)
        if feed:
            held.callback(feed.close)
        read_resident = machine.resident_memory_meter()
        prepared: Prepared = backend.prepare(graph, workload, options, feed)
        prepared.reset_memory()
        pace = Pace(prepared.group, prepared.sync, prepared.waited) if prepared.group else None
        found = Measurement()
        how: dict[str, Any] = {
            "timer": pace.take if pace else prepared.timer,
            "watch": CounterWatch(
                {**COUNTERS, "communication_s": lambda: lambda: pace.communication_s}
                if pace
                else COUNTERS
            ),
            "waited": prepared.waited,
            "started": lambda first_s, rest_s: tell(
                "stepping", first_step_s=first_s, rest_s=rest_s
            ),
        }
        leads = pace is None or pace.group.is_zero
        samples = _timed(prepared, workload, options, request, given, found, how) if leads else None
        if pace:
            pace.end(prepared.step)
        peak, meter = prepared.memory()
        if prepared.planned_bytes is not None:  # what XLA compiles with is not the step's memory
            found.quantities["planned_memory_bytes"] = Quantity(float(prepared.planned_bytes))
        elif peak is None and options.device == "cpu":
            peak, meter = read_resident()
        if pace:
            peak, exchanged, shared = shared_results(
                backend, prepared, pace, samples, peak, request
            )
            found.quantities |= exchanged
            found.facts |= shared
        if request["parts"]:
            found.quantities |= _parts(prepared, pace, samples)
        if samples is None:  # rank 0 reports
            return Measurement()
        if peak is not None:
            found.quantities["peak_bytes"] = Quantity(float(peak))
        if request["energy"]:
            _weigh(prepared, samples, options, request["timing"]["budget_s"], found)
    found.quantities["step_s"] = single_run(samples.step_s, **samples.columns)
    found.quantities["first_step_s"] = Quantity(samples.first_step_s)
    if samples.input_s:
        found.quantities["input_s"] = single_run(samples.input_s)
    found.facts = {
        "memory_meter": meter,
        "absent_counters": dict(how["watch"].absent),
        "warm_up_rule": timing.WARM_UP_RULE,
        "steady": samples.steady,
        "few_samples": samples.few_samples,
        "warmup_s": list(samples.warmup_s),
        "steps_per_sample": samples.steps_per_sample,
        **found.facts,
        **({"input_clock": prepared.input_clock} if prepared.waited else {}),
        **prepared.facts,
        **prepared.afterwards(),
        **facts,
    }
    return found


def _refuse(graph: Graph, workload: Workload, options: Options, request: Mapping[str, Any]) -> None:
    without = workload.phase == "train" and not graph.weights
    sharded = options.train_steps and options.strategy == "sharded"
    refuse(
        {
            "the network has no weights to train; --phase infer runs it": without,
            "energy is metered on one device, not on replicas": request["energy"]
            and workload.plan.data > 1,
            "a sharded training is not examined: no process has its weights": sharded,
        }
    )


def _timed(
    prepared: Prepared,
    workload: Workload,
    options: Options,
    request: Mapping[str, Any],
    given: Any,
    found: Measurement,
    how: Mapping[str, Any],
) -> Samples:
    """Time steps for as long as the budget lasts, or those of a training, and examine that."""
    step, sync = prepared.step, prepared.sync
    if not options.train_steps:
        return timing.take_samples(step, sync, **how, **request["timing"])
    from steptime.measure.training import examination

    examine = examination(prepared, workload, options, given)
    samples = timing.take_training(step, sync, options.train_steps, **how)
    learned, found.facts["training"] = examine()
    found.quantities |= learned
    return samples


def _parts(prepared: Prepared, pace: Pace | None, samples: Samples | None) -> dict[str, Quantity]:
    """Time forward, backward and update apart, synchronised after each, as many samples again."""
    wanted, steps = (len(samples.step_s), samples.steps_per_sample) if samples else (0, 0)
    if pace:
        wanted, steps = pace.group.agree(wanted), pace.group.agree(steps)
    taken: dict[str, list[float]] = {name: [] for name in prepared.parts}
    for _ in range(wanted):
        totals = dict.fromkeys(prepared.parts, 0.0)
        for _ in range(steps):
            for name, seconds in timing.part_seconds(prepared.parts, prepared.sync).items():
                totals[name] += seconds
        for name, total in totals.items():
            taken[name].append(total / steps)
    return {f"{name}_s": Quantity(samples=tuple(values)) for name, values in taken.items()}


def _weigh(
    prepared: Prepared, samples: Samples, options: Options, budget_s: float, found: Measurement
) -> None:
    """Meter the energy of a step, or say in the facts what is in the way."""
    how = samples.steps_per_sample, max(LEAST_S, budget_s), partial(meters, options.device)
    energy = take_energy(prepared.step, prepared.sync, *how)
    found.facts["energy_meter"] = energy.meter
    for name, value in (("energy_j", energy.step_j), ("power_w", energy.power_w)):
        if value is not None:
            found.quantities[name] = single_run((value,))
