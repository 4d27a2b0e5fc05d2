"""From the time of a step to epochs, hours and money."""

from __future__ import annotations

import math
from dataclasses import dataclass

HOUR_S = 3600.0
_DIGITS = 9  # of an hour: rounding in sums must not start another one


@dataclass(frozen=True)
class Training:
    """A training to pay for: examples in the dataset, epochs, price of a device for an hour."""

    samples: int
    epochs: float = 1.0
    price: float | None = None


@dataclass(frozen=True)
class Bill:
    """What a training takes. `device_hours` are worked ones; `cost` counts started hours."""

    epoch_s: float
    train_s: float
    device_hours: float
    cost: float | None


def bill(training: Training, step_s: float, global_batch: int, workers: int) -> Bill:
    """Give time and cost of a training of `samples * epochs / global_batch` steps.

    Every device is paid for from the first hour to the last, and a started hour counts in full
    (Paleo's live demo at $0.90 an hour of a GPU): 1.2 hours on 4 devices cost 8 device-hours.
    """
    epoch_s = training.samples / global_batch * step_s
    train_s = training.epochs * epoch_s
    hours = train_s / HOUR_S
    started = math.ceil(round(hours, _DIGITS))
    cost = None if training.price is None else training.price * started * workers
    return Bill(epoch_s, train_s, hours * workers, cost)
