"""Recurrent layers by hand: steps that wait, weights read again, arrays as numbers."""

from dataclasses import replace

import numpy as np
import pytest

from every import every
from steptime.calibration.cases import Case, op_kernels, step_kernels
from steptime.calibration.columns import Columns
from steptime.core.workload import Workload
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.network.ops.sequence import GATES
from steptime.prediction.calibrated.form import memory_rate, miss_share
from steptime.prediction.calibrated.method import calibrated_device, price
from steptime.prediction.calibrated.recurrent import recurrent
from steptime.prediction.kernel import Kernel, Settings

P100 = calibrated_device(catalog.device("P100"), "float32", Settings())


def layer(kind: str = "lstm", batch: int = 8, steps: int = 10, hidden: int = 256) -> Kernel:
    gates = GATES[kind.removesuffix("_grad")] * hidden
    x = (batch, steps, hidden)
    shapes = (x, (gates, hidden), (gates, hidden), (gates,), (gates,))
    more = (x, x, x) if kind.endswith("_grad") else ()
    (kernel,) = op_kernels(kind, shapes + more, {}, "float32")
    return kernel


def moved_s(kernel: Kernel, device: Device = P100) -> float:
    """Return the seconds of inputs, outputs and weights once, that no cache holds."""
    rate = memory_rate(device, device.constants)
    return float(kernel.bytes * miss_share(kernel.bytes, device) / rate)


def test_a_step_waits_and_reads_weights_that_no_cache_holds():
    step_s = P100.constants["recurrent.step_s"]
    small, large = layer(hidden=256), layer(hidden=1024)  # 1 and 16 MiB of weights, a cache of 4
    of_small, of_large = (recurrent(one, P100, P100.constants) for one in (small, large))
    assert of_small.gap_s == of_large.gap_s == pytest.approx(10 * step_s)
    assert of_small.memory_s == pytest.approx(moved_s(small))
    assert of_large.memory_s > 10 * 4 * 4 * 1024 * 1024 / P100.datasheet.memory_bytes_per_s
    cached = P100.with_figures(l2_bytes=17 * 2.0**20)
    moved = recurrent(large, cached, P100.constants).memory_s
    assert moved == pytest.approx(moved_s(large, cached))


def test_a_projection_is_a_second_product_that_waits():
    step_s = P100.constants["recurrent.step_s"]
    shapes = ((8, 10, 256), (4096, 256), (4096, 512), (4096,), (4096,), (512, 1024))
    (forward,) = op_kernels("lstm", shapes, {}, "float32")
    y, saved = (8, 10, 512), (8, 10 * (7 * 1024 + 512))
    given = (*shapes[:5], y, saved, y, shapes[5])
    (backward,) = op_kernels("lstm_grad", given, {}, "float32")
    whole, half = 4096 * 512, 512 * 1024
    for kernel in (forward, backward):
        found = recurrent(kernel, P100, P100.constants)
        assert found.gap_s == 2 * 10 * step_s
        # 10 MiB of weights, more than the cache of 4, at a rate below the datasheet's
        assert found.memory_s > 10 * 4 * (whole + half) / P100.datasheet.memory_bytes_per_s
    times = [price(one, P100).value for one in (forward, backward)]
    cases = [Case((one,), P100, 1.0, one.kind, "repeated") for one in (forward, backward)]
    np.testing.assert_allclose(Columns(cases).predict_s(P100.constants), times)


def test_a_block_of_threads_makes_32_rows_by_itself():
    device = replace(
        P100.with_figures(clock_hz=1e9), constants={**P100.constants, "recurrent.block_clocks": 1e6}
    )
    few, block, more = (
        recurrent(layer(batch=batch), device, device.constants).compute_s for batch in (16, 32, 33)
    )
    assert block == pytest.approx(10 * 256 * 1e6 / 1e9)  # steps x contraction x clocks
    assert few < block > more


def test_few_rows_are_vectors_that_only_read_weights():
    """20 MiB of weights at 40 bytes a clock on each of 56 multiprocessors at 1 GHz, 10 times."""
    known = {**P100.constants, "stream.cached_bytes": 40.0}
    device = replace(P100.with_figures(clock_hz=1e9), constants=known)
    vectors, rows = (recurrent(layer(batch=b, hidden=1024), device, known) for b in (2, 8))
    read = 10 * 4 * 4 * 1024 * 1024 / (40 * 56 * 1e9)
    assert vectors.compute_s == pytest.approx(read)
    assert rows.compute_s > vectors.compute_s
    assert rows.memory_s == pytest.approx(vectors.memory_s, rel=0.01)


def test_registers_keep_weights_from_volta_on():
    volta = calibrated_device(catalog.device("V100"), "float32", Settings())
    known = {**volta.constants, "recurrent.kept_share": 0.5, "recurrent.kept_s": 1e-6}
    small, large = layer(hidden=1024), layer(hidden=2048)  # 16 and 64 MiB; registers have 20
    kept, read = (recurrent(one, volta, known) for one in (small, large))
    flop = 10 * 2 * 8 * 4 * 1024 * 1024
    assert kept.gap_s == pytest.approx(10 * 1e-6)
    assert kept.memory_s == pytest.approx(moved_s(small, volta))
    assert kept.compute_s == pytest.approx(
        max(flop / 0.5, small.flop) / volta.datasheet.peak_flop_per_s["float32"]
    )
    assert read.gap_s == 10 * known["recurrent.step_s"]
    assert read.memory_s > 0
    old = recurrent(small, P100, P100.constants)
    assert old.gap_s == 10 * P100.constants["recurrent.step_s"]
    slow = {**known, "recurrent.kept_s": 1.0}
    assert recurrent(small, volta, slow).gap_s == read.gap_s


def test_the_peak_bounds_what_runs_side_by_side():
    for kind in ("rnn", "lstm", "gru", "rnn_grad", "lstm_grad", "gru_grad"):
        kernel = layer(kind, batch=512, hidden=2048)
        assert price(kernel, P100).value > kernel.flop / P100.datasheet.peak_flop_per_s["float32"]


def test_more_work_takes_longer():
    for kind in ("gru", "lstm_grad"):
        times = [price(layer(kind, steps=2**i), P100).value for i in range(1, 8)]
        assert times == sorted(times)
        times = [price(layer(kind, hidden=2**i), P100).value for i in range(6, 12)]
        assert times == sorted(times)


@every(
    ("kind", "dtype", "hidden", "batch", "stays"),
    [
        ("lstm", "float32", 192, 64, True),
        ("lstm", "float32", 200, 64, False),
        ("lstm", "bfloat16", 512, 64, False),
        ("lstm", "float16", 512, 64, True),
        ("lstm", "float16", 500, 64, False),  # not in blocks of 128
        ("lstm", "float16", 512, 256, False),  # more rows than its kernels are for
        ("gru", "float16", 512, 64, False),
        ("rnn", "float32", 384, 64, True),
    ],
    ids=str,
)
def test_pytorch_asks_for_persistent_kernels_of_some_widths(kind, dtype, hidden, batch, stays):
    """By `get_algo` of PyTorch's RNN.cpp; an op by itself runs as its library does best."""
    gpu = calibrated_device(catalog.device("a100-sxm4-40gb"), dtype, Settings())
    network = Workload("rnn", {"cell": kind, "embedding": hidden}, batch, dtype, "infer", "none")
    (one,) = (kernel for kernel in step_kernels(network) if kernel.kind == kind)
    shorter = gpu.constants["recurrent.kept_s"] * one.serial
    assert bool(recurrent(one, gpu, gpu.constants).gap_s == shorter) is stays
    alone = one._replace(figures=())
    assert recurrent(alone, gpu, gpu.constants).gap_s == shorter
