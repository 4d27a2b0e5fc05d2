"""From the time of a step to epochs, hours and money."""

import math
from dataclasses import dataclass

HOUR_S = 3600.0
BILLINGS = ("second", "hour")  # how clouds bill; "hour" pays a started hour in full
_DIGITS = 9  # of an hour: rounding in sums must not start another one


@dataclass(frozen=True)
class Training:
    """A training to pay for: examples in the dataset, epochs, price of a device for an hour.

    `billing` is the smallest time that is paid, one of `BILLINGS`.
    """

    samples: int
    epochs: float = 1.0
    price: float | None = None
    billing: str = "second"


@dataclass(frozen=True)
class Bill:
    """What a training takes. `device_hours` are worked ones; `cost` counts them as billed."""

    epoch_s: float
    train_s: float
    device_hours: float
    cost: float | None


def bill(training: Training, step_s: float, global_batch: int, workers: int) -> Bill:
    """Return time and cost of a training of `samples * epochs / global_batch` steps.

    Every device is paid for from the first second to the last: 1.2 hours on 4 devices cost 4.8
    device-hours. With billing by the hour a started hour counts in full, as in Paleo's live demo
    at $0.90 an hour of a GPU: 8 device-hours.
    """
    epoch_s = training.samples / global_batch * step_s
    train_s = training.epochs * epoch_s
    hours = train_s / HOUR_S
    paid = math.ceil(round(hours, _DIGITS)) if training.billing == "hour" else hours
    cost = None if training.price is None else training.price * paid * workers
    return Bill(epoch_s, train_s, hours * workers, cost)
