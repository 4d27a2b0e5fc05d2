"""Paleo's own devices and links, and those that its modified versions added."""

import json

import pytest

from every import every
from steptime.hardware import catalog, device_words

# Paleo (Qi, Sparks, Talwalkar, ICLR 2017), tables of TalwalkarLab/paleo@984bbf5:
# name, kind, MHz, GFLOP/s, GB/s
DEVICES = [
    ("K20", "gpu", 1000, 3520, 208),
    ("K20X", "gpu", 1000, 3935, 250),
    ("K40", "gpu", 745, 4290, 288),
    ("K80", "gpu", 560, 5600, 480),
    ("TITAN_X", "gpu", 1000, 6144, 336.5),
    ("GEFORCE_780_TI", "gpu", 875, 5040, 336),
    ("GEFORCE_750_M", "gpu", 941, 722.7, 80),
    ("CPU_I7", "cpu", 210_000, 289, 68),
]
LINKS = [  # name, Gbit/s
    ("aws", 2),
    ("ethernet", 10),
    ("ethernet20", 20),
    ("infiniband", 70),
    ("pcie2", 64),
    ("pcie3", 128),
]


@every(("name", "kind", "mhz", "gflop_per_s", "gb_per_s"), DEVICES)
def test_devices_of_paleo_have_its_figures(name, kind, mhz, gflop_per_s, gb_per_s):
    for spelling in (name, name.lower(), name.title()):
        device = catalog.device(spelling, "paleo")
        assert device.name == name
        assert device.kind == kind
        assert device.datasheet.clock_hz == pytest.approx(mhz * 1e6, rel=1e-15)
        assert device.datasheet.peak_flop_per_s == {
            "float32": pytest.approx(gflop_per_s * 1e9, rel=1e-15)
        }
        assert device.datasheet.memory_bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=1e-15)
        assert device.datasheet.products == ()  # no machine is taken for one of them
        assert "Paleo" in device.datasheet.source


@every(("name", "gbit_per_s"), LINKS)
def test_links_of_paleo_have_its_figures(name, gbit_per_s):
    link = catalog.link(name.upper())
    assert link.name == name
    assert link.bytes_per_s == pytest.approx(gbit_per_s * 1e9 / 8, rel=1e-15)
    assert link.latency_s is None
    assert "Paleo" in link.source


def test_all_devices_and_links_of_the_original(shared):
    tables = json.loads((shared / "paleo/devices.json").read_text())
    assert {name for name, *_ in DEVICES} == set(tables["devices"])
    for name, row in tables["devices"].items():
        device = catalog.device(name, "paleo")
        assert device.kind == ("gpu" if row["is_gpu"] else "cpu")
        figures = (
            device.datasheet.clock_hz,
            device.datasheet.peak_flop_per_s["float32"],
            device.datasheet.memory_bytes_per_s,
        )
        expected = (
            row["clock_MHz"] * 1e6,
            row["peek_gflop"] * 1e9,
            row["mem_bandwidth_GBps"] * 1e9,
        )
        assert figures == pytest.approx(expected, rel=1e-15)
    assert {name for name, _ in LINKS} == set(tables["networks"])
    for name, row in tables["networks"].items():
        assert catalog.link(name).bytes_per_s * 8 == row["bandwidth_Gbps"] * 1e9


def test_a_datasheet_device_is_not_the_one_of_paleo():
    # both GPUs of a board in Paleo, one of them in what a driver shows
    whole, one = catalog.device("K80", "paleo"), catalog.device("tesla-k80")
    assert whole.datasheet.memory_bytes_per_s == pytest.approx(
        2 * one.datasheet.memory_bytes_per_s, rel=0.01
    )
    assert device_words.platform_of("Tesla K80") == "tesla-k80"
    assert not {name.lower() for name, *_ in DEVICES} & {a.lower() for a in device_words.aliases()}


# What forks of Paleo have: GFLOP/s and GB/s. A datasheet's own figures are within the tolerance.
FORKS = [
    ("V100", 15_700, 900, 0.005),
    ("p100-sxm2-16gb", 10_600, 732, 0.005),
    ("P100", 9_300, 732, 0.03),  # 9526 at the boost clock
    ("titan-xp", 12_100, 547.7, 0.005),
    ("T4", 8_141, 320, 0.005),
    ("rtx-3060", 12_700, 360, 0.005),
    ("M60", 9_650 / 2, 320 / 2, 0.005),  # one of the two GPUs of a board
]


@every(("name", "gflop_per_s", "gb_per_s", "tolerance"), FORKS)
def test_devices_of_the_forks_are_datasheets(name, gflop_per_s, gb_per_s, tolerance):
    device = catalog.device(name, "paleo")
    assert device.datasheet.peak_flop_per_s["float32"] == pytest.approx(
        gflop_per_s * 1e9, rel=tolerance
    )
    assert device.datasheet.memory_bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=tolerance)


def test_figures_by_hand_of_devices_of_the_forks():
    adreno = catalog.device("adreno-640")
    assert adreno.datasheet.peak_flop_per_s["float32"] == pytest.approx(768 * 2 * 585e6, rel=1e-3)
    assert adreno.datasheet.memory_bytes_per_s == pytest.approx(64 / 8 * 4266e6, rel=1e-3)
    i7 = catalog.device("i7-4770K")
    assert i7.name == "core-i7-4770k"
    assert (
        i7.datasheet.peak_flop_per_s["float32"] == 4 * 3.5e9 * 2 * 8 * 2
    )  # cores, clock, units, lanes, FMA
    assert i7.datasheet.memory_bytes_per_s == 2 * 8 * 1600e6
    rtx = catalog.device("rtx-3060")
    assert rtx.datasheet.peak_flop_per_s["float32"] == pytest.approx(
        28 * 128 * 2 * 1.777e9, rel=1e-3
    )
    for device in (adreno, i7):
        assert {"float32", "memory_GB_per_s"} <= set(device.datasheet.unverified)


def test_links_of_the_forks():
    assert catalog.link("ethernet-25").bytes_per_s == 25e9 / 8
    assert catalog.link("nvlink-1").bytes_per_s == 4 * 20e9  # of a P100


def test_clocks_of_datasheets_are_known():
    v100 = catalog.device("V100")
    assert v100.datasheet.clock_hz == 1.53e9
    assert v100.datasheet.peak_flop_per_s["float32"] == pytest.approx(
        5120 * 2 * v100.datasheet.clock_hz, rel=1e-3
    )
    assert catalog.device("xeon-e5-2695-v3").datasheet.clock_hz == 2.3e9
    assert catalog.device("tpu-v2").datasheet.clock_hz is None
