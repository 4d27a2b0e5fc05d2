"""How long one step takes, as a result: its numbers, its document and what people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from steptime.core.graph import PASSES
from steptime.core.printers import html
from steptime.core.table import EXTRAPOLATED, Result, Table, columns, facts, frame, picked
from steptime.core.units import interval, rate, seconds, shown, size
from steptime.hardware.device import Device
from steptime.prediction.assumed import assumed_of, assumed_row
from steptime.prediction.power import run_energy, step_energy
from steptime.prediction.records import record_method
from steptime.prediction.step_model import StepModel
from steptime.questions.options import memory_shown


@dataclass(frozen=True)
class OpTime:
    """The times of an op of a network in one step, in seconds; `low_s` and `high_s` bound them."""

    name: str
    kind: str
    step_s: float
    forward_s: float
    backward_s: float
    update_s: float
    low_s: float | None
    high_s: float | None


@dataclass(frozen=True)
class StepTime(Result):
    """How long a step takes: `step_s`, between `low_s` and `high_s` (80 %), op by op in `ops`.

    A bound is None where the method has none. `assumed` are what decides the time beside network
    and device: stack, layout, TF32, host. `is_extrapolated` says that the device lies beyond what
    the method was made from. `notes` are what a reader must know, a line each.
    """

    model: str
    device: str
    batch: int
    dtype: str
    method: str
    step_s: float
    low_s: float | None
    high_s: float | None
    forward_s: float
    backward_s: float
    update_s: float
    peak_bytes: int
    fits: bool
    is_extrapolated: bool
    notes: tuple[str, ...]
    ops: tuple[OpTime, ...] = field(repr=False)
    assumed: Mapping[str, str]
    of: StepModel = field(repr=False, compare=False)
    document: Mapping[str, Any] = field(repr=False, compare=False)
    table: Table = field(repr=False, compare=False)
    says: tuple[str, ...] = ()
    by_op: bool = False

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each op; needs pandas."""
        return frame(map(asdict, self.ops))

    def tables(self) -> list[Table]:
        """Return the step, and every op where that is wanted."""
        return [self.table, *([_by_op(self.document["ops"])] if self.by_op else [])]

    def _repr_html_(self) -> str:
        slowest = sorted(self.document["ops"], key=lambda op: -op["step_s"])[:_SHOWN]
        return "".join(map(html, (self.table, _by_op(slowest))))


_SHOWN = 10  # ops in a notebook


def _by_op(ops: Sequence[Mapping[str, Any]]) -> Table:
    heads = columns(
        "name=op", "step_s=step", "?kind", *(f"{part}_s={part}" for part in PASSES), "?parameters",
        "flop=forward FLOP",
    )  # fmt: skip
    return Table(heads, ops)


def step_time(
    asked: StepModel, steps: int = 0, *per_kwh: float | None, sources: bool = False
) -> StepTime:
    """Return how long a step takes, with the energy of a run of so many steps."""
    made = asked.predict()
    times, document = made.times, document_of(asked, steps, *per_kwh)
    doubted = ", ".join(document["device_unverified"])
    ops = []
    for row in times.rows:
        told = row.told
        ops.append(OpTime(**told))
    alike = {one.name: document[one.name] for one in fields(StepTime) if one.name in document}
    return StepTime(
        **alike | {"ops": tuple(ops)},
        fits=made.fits,
        notes=tuple(" ".join(text.split()) for text in made.remarks),
        of=asked,
        document=document,
        table=totals(document, asked.device if sources else None),
        says=(f"not verified: {doubted} of {document['device']}",) if doubted else (),
    )


def tokens_of(asked: StepModel) -> int | None:
    """Return the tokens of a step that are text, None of a network that reads none."""
    tokens, padded = asked.graph().tokens, asked.workload.tuning.padded
    return tokens and min(tokens, padded * asked.workload.batch_per_replica or tokens)


def document_of(asked: StepModel, steps: int = 0, *per_kwh: float | None) -> dict[str, Any]:
    """Return what a step takes as one document, with the energy of a run of so many steps."""
    workload, found, made = asked.workload, asked.device, asked.predict()
    times = made.times
    energy = step_energy(times, asked.seen, made.lowered.columns)
    bounds = picked(energy, "max_j low_j high_j note").items()
    document = {
        "model": workload.label,
        "device": found.name,
        "device_note": found.note,
        "device_unverified": list(found.unverified),
        "method": asked.method.name,
        "options": dict(record_method(asked).options),
        "batch": workload.batch_per_replica,
        "tokens": tokens_of(asked),
        **picked(workload, "phase dtype optimizer"),
        "tuning": workload.tuning.text or None,
        **picked(times, "step_s forward_s backward_s update_s host_s low_s high_s is_extrapolated"),
        "assumed": assumed_of(asked),
        "parameters": made.lowered.parameters,
        "flop": round(made.flop),
        "executed_flop": round(made.lowered.executed_flop),
        "traffic_bytes": round(made.lowered.traffic_bytes),
        "peak_bytes": made.peak_bytes,
        "needed_bytes": made.needs.total_bytes,
        **picked(made.needs, "blocks_bytes workspace_bytes context_bytes"),
        "usable_bytes": asked.device.usable_bytes,
        **picked(energy, "utilisation energy_j"),
        **{f"energy_{name}": value for name, value in bounds},
        "run": None,
        "status": made.status,
        "note": "; ".join(made.remarks),
        "unmodelled": list(asked.graph().unmodelled),
    }
    if steps:
        joules = {"energy": energy.energy_j, "at_most": energy.max_j}
        of_run = {name: run_energy(steps, each, *per_kwh) for name, each in joules.items()}
        document["run"] = {"steps": steps, "run_s": steps * times.step_s, **of_run}
    ops = []
    for row in times.rows:
        parts = {"forward": row.forward, "backward": row.backward}
        ceilings = {
            f"{part}_{name}": value
            for part, time in parts.items()
            for name, value in picked(time, "compute_s memory_s").items()
        }
        flop = round(made.counted[row.row.name]["forward"])
        ops.append(row.told | ceilings | {"parameters": row.row.parameters, "flop": flop})
    return {**document, "ops": ops}


def totals(document: dict[str, Any], device: Device | None = None) -> Table:
    """Return a document for people, and where a device's numbers come from."""
    step = document["step_s"]
    peak, needs = document["peak_bytes"], document["needed_bytes"]
    besides = f"; the process needs {size(needs)}" if needs != peak else ""
    waits = document["host_s"] is not None and document["host_s"] >= 0.99 * step
    rows: list[tuple[str, Any]] = [
        *assumed_row(document["assumed"]),
        ("step", _step(document) + (", as long as the host takes to issue it" if waits else "")),
        *((f"  {part}", seconds(document[f"{part}_s"])) for part in PASSES),
        ("speed", _speed(document)),
        ("achieved", shown("flop_per_s", document["flop"] / step) if step else None),
        ("peak memory", memory_shown(document) + besides),
        ("energy", _energy(document)),
        *_run_rows(document["run"]),
    ]
    if device is not None:
        told = (" ".join(text.split()) for text in (device.source, device.note) if text)
        rows += [("device data", text) for text in told]
    over = document["needed_bytes"] - (document["usable_bytes"] or 0)
    fits = "" if document["status"] == "ok" else f" - out of memory by {size(over)}"
    below = [EXTRAPOLATED] if document["is_extrapolated"] else []
    return replace(facts(title(document) + fits, "one step", rows), below=below)


def title(document: dict[str, Any]) -> str:
    """Return what was predicted, in a line."""
    tuning = f", {document['tuning']}" if document["tuning"] else ""
    return (
        f"{document['model']}{tuning}, batch {document['batch']}, {document['phase']}, "
        f"{document['dtype']} on {document['device']} ({document['method']})"
    )


def _speed(document: dict[str, Any]) -> str | None:
    """Return examples a second, of a language model tokens and their length too."""
    step, batch, tokens = (document[key] for key in ("step_s", "batch", "tokens"))
    if not step:
        return None
    said = shown("examples_per_s", batch / step)
    if tokens is None:
        return said
    return f"{said}, {rate(tokens / step)} tokens/s ({tokens // batch:,} tokens each)"


def _step(document: dict[str, Any]) -> str:
    """Return the seconds of a step with their interval, or of what they are the bound."""
    mark = "~" if document["is_extrapolated"] else ""
    return mark + interval("step_s", *(document[key] for key in ("step_s", "low_s", "high_s")))


def _energy(document: dict[str, Any]) -> str:
    energy, most, note = (document[k] for k in ("energy_j", "energy_max_j", "energy_note"))
    said = "unknown"
    if energy is not None:
        ends = (document[f"energy_{end}_j"] for end in ("low", "high"))
        said = interval("energy_j", energy, *ends)
    elif most is not None:
        said = f"at most {shown('energy_j', most)}"
    return f"{said} ({note})" if note else said


def _run_rows(run: dict[str, Any] | None) -> list[tuple[str, Any]]:
    if run is None:
        return []
    rows: list[tuple[str, Any]] = [(f"{run['steps']:,} steps", shown("h", run["run_s"] / 3600))]
    found = run["energy"] or run["at_most"]
    if found is None:
        return [*rows, ("  energy", "unknown")]
    most = "" if run["energy"] else "at most "
    for name, key in (("energy", "kwh"), ("cost of it", "cost"), ("CO2", "co2_g")):
        if found[key] is not None:
            rows.append((f"  {name}", most + shown(key, found[key])))
    return rows
