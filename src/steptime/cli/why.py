"""The command `why`: what a step waits for, and what would help."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from steptime.cli import options
from steptime.cli.command import command, note
from steptime.cli.options import File, Text, argument, number, optional, whole
from steptime.cli.whatif import DTYPE
from steptime.core.errors import InputError
from steptime.core.table import Answer, Table, columns
from steptime.core.units import counted
from steptime.prediction import DEFAULT

if TYPE_CHECKING:
    from steptime.hardware.device import Device
    from steptime.questions.why import Diagnosis


@command(tabular=True, long="asking the model")
def why(
    model: Annotated[
        Text, argument("MODEL", f"{options.MODEL}; with --in those asked for.")
    ] = None,
    device: Text = optional("NAME", f"{options.DEVICE}. Default with --in: each record's."),
    batch: options.Batch = None,
    phase: options.Phase = "train",
    dtype: Text = optional("NAME", DTYPE),
    optimizer: options.Optimizer = "sgd",
    method: options.Method = DEFAULT,
    option_: options.Settings = None,
    replicas: int | None = whole("N", "Data-parallel replicas, one per device."),
    link: Text = optional("LINK", "What joins the replicas."),
    input_per_s: float | None = number("N", "Examples a second that input brings, read ahead."),
    folder: File = optional("--in DIR", "Explain the steps in a folder of records."),
) -> Answer:
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
    if model is None or found is None:
        missing = "argument 'MODEL'" if model is None else "option '--device'"
        raise InputError(f"Missing {missing}.")
    if (replicas or 1) > 1 and link is None:
        raise InputError("several replicas exchange gradients: name a link with --link")
    workload = options.workload_of(model, batch, dtype_for(found, dtype), phase, optimizer)
    joined = None if link is None else catalog.link(link)
    return _answer(asked.why(workload, found, method, given, joined, replicas or 1, input_per_s))


def _answer(made: Diagnosis) -> Answer:
    return Answer(asdict(made), made.tables(), text="".join(f"{one}\n" for one in made.sentences))


def _of_folder(
    folder: Path, name: str | None, device: Device | None, method: str, given: dict[str, str]
) -> Answer:
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
        return _answer(why_measured(kept[0], device, method, given))
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
    told = ("model", "batch", "?stack", "device", "step_s=step", "bound=bound by")
    heads = columns(*told, *(f"?{name}_share={name}" for name in every_share))
    by = ", ".join(f"{count:,} bound by {bound}" for bound, count in bounds.most_common())
    notes = [f"{counted(len(made), 'step')}: {by}"]
    if dark := sum(row["shares"][UNEXPLAINED] > 0.5 for row in rows):
        notes.append(f"of {counted(dark, 'step')} the model leaves more than half unexplained")
    notes += [f"{count:,} not explained: {why}" for why, count in refused.items()]
    document: dict[str, Any] = {"bounds": dict(bounds), "refused": refused, "steps": rows}
    return Answer(document, [Table(heads, shown, str(folder), most=40)], notes)
