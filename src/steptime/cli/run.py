"""The command that measures one network on this machine, and how it shows what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.cli import options, output
from steptime.cli.measure import (
    UNSUCCESSFUL,
    Backend,
    Budget,
    Compile,
    Place,
    Tf32,
    Threads,
    check_backend,
    options_of,
)
from steptime.core.errors import InputError, unknown
from steptime.core.hardware import Device
from steptime.core.ranges import MOST_PROCESSES, MOST_STEPS, MOST_VISITS
from steptime.core.record import Record
from steptime.core.units import duration, seconds, si, size
from steptime.measure.contract import INPUTS, LEAST_TRAINED, STAGINGS
from steptime.models.family import whole_number

Input = Annotated[
    str,
    typer.Option(
        "--input",
        help="device (synthetic, resident), host (synthetic, copied each step) or dataset.",
    ),
]
Data = Annotated[str | None, typer.Option("--data", metavar="DIR", help="Folder of the data set.")]
Staging = Annotated[
    str | None,
    typer.Option("--staging", help="shared (files where they are) or local (copied here first)."),
]
StageTo = Annotated[
    str | None,
    typer.Option(
        "--stage-to", metavar="DIR", help="Where copies go. Default: $LOCAL, $TMPDIR, the system's."
    ),
]
Loaders = Annotated[
    str | None,
    typer.Option("--loaders", metavar="K", help="Processes that read ahead. Default: 0, none."),
]
Prefetch = Annotated[
    str | None,
    typer.Option("--prefetch", metavar="K", help="Batches that each loader has ready. Default: 2."),
]
TrainSteps = Annotated[
    str | None,
    typer.Option(
        "--train-steps", metavar="N", help="Train so many steps, then take the test accuracy."
    ),
]

LARGE_FLOP = 1e11  # a second or so on a CPU: worth a word before the first step
LONG_S = 10.0  # a run that may take longer says so


def run(
    model: options.Model,
    batch: options.Batch = None,
    backend: Backend = "torch",
    device: Place = "cpu",
    phase: options.Phase = "train",
    dtype: options.Dtype = "float32",
    optimizer: options.Optimizer = "sgd",
    threads: Threads = None,
    compile_: Compile = False,
    tf32: Tf32 = False,
    input_: Input = "device",
    data: Data = None,
    staging: Staging = None,
    stage_to: StageTo = None,
    loaders: Loaders = None,
    prefetch: Prefetch = None,
    train_steps: TrainSteps = None,
    replicas: options.Replicas = None,
    strategy: options.Strategy = None,
    no_overlap: options.NoOverlap = False,
    budget: Budget = 3.0,
    limit: Annotated[
        float,
        typer.Option(
            "--limit", min=0.1, max=864_000, metavar="S", help="Seconds before a run is ended."
        ),
    ] = 600.0,
    runs: Annotated[
        int, typer.Option("--runs", min=1, max=MOST_VISITS, help="Fresh processes.")
    ] = 1,
    parts: Annotated[
        bool, typer.Option("--parts", help="Time forward, backward and update apart, too.")
    ] = False,
    energy: Annotated[
        bool, typer.Option("--energy", help="Meter the energy of a step, in as long again.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Keep the record in this folder.")
    ] = None,
    json: options.Json = False,
) -> int:
    """Measure one network on this machine."""
    from steptime import catalog, store
    from steptime.build import build_step
    from steptime.count import count
    from steptime.sweep.cells import Cell
    from steptime.sweep.run import How, measure_cell
    from steptime.sweep.workers import Workers

    check_backend(backend)
    given = {
        "data": data,
        "staging": staging,
        "stage_to": stage_to,
        "loaders": loaders,
        "prefetch": prefetch,
        "train_steps": train_steps,
    }
    feeding = _feeding(input_, {k: v for k, v in given.items() if v is not None}, phase)
    workload = options.workload_of(model, batch, dtype, phase, optimizer)
    chosen = replace(options_of(device, threads, compile_, tf32), **feeding)
    workload, chosen = options.over_replicas(workload, chosen, replicas, strategy, no_overlap)
    flop = count(build_step(workload)).flop  # sizes that fit nowhere are refused here
    devices = catalog.devices(output.note)  # what is wrong with these is said before, too
    cell = Cell(workload, backend, chosen)
    how = How(budget_s=budget, time_limit_s=limit, parts=parts, runs=runs, energy=energy)
    workers = Workers()
    progress = _progress(workload.label, flop) if workers.leads else None
    try:
        if out is None or not workers.leads:
            record = measure_cell(workers, cell, how, on_event=progress)
        else:
            with store.open_writer(out) as writer:
                record = measure_cell(workers, cell, how, on_event=progress)
                writer.append(record)
    finally:
        workers.close()
    if workers.leads:
        _tell_run(record, flop, devices, json)
    elif record.status != "ok":
        output.note(f"{workers.name}: {record.status}: {record.note}")
    return 0 if record.status == "ok" else UNSUCCESSFUL


def _feeding(input_: str, given: dict[str, str], phase: str) -> dict[str, Any]:
    """Give the options that say where input comes from; raises `InputError` for what has no sense.

    An option that would mean nothing beside the others is refused, not ignored.
    """
    from steptime.measure.data.dataset import find
    from steptime.measure.data.staging import place

    if input_ not in INPUTS:
        raise unknown("input", input_, INPUTS)
    if input_ != "dataset":
        for name in given:
            raise InputError(f"--{name.replace('_', '-')} needs --input dataset")
        return {"input": input_}
    if "data" not in given:
        raise InputError("--input dataset needs --data DIR, the folder of the data set")
    staging = given.get("staging", "shared")
    if staging not in STAGINGS:
        raise unknown("staging", staging, STAGINGS)
    if "stage_to" in given and staging != "local":
        raise InputError("--stage-to needs --staging local")
    found: dict[str, Any] = {"input": input_, **given}
    for name, least, most in (
        ("loaders", 0, MOST_PROCESSES),
        ("prefetch", 1, MOST_PROCESSES),
        ("train_steps", LEAST_TRAINED, MOST_STEPS),
    ):
        if name in given:
            found[name] = whole_number(given[name], f"--{name.replace('_', '-')}", least, most)
    if "prefetch" in given and not found.get("loaders"):
        raise InputError("--prefetch needs --loaders")
    if "train_steps" in given and phase != "train":
        raise InputError(f"--train-steps needs --phase train, not {phase}")
    find(given["data"])
    if staging == "local":
        place(given.get("stage_to", ""))
    return found


def _progress(name: str, flop: float) -> Callable[[Mapping[str, Any]], None]:
    """Say how much work a large network is, and return what says how long a long run will take."""
    if flop > LARGE_FLOP:
        output.note(f"{name}: {si(flop, 'FLOP')} a step, of which at least four are run")

    def say(event: Mapping[str, Any]) -> None:
        first_s, rest_s = event["first_step_s"], event["rest_s"]
        if first_s + rest_s > LONG_S:
            output.note(
                f"{name}: the first step took {seconds(first_s)}; about {duration(rest_s)} more"
            )

    return say


def _peaks(record: Record, devices: Iterable[Device]) -> dict[str, float | None]:
    """Return the peak of the record's type as probed here and as the datasheet says, if known."""
    from steptime.core.dtypes import precision

    wanted = precision(record.workload.dtype).compute
    if record.method.options.get("tf32") and wanted == "float32":
        wanted = "tf32"
    peaks: dict[str, float | None] = {"probed": None, "datasheet": None}
    for device in devices:
        if device.name == record.platform:
            peaks["probed" if device.measured else "datasheet"] = device.peak_flop_per_s.get(wanted)
    return peaks


def _tell_run(record: Record, flop: float, devices: Iterable[Device], json: bool) -> None:
    from steptime.analysis.measurement import measurement

    document = measurement(record, flop, _peaks(record, devices))
    if json:
        output.emit_json(document)
    else:
        _show_run(document)


def _show_run(document: dict[str, Any]) -> None:
    title = f"{document['model']}, batch {document['batch']} on {document['platform']}"
    if document["replicas"] > 1:
        title = f"{title}, {document['replicas']} replicas, {document['strategy']}"
    step = document["step_s"]
    if step is None:
        output.note(f"{title}: {document['status']} ({document['cause']}): {document['note']}")
        return
    speed = document["speed"]
    interval = f"{seconds(step['low'])} .. {seconds(step['high'])} ({step['interval']})"
    rows: list[tuple[str, object]] = [
        ("step, median", seconds(step["median"])),
        ("  95 % interval", interval),
        ("  minimum, p5, p95", ", ".join(seconds(step[k]) for k in ("min", "p5", "p95"))),
        *_shared_rows(document),
        ("speed", f"{speed['mean']:.4g} examples/s"),
        ("  uncertainty, jitter", f"{speed['uncertainty']:.3g}, {speed['jitter']:.3g}"),
        ("work", si(document["flop_per_s"], "FLOP/s")),
    ]
    for name, share in document["fraction_of_peak"].items():
        rows.append((f"  of the {name} peak", None if share is None else f"{100 * share:.3g} %"))
    if document["input_s"] is not None:
        share = f"{100 * document['infeed']:.3g} % of all steps' time"
        rows.append(("waiting for input", f"{seconds(document['input_s'])} ({share})"))
    if document["accuracy"] is not None:
        trained = document["env"]["training"]
        steps = f"after {trained['steps']:,} steps, {trained['epochs']:.3g} epochs"
        rows.append(("test accuracy", f"{100 * document['accuracy']:.2f} % {steps}"))
        rows.append(("  loss of the last step", f"{document['loss']:.4g}"))
    peak = document["peak_memory_bytes"]
    rows.append(("peak memory", None if peak is None else size(peak)))
    if document["energy_j"] is not None:
        rows.append(("energy", si(document["energy_j"], "J")))
        power = si(document["power_w"], "W")
        rows.append(("  mean power", f"{power} ({document['env']['energy_meter']})"))
    samples = f"{len(step['samples'])}, {document['disturbed']} of them disturbed"
    rows.append(("samples", samples))
    output.table(title, ("", "measured"), rows)
    for remark in document["remarks"]:
        output.note(f"! {remark}")


def _shared_rows(document: dict[str, Any]) -> list[tuple[str, object]]:
    if document["replicas"] == 1:
        return []
    comm = document["comm_s"]
    exposed = "  not hidden, of communication" if document["env"]["overlap"] else "  communication"
    return [
        (exposed, None if comm is None else seconds(comm)),
        ("global batch", document["global_batch"]),
    ]
