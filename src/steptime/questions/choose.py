"""Which batches fit a device and which one pays; devices side by side for one training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from typing import Any

from steptime.core.errors import InputError
from steptime.core.progress import watched
from steptime.core.workload import Workload
from steptime.grids.batches import knee, largest_batch
from steptime.grids.grid import Steps
from steptime.hardware.device import Device
from steptime.hardware.prices import Offer, Training, bill
from steptime.network.recompute import needed
from steptime.prediction.assumed import assumed_of
from steptime.prediction.memory import Needs, memory_of
from steptime.prediction.power import step_energy
from steptime.prediction.step_model import StepModel

TRIED = tuple(1 << i for i in range(17))  # batches, where none is asked for


Row = dict[str, Any]
UNKNOWN = (  # of a device that does not fit, or that has no peak for the type
    *("step_s", "low_s", "high_s", "is_extrapolated", "examples_per_s", "train_s"),
    *("best_batch", "best_examples_per_s"),
    *("cost", "offer", "energy_j", "energy_max_j"),
)
SORTS: Mapping[str, Callable[[Row], float | None]] = {
    "time": itemgetter("train_s"),
    "cost": itemgetter("cost"),
    "energy": lambda row: row["energy_j"] or row["energy_max_j"],
}


def choices(
    model: StepModel,
    devices: Iterable[Device],
    examples: int,
    epochs: float = 1.0,
    offers: Mapping[str, Offer] | None = None,
    batch: int | None = None,
) -> list[Row]:
    """Return what a training of `examples * epochs` examples takes on each device, a row each.

    All run the same global `batch`, that of the model where none is said. Where it does not fit,
    gradients of the largest `microbatch` that fits are added up `accumulation` times before an
    update. `best_batch` is the least power of two that has 90 % of the best speed among those that
    fit (`knee`), at `best_examples_per_s`. `status` is `ok`, `oom` where not even one example
    fits, `unsupported` where no peak of the dtype is known, as `note` says. Times, cost and energy
    are of the whole training; `low_s` and `high_s` of a step. `offers` are the prices by device.
    """
    whole = model.workload.batch_per_replica if batch is None else batch
    steps, training, known = Steps(model, TRIED), Training(examples, epochs), offers or {}

    @cache
    def held(of: Steps, micro: int) -> int:  # of a microbatch beside the gradients of those before
        how: Any = {"accumulates": True, "own": of.model.sizes(micro)}
        return memory_of(of.model.graph(micro), of.model.stack, **how)

    found = []
    for one in watched(list(devices), "devices", 10):
        on = model.on(one)
        of = steps.of(on)
        found.append(_choice(on, whole, partial(held, of), of, training, known.get(one.name)))
    return found


def _microbatch(on: StepModel, batch: int, held: Callable[[int], int]) -> int:
    """Return the largest part of a batch that fits, 0 if not even one example does."""
    if on.needs(batch).fit(on.device):
        return batch
    has = on.device.usable_bytes or 0.0  # of unknown memory all fits
    most = largest_batch(lambda one: _accumulated(on, one, held).total_bytes, has, batch // 2)
    return next((one for one in range(most, 0, -1) if not batch % one), 0)


def _accumulated(on: StepModel, micro: int, held: Callable[[int], int]) -> Needs:
    return on.needs(micro)._replace(peak_bytes=held(micro))


def ordered(found: Sequence[Row], by: str) -> list[Row]:
    """Return rows with the least of `by`, a name of `SORTS`, first; unknown last, unfit after."""

    def key(row: Row) -> tuple[bool, bool, float]:
        value = SORTS[by](row)
        return row["status"] != "ok", value is None, value or 0.0

    return sorted(found, key=key)


def _choice(
    on: StepModel,
    batch: int,
    held: Callable[[int], int],
    steps: Steps,
    training: Training,
    offer: Offer | None,
) -> Row:
    device, micro = on.device, _microbatch(on, batch, held)
    needs = _accumulated(on, micro, held) if 0 < micro < batch else on.needs(micro or 1)

    def row(status: str, **told: Any) -> Row:
        return {
            "device": device.name,
            "status": status,
            "batch": batch,
            "microbatch": micro or None,
            "accumulation": batch // micro if micro else None,
            "peak_bytes": needs.peak_bytes,
            "needed_bytes": needs.total_bytes,
            "memory_bytes": device.usable_bytes,
            "usable_bytes": device.usable_bytes,
            **dict.fromkeys(UNKNOWN),
            "assumed": {},
            "is_extrapolated": False,
            "note": "",
            "energy_note": "",
            **told,
        }

    if not micro:
        return row("oom", note=f"one example: {needs.too_large(device)}")
    try:
        made = on.timeline(micro)
        best, speed = _best(on, steps)
    except InputError as error:
        return row("unsupported", note=str(error))
    repeats = batch // micro
    step_s = repeats * (made.step_s - made.update_s) + made.update_s
    longer = step_s / made.step_s if made.step_s else 1.0
    if offer is not None:
        training = replace(training, price=offer.price, billing=offer.billing)
    whole = bill(training, step_s, batch, 1)
    count = training.examples * training.epochs / batch * longer
    energy = step_energy(made, on.seen, on.lowered(micro).columns)
    joules = {"energy_j": energy.energy_j, "energy_max_j": energy.max_j}
    return row(
        "ok",
        assumed=assumed_of(on),
        step_s=step_s,
        low_s=None if made.low_s is None else made.low_s * longer,
        high_s=None if made.high_s is None else made.high_s * longer,
        is_extrapolated=made.is_extrapolated,
        examples_per_s=batch / step_s if step_s else None,
        best_batch=best,
        best_examples_per_s=speed,
        train_s=whole["train_s"],
        cost=whole["cost"],
        offer=offer,
        **{name: None if value is None else value * count for name, value in joules.items()},
        note="; ".join(on.remarks(micro)),
        energy_note=energy.note,
    )


def _best(on: StepModel, steps: Steps) -> tuple[int | None, float | None]:
    """Return the best batch of a device among those tried that fit, and its examples a second."""
    (span,), fits = steps.spans([on]), steps.fit(on)
    each = zip(steps.batches, zip(*span.times, strict=True), fits, strict=True)
    step_s = {batch: sum(times) for batch, times, fit in each if fit}
    if not step_s:
        return None, None
    best = knee([*step_s], [*step_s.values()])
    return best, best / step_s[best] if step_s[best] else None


def helps(model: StepModel) -> list[dict[str, Any]]:
    """Return what makes a step need less memory at its worst moment, most first.

    `saves_bytes` is by how much the step then needs less, counted on the changed step, and `fits`
    whether that is enough. ZeRO is of 8 devices.
    """
    work, stack, graph = model.workload, model.stack, model.graph()
    now = model.needs()
    tries: dict[str, int] = {}
    half = work.batch_per_replica // 2
    if half > 0:
        tries[f"batch {half}"] = model.needs(half).total_bytes
    if work.phase == "train":
        changed: dict[str, Workload] = {}
        if work.dtype == "float32":
            changed["bfloat16-mixed"] = replace(work, dtype="bfloat16-mixed")
        if work.tuning.recompute == "none" and needed(graph, to_end=False):
            again = replace(work.tuning, recompute="full")
            changed["full recompute"] = replace(work, tuning=again)
        for way, other in changed.items():
            made = StepModel(other, model.device, method=model.method)
            tries[way] = made.needs().total_bytes
        beside = now.total_bytes - now.peak_bytes
        ways: dict[str, dict[str, Any]] = {
            "fused optimizer": {"fused": True},
            "8-bit optimizer": {"state_bytes": 1},
            **{f"ZeRO {z} over 8 devices": {"zero": z, "shards": 8} for z in (1, 2, 3)},
        }
        held = partial(memory_of, graph, stack, own=model.sizes())
        tries |= {way: held(**how) + beside for way, how in ways.items()}
    rows = [
        {"change": change, "saves_bytes": now.total_bytes - needs, "fits": has_room(model, needs)}
        for change, needs in tries.items()
        if needs < now.total_bytes
    ]
    return sorted(rows, key=lambda row: -row["saves_bytes"])


def has_room(model: StepModel, needed_bytes: int) -> bool | None:
    """Whether a model's device has so many bytes, None where its memory is unknown."""
    usable = model.device.usable_bytes
    return None if usable is None else needed_bytes <= usable
