"""The analytic model: what it adds to Paleo, each correction alone, fusion, the host, by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from every import every
from stepping import kernels, step_model, three
from steptime.build import build_step, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.hardware import catalog
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device
from steptime.network.count import count
from steptime.network.families import FAMILIES, ZOO
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.paleo.explain import explain
from steptime.paleo.method import CORRECTIONS, FAULTS, with_faults
from steptime.paleo.price import price_overlapped, price_sequential
from steptime.paleo.rules import settings_of
from steptime.prediction import cost_model
from steptime.prediction.host import host_of_launches, wait_for_host
from steptime.prediction.kernel import Interval, Kernel, Settings
from steptime.prediction.lower import Lowered, Row, lower_minimal
from steptime.prediction.price import roofline
from steptime.prediction.prices import Prices
from steptime.prediction.schedule import Timeline, schedule
from steptime.prediction.steps.step_model import StepModel

ANALYTIC = cost_model("analytic")
MINIMAL = replace(ANALYTIC, lower=lower_minimal)
TOY = Device(
    "toy",
    "gpu",
    Datasheet({"float32": 1e9, "bfloat16": 4e9}, 1e9, "made up for this test", clock_hz=1e8),
)
FC = "fc:layers=1,nodes=4,inputs=3,outputs=2"


def network(text: str, batch: int | None = 5, phase: str = "train", **how: str) -> Graph:
    return build_step(make_workload(read_model(text), batch, phase=phase, **how))


def options_of(text: str) -> dict[str, str]:
    return dict(one.split("=") for one in text.split())


def times(
    graph: Graph,
    device: Device = TOY,
    options: str = "",
    name: str = "analytic",
    dtype: str = "float32",
) -> Timeline:
    return step_model(graph, device, name, dtype, options_of(options)).timeline()


def lowered(graph: Graph, options: str = "", dtype: str = "float32") -> Lowered:
    return step_model(graph, TOY, "analytic", dtype, options_of(options)).lower_step()


def kernel(flop: float, *tensors: float, serial: int = 1) -> Kernel:
    moved = sum(tensors)
    return Kernel(
        "op", "relu", "forward", "float32", "vector", flop, moved, serial=serial, figures=tensors
    )


def test_kernels_take_the_longer_of_computing_and_moving():
    device = Device("d", "gpu", Datasheet({"float32": 1e9}, 1e9, "made up"))
    step = Lowered((Row("op", "relu"),), (kernel(2e9, 1e9), kernel(1e9, 1e9, 2e9)))

    def in_all(price: Any, found: Device = device, pipelined: bool = False) -> Interval:
        made = schedule(
            step,
            Prices.from_intervals([price(one, found) for one in step.kernels]),
            None,
            pipelined,
        )
        return made.rows[0].forward

    assert three(in_all(roofline)) == (3.0, 4.0, 2.0 + 3.0)
    assert three(in_all(roofline, pipelined=True)) == (3.0, 4.0, 4.0)
    assert three(in_all(price_sequential)) == (3.0, 4.0, 7.0)
    assert in_all(roofline, device.with_figures(launch_s=0.5)).value == 6.0
    assert (in_all(roofline).low, in_all(roofline).high) == (5.0, None)  # a bound from below
    slow = device.with_figures(clock_hz=1e3)
    assert price_overlapped(kernel(0, 1.0, 0.0), slow).memory_s == 2e-3
    assert price_overlapped(kernel(0, 1.0), slow).compute_s == 0.0
    assert price_overlapped(kernel(1, 1.0), slow).compute_s == 1e-3


def test_a_training_step_by_hand():
    """3 -> 4 -> 2 with batch 5 at 1 GFLOP/s and 1 GB/s: bytes bound every op."""
    found = times(network(FC))
    # a product adds its bias before it writes
    forward = [(15 + 12 + 4 + 20), 0, (20 + 20), (20 + 8 + 2 + 10), 0]
    rows = {row.row.name: row for row in found.rows}
    names = ["fc1/linear", "fc1/bias", "fc1/relu", "output/linear", "output/bias"]
    for name, elements in zip(names, forward, strict=True):
        assert rows[name].forward.value == pytest.approx(4e-9 * elements)
    assert rows["fc1/linear"].backward.value == pytest.approx(4e-9 * (20 + 15 + 12))  # no dX
    data, weights = (10 + 8 + 20), (10 + 20 + 8)
    assert rows["output/linear"].backward.value == pytest.approx(4e-9 * (data + weights))
    assert found.update_s == pytest.approx(4e-9 * 3 * (12 + 4 + 8 + 2))
    assert rows["fc1/linear"].row.parameters == 12
    assert rows["fc1/bias"].row.parameters == 4


@every("text", ["fc:layers=2,nodes=8", "cnn:blocks=1,filters=4,image=40"])
@every("phase", ["train", "infer"])
def test_every_op_is_counted_once(text, phase):
    graph = network(text, 3, phase)
    counted = count(graph)
    ops = counted.ops
    minimal = step_model(graph, TOY, MINIMAL)
    assert minimal.lower_step().executed_flop == counted.flop
    assert isinstance(minimal.lower_step().executed_flop, int)
    assert minimal.lower_step().traffic_bytes == counted.traffic_bytes
    forward_flop = sum(op.flop for op in ops if op.part == "forward")
    assert sum(parts["forward"] for parts in minimal.flop_by_row().values()) == forward_flop
    step, found = lowered(graph), times(graph)
    assert (step.executed_flop, step.traffic_bytes) == (
        counted.executed_flop,
        counted.executed_traffic_bytes,
    )
    assert sum(kernel.launches for kernel in step.kernels) == counted.kernels
    assert [r.row.name for r in found.rows] == [o.name for o in graph.ops if o.part == "forward"]
    assert sum(row.step_s for row in found.rows) == pytest.approx(found.step_s, rel=1e-12)
    assert sum(row.row.parameters for row in found.rows) == graph.parameters


def test_each_correction_is_an_option_and_all_of_them_off_is_paleo():
    assert set(FAULTS) == set(CORRECTIONS) < set(ANALYTIC.options)
    off = " ".join(f"{name}=paleo" for name in FAULTS)
    assert ANALYTIC.with_options(options_of(off)).settings == cost_model("paleo").settings
    for text, phase in itertools.product(("nin", "densenet_cifar", "fc"), ("train", "infer")):
        graph = network(text, 4, phase)
        assert times(graph, TOY, off).step_s == times(graph, name="paleo").step_s


@pytest.mark.slow
@every("text", sorted({*FAMILIES, *ZOO}))
def test_paleo_with_every_correction_is_analytic(text):
    """What makes Paleo of the analytic model is its faults, and nothing else anywhere."""
    corrected = with_faults(cost_model("paleo"), ())
    for phase in ("train", "infer"):
        graph = network(text, 2, phase)
        ours, theirs = (step_model(graph, TOY, one) for one in ("analytic", corrected))
        assert ours.lower_step() == theirs.lower_step()
        assert ours.timeline() == theirs.timeline()


@every("name", FAULTS)
def test_one_correction_switched_off_changes_its_own_settings_alone(name):
    changed = ANALYTIC.with_options({name: "paleo"})
    assert settings_of(changed.settings).faults == {name}
    assert (
        with_faults(changed, ()).settings
        == settings_of(ANALYTIC.settings)
        == settings_of(Settings())
    )
    with pytest.raises(InputError, match=f"analytic: option {name} is exact or paleo, not 'no'"):
        ANALYTIC.with_options({name: "no"})


def test_backward_as_in_paleo_costs_more():
    graph = network("alexnet_v2", 8)
    exact, inflated = times(graph), times(graph, TOY, "backward=paleo")
    rows = {row.row.name: row for row in exact.rows}
    for row in inflated.rows:
        assert row.forward == rows[row.row.name].forward
    fc6 = next(row for row in inflated.rows if row.row.name == "fc6/conv2d")
    assert fc6.backward.value > 2 * rows["fc6/conv2d"].backward.value

    def backward_flop(options: str = "") -> float:
        step = lowered(graph, options)
        return sum(one.flop for one in kernels(step, "fc6/conv2d", "backward"))

    assert backward_flop("backward=paleo") / backward_flop() == pytest.approx(13)


def test_reading_the_padding_costs_more_and_a_bias_stays():
    graph = network("vgg16", 2, "infer")
    exact, padded = lowered(graph), lowered(graph, "padding=paleo")
    images = [graph.tensors[op.inputs[0]].shape for op in graph.ops if op.kind == "conv2d"]
    # one row or column of zeros on each side
    more = sum(4 * n * c * ((h + 2) * (w + 2) - h * w) for n, c, h, w in images)
    assert padded.traffic_bytes - exact.traffic_bytes == more
    assert padded.executed_flop == exact.executed_flop
    assert sum(one.launches for one in padded.kernels) == sum(one.launches for one in exact.kernels)


def test_exact_work_of_a_layer_is_that_of_its_ops():
    """The two ways to the true work of a convolution or product agree: its layer, its ops."""
    for text in ("nin", "resnet50", "mobilenet_v1", "fc", "densenet_cifar"):
        graph = network(text, 2)
        by_layer, by_op = lowered(graph, "ops=paleo"), step_model(graph, TOY, MINIMAL).lower_step()
        matrix = {op.name for op in graph.ops if OPS[op.kind].work and op.part == "forward"}
        for name, pass_ in itertools.product(matrix, ("forward", "backward")):
            theirs = list(kernels(by_layer, name, pass_))
            mine = list(kernels(by_op, name, pass_))[: len(theirs)]  # then gradients are added up
            assert [one.flop for one in mine] == [one.flop for one in theirs], name
            assert [one.bytes for one in mine] == [one.bytes for one in theirs], name


def test_a_kernel_knows_its_products():
    """FLOP are those of the products, and what has none is the vector unit's."""
    for text in ("resnet18", "gpt2:length=8", "rnn:cell=gru,length=3"):
        for one in step_model(network(text, 2), TOY, MINIMAL).lower_step().kernels:
            assert (one.unit == "matrix") == bool(one.products)
            if one.products:
                assert one.flop == 2 * sum(b * m * n * k for b, m, n, k in one.products)


def test_the_dtype_has_its_size_and_its_peak():
    narrow, wide = (network(FC, phase="infer", dtype=name) for name in ("bfloat16", "float32"))
    half = times(wide).step_s / 2  # bytes bound every op
    assert times(narrow, dtype="bfloat16").step_s == pytest.approx(half)
    like_paleo = times(narrow, name="paleo", dtype="bfloat16")
    assert like_paleo.step_s == times(wide, name="paleo").step_s
    with pytest.raises(InputError, match="option dtype=paleo counts elements of 4 bytes"):
        lowered(narrow, "dtype=paleo", "bfloat16")


def test_an_op_of_a_mixed_step_has_the_peak_of_its_own_type():
    graph = network("resnet18", 2, dtype="bfloat16-mixed")
    model = step_model(graph, TOY, dtype="bfloat16-mixed")
    found = {one.unit: set() for one in model.lower_step().kernels}
    for one in model.lower_step().kernels:
        found[one.unit].add(one.dtype)
    assert found == {"matrix": {"bfloat16"}, "vector": {"bfloat16", "float32"}}
    assert model.price(kernel(1e9, 0)).compute_s == 1.0  # float32
    assert model.price(kernel(1e9, 0)._replace(dtype="bfloat16")).compute_s == 0.25
    narrow = TOY.with_figures(peak_flop_per_s={"bfloat16": 4e9})
    assert step_model(graph, narrow, dtype="bfloat16-mixed").timeline().step_s > 0


def test_the_optimizer_is_the_workloads():
    sgd, adam = times(network(FC)), times(network(FC, optimizer="adam"))
    assert adam.update_s > 2 * sgd.update_s
    paleo = times(network(FC, optimizer="adam"), TOY, "update=paleo")
    # 4 bytes of 26 parameters, three times, with no cycle's floor as `cycle` is exact
    assert paleo.update_s == pytest.approx(3 * 4 * 26 * 1e-9)


def test_a_device_waits_for_its_host():
    assert wait_for_host([1.0, 4.0, 1.0], None) == (1.0, 4.0, 1.0)
    # issuing takes 2 s a part: the first waits, the second hides the host, the third runs freely
    assert wait_for_host([1.0, 4.0, 1.0], host_of_launches([2, 2, 2], 1.0)) == (2.0, 4.0, 1.0)
    assert wait_for_host([0.1, 0.1, 0.1], host_of_launches([2, 3, 1], 1.0)) == pytest.approx(
        (2.0, 3.0, 1.0)
    )
    assert wait_for_host([3.0, 0.0, 0.0], host_of_launches([1, 0, 0], 1.0)) == (3.0, 0.0, 0.0)


def test_dispatch_hides_behind_a_gpu_and_not_on_a_cpu():
    graph = network(FC)
    kernels = count(graph).kernels  # an optimizer updates all weights in one
    assert kernels < len(graph.ops)
    free = times(graph).step_s
    slow_host = TOY.with_figures(launch_s=1.0)
    found = times(graph, slow_host)
    assert found.step_s == pytest.approx(kernels)
    assert found.host_s == kernels
    assert times(graph, slow_host, "dispatch=paleo").step_s == free
    quick_host = TOY.with_figures(launch_s=1e-12)
    assert times(graph, quick_host).step_s == free
    cpu = times(graph, replace(slow_host, kind="cpu"))
    assert cpu.step_s == pytest.approx(kernels + free)
    assert cpu.host_s is None
    assert times(graph, slow_host, "fuse=yes").host_s < kernels


def test_a_recurrent_layer_takes_its_steps_one_after_another():
    """L steps: the recurrent weight is read in each, and each is a launch."""
    graph = network("rnn:cell=lstm,length=9,layers=1", 1, "infer")
    (cell,) = (one for one in lowered(graph).kernels if one.serial > 1)
    assert (cell.kind, cell.serial, cell.launches) == ("lstm", 9, 9)
    (minimal,) = (
        one for one in step_model(graph, TOY, MINIMAL).lower_step().kernels if one.op == cell.op
    )
    weight = next(op for op in graph.ops if op.kind == "lstm").inputs[2]
    assert cell.bytes - minimal.bytes == 8 * graph.tensors[weight].size_bytes
    cpu = replace(TOY.with_figures(launch_s=1e3), kind="cpu")
    row = next(row for row in times(graph, cpu).rows if row.row.name == cell.op)
    assert row.forward.value == pytest.approx(9e3, rel=1e-3)


def test_the_stack_is_an_option(tmp_path):
    graph = network("mobilenet_v2", 4)
    eager, compiled = times(graph), times(graph, TOY, "stack=torch-compile")
    assert compiled.step_s < eager.step_s
    assert times(graph, TOY, "stack=torch-eager") == eager
    path = tmp_path / "plain.toml"
    path.write_text('name = "plain"\nsource = "a test"\n')
    views = {op.name for op in graph.ops if OPS[op.kind].storage == "view"}
    assert len(lowered(graph, f"stack={path}").kernels) == len(graph.ops) - len(views)
    with pytest.raises(InputError, match="unknown stack 'torhc'"):
        times(graph, TOY, "stack=torhc")


def test_fusing_saves_what_is_between_by_hand():
    """3 -> 4 -> 2, batch 5: a bias and a ReLU join the product before them."""
    first, second = lowered(network(FC, phase="infer"), "fuse=yes").kernels
    assert (first.op, second.op) == ("fc1/linear", "output/linear")
    assert first.flop == 2 * 5 * 3 * 4 + 20 + 20
    assert first.bytes == 4 * (15 + 12 + 4 + 20)  # x, w, b, and the output of the ReLU
    assert second.bytes == 4 * (20 + 8 + 2 + 10)


@every("text", ["fc", "densenet_cifar", "gpt2:length=8", "resnet18", "mobilenet_v2"])
@every("phase", ["train", "infer"])
def test_fusing_changes_no_flop_and_adds_no_bytes(text, phase):
    graph = network(text, 2, phase)
    plain, joined = lowered(graph), lowered(graph, "fuse=yes")
    assert joined.executed_flop == plain.executed_flop
    assert joined.traffic_bytes < plain.traffic_bytes
    assert len(joined.kernels) < len(plain.kernels)
    assert times(graph, TOY, "fuse=yes").step_s < times(graph).step_s


def test_explaining_leads_from_one_method_to_the_other():
    for text, dtype, options in (
        ("nin", "float32", ""),
        ("densenet_cifar", "bfloat16", "fuse=yes"),
        ("resnet50", "float32", "backward=paleo ppp_comp=0.5"),
        ("gpt2:length=8", "float32", ""),
    ):
        graph = network(text, 4, dtype=dtype)
        device = catalog.device("A100")
        workload = make_workload(read_model(text), 4, dtype)
        steps = explain(workload, graph, device, options_of(options))
        ppp = " ".join(one for one in options.split() if one.startswith("ppp"))
        first = times(graph, device, ppp, "paleo", dtype)
        last = times(graph, device, options, "analytic", dtype)
        corrected = steps[-1].timeline
        assert steps[0].timeline.step_s == first.step_s
        assert corrected.step_s == last.step_s
        assert (corrected.forward_s, corrected.update_s) == (last.forward_s, last.update_s)
        names = [step.correction for step in steps]
        assert names[0] == "paleo"
        assert ("backward" in names) == ("backward" not in options)
        assert ("fuse" in names) == ("fuse" in options)


@pytest.mark.slow
@given(
    st.sampled_from(["analytic", "roofline"]),
    st.sampled_from(["fc:layers=2,nodes=30", "cnn:blocks=1,filters=4,image=40", "rnn:length=3"]),
    st.floats(1e6, 1e15),
    st.floats(1e6, 1e13),
    st.floats(1, 100),
)
def test_a_better_device_is_never_slower(name, text, peak, bandwidth, factor):
    """And one that is better by a factor in all is as much faster."""
    graph = network(text, 2)
    base = Device("d", "gpu", Datasheet({"float32": peak}, bandwidth, "made up", launch_s=1e-6))
    step_s = times(graph, base, name=name).step_s
    wider = base.with_figures(memory_bytes_per_s=bandwidth * factor)
    faster = base.with_figures(peak_flop_per_s={"float32": peak * factor})
    for better in (wider, faster, base.with_figures(launch_s=1e-6 / factor)):
        assert times(graph, better, name=name).step_s <= step_s * (1 + 1e-12)
    peaks = faster.datasheet.peak_flop_per_s
    whole = wider.with_figures(peak_flop_per_s=peaks, launch_s=1e-6 / factor)
    assert times(graph, whole, name=name).step_s == pytest.approx(step_s / factor)


METHODS = (("roofline", {}), *(("analytic", {"stack": name}) for name in catalog.stack_names()))


@pytest.mark.slow
@pytest.mark.parametrize("quarters", [(0,), pytest.param((1, 2, 3), marks=pytest.mark.rare)])
@pytest.mark.parametrize("phase", ["train", "infer"])
def test_the_flop_of_a_prediction_are_those_that_are_counted(phase, quarters):
    """Each network under each stack; the quick quarter has every network and every stack."""
    for at, name in enumerate((*ZOO, "transformer:layers=1", "rnn")):
        workload = make_workload(read_model(name), phase=phase)
        graph = build_step(workload)
        counted = count(graph)
        forward = {op.name: op.flop for op in counted.ops if op.part == "forward"}
        for number, (method, options) in enumerate(METHODS):
            if (at + number) % 4 not in quarters:
                continue
            if phase == "train" and options and not catalog.stack(options["stack"]).trains:
                continue
            model = StepModel(workload, "K40", None, method, options, graph=graph)
            rows = model.flop_by_row()
            assert sum(sum(parts.values()) for parts in rows.values()) == counted.flop, name
            assert {row: rows[row]["forward"] for row in forward} == forward, name
            assert [row.name for row in model.lower_step().rows] == [*forward]


def test_what_is_executed_is_told_beside_what_is_counted():
    # one causal head: 4 * 1 * 1 * 16^2 * 8 = 8192 FLOP counted, half of them executed
    b = Builder("attention", precision("float32"), training=False)
    q, k, v = (b.input(name, (1, 16, 8)) for name in "qkv")
    graph = b.graph(b.op("attention", q, k, v, name="attention", heads=1, kv_heads=1, causal=True))
    found = step_model(graph, TOY, "analytic").predict()
    assert (found.flop, found.lowered.executed_flop) == (8192, 4096)
    assert found.times.rows[0].forward.compute_s == pytest.approx(4096 / 1e9)
