"""Where to cut a network between two devices: the first part here, the rest there.

After Kang et al. 2017 (Neurosurgeon): each cut costs the ops before it on the first device, the
tensors that cross it over the link, and the ops after it on the second device. The answer's way
back is left out, and so is any overlap of one example's transfer with another's work.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from steptime.core.question import flag, option, question
from steptime.core.table import Answer, Table, columns
from steptime.hardware import catalog
from steptime.hardware.device import Link
from steptime.prediction import DEFAULT
from steptime.prediction.lower import Row
from steptime.prediction.step_model import StepModel
from steptime.questions import options
from steptime.questions.options import unmodelled

SHOWN = 5  # best cuts beside the two ends
KEYS = ["after", "flop", "output_bytes", "crossing_bytes", "first_s", "transfer_s", "second_s"]


def cuts(here: StepModel, there: StepModel, link: Link) -> list[dict[str, Any]]:
    """Return every cut of an inference, in order: first all on `there`, last all on `here`.

    A cut is after an op or layer, "" for the first. `output_bytes` are those of the op itself,
    `crossing_bytes` of all tensors that are made before the cut and read after it; `flop` is the
    work up to the cut. Both are models of one network. Raises `InputError` as a prediction does.
    """
    lowered, counted = here.lowered(), here.counted()
    first, second = ({row.row.name: row for row in one.timeline().rows} for one in (here, there))
    rows = [row for row in lowered.rows if not row.is_input]
    names = ["", *(row.name for row in rows)]
    sizes = [lowered.input_bytes, *(row.output_bytes for row in rows)]
    sent = _crossing(names, sizes, rows)
    joins = here.method.joins(link)
    took = [joins.message_s(moved) if moved else 0.0 for moved in sent]
    before, after = (
        list(accumulate((times[row.name].forward.value for row in rows), initial=0.0))
        for times in (first, second)
    )
    flop = accumulate((counted[row.name]["forward"] for row in rows), initial=0.0)
    later = [after[-1] - until for until in after]
    every = zip(names, flop, sizes, sent, before, took, later, strict=True)
    found: list[dict[str, Any]] = [dict(zip(KEYS, one, strict=True)) for one in every]
    return [
        row | {"total_s": row["first_s"] + row["transfer_s"] + row["second_s"]} for row in found
    ]


def _crossing(names: Sequence[str], sizes: Sequence[int], rows: Sequence[Row]) -> list[int]:
    """Return, for the cut after each row, the bytes of what is made before and read after it."""
    place = {name: i for i, name in enumerate(names)}
    last = {parent: place[row.name] for row in rows for parent in row.parents}
    change = [0] * len(names)
    for i, name in enumerate(names):
        if name in last:
            change[i] += sizes[i]
            change[last[name]] -= sizes[i]
    return list(accumulate(change))


@question()
def split(
    model: options.Model,
    device: str = option("NAME", "Runs the first part, such as a phone."),
    server: str = option("NAME", "Runs the rest."),
    link: str = option("LINK", "Between the two (steptime list links)."),
    batch: options.Batch = "1",
    dtype: options.Dtype = "float32",
    method: options.Method = DEFAULT,
    option_: options.Settings = None,
    allow_unknown: options.AllowUnknown = False,
    by_op: bool = flag("Show every cut."),
) -> Answer:
    """Find the best cut of a network between a device and a server.

    One inference: the ops before the cut, the tensors over the link, the ops after it.
    """
    workload = options.workload_of(model, batch, dtype, "infer", "sgd", allow_unknown)
    first, second = (catalog.device(options.one_device(name)) for name in (device, server))
    between = catalog.link(link)
    given = options.pairs(option_, "option")
    here = StepModel(workload, first, method=method, options=given)
    rows = cuts(here, here.on(second), between)
    ranked = sorted(range(len(rows)), key=lambda i: rows[i]["total_s"])
    unknown = between.latency_s is None
    best = {ranked[0]: "best"}
    ends = {0: "the input (all on the server)", len(rows) - 1: " (all on the device)"}
    note = f"{between.name}: its latency is unknown, left out" if unknown else ""
    shown = range(len(rows)) if by_op else sorted({0, len(rows) - 1, *ranked[:SHOWN]})
    table = Table(
        columns("cut=cut after", "?flop=FLOP so far", "crossing_bytes=sent", "first_s=device",
                "transfer_s=link", "second_s=server", "total_s=in all", "best="),
        [
            {**rows[i], "cut": f"{rows[i]['after']}{ends.get(i, '')}", "best": best.get(i, "")}
            for i in shown
        ],
        f"{workload.label}, batch {workload.batch_per_replica}, {dtype}: "
        f"{first.name}, then {second.name} over {between.name} ({method})",
    )  # fmt: skip
    document = {
        "model": workload.label,
        "device": first.name,
        "server": second.name,
        "link": between.name,
        "method": method,
        "batch": workload.batch_per_replica,
        "dtype": dtype,
        "best": rows[ranked[0]],
        "all_on_server": rows[0],
        "all_on_device": rows[-1],
        "cuts": rows,
        "note": note,
        "unmodelled": list(here.graph().unmodelled),
    }
    notes = [f"note: {note}"] if note else []
    return Answer(document, [table], [*notes, *unmodelled(here.graph().unmodelled)])
