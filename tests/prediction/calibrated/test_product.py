"""Products on GPUs by tiles and waves, and the cap of power, against hand arithmetic."""

import math
from dataclasses import replace

import pytest

from every import every
from steptime.hardware import catalog
from steptime.hardware.architectures import architectures, family_of, find_family
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device
from steptime.prediction.calibrated.method import METHOD, price
from steptime.prediction.calibrated.power import capped_s, kernels_j, limit_of, step_joules
from steptime.prediction.calibrated.product import (
    cached_weight_bytes,
    product,
    products_s,
    time_products,
)
from steptime.prediction.kernel import Kernel, Settings
from steptime.prediction.kernels import Kernels

CONSTANTS = {
    "product.share": 0.5,
    "product.half_reuse": 64.0,  # a tile that is used 64 times takes twice the time of large ones
    "product.ramp_s": 3.93216e-6,  # 24 steps of 2 * 128 * 128 FLOP on a multiprocessor, below
    "product.turn_s": 1e-9,
    "product.along": 1.0,
    "product.sum_s": 1.0,  # so large that nothing is split
    "stream.share_hbm": 1.0,
    "stream.share_amd": 1.0,
    "stream.share_old": 1.0,
    "product.tensor_share": 0.5,
    "product.tensor_half_reuse": 64.0,
    "product.tensor_ramp": 104.0,
    "product.tensor_turn_s": 0.0,
    "product.amd": 0.8,
    "product.odd_threads": 0.25,
    "product.uneven_threads": 0.5,
    "product.odd_tensor": 0.125,
    "product.uneven_tensor": 0.4,
    "product.amd_batched": 0.5,
}
AMPERE = Device(
    "unit",
    "gpu",
    Datasheet(
        {"float32": 4e12},
        1e12,
        "a test",
        multiprocessors=10,
        architecture="Ampere",
        memory_type="HBM2",
    ),
    constants=CONSTANTS,
)


def kernel(*shape: int, kind: str = "matmul") -> Kernel:
    batch, m, n, k = shape
    moved = 4 * batch * (m * k + k * n + m * n)
    return Kernel(
        "op", kind, "forward", "float32", "matrix", 2 * batch * m * n * k, moved, (shape,)
    )


def test_batches_on_ampere_take_tiles_of_128_in_waves():
    # 3 matrices of 2 x 2 tiles are 12 on 10 multiprocessors: 2 waves of 2 * 128 * 128 * (1000 + 24)
    # FLOP each, at 4e11 FLOP/s of one, half of it reached.
    waves = 2 * 2 * 128 * 128 * 1024 / (4e11 * 0.5)
    assert products_s(kernel(3, 200, 150, 1000), AMPERE, CONSTANTS) == pytest.approx(waves)


def test_one_product_takes_the_tile_that_suits_it():
    # 32 rows: a tile of 32 x 128 is used 25.6 times, not 64: (1 + 64 / 25.6) / (1 + 1) of the time
    once = 2 * 32 * 128 * 1000 / (4e11 * 0.5) * 3.5 / 2 + CONSTANTS["product.ramp_s"]
    assert products_s(kernel(1, 32, 1280, 1000), AMPERE, CONSTANTS) == pytest.approx(once)


def test_a_long_contraction_is_split_over_multiprocessors_that_wait():
    cheap = CONSTANTS | {"product.sum_s": 1e-6}
    whole = products_s(kernel(1, 128, 128, 20_000), AMPERE, CONSTANTS)
    parts = products_s(kernel(1, 128, 128, 20_000), AMPERE, cheap)
    # 10 parts of 2000, one a multiprocessor; 10 results of 128 x 128 and their sum are moved
    split = 2 * 128 * 128 * 2024 / 2e11 + 4 * 128 * 128 * 11 / 1e12 + 1e-6
    assert parts == pytest.approx(split)
    assert parts < whole / 2


def test_a_step_of_a_tile_takes_its_turn():
    # 2 us of latency for each of 1000 steps, and the ramp, which is that of 24 waves of 0.16384 us
    slow = CONSTANTS | {"product.turn_s": 2e-6}
    found = products_s(kernel(4, 128, 128, 1000), AMPERE, slow)
    assert found == pytest.approx(2e-6 * 1000 + 24 * 1.6384e-7)


def test_what_lies_along_the_contraction_is_read_in_pieces():
    # 4 bytes of each number; a linear layer's weights lie so, too, a product's second operand not
    constants = CONSTANTS | {"product.along": 3.0, "stream.latency_s": 0.0, "launch.gap_s": 0.0}
    for kind, along in (("matmul", 16 * 4096), ("linear", (16 + 512) * 4096)):
        one = kernel(1, 16, 512, 4096, kind=kind)
        memory_s = product(one, AMPERE, constants).memory_s
        assert memory_s == pytest.approx((one.bytes + 2 * 4 * along) / 1e12)


TENSOR = AMPERE.with_figures(
    peak_flop_per_s={"float32": 4e12, "bfloat16": 4e13},
    vector_flop_per_s={"float32": 4e12},
)


def test_tensor_cores_have_tiles_steps_and_waits_of_their_own():
    # 50 columns to sum are padded to 64, and a tile waits as for 104 more
    half = kernel(1, 128, 1280, 50)._replace(dtype="bfloat16")
    slower = 2 / (1 + 64 / (128 * 256 / 384))  # than a tile of 128 x 256
    once = 2 * 128 * 128 * 168 / (4e12 * 0.5) * slower  # 10 tiles on 10 multiprocessors
    # rows of 50 numbers of 2 bytes are copied 4 bytes at a time, at half of the rate
    assert products_s(half, TENSOR, CONSTANTS) == pytest.approx(once / 0.5)
    amd = TENSOR.with_figures(architecture="CDNA 3.0", maker="AMD")
    assert products_s(half, amd, CONSTANTS) == pytest.approx(once / 0.8)
    batch = kernel(2, 128, 640, 50)._replace(dtype="bfloat16")
    assert products_s(batch, amd, CONSTANTS) == pytest.approx(once / 0.8 / 0.5)


@every(
    ("shape", "transposed", "shares"),
    [
        ((1, 4096, 50304, 768), False, (1.0, 1.0)),
        ((1, 4095, 50304, 768), False, (1.0, 1.0)),  # rows of operands and of the result do
        ((1, 4096, 50257, 768), False, (0.25, 0.125)),
        ((4, 1024, 768, 50257), False, (0.25, 0.125)),  # of what is multiplied
        ((1, 50257, 768, 4096), True, (0.25, 0.125)),  # of weights
        ((1, 50304, 768, 4095), True, (1.0, 1.0)),  # no row runs along the contraction
        ((1, 4095, 768, 50304), False, (1.0, 1.0)),
        ((1, 4096, 50260, 768), False, (0.5, 0.4)),  # 4 bytes at a time
    ],
    ids=str,
)
def test_rows_that_begin_at_odd_places_are_slow(shape, transposed, shares):
    one = kernel(*shape)._replace(dtype="bfloat16", transposed=transposed)
    even = [size if size < 8 else -(-size // 8) * 8 for size in shape]
    padded = kernel(*even)._replace(dtype="bfloat16", transposed=transposed)
    for age, share in zip(("Ampere", "Hopper"), shares, strict=True):
        device = TENSOR.with_figures(architecture=age)
        as_padded = products_s(padded, device, CONSTANTS)
        assert products_s(one, device, CONSTANTS) == pytest.approx(as_padded / share, rel=1e-3)
    wide = one._replace(dtype="float32")
    assert products_s(wide, AMPERE, CONSTANTS) == pytest.approx(
        products_s(padded._replace(dtype="float32"), AMPERE, CONSTANTS), rel=0.02
    )


@every(
    ("architecture", "turns"),
    [("Ampere", 10), ("Hopper", 5), ("Blackwell", 5), ("Blackwell 2", 10)],
)
def test_matrix_units_take_turns(architecture, turns):
    # 320 columns of the contraction are 10 steps of 32, or 5 of 64, of 1 ms each, and no ramp
    slow = CONSTANTS | {"product.tensor_turn_s": 1e-3, "product.tensor_ramp": 1e-9}
    half = kernel(1, 16, 64, 320)._replace(dtype="bfloat16")
    seconds = products_s(half, TENSOR.with_figures(architecture=architecture), slow)
    assert seconds == pytest.approx(turns * 1e-3, rel=1e-6)


def test_matrix_units_wait_for_their_first_bytes():
    constants = CONSTANTS | {"product.tensor_wait_s": 1e-6, "launch.gap_s": 2e-6}
    half = kernel(1, 128, 1280, 64)._replace(dtype="bfloat16")
    parts = product(half, TENSOR, constants)
    assert parts.memory_s == pytest.approx(half.bytes / 1e12 + 1e-6)
    assert parts.gap_s == pytest.approx(2e-6)


def test_lanes_wait_where_each_instruction_takes_a_turn_of_them():
    # 128 lanes of 10 multiprocessors do 2560 FLOP a clock: 4e12 FLOP/s at 1.5625 GHz; 64 at twice
    constants = CONSTANTS | {"product.issue": 0.8, "product.ramp_s": 0.0}
    whole = kernel(3, 200, 150, 1000)
    for age, clock_hz, slower in (
        ("Ampere", 4e12 / 2560, 0.8),
        ("Ampere", 4e12 / 1280, 1.0),
        ("Blackwell 2.0", 4e12 / 2560, 0.8),
        ("Blackwell", 4e12 / 2560, 1.0),  # multiplies pairs
        ("Turing", 4e12 / 2560, 1.0),
    ):
        one, free = (
            AMPERE.with_figures(architecture=age, clock_hz=clock_hz, vector_flop_per_s=peaks)
            for peaks in ({"float32": 4e12}, {})
        )
        same = products_s(whole, free, constants)
        assert products_s(whole, one, constants) == pytest.approx(same / slower)


def test_half_types_before_tensor_cores_are_stored_in_halves_alone():
    pascal = AMPERE.with_figures(
        architecture="Pascal",
        peak_flop_per_s={"float32": 4e12, "float16": 8e12},
        vector_flop_per_s={"float32": 4e12},
    )
    full = kernel(1, 128, 1280, 50)
    half = full._replace(dtype="float16")
    assert products_s(half, pascal, CONSTANTS) == products_s(full, pascal, CONSTANTS)


def test_linear_layers_before_volta_take_small_tiles():
    # 128 x 640 is 20 tiles of 64 x 64, 2 waves, or in a batch 10 of 64 x 128, as long as both
    pascal = AMPERE.with_figures(architecture="Pascal")
    ramp = CONSTANTS["product.ramp_s"]
    wave = 2 * 64 * 64 * 1000 / (4e11 * 0.5 * 2)  # of a rate that a tile used 64 times halves
    seconds = products_s(kernel(1, 128, 640, 1000, kind="linear"), pascal, CONSTANTS)
    assert seconds == pytest.approx(2 * (wave * (1 + 64 / 32) + ramp))
    batch = products_s(kernel(2, 64, 640, 1000), pascal, CONSTANTS)
    assert batch == pytest.approx(2 * wave * (1 + 1.5) + ramp)


def test_batches_of_other_generations_have_tiles_of_64():
    # heads of 64: a tile of 128 x 64 is used 42.7 times and not half empty
    hopper = AMPERE.with_figures(architecture="Hopper")
    wave = 2 * 128 * 64 * 1000 / (4e11 * 0.5 * 2) * (1 + 1.5) + CONSTANTS["product.ramp_s"]
    assert products_s(kernel(5, 256, 64, 1000), hopper, CONSTANTS) == pytest.approx(wave)
    assert products_s(kernel(5, 64, 256, 1000), hopper, CONSTANTS) == pytest.approx(wave)


def test_what_an_architecture_does_says_what_told_it():
    rules = architectures()
    tables = (*rules.traits.values(), *rules.tiles.values(), rules.set_tiles)
    tables += (rules.contraction_step, rules.since)
    assert all(table.rows or table.why for table in tables)
    steps = {family: rules.contraction_step.value_of(family) for family in rules.families}
    assert steps["Volta"] == rules.contraction_step.value_of("") == 32
    assert steps["Hopper"] == steps["Blackwell"] == 64
    assert steps["Blackwell 2"] == 32


def test_an_architecture_belongs_to_its_longest_family():
    families = {
        "Blackwell Ultra": "Blackwell",
        "Blackwell 2.0": "Blackwell 2",
        "Kepler 2.0": "Kepler",
    }
    assert {name: find_family(name) for name in families} == families
    assert find_family("Rubin") == find_family("") == ""
    for device in catalog.devices():
        if device.kind == "gpu" and device.datasheet.maker in ("NVIDIA", "AMD"):
            assert family_of(device), device.name


@every("architecture", ["Pascal", "Volta", "Turing", "Ampere", "CDNA 2.0", None])
def test_time_never_falls_with_whole_tiles(architecture):
    device = METHOD.derate(catalog.device("a100-pcie-40gb"), "float32", Settings())
    device = device.with_figures(architecture=architecture)
    for place in range(4):
        before = 0.0
        for times in range(1, 40):
            shape = [2, 128, 128, 128]
            shape[place] *= times
            now = price(kernel(*shape), device).value
            assert now >= before
            before = now


POWER = {
    "power.flop_j": 8e-12,
    "power.tensor_j": 1e-12,
    "power.byte_j": 1e-10,
    "power.node": 1.0,
    "power.waiting_hbm": 0.2,
    "power.waiting_gddr": 0.3,
    "power.clock": 1.0,
    "power.unthrottled": 2.0,
    "power.mixed": 1.25,
    "power.error": 0.1,
}


def test_power_bounds_what_lasts():
    device = AMPERE.with_figures(peak_w=100.0, process_nm=10.0)
    work = Kernel("op", "matmul", "forward", "float32", "matrix", 1e12, 1e10)
    limit = limit_of(device, POWER, "matrix", "float32")
    # at 10 nm 0.625 of 8 pJ a FLOP are 5 J, and 1 J for the bytes; 80 W are left beside waiting
    assert capped_s(work, 1.0, 1, limit) == pytest.approx(6 / 80)
    assert capped_s(work, 1.0, 0, limit) == pytest.approx(6 / 100)  # in a step
    # what takes 0.1 s at 4 TFLOP/s is not more than 0.4 TFLOP: 2 J
    assert capped_s(work, 0.1, 1, limit) == pytest.approx(3 / 80)
    gddr = limit_of(device.with_figures(memory_type="GDDR6"), POWER, "matrix", "float32")
    assert capped_s(work, 1.0, 1, gddr) == pytest.approx(6 / 70)
    assert limit_of(AMPERE, POWER, "matrix", "float32") is None  # no limit is known
    assert limit_of(replace(device, kind="tpu"), POWER, "matrix", "float32") is None
    assert capped_s(work, 1.0, 1, None) == 0


def test_joules_of_matrix_units_fall_with_the_clock():
    assert AMPERE.datasheet.multiprocessors is not None
    flop_per_clock = (
        2 * AMPERE.datasheet.multiprocessors * 4096
    )  # at 3 GHz, stated as the boost clock
    peaks = {"float32": 4e12, "float16": 3e9 * flop_per_clock}
    device = AMPERE.with_figures(
        peak_flop_per_s=peaks, vector_flop_per_s={"float32": 4e12}, peak_w=100.0
    )
    device = device.with_figures(process_nm=10.0, clock_hz=3e9)
    work = Kernel("op", "matmul", "forward", "float16", "matrix", 1e12, 1e10)
    limit = limit_of(device, POWER, "matrix", "float16")
    assert limit is not None
    # 1 pJ at 16 nm and 1.5 GHz is 1.25 at 10 nm and 3 GHz; 1 J is of the bytes
    assert capped_s(work, 1.0, 1, limit) == pytest.approx(2.25 / 80)
    # in 7.03 ms these are four times what 80 W allow: clocks, and joules of a FLOP, are halved
    assert capped_s(work, 2.25 / 4 / 80, 1, limit) == pytest.approx((1.25 / 2 + 1) / 80)
    vector = limit_of(device, POWER, "matrix", "float32")
    assert vector is not None
    assert vector.flop_j == pytest.approx(5e-12)
    assert capped_s(work, 0.5, 1, vector) == pytest.approx(6 / 80)


def test_tiles_that_are_half_empty_draw_power():
    """A result of 128 x 200 takes two tiles of 128 x 128."""
    work = kernel(3, 128, 200, 1000)
    assert time_products(work, AMPERE, CONSTANTS)[1] == 3 * 2 * 128 * 256 * 1000


def test_products_find_what_was_just_made_in_the_last_cache():
    """A cache of 100 kB holds half of 100 kB: x and y here; the weights come from memory."""
    cached = AMPERE.with_figures(l2_bytes=100_000.0)
    known = CONSTANTS | {"stream.latency_s": 0.0, "launch.gap_s": 0.0, "stream.cached_bytes": 200.0}
    work = kernel(1, 100, 150, 100, kind="linear")
    plain, found = (product(work, one, known).memory_s for one in (AMPERE, cached))
    assert plain == found  # no clock, so no rate of the cache that is known
    cached = cached.with_figures(clock_hz=1e9)  # 10 multiprocessors take 2 TB/s, twice the memory's
    assert plain - product(work, cached, known).memory_s == pytest.approx(50_000 / 2e12)
    # 6 copies of 60 kB between the same bytes used twice do not stay in it, but in 4 MB
    assert cached_weight_bytes(work, cached, 6) == pytest.approx(60_000 / (1 + 4.6**3))
    large = cached.with_figures(l2_bytes=4e6)
    assert cached_weight_bytes(work, large, 6) == pytest.approx(60_000, rel=0.01)


def test_a_step_draws_what_it_waits_and_what_its_kernels_take():
    device = replace(AMPERE.with_figures(peak_w=100.0, process_nm=10.0), constants=POWER)
    work = Kernel("op", "matmul", "forward", "float32", "matrix", 1e12, 1e10)
    off = math.exp(1.2816 * 0.1)
    # 5 J of FLOP, twice as much at full clocks, and 1 J of bytes; 20 W waiting
    assert step_joules(
        kernels_j(Kernels([work]), device), (1.0, 0.5, 2.0), device
    ) == pytest.approx((20 + 11, 10 + 11 / off, 40 + 11 * off))
    assert step_joules(kernels_j(Kernels([work]), device), (0.05,) * 3, device) == pytest.approx(
        (5, 5, 5)
    )  # the limit
    assert step_joules(1.0, (1.0, 0.5, 2.0), AMPERE) is None
