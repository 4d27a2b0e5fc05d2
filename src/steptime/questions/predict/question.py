"""One step on one device, on several stacks, of a folder of records, or a grid of steps."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Unpack

from msgspec.structs import asdict

from steptime.core.answer import Answer
from steptime.core.assumed import assumed_line, assumed_text
from steptime.core.errors import InputError
from steptime.core.files import check_folder, write_atomically
from steptime.core.graph import PASSES
from steptime.core.progress import print_note
from steptime.core.signatures.kinds import File, Kind, text_of
from steptime.core.tables.table import Column, Table
from steptime.core.values import parse_count, parse_devices, parse_names, parse_number
from steptime.hardware import catalog
from steptime.prediction import cost_model
from steptime.prediction.method import Method, method_of_price
from steptime.prediction.steps.step_model import StepModel
from steptime.questions import kinds, options
from steptime.questions.predict.grid_answer import GridAnswer
from steptime.questions.predict.run_energy import NO_RUN, EnergyRequest
from steptime.questions.predict.step_time import StepTime, predict_step
from steptime.questions.predict.trace_options import TraceOrigin, TraceRequest
from steptime.questions.predict.traced_step import TracedStepTime
from steptime.questions.predict.written_predictions import WrittenPredictions, describe_predictions
from steptime.questions.step_options import StepKeywords, StepOptions

MAX_KWH_PRICE = 1e6


class StepOfStack(StepTime, frozen=True, kw_only=True):
    """How long a step takes under one of several stacks.

    Attributes:
        stack: the name of the stack.
    """

    stack: str


class StepsOfStacks(Answer, frozen=True, kw_only=True):
    """A step under several stacks, side by side.

    Attributes:
        rows: the step under each stack, in the order of the question.
        notes: remarks; one that is not of all stacks begins with the name of its stack.
    """

    rows: tuple[StepOfStack, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return a row for each stack."""
        heads = (
            Column("stack"),
            Column("step_s", "step", ends=("low_s", "high_s")),
            *(Column(f"{name}_s", name) for name in PASSES),
            Column("peak_bytes", "peak memory"),
        )
        footnotes = assumed_line([(row.stack, assumed_text(row.assumed)) for row in self.rows])
        return [Table(heads, [row.to_dict() for row in self.rows], self.rows[0].title, footnotes)]


def predict(
    model: kinds.Model | None = None,
    device: kinds.Devices | None = None,
    batch: kinds.Counts | None = None,
    *,
    steps: kinds.Count | None = None,
    tokens: kinds.Count | None = None,
    prices: kinds.PriceFile | None = None,
    kwh_price: kinds.Price | None = None,
    kwh_co2: Annotated[float | str, Kind("G")] | None = None,
    by_op: bool = False,
    timeline: kinds.TimelineFile | None = None,
    trace: kinds.TorchTrace | None = None,
    from_device: kinds.Device | None = None,
    from_batch: kinds.Count | None = None,
    threads: kinds.Threads | None = None,
    sources: bool = False,
    all_cells: Annotated[bool, Kind(names=("--grid",))] = False,
    replicas: kinds.Counts | None = None,
    link: kinds.Link | None = None,
    out: kinds.OutFile | None = None,
    folder: kinds.RecordsIn | None = None,
    **step_options: Unpack[StepKeywords],
) -> StepTime | StepsOfStacks | GridAnswer | WrittenPredictions | TracedStepTime:
    """Predict how long one step takes on a device.

    Args:
        model: A family with its hyperparameters (fc:layers=4,nodes=1024), a named network
            (resnet50), a ParaDnn label, a .toml, .json, .prototxt, .onnx, .keras or .pt2 file, or
            code (model.py:NAME); with --grid several.
        device: A name of steptime list devices, FILE.toml, or local (this machine, calibrated);
            with --grid or --in several, with commas. Default: with --trace, the device of the
            trace.
        batch: Examples in a step; with --grid several. Default: 64; for transformers 1; for a file
            or a trace what it states.
        steps: Steps of a whole run, to show its energy; with --trace: steps in a trace that does
            not mark its steps.
        tokens: Tokens of a whole training of a language model: shows its time and cost.
        prices: With --tokens: a file of prices. Default: the shipped prices, each with its date.
        kwh_price: With --steps: price of a kWh.
        kwh_co2: With --steps: grams of CO2 for each kWh.
        by_op: Show every op.
        timeline: Write the timeline of the step, for ui.perfetto.dev (.json).
        trace: In place of MODEL: a trace of torch.profiler with record_shapes=True (.json, .gz).
        from_device: With --trace: the device that was traced. Default: as the trace says, else
            local.
        from_batch: With --trace: the traced batch. Default: as the shapes of its first layers show.
        threads: With --trace of a CPU: predict the same CPU with K threads.
        sources: Show where the device's numbers come from.
        all_cells: Predict every combination of what MODEL, --device, --batch and --replicas list.
        replicas: With --grid: numbers of data-parallel replicas; each keeps the batch.
        link: With --grid or --in: the link between replicas, a name of steptime list links, or
            FILE.toml.
        out: With --grid: write the answer into this .csv or .jsonl file, or folder of records.
        folder: Predict every step in a folder of records and keep the predictions there. Default
            device: that of each record.
        **step_options: Which step it is, and how it is executed: `StepOptions`.

    Returns:
        A `StepTime`; with several stacks a `StepsOfStacks`, with `all_cells` a `GridAnswer`, of a
        folder a `WrittenPredictions`, with `trace` a `TracedStepTime`.

    Raises:
        InputError: for unknown names, and options that do not go together.
    """
    step = StepOptions.from_keywords(step_options, predict)
    step_outputs = {"--by-op": by_op, "--timeline": timeline, "--steps": steps}
    training = {"--tokens": tokens, "--prices": prices}
    grid_options = {"--replicas": replicas, "--link": link, "--out": out}
    stacks = [] if step.stack is None else parse_names(text_of(step.stack), "--stack")
    # The options of the method under each stack; a single one without --stack. Traces, folders and
    # grids take one stack, whose options are `settings`.
    settings_by_stack = _list_settings(step, stacks)
    settings = settings_by_stack[0]
    has_several_stacks = len(settings_by_stack) > 1
    if has_several_stacks:
        single_stack_options = {"--in": folder, "--grid": all_cells, **step_outputs, **training}
        options.refuse(single_stack_options, "{} takes one --stack")
    method = _method_of(step.method)
    if trace is not None:  # in place of a network: what a step ran, as it was recorded
        network_options: dict[str, object] = {"MODEL": model, "--grid": all_cells, "--in": folder}
        network_options |= {"--out": out, "--replicas": replicas, "--link": link}
        network_options |= {"--timeline": timeline, **training}
        origin = TraceOrigin(trace, from_device, text_of(from_batch), steps)
        trace_request = TraceRequest(origin, device, text_of(batch), step.dtype, threads, by_op)
        return _predict_trace(trace_request, step, network_options, method, settings)
    trace_options = {"--from-device": from_device, "--from-batch": from_batch}
    options.refuse({**trace_options, "--threads": threads}, "{} needs --trace")
    if folder is not None:  # the networks of its records
        step_settings = {"MODEL": model, "--grid": all_cells, "--batch": batch, "--steps": steps}
        step_settings |= {"--replicas": replicas, "--out": out, "--timeline": timeline}
        step_settings |= {"--length": step.length, **training}
        options.refuse(
            step_settings, "{} does not go with --in, which takes all of a folder's records"
        )
        return _predict_folder(Path(folder), device, method, settings, link, by_op)
    if model is None or device is None:
        raise InputError(options.MISSING_MODEL if model is None else options.MISSING_DEVICE)
    run = _read_run(steps, kwh_price, kwh_co2)
    if all_cells:  # every combination of networks, devices, batches and replicas
        options.refuse(step_outputs, "{} is of one prediction; leave out --grid")
        from steptime.questions.predict.grid_request import read_axes, request_grid
        from steptime.questions.predict.grid_table import predict_grid

        axes = read_axes(
            text_of(model), text_of(device), text_of(batch), text_of(replicas), link, method.name
        )
        request = request_grid(step, axes, method, settings, tokens, prices)
        return predict_grid(request, None if out is None else str(out))
    # One network on one device, under one or several stacks.
    options.refuse(grid_options, "{} needs --grid (for one network see also steptime scale)")
    workload = step.workload(model, batch)
    device_name = options.single_device(text_of(device))
    models = [
        # `assumes`: without --stack the usual stack of the device is taken.
        StepModel(workload, device_name, method=method, options=stack_settings, assumes=True)
        for stack_settings in settings_by_stack
    ]
    if has_several_stacks:
        return _compare_stacks(models, stacks)
    step_model = models[0]
    if timeline is not None:
        _write_timeline(step_model, timeline)
    return predict_step(step_model, run, tokens=tokens, prices=prices, by_op=by_op, sources=sources)


def _method_of(method: Any) -> Method:
    """Return the cost model of a name, of code (`FILE.py:NAME`) or of a function of Python."""
    price = options.price_of(method)
    return cost_model(method) if price is None else method_of_price(str(method), price)


def _list_settings(step: StepOptions, stacks: list[str]) -> list[dict[str, str]]:
    """Return the options of the method under each stack, or without one."""
    names: list[str | None] = [*stacks] or [None]
    return [replace(step, stack=name).method_options(step.options) for name in names]


def _predict_trace(
    request: TraceRequest,
    step: StepOptions,
    other_options: Mapping[str, object],
    method: Method,
    settings: Mapping[str, str],
) -> TracedStepTime:
    """Predict the step of a trace; raises `InputError` for options that are of a network."""
    from steptime.questions.predict.trace_request import predict_trace

    options.refuse(other_options, "{} does not go with --trace")
    step.refuse_network_options("{} is of a network, and --trace is a step as it was recorded")
    device = options.single_device(text_of(request.device))
    return predict_trace(replace(request, device=device), method, settings)


def _read_run(steps: Any, kwh_price: Any, kwh_co2: Any) -> EnergyRequest:
    """Return the run that the options say; raises `InputError`."""
    if steps is None:
        run_options = {"--kwh-price": kwh_price, "--kwh-co2": kwh_co2}
        options.refuse(run_options, "{} needs --steps N, the steps of a run")
        return NO_RUN
    price = None if kwh_price is None else parse_number(kwh_price, "--kwh-price", 0, MAX_KWH_PRICE)
    co2_g = None if kwh_co2 is None else parse_number(kwh_co2, "--kwh-co2", 0, MAX_KWH_PRICE)
    return EnergyRequest(parse_count(steps, "--steps"), price, co2_g)


def _write_timeline(model: StepModel, path: File) -> None:
    """Write the timeline of a step as a trace and say where it lies."""
    from steptime.prediction.timeline import make_document, trace_events

    check_folder(Path(path))
    write_atomically(Path(path), json.dumps(make_document(trace_events(model))))
    print_note(str(path))


def _compare_stacks(models: list[StepModel], names: list[str]) -> StepsOfStacks:
    """Return a step under several stacks, side by side."""
    times = [predict_step(model) for model in models]
    common_notes = set.intersection(*(set(time.notes) for time in times))
    rows = []
    notes = []
    for name, time in zip(names, times, strict=True):
        rows.append(StepOfStack(stack=name, **asdict(time)))
        notes += [note if note in common_notes else f"{name}: {note}" for note in time.notes]
    distinct_notes = tuple(dict.fromkeys(notes))  # a note of all stacks is said once
    return StepsOfStacks(rows=tuple(rows), notes=distinct_notes)


def _predict_folder(
    folder: Path,
    device: Any,
    method: Method,
    settings: Mapping[str, str],
    link: Any,
    by_op: bool,
) -> WrittenPredictions:
    """Predict every step in a folder of records and write the predictions there."""
    from steptime.grids.folder import predict_folder

    devices = None  # each record on its own device
    if device is not None:
        devices = [catalog.device(name) for name in parse_devices(text_of(device))]
    # Refuses unknown settings before anything is written.
    method.with_options(settings)
    joining_link = None if link is None else catalog.link(link, "--link")
    predicted = predict_folder(folder, print_note, devices, method, settings, joining_link, by_op)
    return describe_predictions(folder, method.name, predicted)
