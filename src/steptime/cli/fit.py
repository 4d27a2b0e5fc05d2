"""The command `fit`: whether a step fits a device, the largest batch that does, and the best."""

from typing import Any

from steptime.core.question import question
from steptime.core.table import Answer, Table, columns, facts, of_steps, picked
from steptime.core.units import percent, seconds, size
from steptime.prediction import DEFAULT
from steptime.prediction.assumed import assumed_of, assumed_row
from steptime.prediction.step_model import StepModel
from steptime.questions import options
from steptime.questions.choose import KNEE, doubling, helps, knee, largest_batch

_COLUMNS = columns(
    "batch", "step_s[low_s,high_s]=step", "examples_per_s=speed",
    "needed_bytes=memory", "what=",
)  # fmt: skip
BESIDE = ("blocks", "workspace", "context")  # what a device holds beside tensors


@question()
def fit(
    model: options.Model,
    device: options.Device,
    batch: options.Batch = None,
    phase: options.Phase = "train",
    dtype: options.Dtype = "float32",
    optimizer: options.Optimizer = "sgd",
    method: options.Method = DEFAULT,
    option_: options.Settings = None,
    allow_unknown: options.AllowUnknown = False,
) -> Answer:
    """Say whether a network fits a device, and with which batch."""
    workload = options.workload_of(model, batch, dtype, phase, optimizer, allow_unknown)
    given = options.pairs(option_, "option")
    asked = StepModel(workload, options.one_device(device), method=method, options=given)
    has, own = asked.device.usable_bytes, workload.batch_per_replica
    made = asked.predict()
    notes = list(made.remarks)
    if asked.device.kind == "gpu" and made.needs.context_bytes is None:
        of = f"{asked.device.name} under {asked.stack.name}"
        notes.append(f"memory is at least what is said: that of the driver of {of} is not known")
    if has is None:
        notes.append(f"the memory of {asked.device.name} is unknown, so every batch fits")
        largest = None
    else:
        largest = largest_batch(lambda one: asked.needs(one).total_bytes, has)
    best = None
    tried = [] if largest == 0 else doubling(largest or own)
    rows = [_row(asked, one) for one in sorted({own, *tried})]
    if tried:
        fitting = [row for row in rows if row["batch"] in tried]
        best = knee([row["batch"] for row in fitting], [row["step_s"] for row in fitting])
        notes.append(f"best batch: the least with {percent(KNEE)} of the best speed")
    worst = asked.worst_moment()
    parts = dict(worst.parts)
    for name in BESIDE:
        parts[name] = getattr(made.needs, f"{name}_bytes") or 0
    document = {
        "model": workload.label,
        "device": asked.device.name,
        "method": method,
        **picked(workload, "phase dtype optimizer"),
        "batch": own,
        "assumed": assumed_of(asked),
        "fits": None if has is None else made.fits,
        "largest_batch": largest,
        "best_batch": best,
        "memory_bytes": has,
        "usable_bytes": has,
        "peak_memory_bytes": made.peak_memory_bytes,
        "needed_bytes": made.needs.total_bytes,
        "worst_moment": worst.name,
        "parts": {name: value for name, value in parts.items() if value},
        "helps": helps(asked),
        **{f"{name}_bytes": value for name, value in worst.parts.items()},
        "other_bytes": 0,
        **picked(made.needs, "blocks_bytes workspace_bytes context_bytes"),
        "rows": rows,
        "notes": notes,
    }
    return Answer(document, _tables(document), [f"note: {note}" for note in notes])


def _row(model: StepModel, batch: int) -> dict[str, Any]:
    made = model.predict(batch)
    step_s = made.times.step_s
    return {
        "batch": batch,
        "fits": made.fits,
        **picked(made.times, "step_s low_s high_s"),
        "examples_per_s": batch / step_s if step_s else None,
        "peak_memory_bytes": made.peak_memory_bytes,
        "needed_bytes": made.needs.total_bytes,
    }


def _tables(document: dict[str, Any]) -> list[Table]:
    needs, has = (document[key] for key in ("needed_bytes", "memory_bytes"))
    said = {True: "yes", False: "no", None: "unknown"}[document["fits"]]
    largest, best = document["largest_batch"], document["best_batch"]
    step = next((row["step_s"] for row in document["rows"] if row["batch"] == best), None)
    parts = ", ".join(f"{name} {size(value)}" for name, value in document["parts"].items())
    over = "" if document["fits"] is not False else f", out of memory by {size(needs - has)}"
    saving = [f"{row['change']} saves {size(row['saves_bytes'])}" for row in document["helps"]]
    of = "" if has is None else f" of {size(has)}"
    title = (
        f"{document['model']}, {document['phase']}, {document['dtype']}, {document['optimizer']} "
        f"on {document['device']} ({document['method']})"
    )
    short = [
        *assumed_row(document["assumed"]),
        ("fits", f"{said}: batch {document['batch']} needs {size(needs)}{of}{over}"),
        ("  most", document["worst_moment"]),
        ("  that is", parts),
        ("  what helps", "; ".join(saving)),
        ("largest batch", "none fits" if largest == 0 else largest and f"{largest:,}"),
        ("best batch", best and f"{best:,}, a step of {seconds(step or 0.0)}"),
    ]
    marks = ((document["batch"], "asked for"), (best, "best"), (largest, "largest"))
    rows = []
    for row in document["rows"]:
        what = ", ".join(what for batch, what in marks if batch == row["batch"])
        rows.append({**row, "what": what if row["fits"] else "does not fit"})
    return [facts(title, "", short), Table(of_steps(_COLUMNS, rows), rows)]
