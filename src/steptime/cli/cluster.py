"""Commands for sweeps by a scheduler: submit, dry run, status, collect, cancel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.cli import options, output
from steptime.core.errors import InputError
from steptime.core.units import duration, size

MOST_SHOWN = 20  # rows of a table
ALWAYS = ("batch", "replicas", "gpu", "staging")  # columns of a preview; others if they differ
MOST_NOTED = 100  # characters of a note in it
Where = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a submitted sweep.")]


def status(folder: Where, json: options.Json = False) -> None:
    """Show what is queued, running, done and failed of a submitted sweep, and why."""
    from steptime.cluster import status as cluster

    _submitted(folder)
    document = cluster.status(folder, output.note)
    if json:
        output.emit_json(document)
        return
    counts = ", ".join(f"{document[word]} {word}" for word in cluster.WORDS if document[word])
    output.note(f"{folder}: {document['cells']} cells: {counts or 'none'}")
    if document["older"]:
        older = f"{document['older']} more are of the experiment as it was before"
        output.note(f"! {older}; they are not counted")
    if document["jobs"]:
        keys = ("job", "state", "text", "cells_left")
        rows = [tuple(job[key] for key in keys) for job in document["jobs"][:MOST_SHOWN]]
        output.table("", ("job", "state", "why or where", "cells left"), rows)
        _more(len(document["jobs"]), "tasks")
    if document["unsuccessful"]:
        rows = [
            (row["status"], row["cause"], row["gpu"] or None, row["staging"], row["model"],
             row["batch"], _short(row["note"]), row["again"])
            for row in document["unsuccessful"][:MOST_SHOWN]
        ]  # fmt: skip
        names = ("status", "cause", "gpu", "staging", "model", "batch", "note", "tried again by")
        output.table("", names, rows)
        _more(len(document["unsuccessful"]), "cells")


def _short(text: str) -> str:
    return text if len(text) <= MOST_NOTED else f"{text[:MOST_NOTED]}..."


def _more(found: int, what: str) -> None:
    if found > MOST_SHOWN:
        output.note(f"... and {found - MOST_SHOWN} {what} more; --json has all")


def collect(folder: Where, json: options.Json = False) -> None:
    """Write a record of every cell whose job is over without one."""
    from steptime import store
    from steptime.cluster import status as cluster

    _submitted(folder)
    with store.exclusive(folder):
        written = cluster.collect(folder, output.note)
    causes: dict[str, int] = {}
    for record in written:
        causes[record.cause] = causes.get(record.cause, 0) + 1
    if json:
        output.emit_json({"out": str(folder), "written": len(written), "causes": causes})
        return
    why = ", ".join(f"{n} {cause}" for cause, n in causes.items())
    output.note(f"{folder}: {len(written)} cells lost by their jobs" + (f": {why}" if why else ""))


def cancel(folder: Where, json: options.Json = False) -> None:
    """Cancel the jobs of a submitted sweep that wait or run."""
    from steptime.cluster import status as cluster

    _submitted(folder)
    jobs = cluster.cancel(folder)
    if json:
        output.emit_json({"out": str(folder), "cancelled": jobs})
    else:
        what = f"cancelled {', '.join(jobs)}" if jobs else "no job waits or runs"
        output.note(f"{folder}: {what}")


def _submitted(folder: Path) -> None:
    from steptime.cluster import submission as manifest

    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    if not manifest.folders(folder):
        raise InputError(f"{folder}: nothing was submitted from here (sweep --launcher slurm)")


def show_sent(document: dict[str, Any]) -> None:
    """Print what was sent."""
    output.note(
        f"{document['name']}: {document['cells']} cells, {document['done_before']} done before, "
        f"{document['in_flight']} waiting or running, {document['submitted']} submitted now "
        f"in {document['tasks']} tasks"
    )
    _remark(document)
    if document["unsent"]:
        output.note(f"! {document['unsent']} cells wait here: run the same command again later")
    if document["jobs"]:
        output.note(f"jobs:  {', '.join(document['jobs'])}")
        output.note(f"next:  steptime status {document['out']}")


def _differs(rows: list[dict[str, Any]], name: str) -> bool:
    return len({str(row[name]) for row in rows}) > 1


def _plain(value: object) -> str | int | None:
    """Return a value as a table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, int) else str(value or "") or None


def _remark(document: dict[str, Any]) -> None:
    for remark in document["remarks"]:
        output.note(f"! {remark}")


def show_preview(document: dict[str, Any]) -> None:
    """Print what would be sent: the first cells, the jobs, the scripts."""
    output.note(
        f"{document['name']}: {document['cells']} cells, {document['done_before']} done before, "
        f"{document['in_flight']} waiting or running; nothing is submitted"
    )
    _remark(document)
    visits = document["visits"]
    headings = {"id": "cell", "model": "network", **{name: name for name in ALWAYS}}
    shown = [n for n in (visits[0] if visits else headings) if n in headings or _differs(visits, n)]
    output.table(
        "would be submitted",
        [headings.get(name, name) for name in shown],
        [tuple(_plain(v[name]) for name in shown) for v in visits[:MOST_SHOWN]],
    )
    _more(len(visits), "cells")
    output.table(
        f"predicted: {document['node_hours']:.3g} node-hours",
        (
            "gpu",
            "replicas",
            "nodes",
            "cells",
            "tasks",
            "longest task",
            "node-hours",
            "memory",
            "by",
        ),
        [
            (
                job["gpu"] or None,
                job["replicas"],
                job["nodes"],
                job["cells"],
                job["tasks"],
                duration(job["longest_task_s"]),
                f"{job['node_hours']:.3g}",
                size(job["needs_bytes"]),
                None if job["has_bytes"] is None else size(job["has_bytes"]),
                job["predicted_on"] or "the budget alone",
            )
            for job in document["jobs"]
        ],
    )
    for cell in document["not_fitting"]:
        needs, has = size(cell["needs_bytes"]), size(cell["has_bytes"])
        cell_of = f"{cell['model']}, batch {cell['batch']}"
        output.note(f"! will not fit: {cell_of}: needs {needs}, {cell['of']} has {has}")
    for job in document["jobs"]:
        output.text(job["script"])
