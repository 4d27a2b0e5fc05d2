"""What the measured steps of a folder of records wait for."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError
from steptime.core.progress import note, watched
from steptime.core.table import Answer, Table, columns
from steptime.core.units import counted
from steptime.hardware.device import Device
from steptime.questions.bound import BOUNDS
from steptime.questions.why import UNEXPLAINED, Diagnosis, diagnoses, why_measured
from steptime.records import store


def of_folder(
    folder: Path, name: str | None, device: Device | None, method: str, given: dict[str, str]
) -> Diagnosis | Answer:
    """Return why the steps of a folder of records take as long as they do; raises `InputError`."""
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
