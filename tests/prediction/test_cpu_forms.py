"""Forms of CPUs by hand: constants of 1 or 0 leave one term at a time."""

from dataclasses import replace
from itertools import pairwise

import pytest

from every import every
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.hardware import catalog
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device
from steptime.network.count import fresh_bytes
from steptime.prediction.calibrated import cpu
from steptime.prediction.calibrated.method import price
from steptime.prediction.kernel import Kernel

TINY = 1e-30  # of a constant that plays no part: none may be 0
ALONE = dict.fromkeys(catalog.priors("cpu"), TINY) | {
    "joint.power": 1.0,
    "interval.all_own": 0.1,
    "interval.all_shared": 0.1,
}
CPU = Device(
    "four", "cpu", Datasheet({"float32": 4e9}, 1e9, "test", cores=4, l2_bytes=1000, clock_hz=1e9)
)
CACHED = {
    "stream.cache_bytes_per_s": 1e30,
    "stream.memory_share": 1e30,
    "stream.cache_share": 1.0,
    "stream.core_bytes_per_s": 1e30,
}


def kernel(kind: str, *passes: str, **more: object) -> Kernel:
    unit = "matrix" if "products" in more else "vector"
    row = {"flop": 0, "bytes": 0, "dtype": "float32", "unit": unit, **more}
    return Kernel("op", kind, *(passes or ("forward",)), **row)  # type: ignore[arg-type]


def seconds(one: Kernel, device: Device = CPU, **constants: float) -> float:
    said = {name.replace("__", "."): value for name, value in constants.items()}
    return price(one, replace(device, constants={**ALONE, **CACHED, **said})).value


def test_cores_of_one_group_reach_its_cache_alone():
    """A processor of 4 cores in 2 groups of 1000 bytes: one core reaches 1000, all reach 2000."""
    rates = {"stream__cache_bytes_per_s": 1e10, "stream__memory_share": 1.0}
    grouped = CPU.with_figures(l2_bytes=None, l3_bytes=2000.0, l3_of_core_bytes=1000.0)
    whole = grouped.with_figures(l3_of_core_bytes=None)
    one = kernel("relu", bytes=1000)  # small: one core works on it
    assert seconds(one, grouped, **rates) == pytest.approx(seconds(one, **rates))
    assert seconds(one, whole, **rates) < seconds(one, grouped, **rates)
    assert [cpu.cache_bytes(grouped, cores) for cores in (1, 2, 4)] == [1000, 1000, 2000]
    assert cpu.cache_bytes(grouped.with_figures(l3_bytes=None), 4) == cpu.CACHE_BYTES


def test_products_run_at_a_share_of_the_cores_that_work():
    one = kernel("linear", products=((1, 10, 20, 30),))
    # 12,000 FLOP at half of 1 GFLOP/s a core; of the three other cores a third is at work
    alone = {"product__share": 0.5, "parallel__product": TINY}
    assert seconds(one, **alone) == pytest.approx(24e-6)
    assert seconds(one, product__share=0.5, parallel__product=1 / 3) == pytest.approx(12e-6)
    # a side of 10: 2 * 20 * 30 * 40 FLOP in place of 2 * 10 * 20 * 30
    assert seconds(one, product__side=10.0, **alone) == pytest.approx(96e-6)


def test_bytes_come_from_the_cache_or_from_memory():
    rates = {"stream__cache_bytes_per_s": 1e10, "stream__memory_share": 1.0}
    # 100 bytes of a cache of 1000 bytes: a hundredth comes from memory at 1 GB/s
    assert seconds(kernel("relu", bytes=100), **rates) == pytest.approx(1.0891e-8, rel=1e-4)
    # as many as it holds: the half, (1e-7 + 1e-6) / 2
    assert seconds(kernel("relu", bytes=1000), **rates) == pytest.approx(0.55e-6)
    # 1 MB: all, spread over 4 cores or not, since memory is one
    assert seconds(kernel("relu", bytes=10**6), **rates) == pytest.approx(1e-3, rel=1e-3)
    assert seconds(kernel("relu", bytes=10**6), parallel__stream=1.0, **rates) == pytest.approx(
        1e-3, rel=1e-3
    )


def test_a_core_alone_does_not_fill_the_memory():
    one = kernel("relu", bytes=10**6)  # far out of the cache of 1000 bytes
    rates = {"stream__memory_share": 1.0, "stream__core_bytes_per_s": 0.5e9}
    assert seconds(one, parallel__stream=TINY, **rates) == pytest.approx(2e-3, rel=1e-3)
    assert seconds(one, parallel__stream=1.0, **rates) == pytest.approx(1e-3, rel=1e-3)


def test_small_ops_run_on_one_thread():
    cycles = {"vector__max_pool_cycles": 2.0, "parallel__stream": 1.0}
    small = kernel("max_pool2d", flop=500, bytes=cpu.GRAIN_BYTES)
    assert seconds(small, **cycles) == pytest.approx(1e-6)  # 1000 cycles at 1 GHz
    large = small._replace(bytes=cpu.GRAIN_BYTES + 1)
    assert seconds(large, **cycles) == pytest.approx(0.25e-6)  # four cores


def test_a_convolution_copies_its_tensors_into_another_layout_and_back():
    one = kernel("conv2d", bytes=1000, products=((1, 100, 8, 72),))
    rates = {"stream__cache_bytes_per_s": 1e9, "stream__memory_share": 1.0}
    only = {"parallel__convolution": TINY, "convolution__copies": 3.0, **rates}
    # 115,200 FLOP at 1 GFLOP/s; 1 us to move its bytes, 3 us more for copies
    expected = 115.2e-6 + 1e-6 + 3e-6
    assert seconds(one, convolution__share=1.0, **only) == pytest.approx(expected)
    # a window of 72 more: half of the rate
    wide = {"convolution__share": 1.0, "convolution__window": 72.0}
    assert seconds(one, **wide, **only) == pytest.approx(expected + 115.2e-6)


def test_recurrent_layers_take_a_time_a_step_and_cycles_a_gate():
    one = kernel("gru", products=((1, 20, 30, 8), (5, 4, 30, 10)), serial=5, launches=5, bytes=0)
    steps = {"product__share": 1e9, "recurrent__gru_step_s": 1e-6, "recurrent__gru_cycles": 2.0}
    # 5 steps of 1 us; 5 * 4 * 30 gates of 2 cycles at 1 GHz
    assert seconds(one, **steps) == pytest.approx(5e-6 + 1.2e-6)
    back = kernel(
        "gru_grad", "backward", products=((1, 20, 8, 30), (5, 4, 10, 30)), serial=5, launches=5
    )
    for pass_ in ("backward", "forward"):  # as an op asked for alone has it
        one = back._replace(pass_=pass_)
        assert seconds(one, recurrent__backward=2.0, **steps) == pytest.approx(12.4e-6)


def test_calls_cost_by_pass_and_optimizers_by_weight():
    calls = {"launch__forward_s": 1e-6, "launch__update_s": 3e-6, "launch__weight_s": 5e-6}
    assert seconds(kernel("relu", launches=2), **calls) == pytest.approx(2e-6)
    assert seconds(kernel("sgd", "update", launches=0), **calls) == pytest.approx(8e-6)
    large = kernel("relu", bytes=cpu.GRAIN_BYTES + 1)
    assert seconds(large, launch__fork_s=7e-6, parallel__stream=1.0) == pytest.approx(7e-6)
    assert seconds(large._replace(bytes=9), launch__fork_s=7e-6) < 1e-20  # one thread
    # torch/optim/adam.py runs eight ops on a weight
    assert seconds(kernel("adam", "update", launches=0), **calls) == pytest.approx(29e-6)


def test_new_pages_cost_by_the_byte():
    one = kernel("relu", fresh=1000.0)
    assert seconds(one, stream__page_s_per_byte=1e-9) == pytest.approx(1e-6)
    large = one._replace(bytes=cpu.GRAIN_BYTES + 1)  # zeroed by four cores
    both = {"stream__page_s_per_byte": 1e-9, "parallel__stream": 1.0}
    assert seconds(large, **both) == pytest.approx(0.25e-6)


MIB = 2**18  # elements


def chain(*sizes: int) -> Graph:
    """Return a chain of ops that make float32 tensors of so many elements."""
    names = ["x", *(f"y{i}" for i in range(len(sizes)))]
    tensors = {
        name: TensorSpec((size,), "float32") for name, size in zip(names, (1, *sizes), strict=True)
    }
    ops = tuple(Op(new, "relu", (old,), (new,), {}) for old, new in pairwise(names))
    return Graph("chain", tensors, ops, ("x",), (), (names[-1],))


@every(
    ("mib", "fresh"),
    [
        ((40, 1), (40, 0)),  # mapped each time
        ((10, 10, 10, 10), (0, 0, 0, 0)),  # two live at a time, and as much is kept
        ((5, 5, 5), (0, 0, 0)),
    ],
)
def test_the_heap_keeps_twice_its_largest_tensor(mib, fresh):
    found = fresh_bytes(chain(*(size * MIB for size in mib))).values()
    assert [size / 2**20 for size in found] == list(fresh)


def test_what_lives_beyond_that_is_mapped_again_in_the_next_step():
    graph = chain(*[10 * MIB] * 5)
    kept = replace(graph, outputs=tuple(op.outputs[0] for op in graph.ops))
    assert (
        sum(fresh_bytes(kept).values()) == 25 * 2**20
    )  # all are dropped after the step; half is cut


def test_devices_that_are_no_cpu_keep_the_forms_of_gpus():
    gpu = Device("g", "gpu", Datasheet({"float32": 1e12}, 1e11, "test"))
    constants = {name: one.value for name, one in catalog.priors("gpu").items()}
    tpu = replace(gpu, kind="tpu", constants=constants)
    one = kernel("relu", bytes=1000)
    assert price(one, tpu) == price(one, replace(gpu, constants=constants))
