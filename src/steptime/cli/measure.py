"""Commands that look at this machine, and measure experiments on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.cli import options, output
from steptime.core.errors import InputError
from steptime.core.units import seconds, si
from steptime.measure.contract import Options

UNSUCCESSFUL = 3

Backend = Annotated[str, typer.Option("--backend", help="torch, or one that a package adds.")]
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
    from steptime.measure import registry

    registry.backend(backend)


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

    check_backend(backend)
    if processes is not None and not collectives:
        raise InputError("--processes needs --collectives")
    chosen = options_of(device, threads, False, False)
    if collectives:
        found = probe_collectives(backend, chosen, processes, budget)
        if found:
            show_link(*found, json)
        return
    table, path = take_probe(backend, chosen, budget)
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
    from steptime.measure import ranks
    from steptime.measure.device_file import device_table

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
