"""Kernels as columns: priced once, side by side, and summed by index."""

import math
import pickle

import numpy as np
import pytest

from every import every
from steptime.hardware import catalog
from steptime.prediction.calibrated.method import METHOD, price
from steptime.prediction.kernel import Interval, Kernel, Settings
from steptime.prediction.kernels import Kernels
from steptime.prediction.method import Method
from steptime.prediction.prices import Prices
from steptime.prediction.schedule import sum_repeats
from steptime.prediction.steps.step_model import StepModel

ADD = Kernel("a", "add", "forward", "float32", "vector", 1e6, 8e6)
PRODUCT = Kernel("p", "matmul", "forward", "float32", "matrix", 2e9, 12e6, ((1, 1000, 1000, 1000),))
LARGER = PRODUCT._replace(op="q", flop=4e9, bytes=16e6, products=((1, 2000, 1000, 1000),))
A100 = METHOD.derate(catalog.device("a100-sxm4-40gb"), "float32", Settings())


def test_kernels_that_differ_in_names_alone_are_one_row():
    found = Kernels([ADD, PRODUCT, ADD._replace(op="b", after=("x",), views=2), LARGER])
    assert found.distinct_of_kernel.tolist() == [0, 1, 0, 2]
    assert found.counts.tolist() == [2, 1, 1]
    assert [(rows.kind, rows.flop.tolist()) for rows, _ in found.groups] == [
        ("add", [1e6]),
        ("matmul", [2e9, 4e9]),
    ]
    apart = Kernels([ADD, ADD], owners=[0, 1])
    assert (apart.distinct_of_kernel.tolist(), apart.owner.tolist()) == ([0, 1], [0, 1])


def test_what_differs_in_new_pages_alone_is_off_alike():
    columns = Kernels([ADD, ADD._replace(fresh=1.0), PRODUCT])
    which, count = columns.error_classes
    assert (which.tolist(), count) == ([0, 0, 1], 2)
    one = Interval(1.0, 0.5, 1.5, shared=0.6)  # 0.3 s shared, 0.4 s own
    found = Prices.from_intervals([one, one, one]).sum_correlated(which, count).total()
    assert found.high == pytest.approx(3 + math.hypot(3 * 0.3, 2 * 0.4, 0.4))


@every("network", ["resnet18", "bert_base", "rnn:cell=lstm", "mobilenet_v2"])
@every("device", ["K40", "v100-sxm2-16gb", "a100-sxm4-40gb", "tpu-v3"])
def test_side_by_side_kernels_have_the_times_of_each_alone(network, device):
    dtype = "bfloat16" if device == "tpu-v3" else "float32"
    model = StepModel(network, device, dtype=dtype)
    columns = model.lower_step(4).columns
    together = model.prices(4).intervals()
    for kernel, found in zip(columns.distinct, together, strict=True):
        alone = price(kernel, model.effective_device)  # type: ignore[arg-type]
        assert found == pytest.approx(tuple(map(float, alone)), rel=1e-12)


def test_a_price_without_arrays_is_called_row_by_row():
    asked: list[Kernel] = []

    def own(kernel: Kernel, _: object) -> float:
        asked.append(kernel)
        return kernel.bytes

    found = Method("own", "1", price=own).prices(Kernels([ADD, PRODUCT, ADD]), A100)
    assert asked == [ADD, PRODUCT]
    assert found.value.tolist() == [8e6, 12e6]
    assert found.intervals()[0][:3] == (8e6, None, None)


def test_batches_between_two_are_columns():
    columns = Kernels([PRODUCT, ADD], [LARGER, ADD]).interpolate(np.array([0.0, 0.5, 1.0]))
    parts = columns.price_sums(METHOD.price_on(A100), np.array([[1.0, 2.0]]))
    alone = [METHOD.prices(Kernels([one, ADD]), A100).value for one in (PRODUCT, LARGER)]
    assert parts.to_prices().value[0, [0, 2]] == pytest.approx([a + 2 * b for a, b in alone])


def test_a_device_that_was_used_pickles():
    device = catalog.device("a100-sxm4-40gb")
    step_s = StepModel("resnet18", device).timeline(8).step_s
    again = pickle.loads(pickle.dumps(device))  # noqa: S301
    assert again == device
    assert StepModel("resnet18", again).timeline(8).step_s == step_s


def test_two_kernels_that_are_equal_at_a_batch_have_one_error_there():
    """Products of 1000 and 3000 rows at batch 1, of 5000 and 3000 at batch 5: equal at batch 3."""

    def multiply(op: str, rows: int) -> Kernel:
        sizes = {"flop": 2e6 * rows, "bytes": 4e3 * (1000 + 2 * rows)}
        return PRODUCT._replace(op=op, products=((1, rows, 1000, 1000),), **sizes)

    growing = [multiply("p", 1000 * batch) for batch in (1, 2, 3, 4, 5)]
    constant = multiply("q", 3000)
    columns = Kernels([growing[0], constant], [growing[-1], constant])
    merging = columns.find_merging(length=4)
    assert {offset: len(pairs) for offset, pairs in merging.items()} == {2: 1}
    between = columns.interpolate(np.linspace(0, 1, 5))
    counts, price_rows = np.array([[2.0, 3.0]]), METHOD.price_on(A100)
    apart = between.price_sums(price_rows, counts).to_prices()
    merged = between.price_sums(price_rows, counts, merging).to_prices()
    for place, product in enumerate(growing):
        alone = Kernels([product, product, constant, constant, constant])
        single = sum_repeats(alone, METHOD.prices(alone, A100)).total()
        assert merged.low[0, place] == pytest.approx(single.low, rel=1e-12)
        assert merged.high[0, place] == pytest.approx(single.high, rel=1e-12)
    assert merged.high[0, 2] > 1.001 * apart.high[0, 2]  # where each error is independent
    assert columns.find_merging(length=5) == {}  # equal between two batches, at none
