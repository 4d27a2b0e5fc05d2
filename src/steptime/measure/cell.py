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
from steptime.measure.process_group import GroupTimer, gather_group_results
from steptime.measure.timing import Samples
from steptime.network.ops.execution import dequantise
from steptime.records.record import Quantity, single_run

ReportEvent = Callable[..., object]  # reports the progress of a cell: an event and its numbers


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
    if options.input == "dataset":  # a folder of files
        from steptime.measure.data.sources import open_input  # with numpy

        dataset = open_input(graph, workload, options, rank, workload.plan.data)
        return dataset, dataset.feed, dataset.facts
    is_loader_of_user = options.input not in INPUTS  # `file.py:make_loader`
    if is_loader_of_user:
        from steptime.measure.data.iterable import open_loader  # with numpy

        feed, facts = open_loader(graph, workload, options.input, options.seed, rank)
        return None, feed, facts
    return None, None, {}  # random input, which the backend makes


@dataclass(frozen=True)
class _CellRun:
    """A prepared cell, ready to be timed.

    Attributes:
        prepared: the step.
        options: where and how it runs.
        request: what is measured, and the time limits.
        dataset: the data set that it reads, None without one.
        group_timer: the common timing of several processes, None for one.
        watch: the counters that are read around each sample.
    """

    prepared: Prepared
    options: Options
    request: Mapping[str, Any]
    dataset: Any
    group_timer: GroupTimer | None
    watch: CounterWatch

    @property
    def is_reporting_rank(self) -> bool:
        """Whether this process decides and reports."""
        return self.group_timer is None or self.group_timer.group.is_rank_zero


def measure_cell(
    backend: Any,
    workload: Workload,
    options: Options,
    request: Mapping[str, Any],
    report_event: ReportEvent,
) -> Measurement:
    """Measure a workload with a backend; a rank that only takes part gets an empty measurement.

    Args:
        backend: the module of the backend.
        workload: the workload.
        options: where and how it runs.
        request: what is measured (`parts`, `energy`, `timing`).
        report_event: is called with events of progress.

    Raises:
        UnsupportedError: if the backend cannot run the workload.
        OutOfMemoryError: if it does not fit into memory.
    """
    if workload.file and not Path(find_network_file(workload.file, workload.sha256)).exists():
        raise MissingFileError(f"model '{workload.file}': no such file")
    graph = dequantise(build(workload))
    _refuse_unmeasurable(graph, workload, options, request)
    # The user's own module runs in place of a graph with op kinds that the backend lacks.
    running_backend, missing_kinds = _find_backend_of_kinds(backend, graph, workload)
    with ExitStack() as stack:
        dataset, feed, feed_facts = _open_feed(graph, workload, options)
        if feed:
            stack.callback(feed.close)
        read_resident_peak = machine.resident_memory_meter()  # before the network takes memory
        prepared: Prepared = running_backend.prepare(graph, workload, options, feed)
        prepared.reset_memory()
        group_timer = None
        if prepared.group:  # several processes: rank 0 decides how many steps all of them run
            group_timer = GroupTimer(prepared.group, prepared.sync, prepared.waited)
        counters = _open_counters(group_timer)
        run = _CellRun(prepared, options, request, dataset, group_timer, counters)
        measurement = Measurement()
        samples = None
        if run.is_reporting_rank:
            samples = _take_samples(run, workload, measurement, report_event)
        if group_timer:
            # The other ranks run the steps of rank 0's samples here, until rank 0 ends them.
            group_timer.finish_sampling(prepared.step)
        memory_meter = _measure_memory(
            run, running_backend, samples, measurement, read_resident_peak
        )
        if request["parts"]:  # forward, backward and update apart
            measurement.quantities |= _time_parts(prepared, group_timer, samples)
        if samples is None:  # not rank 0, which reports for all
            return Measurement()
        if request["energy"]:
            _measure_energy(prepared, samples, options, request["timing"]["budget_s"], measurement)
    measurement.quantities["step_s"] = single_run(samples.step_s, **samples.columns)
    measurement.quantities["first_step_s"] = Quantity(samples.first_step_s)
    if samples.input_s:
        measurement.quantities["input_s"] = single_run(samples.input_s)
    measurement.facts = {
        "memory_meter": memory_meter,
        "absent_counters": dict(run.watch.absent),
        **_timing_facts(samples),
        **measurement.facts,  # of memory, training and energy, added by the functions above
        **({"module_runs_for": missing_kinds} if missing_kinds else {}),
        # `waited` is None where the input is on the device before the step
        **({"input_clock": prepared.input_clock} if prepared.waited else {}),
        **prepared.facts,
        **prepared.afterwards(),  # facts known only after the steps, such as the compile time
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


def _find_backend_of_kinds(backend: Any, graph: Graph, workload: Workload) -> tuple[Any, str]:
    """Return the backend that runs a workload, and the kinds that the user's module runs it for.

    A network of code whose graph holds kinds that the backend lacks runs as its author wrote it,
    where the framework has a backend for that. The text is "" where the graph runs.
    """
    missing_kinds = {op.kind for op in graph.ops} - getattr(backend, "RUNS", {}).keys()
    # The backend that runs the user's module itself, op kinds or not; it has no replicas.
    module_backend = getattr(backend, "MODULE_BACKEND", "")
    can_run_module = module_backend and workload.code and workload.plan.data <= 1
    if not (missing_kinds and can_run_module):
        return backend, ""
    module = import_module(registry.BACKENDS[module_backend].module)
    return module, describe_kinds(graph, sorted(missing_kinds))


def _open_counters(group_timer: GroupTimer | None) -> CounterWatch:
    """Open the counters of disturbance; several processes have one of their communication, too."""
    if group_timer is None:
        return CounterWatch(COUNTERS)

    def read_communication_s() -> float:
        return group_timer.communication_s

    # a counter is a function that opens it and returns its reader
    return CounterWatch({**COUNTERS, "communication_s": lambda: read_communication_s})


def _measure_memory(
    run: _CellRun,
    backend: Any,
    samples: Samples | None,
    measurement: Measurement,
    read_resident_peak: Peak,
) -> str:
    """Add the peak memory, and communication of replicas, to the measurement; return the meter.

    All ranks call it.
    """
    prepared = run.prepared
    peak, meter = prepared.memory()
    backend_has_meter = peak is not None
    if prepared.planned_bytes is not None:  # the memory that a compiler plans for the step
        planned = Quantity(float(prepared.planned_bytes))
        measurement.quantities["planned_memory_bytes"] = planned
        # no resident set beside it: that holds the memory of compiling, too
    elif not backend_has_meter and run.options.device == "cpu":
        peak, meter = read_resident_peak()
    if run.group_timer:
        peak, communication, facts = gather_group_results(
            backend, prepared, run.group_timer, samples, peak, run.request
        )
        measurement.quantities |= communication
        measurement.facts |= facts
    if peak is not None:
        measurement.quantities["peak_bytes"] = Quantity(float(peak))
    return meter


def _refuse_unmeasurable(
    graph: Graph, workload: Workload, options: Options, request: Mapping[str, Any]
) -> None:
    """Raise `UnsupportedError` for a cell that cannot be measured as asked."""
    has_no_weights = workload.phase == "train" and not graph.weights
    meters_replicas = request["energy"] and workload.plan.data > 1
    trains_sharded = options.train_steps and options.strategy == "sharded"
    refuse(
        {
            "the network has no weights to train; --phase infer runs it": has_no_weights,
            "energy is metered on one device, not on replicas": meters_replicas,
            "a sharded training is not examined: no process has its weights": trains_sharded,
        }
    )


def _take_samples(
    run: _CellRun, workload: Workload, measurement: Measurement, report_event: ReportEvent
) -> Samples:
    """Time steps for as long as the budget lasts, or those of a training, and examine that."""
    prepared = run.prepared

    def report_start(first_s: float, remaining_s: float) -> None:
        report_event("stepping", first_step_s=first_s, rest_s=remaining_s)

    settings: JsonObject = {
        "timer": run.group_timer.time_steps if run.group_timer else prepared.timer,
        "watch": run.watch,
        "take_wait_s": prepared.waited,
        "report_start": report_start,
    }
    if not run.options.train_steps:
        return timing.take_samples(
            prepared.step, prepared.sync, **settings, **run.request["timing"]
        )
    from steptime.measure.training import prepare_examination

    examine = prepare_examination(prepared, workload, run.options, run.dataset)
    samples = timing.take_training(
        prepared.step, prepared.sync, run.options.train_steps, **settings
    )
    quantities, measurement.facts["training"] = examine()
    measurement.quantities |= quantities
    return samples


def _time_parts(
    prepared: Prepared, group_timer: GroupTimer | None, samples: Samples | None
) -> dict[str, Quantity]:
    """Time forward, backward and update apart, synchronised after each, in as many samples."""
    sample_count = len(samples.step_s) if samples else 0  # only rank 0 has samples
    steps_per_sample = samples.steps_per_sample if samples else 0
    if group_timer:
        sample_count = group_timer.group.broadcast(sample_count)
        steps_per_sample = group_timer.group.broadcast(steps_per_sample)
    samples_by_part: dict[str, list[float]] = {name: [] for name in prepared.parts}
    for _ in range(sample_count):
        total_s_by_part = dict.fromkeys(prepared.parts, 0.0)
        for _ in range(steps_per_sample):
            for name, seconds in timing.part_seconds(prepared.parts, prepared.sync).items():
                total_s_by_part[name] += seconds
        for name, total_s in total_s_by_part.items():
            samples_by_part[name].append(total_s / steps_per_sample)
    return {
        f"{name}_s": Quantity(samples=tuple(samples_s))
        for name, samples_s in samples_by_part.items()
    }


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
        steps=samples.steps_per_sample,
        min_s=max(MIN_RUN_S, budget_s),
        find_meters=partial(meters, options.device),
    )
    measurement.facts["energy_meter"] = energy.meter
    for name, value in (("energy_j", energy.step_j), ("power_w", energy.power_w)):
        if value is not None:
            measurement.quantities[name] = single_run((value,))
