"""Commands that look at this machine and measure on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.cli import options, output
from steptime.core.errors import InputError
from steptime.core.ranges import MOST_VISITS
from steptime.core.record import Record
from steptime.core.units import duration, seconds, si, size

UNSUCCESSFUL = 3

Backend = Annotated[str, typer.Option("--backend", help="torch or numpy.")]
Place = Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda[:n] or mps.")]
Threads = Annotated[
    str | None, typer.Option("--threads", metavar="K", help="CPU threads. Default: all cores.")
]
Compile = Annotated[bool, typer.Option("--compile", help="Use torch.compile.")]
Tf32 = Annotated[bool, typer.Option("--tf32", help="Allow TF32 on a GPU.")]
Budget = Annotated[
    float,
    typer.Option("--budget", min=0.001, max=86_400, metavar="S", help="Seconds a network and run."),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the records.")]


def doctor(json: options.Json = False) -> None:
    """Show what this machine is, what is missing, and how to get it."""
    from steptime.measure.doctor import doctor_table, examine

    report = examine()
    if json:
        output.emit_json(report)
        return
    output.table("this machine", ("", ""), doctor_table(report))
    for problem in report["problems"]:
        output.note(f"! {problem}")


def _options(device: str, threads: str | None, compile_: bool, tf32: bool) -> Any:
    from steptime.measure.contract import Options
    from steptime.models.family import whole_number

    count = None if threads is None else whole_number(threads, "--threads")
    return Options(device=device, threads=count, compile=compile_, tf32=tf32)


def _check_backend(backend: str) -> None:
    from steptime.core.errors import unknown
    from steptime.measure.contract import BACKENDS

    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)


def probe(
    backend: Backend = "torch",
    device: Place = "cpu",
    threads: Threads = None,
    budget: Annotated[
        float, typer.Option("--budget", min=1.0, max=86_400, metavar="S", help="Seconds in all.")
    ] = 20.0,
    collectives: Annotated[
        bool,
        typer.Option("--collectives", help="Measure all-reduces among processes: link 'local'."),
    ] = False,
    processes: Annotated[
        str | None,
        typer.Option("--processes", metavar="N", help="How many, for --collectives. Default: 2."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Measure the roofs of this machine, as device 'local', or the link between processes."""
    from steptime.cli.collectives import probe_collectives, show_link

    _check_backend(backend)
    if processes is not None and not collectives:
        raise InputError("--processes needs --collectives")
    if collectives:
        found = probe_collectives(
            backend, _options(device, threads, False, False), processes, budget
        )
        if found:
            show_link(*found, json)
        return
    table, path = take_probe(backend, _options(device, threads, False, False), budget)
    if json:
        output.emit_json({"device": table["name"], "path": str(path), **table})
        return
    rows = [
        ("peak " + dtype, si(peak * 1e12, "FLOP/s"))
        for dtype, peak in table["peak_TFLOP_per_s"].items()
    ]
    rows.append(("memory bandwidth", si(table["memory_GB_per_s"] * 1e9, "B/s")))
    if "launch_us" in table:
        rows.append(("time to issue an op", seconds(table["launch_us"] * 1e-6)))
    output.table(f"{table['name']} ({table['source']})", ("", "measured"), rows)
    output.note(f"written to {path}; use it as --device local")


def take_probe(backend: str, chosen: Any, budget: float) -> tuple[dict[str, Any], Path]:
    """Probe this machine in a worker, write the device file, and give both."""
    from steptime import catalog
    from steptime.launch.local import Worker, WorkerDiedError
    from steptime.measure import ranks
    from steptime.measure.probe import device_table

    if ranks.here().size > 1:
        raise InputError("probe measures one process: leave out torchrun or srun")
    with Worker(backend, chosen) as worker:
        arguments = {"budget_s": budget}
        try:
            answer = worker.ask({"do": "probe", "arguments": arguments}, 60 + 4 * budget)
        except WorkerDiedError as died:
            raise InputError(f"probe: {died}") from None
    table = device_table(answer)
    return table, catalog.write_user_device(table, table["name"])


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
    replicas: options.Replicas = None,
    strategy: options.Strategy = None,
    no_overlap: options.NoOverlap = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Keep the record in this folder.")
    ] = None,
    json: options.Json = False,
) -> int:
    """Measure one network on this machine."""
    from steptime import store
    from steptime.build import build_step
    from steptime.sweep.cells import Cell
    from steptime.sweep.run import How, Workers, measure_cell

    _check_backend(backend)
    workload = options.workload_of(model, batch, dtype, phase, optimizer)
    told = _options(device, threads, compile_, tf32)
    workload, told = options.over_replicas(workload, told, replicas, strategy, no_overlap)
    build_step(workload)  # sizes that fit nowhere are refused before a worker starts
    cell = Cell(workload, backend, told)
    how = How(budget_s=budget, time_limit_s=limit, parts=parts, runs=runs, energy=energy)
    workers = Workers()
    try:
        if out is None or not workers.leads:
            record = measure_cell(workers, cell, how)
        else:
            with store.open_writer(out) as writer:
                record = measure_cell(workers, cell, how)
                writer.append(record)
    finally:
        workers.close()
    if workers.leads:
        _tell_run(record, json)
    elif record.status != "ok":
        output.note(f"{workers.name}: {record.status}: {record.note}")
    return 0 if record.status == "ok" else UNSUCCESSFUL


def _measured(record: Record) -> dict[str, Any]:
    from steptime.analysis.measurement import measurement
    from steptime.build import build_step
    from steptime.count import count

    flop = count(build_step(record.workload)).flop
    return measurement(record, flop, _peaks(record))


def _peaks(record: Record) -> dict[str, float | None]:
    """Give the peak of the record's dtype as probed here and as the datasheet says, if known."""
    from steptime import catalog
    from steptime.core.dtypes import precision

    wanted = precision(record.workload.dtype).compute
    if record.method.options.get("tf32") and wanted == "float32":
        wanted = "tf32"
    peaks: dict[str, float | None] = {"probed": None, "datasheet": None}
    for device in catalog.devices():
        if device.name == record.platform:
            peaks["probed" if device.measured else "datasheet"] = device.peak_flop_per_s.get(wanted)
    return peaks


def _tell_run(record: Record, json: bool) -> None:
    document = _measured(record)
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


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment file.")],
    out: Out,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", min=1, max=MOST_VISITS, help="Visit all cells so often, interleaved."
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option("--runs", min=1, max=MOST_VISITS, help="Fresh processes for each cell."),
    ] = None,
    retry: Annotated[
        str, typer.Option("--retry", metavar="STATUS,...", help="Try these again, too.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Measure all cells again.")] = False,
    try_all: Annotated[
        bool, typer.Option("--try-all", help="Try what is predicted not to fit in memory.")
    ] = False,
    json: options.Json = False,
) -> int:
    """Measure and predict what a folder lacks of an experiment file."""
    from steptime.core.errors import unknown
    from steptime.core.record import STATUSES
    from steptime.sweep.experiment import read_experiment

    statuses = [word.strip() for word in retry.split(",") if word.strip()]
    for word in statuses:
        if word not in STATUSES:
            raise unknown("status", word, STATUSES, "--retry")
    experiment = read_experiment(file)
    document = run_experiment(
        experiment, str(file), out, rounds, runs, tuple(statuses), force, try_all
    )
    if json:
        output.emit_json(document)
    else:
        _show_sweep(document)
    return UNSUCCESSFUL if document["unsuccessful"] else 0


def run_experiment(
    experiment: Any,
    where: str,
    out: Path,
    rounds: int | None = None,
    runs: int | None = None,
    retry: tuple[str, ...] = (),
    force: bool = False,
    try_all: bool = False,
) -> dict[str, Any]:
    """Run an experiment into a folder with progress on stderr, and give what happened."""
    from steptime.cli.progress import reporter
    from steptime.sweep.cells import cells_of
    from steptime.sweep.run import How, summary
    from steptime.sweep.run import sweep as run_sweep

    cells, must_fit = cells_of(experiment, where)
    how = How(
        experiment.budget_s,
        experiment.time_limit_s,
        experiment.parts,
        runs or experiment.runs,
        try_all or experiment.try_all,
    )
    with reporter() as report:
        outcome = run_sweep(
            cells,
            out,
            how,
            rounds=rounds or experiment.rounds,
            predict_on=experiment.predict,
            network=experiment.network,
            by_op=experiment.by_op,
            must_fit=must_fit,
            retry=retry,
            force=force,
            warn=output.note,
            report=report,
        )
    return {"name": experiment.name, "out": str(out), **summary(outcome)}


def _show_sweep(document: dict[str, Any]) -> None:
    counts = ", ".join(f"{n} {status}" for status, n in document["status"].items()) or "none"
    output.note(
        f"{document['name']}: {document['cells']} cells, {document['done_before']} done before, "
        f"now {counts}; records in {document['out']}"
    )
    for cell in document["unsuccessful"]:
        output.note(
            f"  {cell['status']} ({cell['cause']}): {cell['model']}, batch {cell['batch']}: "
            f"{cell['note']}"
        )


def quickstart(
    out: Out = Path("results"),
    backend: Backend = "torch",
    budget: Annotated[
        float | None,
        typer.Option("--budget", min=0.001, max=86_400, metavar="S", help="Seconds a network."),
    ] = None,
    json: options.Json = False,
) -> int:
    """Probe, measure and predict 24 small networks, write a report."""
    from importlib.resources import files
    from time import monotonic

    from steptime import store
    from steptime.report import write_report
    from steptime.sweep.experiment import read_experiment

    _check_backend(backend)
    store.load(out, output.note, required=False)  # a folder that is none is refused before probing
    began = monotonic()
    experiment = read_experiment(Path(str(files("steptime") / "data/experiments/quickstart.toml")))
    changes: dict[str, Any] = {"backend": [backend]}
    if budget is not None:
        changes["budget_s"] = budget
    output.note("probing this machine (about 20 s) ...")
    table, _ = take_probe(backend, _options("cpu", None, False, False), 20.0)
    output.note(f"measuring into {out} ...")
    document = run_experiment(experiment.model_copy(update=changes), "quickstart", out)
    page = out / "report.html"
    write_report(out, page)
    document |= {"device": table["name"], "report": str(page), "seconds": monotonic() - began}
    if json:
        output.emit_json(document)
    else:
        _show_sweep(document)
        output.note(f"report: {page} (after {duration(document['seconds'])})")
        output.note(f"next:   steptime compare {out}")
        output.note(f"        steptime report {out}")
    return UNSUCCESSFUL if document["unsuccessful"] else 0
