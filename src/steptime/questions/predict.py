"""One step on one device, on several stacks, of a folder of records, or a grid of steps."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

from steptime.core.errors import InputError
from steptime.core.files import check_folder, write_whole
from steptime.core.graph import PASSES
from steptime.core.progress import note
from steptime.core.question import (
    File,
    Text,
    argument,
    flag,
    number,
    optional,
    question,
    whole,
)
from steptime.core.table import Answer, Table, answer_of, columns
from steptime.core.values import parse_devices, parse_names
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.prediction import cost_model
from steptime.prediction.method import Method, priced_by
from steptime.prediction.step_model import StepModel
from steptime.questions import grid_table, options
from steptime.questions.step_options import ExecutionOptions, StepOptions
from steptime.questions.step_time import StepTime, step_time, title


@question()
def predict(
    whole: bool,
    model: Annotated[Text, argument("MODEL", f"{options.MODEL}; with --grid several.")] = None,
    device: Text = optional("NAME", f"{options.DEVICE}; with --grid or --in several."),
    batch: Text = optional("N", f"{options.BATCH}; with --grid several."),
    *,
    step: StepOptions,
    execution: ExecutionOptions,
    steps: int | None = whole("N", "Steps of a run, for its energy."),
    kwh_price: float | None = number("P", "With --steps: price of a kWh.", at_least=0, at_most=1e6),
    kwh_co2: float | None = number(
        "G", "With --steps: grams of CO2 of a kWh.", at_least=0, at_most=1e6
    ),
    by_op: options.ByOp = False,
    trace: File = optional("FILE", "Write the timeline of the step, for ui.perfetto.dev (.json)."),
    sources: bool = flag("Show where the device's numbers come from."),
    all_cells: bool = flag(
        "Predict every combination of what MODEL, --device, --batch and --replicas list.", "--grid"
    ),
    replicas: Text = optional("N,...", "With --grid: replicas, each keeps the batch."),
    link: Text = optional("LINK", "With --grid or --in: what joins the replicas."),
    out: Text = optional(
        "--out -o FILE", "With --grid: a .csv or .jsonl file, or a folder of records."
    ),
    folder: File = optional(
        "--in DIR",
        "Predict every step in a folder of records and keep the predictions there; by default on "
        "the device that each is from.",
    ),
) -> StepTime | Answer:
    """Predict how long one step takes on a device."""
    names = execution.stack
    stacks = [] if names is None else parse_names(names, "--stack")
    given, *others = [
        replace(execution, stack=name).method_options(step.option_) for name in stacks or [None]
    ]
    if len(stacks) > 1:
        options.refuse(
            {"--in": folder, "--grid": all_cells, "--by-op": by_op, "--trace": trace,
             "--steps": steps},
            "{} takes one --stack",
        )  # fmt: skip
    price = options.price_of(step.method)
    chosen = cost_model(step.method) if price is None else priced_by(str(step.method), price)
    if folder is not None:
        options.refuse(
            {"MODEL": model, "--grid": all_cells, "--batch": batch, "--steps": steps,
             "--replicas": replicas, "--out": out, "--trace": trace, "--length": step.length},
            "{} does not go with --in, which takes all of a folder's records",
        )  # fmt: skip
        return _of_folder(folder, device, chosen, given, link, by_op)
    if model is None or device is None:
        missing = "argument 'MODEL'" if model is None else "option '--device'"
        raise InputError(f"Missing {missing}.")
    if steps is None:
        of_run = {"--kwh-price": kwh_price, "--kwh-co2": kwh_co2}
        options.refuse(of_run, "{} needs --steps N, the steps of a run")
    if all_cells:
        of_one = {"--by-op": by_op, "--trace": trace, "--steps": steps}
        options.refuse(of_one, "{} is of one prediction; leave out --grid")
        from steptime.build import make_workload, read_model, set_length

        axes = grid_table.axes(model, device, batch, replicas, link, chosen.name)
        read = cache(read_model)  # a file is read once

        def cell(name: str, size: int | None) -> Workload:
            choice = read(name, step.allow_unknown, trusted=True)
            choice = choice if step.length is None else set_length(choice, step.length)
            how = step.dtype, step.phase, step.optimizer
            return make_workload(choice, size, *how, tuning=step.tuning)

        return grid_table.answer(axes, cell, chosen, given, out, whole)
    of_grid = {"--replicas": replicas, "--link": link, "--out": out}
    options.refuse(of_grid, "{} needs --grid (for one network see also steptime scale)")
    workload = step.workload(model, batch)
    on = options.one_device(device)
    asked = [StepModel(workload, on, None, chosen, one, assumes=True) for one in (given, *others)]
    if trace:
        from steptime.prediction.timeline import document as timeline
        from steptime.prediction.timeline import trace_events

        check_folder(trace)
        write_whole(trace, json.dumps(timeline(trace_events(asked[0]))))
        note(str(trace))
    if len(stacks) > 1:
        return _side_by_side([step_time(one) for one in asked], stacks)
    made = step_time(asked[0], steps or 0, kwh_price, kwh_co2, sources=sources)
    return replace(made, by_op=by_op)


def _side_by_side(every: list[StepTime], stacks: list[str]) -> Answer:
    rows = [{"stack": name, **one.document} for name, one in zip(stacks, every, strict=True)]
    heads = columns(
        "stack", "step_s[low_s,high_s]=step", *(f"{part}_s={part}" for part in PASSES),
        "peak_bytes=peak memory",
    )  # fmt: skip
    said = [answer_of(one).notes for one in every]
    notes = [
        one if all(one in others for others in said) else f"{stack}: {one}"
        for stack, lines in zip(stacks, said, strict=True)
        for one in lines
    ]
    tables = [Table(heads, rows, title(rows[0]))]
    return Answer({"rows": rows}, tables, [*dict.fromkeys(notes)])


def _of_folder(
    folder: Path,
    device: str | None,
    method: Method,
    given: dict[str, str],
    link: str | None,
    ops: bool,
) -> Answer:
    from steptime.grids.folder import predict_folder

    names = () if device is None else parse_devices(device)
    devices = tuple(map(catalog.device, names)) or None
    method.under(given)
    joined = None if link is None else catalog.link(link, "--link")
    found = predict_folder(folder, note, devices, method, given, joined, ops)
    return grid_table.written(folder, method.name, found)
