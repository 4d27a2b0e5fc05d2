"""Peaks of GPUs are what their multiprocessors do in a clock: this finds a slip of the pen."""

import pytest

from every import every
from steptime.hardware import catalog
from steptime.hardware.device import Device

LANES = {  # of float32, a multiprocessor
    "Kepler": 192,
    "Kepler 2.0": 192,
    "Maxwell 2.0": 128,
    "Volta": 64,
    "Turing": 64,
    "Hopper": 128,
    "Blackwell": 128,
    "Blackwell Ultra": 128,
    "Blackwell 2.0": 128,
    "Ada Lovelace": 128,
    "GCN 5.0": 64,
    "GCN 5.1": 64,
    "CDNA 1.0": 64,
    "CDNA 2.0": 64,
    "CDNA 3.0": 128,
    "CDNA 4.0": 128,
    "RDNA 2.0": 64,
    "RDNA 3.0": 128,
    "RDNA 4.0": 128,
    "Xe-HPG": 128,
    "Xe2-HPG": 128,
    "Ponte Vecchio": 128,
}
OF_CHIP = {"p100": 64, "quadro-gp100": 64, "a100": 64, "a30": 64, "a800": 64}  # lanes, too
FLOP_PER_CLOCK = {  # of float16, dense, sums in float32: rates that an architecture has
    "Volta": {1024},
    "Turing": {256, 512, 1024},
    "Ampere": {512, 1024, 2048},
    "Ada Lovelace": {512, 1024},
    "Hopper": {4096},
    "Blackwell": {8192},
    "Blackwell 2.0": {512, 1024},
    "CDNA 1.0": {1024},
    "CDNA 2.0": {1024},
    "CDNA 3.0": {2048},
    "CDNA 4.0": {4096},
    "RDNA 2.0": {256},
    "RDNA 3.0": {512},
    "RDNA 3.5": {512},
    "RDNA 4.0": {1024},
    "Xe-HPG": {2048},
    "Xe2-HPG": {2048},
    "Ponte Vecchio": {4096},
    "GCN 5.0": {256},
    "GCN 5.1": {256},
}
OF_FLOAT16 = {"int8": {1, 2, 4, 8}, "float8": {1, 2}, "float4": {4, 8}, "tf32": {0.5}}
NO_L2 = ("jetson-agx-thor", "jetson-t4000", "rtx-5090-d-v2")  # that nobody publishes
GPUS = [one for one in catalog.devices() if one.kind == "gpu" and not one.datasheet.only_by_name]
TIMED = [
    one
    for one in GPUS
    if one.datasheet.multiprocessors and one.datasheet.clock_hz and one.datasheet.maker != "Apple"
]


def lanes(device: Device) -> int:
    of_chip = [count for chip, count in OF_CHIP.items() if device.name.startswith(chip)]
    return of_chip[0] if of_chip else LANES.get(str(device.datasheet.architecture), 128)


@every("device", TIMED, ids=lambda device: device.name)
def test_float32_is_lanes_times_clock(device):
    if "float32" in device.datasheet.unverified:
        return
    of_lanes = device.datasheet.multiprocessors * lanes(device) * 2 * device.datasheet.clock_hz
    assert device.datasheet.vector_peak("float32") == pytest.approx(of_lanes, rel=0.02)


@every("device", TIMED, ids=lambda device: device.name)
def test_matrix_peaks_are_rates_times_clock(device):
    peaks = device.datasheet.peak_flop_per_s
    if device.datasheet.architecture not in FLOP_PER_CLOCK or "float16" not in peaks:
        return
    if not {"float16", "multiprocessors"} & set(device.datasheet.unverified):
        clock = (
            device.datasheet.details.get("tensor_clock_MHz", device.datasheet.clock_hz / 1e6) * 1e6
        )
        rate = peaks["float16"] / device.datasheet.multiprocessors / clock
        known = FLOP_PER_CLOCK[device.datasheet.architecture]
        assert min(abs(rate / one - 1) for one in known) < 0.02, rate
    for dtype, ratios in OF_FLOAT16.items():
        if dtype in peaks and dtype not in device.datasheet.unverified:
            of = peaks[dtype] / peaks["float16"]
            assert min(abs(of / one - 1) for one in ratios) < 0.03, (dtype, of)
    assert peaks.get("bfloat16", peaks["float16"]) in (peaks["float16"], peaks["float16"] / 2)


def test_cards_for_games_run_at_half_the_rate_with_sums_in_float32():
    peaks = {
        name: catalog.device(name).datasheet.peak_flop_per_s
        for name in ("rtx-3090", "rtx-4090", "a40")
    }
    assert peaks["rtx-3090"]["float16"] == pytest.approx(
        82 * 512 * 1.695e9, rel=1e-3
    )  # 71, not 142
    assert peaks["rtx-4090"]["bfloat16"] == pytest.approx(128 * 512 * 2.52e9, rel=1e-3)
    assert peaks["a40"]["float16"] == pytest.approx(84 * 1024 * 1.74e9, rel=1e-3)
    mi210 = catalog.device("mi210")
    assert mi210.datasheet.peak_flop_per_s["float32"] == 45.3e12  # of the matrix units
    assert mi210.datasheet.vector_peak("float32") == pytest.approx(104 * 64 * 2 * 1.7e9, rel=1e-3)


@every("device", GPUS, ids=lambda device: device.name)
def test_a_gpu_has_what_a_price_asks_for(device):
    assert device.datasheet.maker
    assert device.datasheet.architecture
    assert device.datasheet.memory_type
    assert device.datasheet.process_nm
    if device.datasheet.maker == "NVIDIA":
        assert device.datasheet.multiprocessors
        assert device.datasheet.peak_w
        assert device.datasheet.clock_hz
        assert device.datasheet.l2_bytes or device.name in NO_L2


def test_there_are_many_devices():
    every = catalog.devices()
    assert len(every) >= 150
    assert sum(one.kind == "cpu" for one in every) >= 40


def test_corrected_datasheets():
    """Figures that stood wrong once, with their makers' own."""
    assert catalog.device("l20").datasheet.peak_flop_per_s["int8"] == pytest.approx(
        239e12, rel=0.01
    )
    for name in ("a100-sxm4-40gb", "a100-pcie-40gb"):
        assert catalog.device(name).datasheet.memory_type == "HBM2"
    game, china = catalog.device("rtx-5090"), catalog.device("rtx-5090-d")
    slower = china.datasheet.peak_flop_per_s["float4"] / game.datasheet.peak_flop_per_s["float4"]
    assert slower == pytest.approx(2375 / 3352, rel=0.01)
    for name, tflops in (("4000", 46.9), ("4500", 54.94), ("5000", 73.69)):
        card = catalog.device(f"rtx-pro-{name}-blackwell")
        assert card.datasheet.vector_peak("float32") == tflops * 1e12
    assert catalog.device("tpu-v3").datasheet.peak_w == 450
    assert catalog.device("b300-sxm").datasheet.peak_flop_per_s["float4"] == 108e15 / 8
    assert catalog.device("xeon-6980p").datasheet.memory_bytes_per_s == pytest.approx(
        12 * 8 * 8.8e9
    )


@every("name", ["trainium3", "m5-gpu", "mi308x", "ryzen-ai-max-plus-395", "rtx-5090-d-v2"])
def test_a_device_of_2025_is_known(name):
    assert catalog.device(name).datasheet.memory_bytes
