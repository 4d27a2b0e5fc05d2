"""What clouds ask for a device and an hour, by dated files, and what a training costs by that."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import DATA
from steptime.core.typed import Figure, Text, Texts, typed
from steptime.hardware import catalog
from steptime.hardware.fresh import fresh

HOUR_S = 3600.0
BILLINGS = ("second", "hour")  # how clouds bill; "hour" pays a started hour in full
_DIGITS = 9  # of an hour: rounding in sums must not start another one
_SHIPPED = DATA / "prices"


class _OfferRow(Struct, forbid_unknown_fields=True):
    name: Text
    devices: Texts
    per_hour: Figure
    number: Annotated[int, Meta(ge=0, le=10**6, description="a whole number")] = 1


class _PriceFile(Struct, forbid_unknown_fields=True):
    name: Text
    date: Text
    currency: Text
    billing: Literal["second", "hour"]
    source: Text
    offers: list[_OfferRow]
    note: Text = ""
    unverified: Texts = ()


@dataclass(frozen=True)
class Offer:
    """The price of a device for an hour, in `currency`, on a date; where it is from.

    `billing` is the smallest time that is paid. `verified` is False for a price that should be
    checked.
    """

    device: str
    price: float
    currency: str
    billing: str
    name: str
    date: str
    verified: bool


NO_PRICE = "no price is known (--prices FILE)"


def by_offer(offer: str | None, date: str | None) -> str:
    """Return by which offer of which date something costs what it does, or that none is known."""
    return NO_PRICE if offer is None else f"{offer}, {date}"


def offers(path: Path | None = None) -> list[Offer]:
    """Return the offers of a price file, or of all shipped ones.

    Raises `InputError` for a file that holds no prices, and for an unknown device.
    """
    paths = sorted(_SHIPPED.glob("*.toml")) if path is None else [path]
    return [offer for one in paths for offer in fresh(one, offers_of)]


def cheapest(of: Iterable[Offer]) -> Mapping[str, Offer]:
    """Return the offer of the lowest price by device."""
    found: dict[str, Offer] = {}
    for offer in of:
        if offer.device not in found or offer.price < found[offer.device].price:
            found[offer.device] = offer
    return found


def offers_of(table: Mapping[str, Any], where: str) -> list[Offer]:
    """Return the offers that a table of prices holds; `where` is named in errors.

    Raises `InputError` for an unknown key, a missing one, and an unknown device.
    """
    file = typed(table, _PriceFile, where)
    found = []
    for number, one in enumerate(file.offers, start=1):
        place = f"{where}: offer {number}"
        if not one.number or not one.devices:
            raise InputError(f"{place} ({shorten(one.name)}) has no device")
        try:
            devices = [catalog.device(word).name for word in one.devices]
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        told = file.currency, file.billing, f"{file.name} {one.name}", file.date
        sure = one.name not in file.unverified and "date" not in file.unverified
        price = one.per_hour / one.number
        found += [Offer(device, price, *told, sure) for device in devices]
    return found


@dataclass(frozen=True)
class Training:
    """A training to pay for.

    Args:
        examples: examples of an epoch; of a training that was said in tokens those of all tokens.
        epochs: epochs.
        price: price of a device for an hour; None where unknown.
        billing: the smallest time that is paid, `second` or `hour`.
        tokens: the tokens of the training, where it was said in tokens.
    """

    examples: float
    epochs: float = 1.0
    price: float | None = None
    billing: str = "second"
    tokens: int | None = None


@dataclass(frozen=True)
class TrainingBill:
    """Time and cost of a training.

    Args:
        epoch_s: seconds of an epoch.
        train_s: seconds of all epochs.
        device_hours: hours of the training times the number of devices.
        cost_total: price of all devices from the first second to the last; None without a price.
    """

    epoch_s: float
    train_s: float
    device_hours: float
    cost_total: float | None


def bill_training(
    training: Training, step_s: float, global_batch: int, device_count: int
) -> TrainingBill:
    """Return time and cost of a training of `examples * epochs / global_batch` steps.

    Every device is paid for from the first second to the last: 1.2 hours on 4 devices cost 4.8
    device-hours. With billing by the hour a started hour counts in full, as in Paleo's live demo
    at $0.90 an hour of a GPU: 8 device-hours.
    """
    epoch_s = training.examples / global_batch * step_s
    train_s = training.epochs * epoch_s
    hours = train_s / HOUR_S
    paid_hours = math.ceil(round(hours, _DIGITS)) if training.billing == "hour" else hours
    cost = None if training.price is None else training.price * paid_hours * device_count
    return TrainingBill(epoch_s, train_s, hours * device_count, cost)
