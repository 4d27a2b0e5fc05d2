"""The tables of the command `scale`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer

from steptime.cli import output
from steptime.core.units import seconds


def show(document: Mapping[str, Any]) -> None:
    """Print the rows of the JSON document as a table, and what to know of them under it."""
    rows = document["rows"]
    over = f" over {document['network']}" if document["network"] else ""
    weak = document["scaling"] == "weak"
    batch = f"batch {document['batch']}"
    if document["parallel"] != "model":
        batch += " a worker" if weak else " in all"
    kind = {"data": f"{document['scaling']} scaling", "model": "model parallel", "hybrid": "hybrid"}
    exchange = "" if document["parallel"] == "model" else f", {document['collective']}"
    columns = {
        name: read
        for name, read in {**_COLUMNS[document["parallel"]], **_AFTER}.items()
        if any(read(row) is not None for row in rows)
    }
    output.table(
        f"{document['model']} on {document['device']}{over}, {batch}, "
        f"{kind[document['parallel']]} ({document['method']}{exchange})",
        tuple(columns),
        [[read(row) for read in columns.values()] for row in rows],
    )
    for line in _remarks(document):
        typer.echo(line)


def _remarks(document: Mapping[str, Any]) -> list[str]:
    """Give the lines under the table."""
    lines = list(document["notes"])
    lines += [
        f"{row['workers']} worker{'' if row['workers'] == 1 else 's'}: {row['note']}"
        for row in document["rows"]
        if row["note"]
    ]
    if document["stops_paying"] is not None:
        lines.insert(
            0,
            f"stops paying at {document['stops_paying']} workers: from the row before, throughput "
            "grows less than half as much as the number of workers",
        )
    if document["training"] is not None:
        training = document["training"]
        epochs = f"{training['epochs']:g} epoch" + ("" if training["epochs"] == 1 else "s")
        line = f"training: {epochs} of {training['samples']:,} examples"
        if training["price"] is not None:
            line += f"; a device costs {training['price']:g} an hour, paid by the "
            line += training["billing"]
        lines.append(line)
    return lines


Cell = Callable[[Mapping[str, Any]], object]


def _time(name: str, part: str = "") -> Cell:
    """Give the cell of a time; `part` is the table in the row that holds it."""
    return lambda row: seconds((row[part] if part else row)[name])


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _hours(row: Mapping[str, Any]) -> str | None:
    return f"{row['train_s'] / 3600:.4g} h" if "train_s" in row else None


def _cost(row: Mapping[str, Any]) -> str | None:
    return f"{row['cost']:,.2f}" if row.get("cost") is not None else None


_BATCH: dict[str, Cell] = {
    "workers": lambda row: row["workers"],
    "global batch": lambda row: row["global_batch"],
}
_COLUMNS: dict[str, dict[str, Cell]] = {
    "data": {
        **_BATCH,
        "per worker": lambda row: row["batch_per_worker"],
        "compute": _time("compute_s"),
        "communication": _time("exposed_comm_s"),
        "hidden": lambda row: seconds(row["overlap_s"]) if row["overlap_s"] else None,
    },
    "model": {
        **_BATCH,
        "forward": lambda row: _bounds(row, "forward"),
        "backward": lambda row: _bounds(row, "backward"),
        "update": _time("update_s"),
    },
    "hybrid": {
        **_BATCH,
        "per worker": lambda row: row["batch_per_worker"],
        "data parallel": lambda row: _part_of(row, "data"),
        "model parallel": lambda row: _part_of(row, "model"),
        "communication": _time("sync_s", "data"),
    },
}
_AFTER: dict[str, Cell] = {
    "step": _time("step_s"),
    "speed-up": lambda row: f"{row['speedup']:.4g}x",
    "efficiency": lambda row: f"{100 * row['efficiency']:.3g} %",
    "samples/s": lambda row: _rate(row["samples_per_s"]),
    "an epoch": lambda row: seconds(row["epoch_s"]) if "epoch_s" in row else None,
    "training": _hours,
    "cost": _cost,
}


def _bounds(row: Mapping[str, Any], name: str) -> str:
    lower, upper = (seconds(row[f"{name}_{bound}_s"]) for bound in ("lower", "upper"))
    return lower if lower == upper else f"{lower} - {upper}"


def _part_of(row: Mapping[str, Any], part: str) -> str:
    return seconds(sum(row[part][name] for name in ("forward_s", "backward_s", "update_s")))
