"""The measurement of one cell: its steps are timed, its memory and energy metered."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from steptime.build import build
from steptime.core.graph import Graph
from steptime.core.json_types import JsonObject
from steptime.core.workload import Workload
from steptime.formats import find_network_file
from steptime.measure import machine, ranks, registry, timing
from steptime.measure.contract import (
    INPUTS,
    Feed,
    MissingFileError,
    Options,
    Peak,
    Prepared,
    refuse,
)
from steptime.measure.disturbance import COUNTERS, CounterWatch
from steptime.measure.interpreter import describe_kinds
from steptime.measure.meters import MIN_RUN_S, meters, take_energy
from steptime.measure.process_group import Pace, shared_results
from steptime.measure.timing import Samples
from steptime.network.ops.execution import dequantised
from steptime.records.record import Quantity, single_run

Tell = Callable[..., object]  # reports the progress of a cell: an event and its numbers


@dataclass
class Measurement:
    """The quantities of a cell by name, and the facts beside them."""

    quantities: dict[str, Quantity] = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)


def _open_feed(
    graph: Graph, workload: Workload, options: Options
) -> tuple[Any, Feed | None, Mapping[str, Any]]:
    """Open the input of a measurement: the data set, its batches, and facts for the record.

    Both are None for input that is made on the device; the data set is None for a loader of the
    user's.
    """
    rank = ranks.find_rank().rank
    if options.input == "dataset":
        from steptime.measure.data.sources import open_input  # with numpy

        dataset = open_input(graph, workload, options, rank, workload.plan.data)
        return dataset, dataset.feed, dataset.facts
    if options.input not in INPUTS:
        from steptime.measure.data.iterable import open_loader  # with numpy

        feed, facts = open_loader(graph, workload, options.input, options.seed, rank)
        return None, feed, facts
    return None, None, {}


@dataclass(frozen=True)
class _CellRun:
    """A prepared cell, ready to be timed.

    Attributes:
        prepared: the step.
        options: where and how it runs.
        request: what is measured, and the time limits.
        data: the data set that it reads, None without one.
        pace: the common timing of several processes, None for one.
        watch: the counters that are read around each sample.
    """

    prepared: Prepared
    options: Options
    request: Mapping[str, Any]
    data: Any
    pace: Pace | None
    watch: CounterWatch

    @property
    def leads(self) -> bool:
        """Whether this process decides and reports."""
        return self.pace is None or self.pace.group.is_zero


def measure_cell(
    backend: Any, workload: Workload, options: Options, request: Mapping[str, Any], tell: Tell
) -> Measurement:
    """Measure a workload with a backend; a rank that only takes part gets an empty measurement.

    Args:
        backend: the module of the backend.
        workload: the workload.
        options: where and how it runs.
        request: what is measured (`parts`, `energy`, `timing`).
        tell: is called with events of progress.

    Raises:
        UnsupportedError: if the backend cannot run the workload.
        OutOfMemoryError: if it does not fit into memory.
    """
    if workload.file and not Path(find_network_file(workload.file, workload.sha256)).exists():
        raise MissingFileError(f"model '{workload.file}': no such file")
    graph = dequantised(build(workload))
    _refuse(graph, workload, options, request)
    backend, lacking = _find_running_backend(backend, graph, workload)
    with ExitStack() as stack:
        data, feed, feed_facts = _open_feed(graph, workload, options)
        if feed:
            stack.callback(feed.close)
        read_resident = machine.resident_memory_meter()
        prepared: Prepared = backend.prepare(graph, workload, options, feed)
        prepared.reset_memory()
        pace = Pace(prepared.group, prepared.sync, prepared.waited) if prepared.group else None
        run = _CellRun(prepared, options, request, data, pace, _open_counters(pace))
        measurement = Measurement()
        samples = _take_samples(run, workload, measurement, tell) if run.leads else None
        if pace:
            pace.end(prepared.step)
        meter = _measure_memory(run, backend, samples, measurement, read_resident)
        if request["parts"]:
            measurement.quantities |= _time_parts(prepared, pace, samples)
        if samples is None:  # rank 0 reports
            return Measurement()
        if request["energy"]:
            _measure_energy(prepared, samples, options, request["timing"]["budget_s"], measurement)
    measurement.quantities["step_s"] = single_run(samples.step_s, **samples.columns)
    measurement.quantities["first_step_s"] = Quantity(samples.first_step_s)
    if samples.input_s:
        measurement.quantities["input_s"] = single_run(samples.input_s)
    measurement.facts = {
        "memory_meter": meter,
        "absent_counters": dict(run.watch.absent),
        **_timing_facts(samples),
        **measurement.facts,
        **({"module_runs_for": lacking} if lacking else {}),
        **({"input_clock": prepared.input_clock} if prepared.waited else {}),
        **prepared.facts,
        **prepared.afterwards(),
        **feed_facts,
    }
    return measurement


def _timing_facts(samples: Samples) -> JsonObject:
    """Return the facts of a record about its samples: warm-up, steadiness, steps a sample."""
    return {
        "warm_up_rule": timing.WARM_UP_RULE,
        "steady": samples.steady,
        "few_samples": samples.few_samples,
        "warmup_s": list(samples.warmup_s),
        "steps_per_sample": samples.steps_per_sample,
    }


def _find_running_backend(backend: Any, graph: Graph, workload: Workload) -> tuple[Any, str]:
    """Return the backend that runs a workload, and the kinds that the user's module runs it for.

    A network of code whose graph holds kinds that the backend lacks runs as its author wrote it,
    where the framework has a backend for that. The text is "" where the graph runs.
    """
    lacking = {op.kind for op in graph.ops} - getattr(backend, "RUNS", {}).keys()
    name = getattr(backend, "MODULE_BACKEND", "")
    if not (lacking and name and workload.code) or workload.plan.data > 1:
        return backend, ""
    return import_module(registry.BACKENDS[name].module), describe_kinds(graph, sorted(lacking))


def _open_counters(pace: Pace | None) -> CounterWatch:
    """Open the counters of disturbance; several processes have one of their communication, too."""
    if pace is None:
        return CounterWatch(COUNTERS)
    return CounterWatch({**COUNTERS, "communication_s": lambda: lambda: pace.communication_s})


def _measure_memory(
    run: _CellRun,
    backend: Any,
    samples: Samples | None,
    measurement: Measurement,
    read_resident: Peak,
) -> str:
    """Add the peak memory, and communication of replicas, to the measurement; return the meter.

    All ranks call it.
    """
    prepared = run.prepared
    peak, meter = prepared.memory()
    if prepared.planned_bytes is not None:  # XLA's memory for compiling is not that of the step
        planned = Quantity(float(prepared.planned_bytes))
        measurement.quantities["planned_memory_bytes"] = planned
    elif peak is None and run.options.device == "cpu":
        peak, meter = read_resident()
    if run.pace:
        peak, communication, facts = shared_results(
            backend, prepared, run.pace, samples, peak, run.request
        )
        measurement.quantities |= communication
        measurement.facts |= facts
    if peak is not None:
        measurement.quantities["peak_bytes"] = Quantity(float(peak))
    return meter


def _refuse(graph: Graph, workload: Workload, options: Options, request: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` for a cell that cannot be measured as asked."""
    has_no_weights = workload.phase == "train" and not graph.weights
    meters_replicas = request["energy"] and workload.plan.data > 1
    is_sharded_training = options.train_steps and options.strategy == "sharded"
    refuse(
        {
            "the network has no weights to train; --phase infer runs it": has_no_weights,
            "energy is metered on one device, not on replicas": meters_replicas,
            "a sharded training is not examined: no process has its weights": is_sharded_training,
        }
    )


def _take_samples(
    run: _CellRun, workload: Workload, measurement: Measurement, tell: Tell
) -> Samples:
    """Time steps for as long as the budget lasts, or those of a training, and examine that."""
    prepared = run.prepared

    def report_start(first_s: float, remaining_s: float) -> None:
        tell("stepping", first_step_s=first_s, rest_s=remaining_s)

    settings: JsonObject = {
        "timer": run.pace.take if run.pace else prepared.timer,
        "watch": run.watch,
        "waited": prepared.waited,
        "started": report_start,
    }
    if not run.options.train_steps:
        return timing.take_samples(
            prepared.step, prepared.sync, **settings, **run.request["timing"]
        )
    from steptime.measure.training import prepare_examination

    examine = prepare_examination(prepared, workload, run.options, run.data)
    samples = timing.take_training(
        prepared.step, prepared.sync, run.options.train_steps, **settings
    )
    quantities, measurement.facts["training"] = examine()
    measurement.quantities |= quantities
    return samples


def _time_parts(
    prepared: Prepared, pace: Pace | None, samples: Samples | None
) -> dict[str, Quantity]:
    """Time forward, backward and update apart, synchronised after each, in as many samples."""
    sample_count = len(samples.step_s) if samples else 0
    steps = samples.steps_per_sample if samples else 0
    if pace:
        sample_count = pace.group.agree(sample_count)
        steps = pace.group.agree(steps)
    times: dict[str, list[float]] = {name: [] for name in prepared.parts}
    for _ in range(sample_count):
        totals = dict.fromkeys(prepared.parts, 0.0)
        for _ in range(steps):
            for name, seconds in timing.part_seconds(prepared.parts, prepared.sync).items():
                totals[name] += seconds
        for name, total in totals.items():
            times[name].append(total / steps)
    return {f"{name}_s": Quantity(samples=tuple(values)) for name, values in times.items()}


def _measure_energy(
    prepared: Prepared,
    samples: Samples,
    options: Options,
    budget_s: float,
    measurement: Measurement,
) -> None:
    """Add the energy of a step to the measurement, or the reason why it is unknown to its facts."""
    energy = take_energy(
        prepared.step,
        prepared.sync,
        samples.steps_per_sample,
        max(MIN_RUN_S, budget_s),
        partial(meters, options.device),
    )
    measurement.facts["energy_meter"] = energy.meter
    for name, value in (("energy_j", energy.step_j), ("power_w", energy.power_w)):
        if value is not None:
            measurement.quantities[name] = single_run((value,))
