"""Commands that look at this machine, and measure experiments on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.cli import options, output
from steptime.core.errors import InputError
from steptime.core.ranges import MOST_VISITS
from steptime.core.units import duration, seconds, si
from steptime.measure.contract import Options

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


def options_of(device: str, threads: str | None, compile_: bool, tf32: bool) -> Options:
    """Give where and how to run, as the options of the command line say it."""
    from steptime.models.family import whole_number

    count = None if threads is None else whole_number(threads, "--threads")
    return Options(device=device, threads=count, compile=compile_, tf32=tf32)


def check_backend(backend: str) -> None:
    """Raise `InputError` for an unknown backend."""
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
    json: options.Json = False,
) -> None:
    """Measure the roofs of this machine, as device 'local'."""
    check_backend(backend)
    table, path = take_probe(backend, options_of(device, threads, False, False), budget)
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


def take_probe(backend: str, chosen: Options, budget: float) -> tuple[dict[str, Any], Path]:
    """Probe this machine in a worker, write the device file, and give both."""
    from steptime import catalog
    from steptime.launch.local import Worker, WorkerDiedError
    from steptime.measure.probe import device_table

    with Worker(backend, chosen) as worker:
        arguments = {"device": chosen.device, "budget_s": budget}
        try:
            answer = worker.ask({"do": "probe", "arguments": arguments}, 60 + 4 * budget)
        except WorkerDiedError as died:
            raise InputError(f"probe: {died}") from None
    table = device_table(answer)
    return table, catalog.write_user_device(table, table["name"])


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
    from steptime.measure.data.dataset import find
    from steptime.measure.data.staging import place
    from steptime.sweep.cells import cells_of
    from steptime.sweep.run import How, summary
    from steptime.sweep.run import sweep as run_sweep

    if "dataset" in experiment.input:  # what is not there is refused before anything runs
        find(experiment.data)
        if "local" in experiment.staging:
            place(experiment.stage_to)
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

    check_backend(backend)
    store.load(out, output.note, required=False)  # a folder that is none is refused before probing
    began = monotonic()
    experiment = read_experiment(Path(str(files("steptime") / "data/experiments/quickstart.toml")))
    changes: dict[str, Any] = {"backend": [backend]}
    if budget is not None:
        changes["budget_s"] = budget
    output.note("probing this machine (about 20 s) ...")
    table, _ = take_probe(backend, options_of("cpu", None, False, False), 20.0)
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
