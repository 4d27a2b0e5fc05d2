"""The command `predict`: one step on one device, or a grid of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from steptime.cli import grid, options, output
from steptime.core.errors import InputError
from steptime.core.units import seconds, si, size
from steptime.predict import DEFAULT

if TYPE_CHECKING:
    from steptime.predict.power import Run

PARTS = ("forward", "backward", "update")


def predict(
    model: options.Models,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="A device (steptime list devices), FILE.toml or local; with --grid several.",
        ),
    ],
    batch: options.Batches = None,
    phase: options.Phase = "train",
    dtype: options.Dtype = "float32",
    optimizer: options.Optimizer = "sgd",
    method: options.Method = DEFAULT,
    option: options.Settings = None,
    allow_unknown: options.AllowUnknown = False,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="N", help="Steps of a run, for its energy.")
    ] = None,
    kwh_price: Annotated[
        float | None,
        typer.Option("--kwh-price", min=0, max=1e6, metavar="P", help="Price of a kWh."),
    ] = None,
    kwh_co2: Annotated[
        float | None,
        typer.Option("--kwh-co2", min=0, max=1e6, metavar="G", help="Grams of CO2 of a kWh."),
    ] = None,
    by_op: options.ByOp = False,
    all_cells: Annotated[
        bool, typer.Option("--grid", help="Predict every model, device, batch and worker count.")
    ] = False,
    workers: Annotated[
        str | None,
        typer.Option("--workers", metavar="N,...", help="With --grid: workers, weak scaling."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", metavar="LINK", help="With --grid: the link between workers."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="With --grid: a .csv or .jsonl file."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Predict how long one step takes on a device."""
    given = options.pairs(option, "option")
    run = _run(steps, kwh_price, kwh_co2)
    if all_cells:
        how = grid.How(phase, dtype, optimizer, method, given, allow_unknown)
        if by_op:
            raise InputError("--by-op shows the ops of one prediction; leave out --grid")
        if steps is not None:
            raise InputError("--steps gives the energy of one prediction; leave out --grid")
        axes = grid.axes(model, device, batch, workers, network, how)
        grid.show(axes, out, json)
        return
    for value, name in ((workers, "--workers"), (network, "--network"), (out, "--out")):
        if value is not None:
            raise InputError(f"{name} needs --grid (for one network see also steptime scale)")
    workload = options.workload_of(model, batch, dtype, phase, optimizer, allow_unknown)
    document, ops, source = _predicted(workload, device, method, given, run)
    if json:
        output.emit_json({**document, "ops": ops})
        return
    _show(document, source)
    if by_op:
        _show_ops(ops)


def _run(steps: str | None, price: float | None, co2_g: float | None) -> Run | None:
    from steptime.models.family import whole_number
    from steptime.predict.power import Run

    if steps is not None:
        return Run(whole_number(steps, "--steps"), price, co2_g)
    for name, value in (("--kwh-price", price), ("--kwh-co2", co2_g)):
        if value is not None:
            raise InputError(f"{name} needs --steps N, the steps of a run")
    return None


def _predicted(
    workload: Any, device: str, method: str, given: dict[str, str], run: Run | None
) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    from steptime import catalog
    from steptime.predict.power import run_energy, step_energy
    from steptime.predict.records import record_method
    from steptime.predict.step_model import StepModel

    found = catalog.device(device)
    asked = StepModel(workload, found, method=method, options=given)
    made = asked.predict()
    times = made.times
    energy = step_energy(times, found)
    document = {
        "model": workload.label,
        "device": found.name,
        "method": method,
        "options": dict(record_method(asked).options),
        "batch": workload.batch_per_replica,
        "phase": workload.phase,
        "dtype": workload.dtype,
        "optimizer": workload.optimizer,
        "step_s": times.step_s,
        **{f"{part}_s": getattr(times, f"{part}_s") for part in PARTS},
        "host_s": times.host_s,
        "parameters": made.lowered.parameters,
        "flop": round(made.lowered.flop),
        "traffic_bytes": round(made.lowered.traffic_bytes),
        "peak_memory_bytes": made.peak_memory_bytes,
        "utilisation": energy.utilisation,
        "energy_j": energy.energy_j,
        "energy_at_most_j": energy.at_most_j,
        "energy_note": energy.note,
        "run": None
        if run is None
        else {
            "steps": run.steps,
            "run_s": run.steps * times.step_s,
            **{
                name: None if joules is None else asdict(run_energy(run, joules))
                for name, joules in (("energy", energy.energy_j), ("at_most", energy.at_most_j))
            },
        },
        "status": made.status,
        "note": "; ".join(made.remarks),
        "unmodelled": list(asked.graph().unmodelled),
    }
    ops = [
        {
            "name": row.row.name,
            "kind": row.row.kind,
            "forward_s": row.forward.value,
            "backward_s": row.backward.value,
            "update_s": row.update.value,
            "forward_compute_s": row.forward.compute_s,
            "forward_memory_s": row.forward.memory_s,
            "backward_compute_s": row.backward.compute_s,
            "backward_memory_s": row.backward.memory_s,
            "parameters": row.row.parameters,
            "flop": round(row.flop),
        }
        for row in times.rows
    ]
    return document, ops, found.source


def _show(document: dict[str, Any], source: str) -> None:
    step = document["step_s"]
    waits = document["host_s"] is not None and document["host_s"] >= 0.99 * step
    rows: list[tuple[str, object]] = [
        ("step", seconds(step) + (", as long as the host takes to issue it" if waits else "")),
        ("  forward", seconds(document["forward_s"])),
        ("  backward", seconds(document["backward_s"])),
        ("  update", seconds(document["update_s"])),
        ("speed", f"{document['batch'] / step:.4g} examples/s" if step else None),
        ("achieved", si(document["flop"] / step, "FLOP/s") if step else None),
        ("peak memory", size(document["peak_memory_bytes"])),
        ("energy", _energy(document)),
        *_run_rows(document["run"]),
        ("device data", source),
    ]
    title = (
        f"{document['model']}, batch {document['batch']}, {document['phase']}, "
        f"{document['dtype']} on {document['device']} ({document['method']})"
    )
    if document["status"] != "ok":
        title += " - DOES NOT FIT"
    output.table(title, ("", "one step"), rows)
    if document["note"]:
        output.note(f"note: {document['note']}")


def _energy(document: dict[str, Any]) -> str:
    """Give the energy of a step as people read it, with what is not known of it."""
    energy, most, note = (document[k] for k in ("energy_j", "energy_at_most_j", "energy_note"))
    shown = "unknown"
    if energy is not None:
        shown = si(energy, "J")
    elif most is not None:
        shown = f"at most {si(most, 'J')}"
    return f"{shown} ({note})" if note else shown


def _run_rows(run: dict[str, Any] | None) -> list[tuple[str, object]]:
    """Give the rows of a run: its time, and its energy or the most that it can be."""
    if run is None:
        return []
    rows: list[tuple[str, object]] = [(f"{run['steps']:,} steps", f"{run['run_s'] / 3600:.4g} h")]
    found = run["energy"] or run["at_most"]
    if found is None:
        return [*rows, ("  energy", "unknown")]
    most = "" if run["energy"] else "at most "
    rows.append(("  energy", f"{most}{found['kwh']:.4g} kWh"))
    if found["cost"] is not None:
        rows.append(("  cost of it", f"{most}{found['cost']:,.2f}"))
    if found["co2_g"] is not None:
        rows.append(("  CO2", f"{most}{si(found['co2_g'], 'g')}"))
    return rows


def _show_ops(ops: list[dict[str, Any]]) -> None:
    output.table(
        "",
        ("op", "kind", *PARTS, "parameters", "forward FLOP"),
        [
            (
                op["name"],
                op["kind"],
                *(seconds(op[f"{part}_s"]) for part in PARTS),
                f"{op['parameters']:,}",
                si(op["flop"], "FLOP"),
            )
            for op in ops
        ],
    )
