"""The command `predict`: one step on one device, or a grid of them."""

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from steptime.cli import grid
from steptime.core.errors import InputError
from steptime.core.files import check_folder, write_whole
from steptime.core.graph import PASSES
from steptime.core.progress import note
from steptime.core.question import File, Text, argument, flag, number, optional, question, whole
from steptime.core.table import Answer, Table, columns, facts, picked
from steptime.core.units import interval, rate, seconds, shown
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.assumed import assumed_of, assumed_row
from steptime.prediction.method import Method, priced_by
from steptime.prediction.power import run_energy, step_energy
from steptime.prediction.records import record_method
from steptime.prediction.step_model import StepModel
from steptime.questions import options


@question()
def predict(
    whole: bool,
    model: Annotated[Text, argument("MODEL", f"{options.MODEL}; with --grid several.")] = None,
    device: Text = optional("NAME", f"{options.DEVICE}; with --grid or --in several."),
    batch: options.Batches = None,
    phase: options.Phase = "train",
    dtype: options.Dtype = "float32",
    optimizer: options.Optimizer = "sgd",
    method: options.Method = DEFAULT,
    option_: options.Settings = None,
    tf32: options.Tf32 = None,
    channels_last: options.ChannelsLast = False,
    host: options.Host = None,
    stack: Text = optional(
        "NAME,...", "What runs it (steptime list stacks); several side by side."
    ),
    allow_unknown: options.AllowUnknown = False,
    steps: int | None = whole("N", "Steps of a run, for its energy."),
    kwh_price: float | None = number("P", "With --steps: price of a kWh.", least=0, most=1e6),
    kwh_co2: float | None = number("G", "With --steps: grams of CO2 of a kWh.", least=0, most=1e6),
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
) -> Answer:
    """Predict how long one step takes on a device."""
    given = options.software(option_, tf32=tf32, channels_last=channels_last, host=host)
    stacks = [] if stack is None else grid.names(stack, "--stack")
    if stacks:
        options.refuse({"--option stack": "stack" in given}, "{} says what --stack says")
        given = _on_stack(stacks[0], given)
    if len(stacks) > 1:
        options.refuse(
            {"--in": folder, "--grid": all_cells, "--by-op": by_op, "--trace": trace,
             "--steps": steps},
            "{} takes one --stack",
        )  # fmt: skip
    price = options.price_of(method)
    chosen = cost_model(method) if price is None else priced_by(method, price)
    if folder is not None:
        options.refuse(
            {"MODEL": model, "--grid": all_cells, "--batch": batch, "--steps": steps,
             "--replicas": replicas, "--out": out, "--trace": trace},
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
        from steptime.build import make_workload, read_model

        axes = grid.axes(model, device, batch, replicas, link)
        read = cache(read_model)  # a file is read once

        def cell(name: str, size: int | None) -> Workload:
            choice = read(name, allow_unknown, trusted=True)
            return make_workload(choice, size, dtype, phase, optimizer)

        return grid.answer(axes, cell, chosen, given, out, whole)
    of_grid = {"--replicas": replicas, "--link": link, "--out": out}
    options.refuse(of_grid, "{} needs --grid (for one network see also steptime scale)")
    workload = options.workload_of(model, batch, dtype, phase, optimizer, allow_unknown)
    each = [given, *(_on_stack(name, given) for name in stacks[1:])]
    asked = [StepModel(workload, options.one_device(device), method=chosen, options=one)
             for one in each]  # fmt: skip
    if trace:
        from steptime.prediction.timeline import document as timeline
        from steptime.prediction.timeline import trace_events

        check_folder(trace)
        write_whole(trace, json.dumps(timeline(trace_events(asked[0]))))
        note(str(trace))
    if len(stacks) > 1:
        return _side_by_side([_predicted(one) for one in asked], stacks)
    document = _predicted(asked[0], steps or 0, kwh_price, kwh_co2)
    tables = [_totals(document, asked[0].device if sources else None)]
    if by_op:
        heads = columns(
            "name=op", "?kind", *(f"{part}_s={part}" for part in PASSES), "?parameters",
            "flop=forward FLOP",
        )  # fmt: skip
        tables.append(Table(heads, document["ops"]))
    return Answer(document, tables, _notes(document))


def _side_by_side(every: list[dict[str, Any]], stacks: list[str]) -> Answer:
    rows = [{"stack": name, **document} for name, document in zip(stacks, every, strict=True)]
    heads = columns(
        "stack", "step_s[low_s,high_s]=step", *(f"{part}_s={part}" for part in PASSES),
        "peak_memory_bytes=peak memory",
    )  # fmt: skip
    said = {row["stack"]: _notes(row) for row in rows}
    notes = [
        one if all(one in others for others in said.values()) else f"{stack}: {one}"
        for stack, own in said.items()
        for one in own
    ]
    return Answer({"stacks": rows}, [Table(heads, rows, _title(every[0]))], [*dict.fromkeys(notes)])


def _on_stack(name: str, given: dict[str, str]) -> dict[str, str]:
    found = catalog.stack(name)
    return {**given, "stack": name if name.lower().endswith(".toml") else found.name}


def _notes(document: dict[str, Any]) -> list[str]:
    said = {"note": document["note"]}
    doubted = ", ".join(document["device_unverified"])
    said["not verified"] = f"{doubted} of {document['device']}" if doubted else ""
    return [f"{what}: {' '.join(text.split())}" for what, text in said.items() if text]


def _of_folder(
    folder: Path,
    device: str | None,
    method: Method,
    given: dict[str, str],
    link: str | None,
    ops: bool,
) -> Answer:
    from steptime.questions.predict_folder import predict_folder

    names = (name.strip() for name in device.split(",")) if device is not None else ()
    devices = tuple(map(catalog.device, names)) or None
    method.under(given)
    joined = None if link is None else catalog.link(link)
    found = predict_folder(folder, note, devices, method, given, joined, ops)
    return grid.written(folder, method.name, found)


def _predicted(asked: StepModel, steps: int = 0, *per_kwh: float | None) -> dict[str, Any]:
    workload, found, made = asked.workload, asked.device, asked.predict()
    times = made.times
    energy = step_energy(times, asked.seen, made.lowered.columns)
    bounds = picked(energy, "at_most_j low_j high_j note").items()
    document = {
        "model": workload.label,
        "device": found.name,
        "device_note": found.note,
        "device_unverified": list(found.unverified),
        "method": asked.method.name,
        "options": dict(record_method(asked).options),
        "batch": workload.batch_per_replica,
        "tokens": asked.graph().tokens,
        **picked(workload, "phase dtype optimizer"),
        **picked(times, "step_s forward_s backward_s update_s host_s low_s high_s extrapolates"),
        "assumed": assumed_of(asked),
        "parameters": made.lowered.parameters,
        "flop": round(made.flop),
        "executed_flop": round(made.lowered.executed_flop),
        "traffic_bytes": round(made.lowered.traffic_bytes),
        "peak_memory_bytes": made.peak_memory_bytes,
        "needed_bytes": made.needs.total_bytes,
        **picked(made.needs, "blocks_bytes workspace_bytes context_bytes"),
        "usable_bytes": asked.device.usable_bytes,
        **picked(energy, "utilisation energy_j"),
        **{f"energy_{name}": value for name, value in bounds},
        "run": None,
        "status": made.status,
        "note": "; ".join(made.remarks),
        "unmodelled": list(asked.graph().unmodelled),
    }
    if steps:
        joules = {"energy": energy.energy_j, "at_most": energy.at_most_j}
        of_run = {name: run_energy(steps, each, *per_kwh) for name, each in joules.items()}
        document["run"] = {"steps": steps, "run_s": steps * times.step_s, **of_run}
    ops = []
    for row in times.rows:
        parts = {"forward": row.forward, "backward": row.backward}
        ceilings = {
            f"{part}_{name}": value
            for part, time in parts.items()
            for name, value in picked(time, "compute_s memory_s").items()
        }
        flop = round(made.counted[row.row.name]["forward"])
        ops.append(row.told | ceilings | {"parameters": row.row.parameters, "flop": flop})
    return {**document, "ops": ops}


def _totals(document: dict[str, Any], device: Device | None) -> Table:
    step = document["step_s"]
    waits = document["host_s"] is not None and document["host_s"] >= 0.99 * step
    rows: list[tuple[str, Any]] = [
        *assumed_row(document["assumed"]),
        ("step", _step(document) + (", as long as the host takes to issue it" if waits else "")),
        *((f"  {part}", seconds(document[f"{part}_s"])) for part in PASSES),
        ("speed", _speed(document)),
        ("achieved", shown("flop_per_s", document["flop"] / step) if step else None),
        ("peak memory", options.memory_shown(document)),
        ("energy", _energy(document)),
        *_run_rows(document["run"]),
    ]
    if device is not None:
        told = (" ".join(text.split()) for text in (device.source, device.note) if text)
        rows += [("device data", text) for text in told]
    title = _title(document)
    fits = "" if document["status"] == "ok" else " - DOES NOT FIT"
    return facts(title + fits, "one step", rows)


def _title(document: dict[str, Any]) -> str:
    return (
        f"{document['model']}, batch {document['batch']}, {document['phase']}, "
        f"{document['dtype']} on {document['device']} ({document['method']})"
    )


def _speed(document: dict[str, Any]) -> str | None:
    """Return examples a second, of a language model tokens and their length too."""
    step, batch, tokens = (document[key] for key in ("step_s", "batch", "tokens"))
    if not step:
        return None
    said = shown("examples_per_s", batch / step)
    if tokens is None:
        return said
    return f"{said}, {rate(tokens / step)} tokens/s ({tokens // batch:,} tokens each)"


def _step(document: dict[str, Any]) -> str:
    """Return the seconds of a step with their interval, or of what they are the bound."""
    return interval("step_s", *(document[key] for key in ("step_s", "low_s", "high_s")))


def _energy(document: dict[str, Any]) -> str:
    energy, most, note = (document[k] for k in ("energy_j", "energy_at_most_j", "energy_note"))
    said = "unknown"
    if energy is not None:
        ends = (document[f"energy_{end}_j"] for end in ("low", "high"))
        said = interval("energy_j", energy, *ends)
    elif most is not None:
        said = f"at most {shown('energy_j', most)}"
    return f"{said} ({note})" if note else said


def _run_rows(run: dict[str, Any] | None) -> list[tuple[str, Any]]:
    if run is None:
        return []
    rows: list[tuple[str, Any]] = [(f"{run['steps']:,} steps", shown("h", run["run_s"] / 3600))]
    found = run["energy"] or run["at_most"]
    if found is None:
        return [*rows, ("  energy", "unknown")]
    most = "" if run["energy"] else "at most "
    for name, key in (("energy", "kwh"), ("cost of it", "cost"), ("CO2", "co2_g")):
        if found[key] is not None:
            rows.append((f"  {name}", most + shown(key, found[key])))
    return rows
