"""A sweep: what a folder lacks of an experiment file, here or by a scheduler."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from steptime.core import registry
from steptime.core.errors import InputError, one_of, shorten
from steptime.core.progress import note
from steptime.core.question import Text, argument, flag, option, optional, question, whole
from steptime.core.table import UNSUCCESSFUL, Answer, Column, Table, columns, picked
from steptime.core.units import duration, size
from steptime.core.values import MAX_VISITS, parse_count
from steptime.grids.folder import Predicted, predict_space
from steptime.grids.grid import Place, place_of
from steptime.hardware import catalog
from steptime.prediction import DEFAULT
from steptime.prediction.method import stack_option
from steptime.questions import options
from steptime.questions.grid_table import written
from steptime.records.record import STATUSES
from steptime.records.row import grouped
from steptime.sweeps.cells import Cell, cells_of
from steptime.sweeps.cluster import submit
from steptime.sweeps.cluster.estimate import preview
from steptime.sweeps.cluster.jobs import MOST_SHOWN, differs
from steptime.sweeps.cluster.resources import on_each_node
from steptime.sweeps.cluster.scheduler import ROOM, SCHEDULERS, scheduler_of
from steptime.sweeps.experiment import Experiment, read_experiment
from steptime.sweeps.progress import reporter
from steptime.sweeps.run import Means, SweepRequest
from steptime.sweeps.run import sweep as run_sweep

HERE = "local"
Found = TypeVar("Found")


@question(long="reading the experiment")
def sweep(
    file: Annotated[Path, argument("FILE.toml", "The experiment file.")],
    out: options.Out,
    rounds: int | None = whole("N", "Visit all cells so often, interleaved.", at_most=MAX_VISITS),
    runs: int | None = whole("N", "Fresh processes for each cell.", at_most=MAX_VISITS),
    retry: str = option("STATUS,...", "Try these again, too.", ""),
    force: bool = flag("Measure all cells again."),
    try_all: bool = flag("Try what is predicted not to fit in memory."),
    launcher: str = option("NAME", "local or slurm.", HERE),
    dry_run: bool = flag("Show what Slurm would get, and what it would take."),
    shard: Text = optional("I/N", "Only the I-th of N parts, for N hosts."),
) -> Answer:
    """Measure and predict the missing cells of an experiment file.

    Here, or on a cluster by Slurm. A cell that has a final record in the folder is not run again.
    """
    statuses = [word.strip() for word in retry.split(",") if word.strip()]
    for word in statuses:
        one_of("status", word, STATUSES, "--retry")
    if launcher not in {HERE, *SCHEDULERS}:
        known = [HERE, *registry.names(SCHEDULERS, ROOM)]
        one_of("launcher", launcher, known)
    if dry_run and launcher == HERE:
        raise InputError("--dry-run goes with --launcher slurm")
    experiment = read_experiment(file)
    if not experiment.measure:
        asked: dict[str, Any] = {"--rounds": rounds, "--runs": runs, "--retry": retry or None}
        asked |= {"--force": force, "--launcher": launcher != HERE, "--shard": shard}
        options.refuse(asked, "{} is for measuring, and the file says measure = false")
        return _predicted_only(experiment, str(file), out)
    told = {"rounds": rounds, "runs": runs, "try_all": try_all}
    experiment = experiment.model_copy(update={name: one for name, one in told.items() if one})
    request = request_of(experiment, str(file), out, tuple(statuses), force, shard, launcher)
    if launcher == HERE:
        return run_here(request)
    return _preview(request, launcher) if dry_run else send(request, launcher)


def _predicted_only(experiment: Experiment, where: str, out: Path) -> Answer:
    if experiment.by_op or max(experiment.replicas) > 1:
        raise InputError(f"{where}: measure = false takes neither by_op nor several replicas")
    cells, text, must_fit = cells_of(experiment, where)
    places = _places(experiment, where)
    found = Predicted()
    asked = (cell for cell in cells if cell.is_run)
    for stack, held in grouped(asked, lambda cell: cell.stack).items():
        workloads, told = [cell.workload for cell in held], stack_option(stack)
        found += predict_space(out, workloads, places, note, options=told, must_fit=must_fit)
    answer = written(out, DEFAULT, found)
    return replace(answer, before=[f"{experiment.name}: {text}"])


def _places(experiment: Experiment, where: str) -> list[Place]:
    """Return where an experiment file predicts."""
    return [_named(place_of, name, f"{where}: predict") for name in experiment.predict]


def _named(of: Callable[[str], Found], name: str, place: str) -> Found:
    """Return what a file calls so; raises `InputError` with its place there for an unknown name."""
    try:
        return of(name)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def request_of(
    experiment: Experiment,
    where: str,
    out: Path,
    retry: tuple[str, ...] = (),
    force: bool = False,
    shard: str | None = None,
    launcher: str = HERE,
) -> SweepRequest:
    """Return what an experiment and the command line ask for together."""
    cells, text, must_fit = cells_of(experiment, where, on_cluster=launcher != HERE)
    number, of = _shard(shard, len(cells)) if shard else (1, 1)
    part: Collection[Cell] = cells[number - 1 :: of]
    remarks: list[str] = []
    if launcher == HERE:
        _check_input(experiment)
    else:
        part, remarks = on_each_node(part, scheduler_of(launcher))
    return SweepRequest(
        cells=part,
        out=out,
        how=Means(**picked(experiment, "budget_s time_limit_s parts runs try_all")),
        predict_on=_places(experiment, where),
        link=_named(catalog.link, experiment.link, f"{where}: link") if experiment.link else None,
        **picked(experiment, "name by_op rounds"),
        must_fit=must_fit,
        retry=retry,
        force=force,
        whole=shard is None,
        remarks=remarks,
        text=text,
    )


def _check_input(experiment: Experiment) -> None:
    """Refuse files of input that are not here, before anything runs; nodes may see others."""
    from steptime.measure.data.dataset import find
    from steptime.measure.data.sources import place

    if "dataset" in experiment.input:
        find(experiment.data)
        if "local" in experiment.staging:
            place(experiment.stage_to)


def _shard(text: str, cells: int) -> tuple[int, int]:
    part, slash, parts = text.partition("/")
    if not slash:
        raise InputError(f"--shard is I/N, such as 1/4, not {shorten(text)}")
    number, of = parse_count(part, "--shard"), parse_count(parts, "--shard")
    if number > of:
        raise InputError(f"--shard: there is no part {number} of {of}")
    if of > cells:
        raise InputError(f"--shard: {cells} cells make no {of} parts")
    return number, of


def run_here(request: SweepRequest) -> Answer:
    """Measure what a folder lacks on this machine, with progress on stderr."""
    with reporter() as report:
        document = run_sweep(request, warn=note, report=report)
    document = {"name": request.name, "out": str(request.out), **document}
    failed = document["unsuccessful"]
    counts = ", ".join(f"{n} {status}" for status, n in document["status"].items()) or "none"
    notes = [
        f"{_began(document)}, now {counts}; records in {document['out']}",
        *(
            f"  {cell['status']} ({cell['cause']}): {cell['model']}, batch {cell['batch']}: "
            f"{cell['note']}"
            for cell in failed
        ),
    ]
    return Answer(document, notes=notes, code=UNSUCCESSFUL if failed else 0)


def _began(document: Mapping[str, Any]) -> str:
    return f"{document['name']}: {document['cells']} cells, {document['done_before']} done before"


def send(request: SweepRequest, scheduler: str) -> Answer:
    """Send what a folder lacks to a scheduler."""
    document = submit.send(request, note, scheduler)
    sent = f"{document['submitted']} submitted now in {document['tasks']} tasks"
    notes = [
        f"{request.name}: {request.text}",
        f"{_began(document)}, {document['in_flight']} waiting or running, {sent}",
        *(f"! {remark}" for remark in document["remarks"]),
    ]
    if document["unsent"]:
        wait = "cells wait here: run the same command again later"
        notes.append(f"! {document['unsent']} {wait}")
    if document["jobs"]:
        notes.append(f"jobs:  {', '.join(document['jobs'])}")
        notes.append(f"next:  steptime sweep status {document['out']}")
    return Answer(document, notes=notes, code=UNSUCCESSFUL if document["unsent"] else 0)


ALWAYS = {"id": "cell", "model": "network", "batch": "batch", "replicas": "replicas", "gpu": "gpu",
          "staging": "staging"}  # fmt: skip
"""Columns of a preview with their headings; others only where they differ."""


def _preview(request: SweepRequest, scheduler: str) -> Answer:
    document = preview(request, note, scheduler)
    visits = [
        {key: None if value == "" else value for key, value in visit.items()}
        for visit in document["visits"]
    ]
    shown = [key for key in visits[0] if key in ALWAYS or differs(visits, key)] if visits else []
    heads = [Column(key, ALWAYS.get(key, key)) for key in shown or ALWAYS]
    cells = Table(heads, visits, "would be submitted", most=MOST_SHOWN)
    rows = [
        job
        | {"gpu": job["gpu"] or None, "longest": duration(job["longest_task_s"])}
        | {"predicted_on": job["predicted_on"] or "the budget alone"}
        for job in document["jobs"]
    ]
    jobs = Table(
        columns("gpu", "replicas", "nodes", "cells", "tasks", "longest=longest task",
                "node_hours:.3g=node-hours", "needs_bytes=memory", "?has_bytes=of",
                "node_needs_bytes=of a node", "?predicted_on=by"),
        rows, f"predicted: {document['node_hours']:.3g} node-hours",
    )  # fmt: skip
    too_large = [
        f"! will not fit: {cell['model']}, batch {cell['batch']}: needs "
        f"{size(cell['needs_bytes'])}, {cell['of']} has {size(cell['has_bytes'])}"
        for cell in document["not_fitting"]
    ]
    waiting = f"{document['in_flight']} waiting or running; nothing is submitted"
    remarks = [f"! {remark}" for remark in document["remarks"]]
    return Answer(
        document,
        [cells, jobs],
        too_large,
        [f"{request.name}: {request.text}", f"{_began(document)}, {waiting}", *remarks],
        "".join(job["script"] for job in document["jobs"]),
    )
