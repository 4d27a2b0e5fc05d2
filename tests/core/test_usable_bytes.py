"""What of a card's memory a program can have: by maker, by the file, as it was measured."""

import pytest

from every import every
from steptime.hardware import catalog
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device
from steptime.hardware.device_file import device_from_table

GIB = 2**30


@every(
    ("name", "least", "most"),
    [  # as frameworks report it, in GiB
        ("a100-sxm4-80gb", 79.09, 79.25),
        ("h100-sxm5", 79.09, 79.25),
        ("a100-sxm4-40gb", 39.39, 39.59),
        ("b200-sxm", 178.2, 178.5),
        ("b300-sxm", 265, 268.6),  # nvidia-smi has 268.6 in all
        ("l4", 21.9, 22.2),
        ("t4", 14.5, 15.0),
        ("rtx-4090", 23.5, 23.7),
        ("mi300x", 191.9, 192),
        ("tpu-v4", 30.7, 30.8),
        ("trainium2", 96, 96),
    ],
)
def test_usable_bytes_are_those_that_frameworks_report(name, least, most):
    assert least <= (catalog.device(name).datasheet.usable_bytes or 0) / GIB <= most


def test_a_file_without_a_maker_has_the_bytes_that_it_says():
    assert (
        Device("mine", "gpu", Datasheet({}, 1e9, "me", memory_bytes=8e9)).datasheet.usable_bytes
        == 8e9
    )
    assert Device("mine", "gpu", Datasheet({}, 1e9, "me")).datasheet.usable_bytes is None


def test_what_a_driver_gave_goes_before_the_maker():
    table = {
        "name": "mine", "kind": "gpu", "source": "probed", "memory_GB": 84.9,
        "memory_GB_per_s": 1.0, "peak_TFLOP_per_s": {"float32": 1.0},
        "details": {"maker": "NVIDIA", "memory_type": "HBM2e", "usable_GiB": 79.0},
    }  # fmt: skip
    assert device_from_table(table, "here").datasheet.usable_bytes == pytest.approx(79 * GIB)


def test_no_shipped_device_has_more_than_its_gigabytes_in_gib():
    for name in catalog.device_names(with_user_files=False):
        device = catalog.device(name, "paleo")
        if device.datasheet.memory_bytes is not None:
            least = 0.66 if device.datasheet.maker == "Apple" else 0.9  # the system has the rest
            assert device.datasheet.memory_bytes * least <= (device.datasheet.usable_bytes or 0), (
                name
            )
            assert (
                device.datasheet.usable_bytes or 0
            ) <= device.datasheet.memory_bytes * GIB / 1e9, name
