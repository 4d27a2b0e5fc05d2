"""`choose --max-price` keeps the devices that an hour of costs at most so much."""

import pytest

import steptime
from steptime.core.errors import InputError

DEVICES = "t4,a100,h100,k80"


def test_devices_of_a_higher_or_an_unknown_price_are_left_out():
    every = steptime.choose("resnet18", DEVICES)
    prices = {row.device: row.cost_per_hour for row in every.rows}
    limit = prices["a100-sxm4-80gb"]
    kept = steptime.choose("resnet18", DEVICES, max_price=limit)
    expected = {name for name, price in prices.items() if price is not None and price <= limit}
    assert {row.device for row in kept.rows} == expected
    assert f"{len(prices) - len(expected)} devices left out by --max-price" in kept.notes


def test_a_price_below_all_names_the_cheapest():
    with pytest.raises(InputError, match="the cheapest of these devices, t4, costs"):
        steptime.choose("resnet18", DEVICES, max_price=0.001)
