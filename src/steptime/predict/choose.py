"""Devices side by side for one training: whether it fits, which batch, how long, how dear."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from steptime.core.errors import InputError
from steptime.core.hardware import Device
from steptime.core.table import picked
from steptime.predict.fit import knee
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
    that fit (`fit.knee`). `offers` are the prices by device.
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
