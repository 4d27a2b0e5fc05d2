"""What `why --from paleo` answers: from Paleo's number to ours, correction by correction."""

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from steptime.build import build_step
from steptime.cli.picture import drawn
from steptime.core.progress import note
from steptime.core.table import Answer, Table, columns, picked
from steptime.core.units import seconds
from steptime.core.workload import Workload
from steptime.hardware.device import Device
from steptime.paleo.explain import explain as stages
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.step_model import StepModel
from steptime.questions.options import unmodelled


def explain(
    workload: Workload, found: Device, given: Mapping[str, str], out: Path | None
) -> Answer:
    """Return how corrections lead from Paleo's number to ours; drawn, too, as the file `out`."""
    graph = build_step(workload)
    steps = stages(workload, graph, found, given)
    known = {name: text for name, text in given.items() if name in cost_model(DEFAULT).options}
    asked = StepModel(workload, found, options=known, graph=graph)
    bound = StepModel(workload, found, method="analytic", options=given, graph=graph).timeline()
    least = {one.row.name: one.step_s for one in bound.rows}
    times = asked.timeline()
    ops = [{**one.told, "analytic_s": least.get(one.row.name)} for one in times.rows]
    document: dict[str, Any] = {
        "model": workload.label,
        "device": found.name,
        "batch": workload.batch_per_replica,
        **picked(workload, "phase dtype optimizer"),
        "options": given,
        "paleo_s": steps[0]["step_s"],
        "analytic_s": steps[-1]["step_s"],
        "calibrated_s": times.step_s,
        **picked(times, "low_s high_s is_extrapolated"),
        "steps": steps,
        "ops": ops,
        "unmodelled": list(graph.unmodelled),
    }
    of = f"{workload.label}, batch {workload.batch_per_replica}"
    title = f"{of}, {workload.phase}, {workload.dtype} on {found.name}"
    if out is not None:
        from steptime.reports.charts.waterfall import chart

        caption = [
            "From Paleo as published to the analytic model; each correction on top of those above.",
            f"Device data: {found.source}",
        ]
        changes = [(step["correction"], step["step_s"]) for step in steps]
        note(drawn(chart(changes, "analytic", title, caption), out))
    narrow = "tf32" in found.peak_flop_per_s and any(
        one.tf32 and one.dtype == "float32" for one in asked.lowered().kernels
    )
    ends = " to ".join(seconds(end or 0.0) for end in (times.low_s, times.high_s))
    reached = f"what kernels, power and host reach{', convolutions in TF32' if narrow else ''}"
    told = [itemgetter("correction", "step_s", "change_s", "meaning")(one) for one in steps]
    told += [("calibrated", times.step_s, times.step_s - steps[-1]["step_s"], f"{reached}: {ends}")]
    rows = [
        {"correction": name, "step_s": took, "meaning": why, "change": None}
        | ({"change": f"{'-' if more < 0 else '+'}{seconds(abs(more))}"} if i else {})
        for i, (name, took, more, why) in enumerate(told)
    ]
    table = Table(
        columns("correction", "step_s=step", "change", "meaning=what is right"),
        rows,
        f"{title}: from paleo to analytic, and to calibrated",
    )
    return Answer(document, [table], unmodelled(graph.unmodelled))
