"""The topic `prices` of the question `list`."""

from typing import ClassVar

from steptime.core.answer import AnswerRow
from steptime.core.tables.table import Column
from steptime.hardware.prices import read_offers
from steptime.questions.list.topics import TopicAnswer


class PriceRow(AnswerRow, frozen=True, kw_only=True):
    """A price of a device.

    Attributes:
        device: the device.
        cost_per_hour: its price for an hour.
        currency: the currency.
        billing: the smallest time that is paid, second or hour.
        price_offer: the provider and its offer.
        price_date: the date of the price.
        is_price_verified: whether it was read in a price list.
        source: where the price comes from.
    """

    device: str
    cost_per_hour: float
    currency: str
    billing: str
    price_offer: str
    price_date: str
    is_price_verified: bool
    source: str


class PricesAnswer(TopicAnswer, frozen=True, kw_only=True):
    """The shipped prices.

    Attributes:
        rows: the prices, by device and price.
    """

    rows: tuple[PriceRow, ...]
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        Column("device"),
        Column("cost_per_hour", "per hour", form=".3f"),
        Column("currency"),
        Column("price_offer", "offer"),
        Column("price_date", "date"),
        Column("is_price_verified", "verified"),
    )


def read_prices() -> tuple[PriceRow, ...]:
    """Return the shipped prices, by device and price."""
    return tuple(
        PriceRow(
            device=offer.device,
            cost_per_hour=offer.price,
            currency=offer.currency,
            billing=offer.billing,
            price_offer=offer.name,
            price_date=offer.date,
            is_price_verified=offer.verified,
            source=offer.source,
        )
        for offer in sorted(read_offers(), key=lambda offer: (offer.device, offer.price))
    )
