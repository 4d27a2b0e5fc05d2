"""The command `split`: where to cut a network between two devices."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from steptime.cli import options, output
from steptime.core.units import seconds, si, size
from steptime.predict import DEFAULT

SHOWN = 5  # best cuts beside the two ends


def split(
    model: options.Model,
    device: Annotated[str, typer.Option("--device", help="Runs the first part, such as a phone.")],
    server: Annotated[str, typer.Option("--server", help="Runs the rest.")],
    network: Annotated[str, typer.Option("--network", metavar="LINK", help="Between the two.")],
    batch: options.Batch = "1",
    dtype: options.Dtype = "float32",
    method: options.Method = DEFAULT,
    option: options.Settings = None,
    allow_unknown: options.AllowUnknown = False,
    by_op: Annotated[bool, typer.Option("--by-op", help="Show every cut.")] = False,
    json: options.Json = False,
) -> None:
    """Find the best cut of a network between a device and a server.

    One inference: the ops before the cut, the tensors over the link, the ops after it.
    """
    from steptime import catalog
    from steptime.predict.split import cuts
    from steptime.predict.step_model import StepModel

    workload = options.workload_of(model, batch, dtype, "infer", "sgd", allow_unknown)
    devices = (catalog.device(device), catalog.device(server))
    link = catalog.link(network)
    given = options.pairs(option, "option")
    here = StepModel(workload, devices[0], method=method, options=given)
    found = cuts(here, here.on(devices[1]), link)
    best = min(range(len(found)), key=lambda i: found[i].total_s)
    rows: list[dict[str, Any]] = [{**asdict(cut), "total_s": cut.total_s} for cut in found]
    note = "" if link.latency_s is not None else f"{link.name}: its latency is unknown, left out"
    if json:
        output.emit_json(
            {
                "model": workload.label,
                "device": devices[0].name,
                "server": devices[1].name,
                "network": link.name,
                "method": method,
                "batch": workload.batch_per_replica,
                "dtype": dtype,
                "best": rows[best],
                "all_on_server": rows[0],
                "all_on_device": rows[-1],
                "cuts": rows,
                "note": note,
                "unmodelled": list(here.graph().unmodelled),
            }
        )
        return
    ranked = sorted(range(len(rows)), key=lambda i: rows[i]["total_s"])
    shown = range(len(rows)) if by_op else sorted({0, len(rows) - 1, *ranked[:SHOWN]})
    output.table(
        f"{workload.label}, batch {workload.batch_per_replica}, {dtype}: "
        f"{devices[0].name}, then {devices[1].name} over {link.name} ({method})",
        ("cut after", "FLOP so far", "sent", "device", "link", "server", "in all", ""),
        [
            (
                _named(i, rows),
                si(rows[i]["flop"], "FLOP"),
                size(rows[i]["crossing_bytes"]),
                *(seconds(rows[i][f"{part}_s"]) for part in ("first", "transfer", "second")),
                seconds(rows[i]["total_s"]),
                "best" if i == best else "",
            )
            for i in shown
        ],
    )
    if note:
        output.note(f"note: {note}")
    output.unmodelled(here.graph().unmodelled)


def _named(i: int, rows: list[dict[str, Any]]) -> str:
    if i == 0:
        return "the input (all on the server)"
    name: str = rows[i]["after"]
    return f"{name} (all on the device)" if i == len(rows) - 1 else name
