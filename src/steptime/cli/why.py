"""The command `why`: what a step waits for, and what would help."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from steptime.cli.picture import picture
from steptime.cli.whatif import DTYPE
from steptime.core.errors import InputError
from steptime.core.progress import note
from steptime.core.question import File, Text, argument, choice, number, optional, question, whole
from steptime.core.table import Answer, Table, columns
from steptime.core.units import counted
from steptime.prediction import DEFAULT
from steptime.questions import options
from steptime.questions.why import Diagnosis

if TYPE_CHECKING:
    from steptime.hardware.device import Device


@question(long="asking the model")
def why(
    model: Annotated[
        Text, argument("MODEL", f"{options.MODEL}; with --in those asked for.")
    ] = None,
    device: Text = optional("NAME", f"{options.DEVICE}. Default with --in: each record's."),
    batch: options.Batch = None,
    dtype: Text = optional("NAME", DTYPE),
    phase: options.Phase = "train",
    optimizer: options.Optimizer = "sgd",
    replicas: int | None = whole("N", "Data-parallel replicas, one per device."),
    link: Text = optional("LINK", "What joins the replicas."),
    method: options.Method = DEFAULT,
    option_: options.Settings = None,
    input_per_s: float | None = number("N", "Examples a second that input brings, read ahead."),
    folder: File = optional("--in DIR", "Explain the steps in a folder of records."),
    start: Text = choice(
        ("paleo",), "paleo: show how corrections lead from Paleo's number to ours.", "--from"
    ),
    allow_unknown: options.AllowUnknown = False,
    out: File = picture("With --from: draw it"),
) -> Diagnosis | Answer:
    """Say why a step takes as long as it does."""
    from steptime.hardware import catalog
    from steptime.questions import why as asked
    from steptime.questions.networks import dtype_for

    given = options.pairs(option_, "option")
    found = None if device is None else catalog.device(options.one_device(device))
    if folder is not None:
        options.refuse(
            {"--batch": batch, "--dtype": dtype, "--replicas": replicas, "--link": link,
             "--input-per-s": input_per_s},
            "{} does not go with --in, which takes all of a folder's records",
        )  # fmt: skip
        return _of_folder(folder, model, found, method, given)
    if model is None or device is None or found is None:
        missing = "argument 'MODEL'" if model is None else "option '--device'"
        raise InputError(f"Missing {missing}.")
    if (replicas or 1) > 1 and link is None:
        raise InputError("several replicas all-reduce gradients: name a link with --link")
    kind = dtype_for(found, dtype)
    if start is not None:
        from steptime.cli.explain import explain

        options.refuse(
            {"--replicas": replicas, "--link": link, "--input-per-s": input_per_s},
            "{} does not go with --from paleo",
        )
        return explain(model, device, batch, phase, kind, optimizer, option_, allow_unknown, out)
    options.refuse({"--out": out}, "{} needs --from paleo")
    workload = options.workload_of(model, batch, kind, phase, optimizer, allow_unknown)
    joined = None if link is None else catalog.link(link)
    return asked.why(workload, found, method, given, joined, replicas or 1, input_per_s)


def _of_folder(
    folder: Path, name: str | None, device: Device | None, method: str, given: dict[str, str]
) -> Diagnosis | Answer:
    from steptime.core.progress import watched
    from steptime.questions.bound import BOUNDS
    from steptime.questions.why import UNEXPLAINED, diagnoses, why_measured
    from steptime.records import store

    kept = [
        one
        for one in store.load(folder, note)
        if one.origin != "predicted" and not one.scope and (name or "") in one.workload.label
    ]
    if not kept:
        which = "no step that was measured or published"
        raise InputError(f"{folder}: holds {which}" + (f" of '{name}'" if name else ""))
    if len(kept) == 1:
        return why_measured(kept[0], device, method, given)
    every = list(diagnoses(watched(kept, "steps"), device, method, given))
    made = [one for one in every if not isinstance(one, str)]
    refused = dict(Counter(one for one in every if isinstance(one, str)))
    if not made:
        raise InputError(f"{folder}: {next(iter(refused))}")
    bounds = Counter(one.bound for one in made)
    rows = [asdict(one) for one in made]
    every_share = (*BOUNDS, UNEXPLAINED)
    apart = len({row["evidence"]["stack"] for row in rows}) > 1
    shown = [
        row
        | {"stack": row["evidence"]["stack"] if apart else None}
        | {f"{name}_share": row["shares"][name] for name in every_share}
        for row in rows
    ]
    told = ("model", "batch", "?stack", "device", "step_s=step", "bound=bottleneck")
    heads = columns(*told, *(f"?{name}_share={name}" for name in every_share))
    by = ", ".join(f"{count:,} bound by {bound}" for bound, count in bounds.most_common())
    notes = [f"{counted(len(made), 'step')}: {by}"]
    if dark := sum(row["shares"][UNEXPLAINED] > 0.5 for row in rows):
        notes.append(f"of {counted(dark, 'step')} the model leaves more than half unexplained")
    notes += [f"{count:,} not explained: {why}" for why, count in refused.items()]
    document: dict[str, Any] = {"bounds": dict(bounds), "refused": refused, "steps": rows}
    return Answer(document, [Table(heads, shown, str(folder), most=40)], notes)
