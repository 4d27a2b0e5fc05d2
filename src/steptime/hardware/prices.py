"""Prices of devices per hour, from dated files, and the cost of a training."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from steptime.core.errors import InputError, shorten
from steptime.core.signatures.typed import Figure, Text, Texts, convert_table
from steptime.core.toml_files import DATA
from steptime.hardware import catalog
from steptime.hardware.file_cache import read_cached

HOUR_S = 3600.0
BILLINGS = ("second", "hour")  # how clouds bill; "hour" pays a started hour in full
_HOUR_DIGITS = 9  # of an hour: rounding in sums must not start another one
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
    """The price of a device for an hour, in `currency`, on a date, with its source.

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
    source: str


NO_PRICE = "no price is known (--prices FILE)"


def format_offer(offer: str | None, date: str | None) -> str:
    """Return the offer and its date, or that no price is known: `aws g5.xlarge, 2026-06-17`."""
    return NO_PRICE if offer is None else f"{offer}, {date}"


def read_offers(path: Path | None = None) -> list[Offer]:
    """Return the offers of a price file, or of all shipped ones.

    Raises `InputError` for a file that holds no prices, and for an unknown device.
    """
    paths = sorted(_SHIPPED.glob("*.toml")) if path is None else [path]
    return [offer for price_path in paths for offer in read_cached(price_path, offers_of)]


def cheapest(offers: Iterable[Offer]) -> Mapping[str, Offer]:
    """Return the offer of the lowest price by device."""
    cheapest_by_device: dict[str, Offer] = {}
    for offer in offers:
        cheapest_offer = cheapest_by_device.get(offer.device)
        if cheapest_offer is None or offer.price < cheapest_offer.price:
            cheapest_by_device[offer.device] = offer
    return cheapest_by_device


def offers_of(table: Mapping[str, Any], source_name: str) -> list[Offer]:
    """Return the offers of a table of prices; `source_name` is the file's name in errors.

    Raises `InputError` for an unknown key, a missing one, and an unknown device.
    """
    file = convert_table(table, _PriceFile, source_name)
    device_offers = []
    for number, row in enumerate(file.offers, start=1):
        place = f"{source_name}: offer {number}"
        if not row.number or not row.devices:
            raise InputError(f"{place} ({shorten(row.name)}) has no device")
        try:
            devices = [catalog.device(word).name for word in row.devices]
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        for device in devices:
            offer = Offer(
                device=device,
                # Per device: offers are of machines with several.
                price=row.per_hour / row.number,
                currency=file.currency,
                billing=file.billing,
                name=f"{file.name} {row.name}",
                date=file.date,
                # `unverified` names offers, or "date" for all of the file.
                verified=row.name not in file.unverified and "date" not in file.unverified,
                source=file.source,
            )
            device_offers.append(offer)
    return device_offers


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
    # A started hour counts in full; rounding errors must not start another one.
    paid_hours = math.ceil(round(hours, _HOUR_DIGITS)) if training.billing == "hour" else hours
    cost = None if training.price is None else training.price * paid_hours * device_count
    return TrainingBill(epoch_s, train_s, hours * device_count, cost)
