"""Which batches fit a device and which one pays; devices side by side for one training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from steptime.core.errors import InputError
from steptime.core.hardware import Device
from steptime.core.table import picked
from steptime.predict.grid import Steps
from steptime.predict.power import step_energy
from steptime.predict.prices import Offer, Training, bill
from steptime.predict.step_model import StepModel

TRIED = tuple(1 << i for i in range(17))  # batches, where none is asked for


Row = dict[str, Any]
UNKNOWN = (  # of a device that does not fit, or that has no peak for the type
    *("step_s", "low_s", "high_s", "extrapolates", "examples_per_s", "train_s"),
    *("cost", "offer", "energy_j", "energy_at_most_j"),
)
SORTS: Mapping[str, Callable[[Row], float | None]] = {
    "time": itemgetter("train_s"),
    "cost": itemgetter("cost"),
    "energy": lambda row: row["energy_j"] or row["energy_at_most_j"],
}


def choices(
    model: StepModel,
    devices: Iterable[Device],
    samples: int,
    epochs: float = 1.0,
    offers: Mapping[str, Offer] | None = None,
    batch: int | None = None,
) -> list[Row]:
    """Return what a training of `samples * epochs` examples takes on each device, a row each.

    `status` is `ok`, `oom` where no batch fits, `unsupported` where no peak of the dtype is known,
    as `note` says. Times, cost and energy are of the whole training; `low_s` and `high_s` are of a
    step. Without a `batch` it is the least power of two that has 90 % of the best speed among those
    that fit (`knee`). `offers` are the prices by device.
    """
    steps = Steps(model, TRIED if batch is None else (batch,))
    training, known = Training(samples, epochs), offers or {}
    return [_choice(model.on(one), steps, training, known.get(one.name)) for one in devices]


def ordered(found: Sequence[Row], by: str) -> list[Row]:
    """Return rows with the least of `by`, a name of `SORTS`, first; unknown last, unfit after."""

    def key(row: Row) -> tuple[bool, bool, float]:
        value = SORTS[by](row)
        return row["status"] != "ok", value is None, value or 0.0

    return sorted(found, key=key)


def _choice(on: StepModel, steps: Steps, training: Training, offer: Offer | None) -> Row:
    device, every = on.device, dict(zip(steps.batches, steps.needs(on), strict=True))
    fitting = [batch for batch, needs in every.items() if needs.fit(device)]
    least = min(every)

    def row(status: str, batch: int, **told: Any) -> Row:
        needs = every[batch]
        return {
            "device": device.name,
            "status": status,
            "batch": batch,
            "peak_memory_bytes": needs.peak_bytes,
            "needed_bytes": needs.total_bytes,
            "memory_bytes": device.memory_bytes,
            **dict.fromkeys(UNKNOWN),
            "extrapolates": False,
            "note": "",
            **told,
        }

    if not fitting:
        return row("oom", least)
    try:
        step_s = {one.batch: sum(one.times) for one in steps.rows(on)}
    except InputError as error:
        return row("unsupported", least, note=str(error))
    batch = knee(fitting, [step_s[one] for one in fitting])
    made = on.timeline(batch)
    if offer is not None:
        training = replace(training, price=offer.price, billing=offer.billing)
    whole = bill(training, made.step_s, batch, 1)
    count = training.samples * training.epochs / batch
    energy = step_energy(made, on.seen, on.lowered(batch).kernels)
    joules = {"energy_j": energy.energy_j, "energy_at_most_j": energy.at_most_j}
    return row(
        "ok",
        batch,
        **picked(made, "step_s low_s high_s extrapolates"),
        examples_per_s=batch / made.step_s if made.step_s else None,
        train_s=whole["train_s"],
        cost=whole["cost"],
        offer=offer,
        **{name: None if value is None else value * count for name, value in joules.items()},
        note=energy.note,
    )


MOST = 1 << 20  # examples a step that are tried
KNEE = 0.9


def largest_batch(memory: Callable[[int], float], has_bytes: float, most: int = MOST) -> int:
    """Return the largest batch whose step needs no more than `has_bytes`, 0 if not even 1 does.

    `memory(batch)` are the bytes of a step, which do not fall as the batch grows. Batches above
    `most` are not tried. 10 bytes and 3 an example fit 100 bytes up to a batch of 30.
    """
    low, high, needs = 0, 1, {}

    def fits(batch: int) -> bool:
        needs[batch] = memory(batch)
        return needs[batch] <= has_bytes

    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        guess = middle
        if low and high in needs and needs[high] > needs[low]:  # memory is nearly a line
            share = (has_bytes - needs[low]) / (needs[high] - needs[low])
            guess = low + int(share * (high - low))
        for batch in (guess, guess + 1, middle):
            if low < batch < high:
                low, high = (batch, high) if fits(batch) else (low, batch)
    return low


def doubling(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to `most`, and `most`."""
    return sorted({1 << i for i in range(most.bit_length())} | {most})


def knee(batches: Sequence[int], step_s: Sequence[float]) -> int:
    """Return the least batch that has 90 % of the best speed, in examples a second.

    Batches of 1, 2, 4 and 8 in 1, 1, 2 and 4 s: at 2 examples a second from 2 on, so 2.
    """
    both = zip(batches, step_s, strict=True)
    speeds = {batch: batch / seconds if seconds else 0.0 for batch, seconds in both}
    return min(one for one, speed in speeds.items() if speed >= KNEE * max(speeds.values()))
