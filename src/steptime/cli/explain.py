"""The command `explain`: from Paleo's number to the analytic one, correction by correction."""

from pathlib import Path
from typing import Any

from steptime.cli import options
from steptime.cli.command import command, note, unmodelled
from steptime.cli.options import optional
from steptime.core.table import Answer, Table, columns, picked
from steptime.core.units import seconds

OF_STEP = "correction meaning step_s change_s forward_s backward_s update_s"


@command(tabular=True)
def explain(
    model: options.Model,
    device: options.Device,
    batch: options.Batch = None,
    phase: options.Phase = "train",
    dtype: options.Dtype = "float32",
    optimizer: options.Optimizer = "sgd",
    option_: options.Settings = None,
    allow_unknown: options.AllowUnknown = False,
    out: Path | None = optional("--out -o FILE", "Draw it: .png, .svg, .pdf or .html."),
) -> Answer:
    """Show how corrections lead from Paleo's number to ours."""
    from steptime import catalog
    from steptime.build import build_step
    from steptime.paleo.explain import explain as stages
    from steptime.plots.files import check_path, save

    check_path(out)
    workload = options.workload_of(model, batch, dtype, phase, optimizer, allow_unknown)
    found = catalog.device(options.one_device(device))
    given = options.pairs(option_, "option")
    graph = build_step(workload)
    steps = stages(workload, graph, found, given)
    document: dict[str, Any] = {
        "model": workload.label,
        "device": found.name,
        "batch": workload.batch_per_replica,
        **picked(workload, "phase dtype optimizer"),
        "options": given,
        "paleo_s": steps[0].step_s,
        "analytic_s": steps[-1].step_s,
        "steps": [picked(step, OF_STEP) for step in steps],
        "unmodelled": list(graph.unmodelled),
    }
    title = (
        f"{workload.label}, batch {workload.batch_per_replica}, {phase}, {dtype} on {found.name}"
    )
    if out is not None:
        from steptime.plots.waterfall import chart

        caption = [
            "From Paleo as published to the analytic model; each correction on top of those above.",
            f"Device data: {found.source}"[:110],
        ]
        changes = [(step.correction, step.step_s) for step in steps]
        save(chart(changes, "analytic", title, caption), out)
        note(f"waterfall: {out}")
    rows = [{**row, "change": _signed(row["change_s"]) if i else None}
            for i, row in enumerate(document["steps"])]  # fmt: skip
    table = Table(
        columns("correction", "step_s=step", "change", "meaning=what is right"),
        rows,
        f"{title}: from paleo to analytic",
    )
    return Answer(document, [table], unmodelled(graph.unmodelled))


def _signed(change_s: float) -> str:
    return ("+" if change_s >= 0 else "-") + seconds(abs(change_s))
