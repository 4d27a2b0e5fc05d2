"""The commands that measure many networks: an experiment file's, and those of the quickstart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli import cluster, options, output
from steptime.cli.measure import (
    UNSUCCESSFUL,
    Backend,
    Out,
    check_backend,
    options_of,
    take_probe,
)
from steptime.core.errors import InputError, shorten
from steptime.core.ranges import MOST_VISITS
from steptime.core.units import duration

if TYPE_CHECKING:
    from steptime.sweep.experiment import Experiment
    from steptime.sweep.run import Request


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
    launcher: Annotated[str, typer.Option("--launcher", help="local or slurm.")] = "local",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what Slurm would get, and what it would take.")
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N", help="Only the I-th of N parts, for N hosts."),
    ] = None,
    json: options.Json = False,
) -> int:
    """Measure and predict what a folder lacks of an experiment file, here or by Slurm."""
    from steptime.core.errors import unknown
    from steptime.core.record import STATUSES
    from steptime.sweep.experiment import read_experiment

    statuses = [word.strip() for word in retry.split(",") if word.strip()]
    for word in statuses:
        if word not in STATUSES:
            raise unknown("status", word, STATUSES, "--retry")
    if launcher not in LAUNCHERS:
        raise unknown("launcher", launcher, LAUNCHERS)
    if dry_run and launcher == "local":
        raise InputError("--dry-run goes with --launcher slurm")
    experiment = read_experiment(file)
    request = request_of(
        experiment, str(file), out, rounds, runs, tuple(statuses), force, try_all, shard, launcher
    )
    if dry_run:
        from steptime.cluster.estimate import preview

        document = preview(request, output.note)
        show: Callable[[dict[str, Any]], None] = cluster.show_preview
    else:
        document, show = LAUNCHERS[launcher](request), SHOWS[launcher]
    if json:
        output.emit_json(document)
    else:
        show(document)
    return UNSUCCESSFUL if document.get("unsuccessful") or document.get("unsent") else 0


def request_of(
    experiment: Experiment,
    where: str,
    out: Path,
    rounds: int | None = None,
    runs: int | None = None,
    retry: tuple[str, ...] = (),
    force: bool = False,
    try_all: bool = False,
    shard: str | None = None,
    launcher: str = "local",
) -> Request:
    """Give what an experiment and the command line ask for together."""
    from steptime.sweep.cells import cells_of
    from steptime.sweep.run import How, Request

    cells, must_fit = cells_of(experiment, where, on_cluster=launcher != "local")
    if launcher == "local":
        _check_input(experiment)
    how = How(
        experiment.budget_s,
        experiment.time_limit_s,
        experiment.parts,
        runs or experiment.runs,
        try_all or experiment.try_all,
    )
    return Request(
        experiment.name,
        cells.part(*_shard(shard, len(cells))) if shard else cells,
        out,
        how,
        rounds or experiment.rounds,
        tuple(experiment.predict),
        experiment.network,
        experiment.by_op,
        must_fit,
        retry,
        force,
    )


def _check_input(experiment: Experiment) -> None:
    """Refuse files of input that are not here, before anything runs; nodes may see others."""
    from steptime.measure.data.dataset import find
    from steptime.measure.data.staging import place

    if "dataset" in experiment.input:
        find(experiment.data)
        if "local" in experiment.staging:
            place(experiment.stage_to)


def _shard(text: str, cells: int) -> tuple[int, int]:
    from steptime.models.family import whole_number

    part, slash, parts = text.partition("/")
    if not slash:
        raise InputError(f"--shard is I/N, such as 1/4, not {shorten(text)}")
    number, of = whole_number(part, "--shard"), whole_number(parts, "--shard")
    if number > of:
        raise InputError(f"--shard: there is no part {number} of {of}")
    if of > cells:
        raise InputError(f"--shard: {cells} cells make no {of} parts")
    return number, of


def run_here(request: Request) -> dict[str, Any]:
    """Measure what a folder lacks on this machine, with progress on stderr."""
    from steptime.cli.progress import reporter
    from steptime.sweep.run import summary
    from steptime.sweep.run import sweep as run_sweep

    with reporter() as report:
        outcome = run_sweep(request, warn=output.note, report=report)
    return {"name": request.name, "out": str(request.out), **summary(outcome)}


def send(request: Request) -> dict[str, Any]:
    """Send what a folder lacks to Slurm."""
    from steptime.cluster.submit import send as send_to_slurm

    return send_to_slurm(request, output.note)


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


LAUNCHERS: dict[str, Callable[[Request], dict[str, Any]]] = {"local": run_here, "slurm": send}
SHOWS = {"local": _show_sweep, "slurm": cluster.show_sent}


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
    changed = experiment.model_copy(update=changes)
    document = run_here(request_of(changed, "quickstart", out))
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
