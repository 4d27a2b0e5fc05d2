"""Whether a step fits a device, the largest batch that does, and the best."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steptime.core.errors import InputError
from steptime.core.question import question
from steptime.core.table import Result, Row, Table, columns, facts, of_steps, picked
from steptime.core.units import percent, seconds, size
from steptime.core.workload import WHOLE, Workload, departures
from steptime.grids.batches import KNEE, MAX_BATCH, doubling, knee, largest_batch
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.hardware.prices import cheapest, offers
from steptime.network.recompute import needed
from steptime.planning.answer import fits, timed
from steptime.planning.request import Request, Site, own_link
from steptime.prediction.assumed import assumed_of, assumed_row
from steptime.prediction.states import host_link
from steptime.prediction.step_model import StepModel
from steptime.questions import options
from steptime.questions.choose import helps
from steptime.questions.step_options import ExecutionOptions, StepOptions

_COLUMNS = columns(
    "batch", "step_s[low_s,high_s]=step", "examples_per_s=speed",
    "needed_bytes=memory", "what=",
)  # fmt: skip
MORE_CARDS = (2, 4, 8)  # of a node, over which weights may be shared out
BESIDE = ("blocks", "workspace", "context")  # what a device holds beside tensors


@dataclass(frozen=True)
class Fitting(Result):
    """Whether a step fits a device: what it needs, and which batches would fit.

    `fits` is None where the memory of the device is unknown, as `usable_bytes` is; `parts` are of
    the `worst_moment`, `helps` what would save memory, `rows` a batch each. Of a step that does not
    fit, `would_fit` are commands of those that do, the cheapest first.
    """

    model: str
    device: str
    method: str
    phase: str
    dtype: str
    optimizer: str
    tuning: str | None
    batch: int
    assumed: Mapping[str, str]
    fits: bool | None
    largest_batch: int | None
    best_batch: int | None
    memory_bytes: float | None
    usable_bytes: float | None
    peak_bytes: int
    needed_bytes: int
    worst_moment: str
    parts: Mapping[str, int]
    helps: Sequence[Row]
    weights_bytes: int
    state_bytes: int
    inputs_bytes: int
    gradients_bytes: int
    copies_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    other_bytes: int
    blocks_bytes: int | None
    workspace_bytes: int | None
    context_bytes: int | None
    rows: Sequence[Row]
    would_fit: Sequence[str]
    notes: Sequence[str]

    tabled = ("out of memory by ",)

    def tables(self) -> list[Table]:
        """Return the answer as a table, and batches as another."""
        needs, has = self.needed_bytes, self.memory_bytes
        said = {True: "yes", False: "no", None: "unknown"}[self.fits]
        largest, best = self.largest_batch, self.best_batch
        step = next((row["step_s"] for row in self.rows if row["batch"] == best), None)
        parts = ", ".join(f"{name} {size(value)}" for name, value in self.parts.items())
        over = "" if self.fits is not False else f", out of memory by {size(needs - (has or 0))}"
        told = ((row["change"], row["saves_bytes"]) for row in self.helps if self.fits is False)
        saving = [f"{change} saves {size(less)}" for change, less in told if less >= needs / 100]
        of = "" if has is None else f" of {size(has)}"
        kind = (self.model, self.tuning, self.phase, self.dtype, self.optimizer)
        title = f"{', '.join(filter(None, kind))} on {self.device} ({self.method})"
        short = [
            *assumed_row(self.assumed),
            ("fits", f"{said}: batch {self.batch} needs {size(needs)}{of}{over}"),
            ("  most", self.worst_moment),
            ("  that is", parts),
            *([("  what helps", "; ".join(saving))] if saving else []),
            *((("would fit", one) if not i else ("", one)) for i, one in enumerate(self.would_fit)),
            ("largest batch", _format_largest(largest)),
            ("best batch", best and f"{best:,}, a step of {seconds(step or 0.0)}"),
        ]
        marks = (
            (self.batch, "asked for"),
            (best, "best"),
            (largest, "largest" if (largest or 0) < MAX_BATCH else ""),
        )
        rows = []
        for row in self.rows:
            what = ", ".join(what for batch, what in marks if batch == row["batch"])
            rows.append({**row, "what": what if row["fits"] else "does not fit"})
        return [facts(title, "", short), Table(of_steps(_COLUMNS, rows), rows)]


def _format_largest(largest: int | None) -> str | None:
    """Format the largest batch, `1,024`; `at least 1,048,576` from the cap of the search on."""
    if largest == 0:
        return "none fits"
    cap = "at least " if (largest or 0) >= MAX_BATCH else ""
    return None if largest is None else f"{cap}{largest:,}"


@question()
def fit(
    model: options.Model,
    device: options.Device,
    batch: options.Batch = None,
    *,
    step: StepOptions,
    execution: ExecutionOptions,
) -> Fitting:
    """Say whether a network fits a device, and with which batch."""
    asked = step.on(model, batch, device, execution)
    workload = asked.workload
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
        if largest >= MAX_BATCH:  # the search ended at its cap, not at the memory of the device
            largest = max(largest, own) if made.fits else largest
            notes.append(f"largest batch: at least {largest:,}, above which none was tried")
    best = None
    tried = [] if largest == 0 else doubling(largest or own)
    rows = [_row(asked, one) for one in sorted({own, *tried})]
    if tried:
        fitting = [row for row in rows if row["batch"] in tried]
        best = knee([row["batch"] for row in fitting], [row["step_s"] for row in fitting])
        notes.append(f"best batch: the least with {percent(KNEE)} of the best speed")
    worst = asked.worst_moment()
    beside = {one: getattr(made.needs, f"{one}_bytes") or 0 for one in BESIDE}
    of_parts: dict[str, Any] = {f"{name}_bytes": value for name, value in worst.parts.items()}
    return Fitting(
        model=workload.label,
        device=asked.device.name,
        method=step.method,
        **picked(workload, "phase dtype optimizer"),
        tuning=workload.tuning.text or None,
        batch=own,
        assumed=assumed_of(asked),
        fits=None if has is None else made.fits,
        largest_batch=largest,
        best_batch=best,
        memory_bytes=has,
        usable_bytes=has,
        peak_bytes=made.peak_bytes,
        needed_bytes=made.needs.total_bytes,
        worst_moment=worst.name,
        parts={name: value for name, value in {**worst.parts, **beside}.items() if value},
        helps=helps(asked),
        **of_parts,
        other_bytes=0,
        **picked(made.needs, "blocks_bytes workspace_bytes context_bytes"),
        rows=rows,
        would_fit=[] if made.fits else _would_fit(asked, step, execution, model, largest or 0),
        notes=notes,
    )


def _would_fit(
    asked: StepModel,
    step: StepOptions,
    execution: ExecutionOptions,
    model: str | Workload,
    largest: int,
) -> list[str]:
    """Return commands of changed steps that fit, with all other options as they were asked.

    The changes are a smaller batch, fewer bits, recompute, LoRA, LoRA beside weights of 4 bits,
    states on the host, weights shared out over several such cards, and the cheapest card with a
    price.
    """
    workload, device = asked.workload, asked.device
    batch, name = workload.batch_per_replica, model if isinstance(model, str) else workload.label
    is_training = step.phase == "train"
    trains_all = is_training and workload.tuning == WHOLE
    graph = asked.graph()
    can_recompute = is_training and graph.tokens is not None and bool(needed(graph, to_end=False))
    recomputed = replace(step, recompute="full")
    light = replace(recomputed, dtype="bfloat16", lora="r=16")
    tries = (
        (largest > 0, step, largest),
        (trains_all and step.dtype == "float32", replace(step, dtype="bfloat16-mixed"), batch),
        (can_recompute and step.recompute is None, recomputed, batch),
        (trains_all and can_recompute, replace(light, recompute=step.recompute), batch),
        (trains_all and can_recompute, light, batch),
        (trains_all and can_recompute, replace(light, weights="nf4"), batch),
        (can_recompute and step.offload is None, replace(recomputed, offload="optimizer"), batch),
    )
    commands = [
        _command(name, device.name, changed, execution, size)
        for is_possible, changed, size in tries
        if is_possible and changed.on(name, size, device, execution).needs().fit(device)
    ]
    if can_recompute:
        commands += _shared_out(name, asked, step, execution)
    offers_usd = cheapest(offer for offer in offers() if offer.currency == "USD")
    for offer in sorted(offers_usd.values(), key=lambda offer: offer.price):
        card = catalog.device(offer.device)
        if card.usable_bytes is not None and _runs_on(asked, card):
            return [*commands, _command(name, card.name, step, execution, batch)]
    return commands


def _runs_on(asked: StepModel, card: Device) -> bool:
    """Return whether a step fits another card that has all that its options ask for."""
    model = asked.on(card)
    try:
        _ = model.seen  # raises for a card without TF32 under --tf32 on
    except InputError:
        return False
    return bool(model.needs().fit(card))


def _shared_out(
    name: str, asked: StepModel, step: StepOptions, execution: ExecutionOptions
) -> list[str]:
    """Return the command of the fewest such cards that hold the step with weights shared out."""
    device, batch = asked.device, asked.workload.batch_per_replica
    inside = None if own_link(device) else host_link(device)
    settings = execution.method_options(step.option_)
    for count in MORE_CARDS:
        split = {"data": count, "zero": 3, "recompute": "full"}
        site = Site(device, inside=inside)
        how: dict[str, Any] = {"split": split, "options": settings}
        how["tuning"] = replace(step.tuning, recompute="none")
        try:
            planner, made = timed(
                Request(name, site, count * batch, batch, step.length, dtype=step.dtype, **how)
            )
        except InputError:
            return []
        if fits(planner, made):
            words: dict[str, Any] = {"device": device.name, "inside": inside}
            words |= {"batch": count * batch, "dtype": step.dtype, **split}
            words |= picked(step, "length lora weights train packed padded")
            words["option_"] = [f"{key}={value}" for key, value in settings.items()]
            return [shlex.join(["steptime", "plan", name, *options.words_of(words)])]
    return []


def _command(
    model: str, device: str, step: StepOptions, execution: ExecutionOptions, batch: int
) -> str:
    changed = departures(step, StepOptions())
    words = options.words_of({"device": device, "batch": batch, **changed, **execution.words()})
    return shlex.join(["steptime", "fit", model, *words])


def _row(model: StepModel, batch: int) -> dict[str, Any]:
    made = model.predict(batch)
    step_s = made.times.step_s
    return {
        "batch": batch,
        "fits": made.fits,
        **picked(made.times, "step_s low_s high_s"),
        "examples_per_s": batch / step_s if step_s else None,
        "peak_bytes": made.peak_bytes,
        "needed_bytes": made.needs.total_bytes,
    }
