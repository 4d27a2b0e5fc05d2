"""Kernels that move bytes, and attention, by hand; numbers and arrays priced alike."""

from dataclasses import replace

import pytest

from every import every
from steptime.calibration.cases import op_kernels
from steptime.hardware import catalog
from steptime.prediction.calibrated.attention import attention
from steptime.prediction.calibrated.form import between_events_s, memory_rate
from steptime.prediction.calibrated.method import calibrated_device, price
from steptime.prediction.calibrated.stream import stream
from steptime.prediction.kernel import Kernel, Settings

CONSTANTS = {
    "stream.share_hbm": 0.9,
    "stream.share_gddr": 0.8,
    "stream.share_geforce": 0.85,
    "stream.share_old": 0.7,
    "stream.latency_s": 2e-6,
    "stream.flop_share": 0.5,
    "stream.cached_bytes": 10.0,
    "stream.softmax_again": 0.4,
    "stream.norm_again": 0.5,
    "stream.reduced_bytes": 4.0,
    "stream.rows_running": 16.0,
    "stream.kept_row": 1024.0,
    "launch.gap_s": 1e-6,
    "attention.share": 0.8,
    "attention.share_new": 0.4,
    "attention.backward": 0.9,
    "attention.softmax": 32.0,
    "attention.plain": 0.5,
    "attention.queries": 128.0,
}
A100 = replace(
    calibrated_device(catalog.device("a100-sxm4-40gb"), "float16", Settings()),
    constants=CONSTANTS,
)
NO_CACHE = A100.with_figures(l2_bytes=None)
LATENCY = 2e-6 * 1500 / 1410  # stated at 1.5 GHz


def one(kind, *shapes, dtype="float32", **attrs):
    (kernel,) = op_kernels(kind, shapes, attrs, dtype)
    return kernel


@every(
    ("device", "share"),
    [
        ("a100-sxm4-40gb", 0.9),
        ("t4", 0.8),
        ("rtx-3090", 0.85),
        ("p100-pcie-16gb", 0.7),
        ("tesla-p4", 0.7),
    ],
)
def test_memory_reaches_a_share_by_its_kind(device, share):
    found = catalog.device(device)
    assert memory_rate(found, CONSTANTS) == pytest.approx(
        share * found.datasheet.memory_bytes_per_s
    )


def test_a_sum_reads_two_tensors_and_writes_one():
    kernel = one("add", (1000, 100_000), (1000, 100_000))
    parts = stream(kernel, NO_CACHE, CONSTANTS)
    assert parts.memory_s == pytest.approx(1.2e9 / (0.9 * 1555e9) + LATENCY)
    assert parts.compute_s == pytest.approx(1e8 / (19.49e12 * 0.5))
    assert parts.gap_s == 1e-6


def test_what_fits_into_the_last_cache_comes_from_there():
    small, large = one("relu", (1000, 1000)), one("relu", (10_000, 10_000))
    cached = 8e6 / (10 * 108 * 1410e6)
    assert stream(small, A100, CONSTANTS).memory_s == pytest.approx(cached + LATENCY, rel=1e-3)
    for kernel, fits in ((small, False), (large, True)):
        same = stream(kernel, A100, CONSTANTS).memory_s == pytest.approx(
            stream(kernel, NO_CACHE, CONSTANTS).memory_s, rel=1e-3
        )
        assert same == fits


def test_long_rows_of_softmax_are_read_again_and_all_rows_of_norms():
    rate = 0.9 * 1555e9
    short, long = one("softmax", (80_000, 1024)), one("softmax", (40_000, 2048))
    norm = one("layer_norm", (80_000, 1024), (1024,), (1024,))
    assert short.row == 1024
    seconds = [stream(k, NO_CACHE, CONSTANTS).memory_s - LATENCY for k in (short, long, norm)]
    moved = 2 * 4 * 80_000 * 1024
    assert seconds[0] == pytest.approx(moved / rate)
    assert seconds[1] == pytest.approx(1.4 * moved / rate)
    assert seconds[2] == pytest.approx(1.5 * norm.bytes / rate)
    rows = stream(short, NO_CACHE, CONSTANTS).compute_s - short.flop / (19.49e12 * 0.5)
    assert rows == pytest.approx(8 * 80_000 * 1024 / 4.0 / (108 * 1410e6))


@pytest.mark.parametrize(
    ("kind", "again", "longest"), [("layer_norm", 0.5, 8192), ("softmax", 0.4, 1024)]
)
def test_rows_at_work_that_the_last_cache_holds_are_not_read_again(kind, again, longest):
    kernel = one(kind, (40_000, 8192), *[(8192,)] * (2 if kind == "layer_norm" else 0))
    running = 16 * 108 * longest * 4
    for cache, share in ((running, 0.5), (5 * running, 0.0), (running / 100, 1.0)):
        device = A100.with_figures(l2_bytes=cache)
        seconds = stream(kernel, device, CONSTANTS).memory_s - LATENCY
        moved = kernel.bytes * (1 + share * again)
        assert seconds == pytest.approx(moved / (0.9 * 1555e9), rel=0.02)


def test_events_show_the_host_or_the_device_whichever_is_later():
    assert between_events_s(1e-6, 30e-6, 0.5) == pytest.approx(30e-6, rel=0.01)
    assert between_events_s(100e-6, 30e-6, 0.5) == pytest.approx(115e-6, rel=0.01)
    assert between_events_s(100e-6, 60e-6, 0.5) == pytest.approx(130e-6, rel=0.01)


def attending(kind="attention", dtype="float16", causal=False):
    q = (4, 1024, 16 * 64)
    given = (q,) * 3 if kind == "attention" else (*(q,) * 5, (4, 16, 1024))
    return one(kind, *given, dtype=dtype, heads=16, kv_heads=16, causal=causal)


def test_attention_in_half_precision_takes_a_share_of_the_peak():
    flop = 4 * 4 * 16 * 1024**2 * 64
    waves = 540 / 512  # 4 x 16 x 8 blocks on 108 multiprocessors: 5 waves
    seconds = flop * waves * 1.5 / (312e12 * 0.8)  # 32 / 64 columns more
    assert attention(attending(), A100, CONSTANTS).compute_s == pytest.approx(seconds)
    causal = attention(attending(causal=True), A100, CONSTANTS).compute_s
    assert causal == pytest.approx(seconds / 2)
    back = attention(attending("attention_grad"), A100, CONSTANTS).compute_s
    assert back == pytest.approx(2.5 * seconds / 0.9)  # scores are computed again
    newer = A100.with_figures(architecture="Hopper")
    assert attention(attending(), newer, CONSTANTS).compute_s == pytest.approx(2 * seconds)


def test_without_a_fused_kernel_attention_is_its_products_at_a_share():
    full = calibrated_device(catalog.device("p100-pcie-16gb"), "float32", Settings())
    kernel = attending(dtype="float32")
    product = kernel._replace(kind="matmul")
    share = full.constants["attention.plain"]
    assert price(kernel, full).compute_s == pytest.approx(price(product, full).compute_s / share)
    assert attention(attending(dtype="float32", causal=True), full, full.constants)[
        0
    ] == pytest.approx(price(kernel, full).compute_s / 2)


def test_a_device_of_few_figures_has_a_price():
    bare = A100.with_figures(multiprocessors=None, l2_bytes=None, clock_hz=None, architecture=None)
    kernel = Kernel("op", "relu", "forward", "float32", "vector", 1e6, 8e6)
    assert stream(kernel, bare.with_figures(memory_type=None), CONSTANTS).memory_s == (
        pytest.approx(8e6 / (0.8 * 1555e9) + 2e-6)
    )
