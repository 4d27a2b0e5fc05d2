"""The command `split`: where to cut a network between two devices."""

from steptime.core.question import flag, option, question
from steptime.core.table import Answer, Table, columns
from steptime.hardware import catalog
from steptime.prediction import DEFAULT
from steptime.prediction.step_model import StepModel
from steptime.questions import options
from steptime.questions.options import unmodelled
from steptime.questions.split import cuts

SHOWN = 5  # best cuts beside the two ends


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
        "network": between.name,
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
