"""Devices side by side for one training: whether it fits, which batch, how long, how dear."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from steptime.core.errors import InputError
from steptime.core.hardware import Device
from steptime.predict.fit import knee
from steptime.predict.grid import Steps
from steptime.predict.power import step_energy
from steptime.predict.prices import Offer, Training, bill
from steptime.predict.step_model import StepModel

TRIED = tuple(1 << i for i in range(17))  # batches, where none is asked for


@dataclass(frozen=True)
class Choice:
    """One device for a training, at the batch asked for or the best one that fits.

    `status` is `ok`, `oom` where no batch fits, `unsupported` where no peak of the dtype is known:
    then there are no times, and `note` says why. Times, cost and energy are of the whole training;
    `low_s` and `high_s` are of a step. Unknown is None.
    """

    device: str
    status: str
    batch: int
    peak_memory_bytes: int
    needed_bytes: int
    memory_bytes: float | None
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    extrapolates: bool = False
    examples_per_s: float | None = None
    train_s: float | None = None
    cost: float | None = None
    offer: Offer | None = None
    energy_j: float | None = None
    energy_at_most_j: float | None = None
    note: str = ""


SORTS: Mapping[str, Callable[[Choice], float | None]] = {
    "time": lambda one: one.train_s,
    "cost": lambda one: one.cost,
    "energy": lambda one: one.energy_j or one.energy_at_most_j,
}


def choices(
    model: StepModel,
    devices: Iterable[Device],
    samples: int,
    epochs: float = 1.0,
    offers: Mapping[str, Offer] | None = None,
    batch: int | None = None,
) -> list[Choice]:
    """Return what a training of `samples * epochs` examples takes on each device.

    The network is that of `model`. Without a `batch` it is the least power of two that has 90 % of
    the best speed among those that fit (`fit.knee`). `offers` are the prices by device.
    """
    steps = Steps(model, TRIED if batch is None else (batch,))
    training, known = Training(samples, epochs), offers or {}
    return [_choice(model.on(one), steps, training, known.get(one.name)) for one in devices]


def ordered(found: Sequence[Choice], by: str) -> list[Choice]:
    """Return choices with the least of `by`, a name of `SORTS`, first; unknown last, unfit after.

    Devices that do not fit or are unsupported keep their order.
    """

    def key(one: Choice) -> tuple[bool, bool, float]:
        value = SORTS[by](one)
        return one.status != "ok", value is None, value or 0.0

    return sorted(found, key=key)


def _choice(on: StepModel, steps: Steps, training: Training, offer: Offer | None) -> Choice:
    device, every = on.device, dict(zip(steps.batches, steps.needs(on), strict=True))
    fitting = [batch for batch, needs in every.items() if needs.fit(device)]
    least = min(every)

    def of(status: str, batch: int) -> tuple[str, str, int, int, int, float | None]:
        needs = every[batch]
        return device.name, status, batch, needs.peak_bytes, needs.total_bytes, device.memory_bytes

    if not fitting:
        return Choice(*of("oom", least))
    try:
        step_s = {row.batch: sum(row.times) for row in steps.rows(on)}
    except InputError as error:
        return Choice(*of("unsupported", least), note=str(error))
    batch = knee(fitting, [step_s[one] for one in fitting])
    made = on.timeline(batch)
    if offer is not None:
        training = replace(training, price=offer.price, billing=offer.billing)
    whole = bill(training, made.step_s, batch, 1)
    count = training.samples * training.epochs / batch
    energy = step_energy(made, on.seen, on.lowered(batch).kernels)
    return Choice(
        *of("ok", batch),
        *(made.step_s, made.low_s, made.high_s, made.extrapolates),
        batch / made.step_s if made.step_s else None,
        whole.train_s,
        whole.cost,
        offer,
        None if energy.energy_j is None else energy.energy_j * count,
        None if energy.at_most_j is None else energy.at_most_j * count,
        energy.note,
    )
