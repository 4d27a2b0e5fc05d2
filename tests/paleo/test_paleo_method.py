"""Method `paleo` against the original, layer by layer, and by hand on networks of our own."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest

from stepping import kernels, step_model, three
from steptime.build import build_step, make_workload, read_model
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.paleo.layers import Layer, layers_in
from steptime.paleo.method import METHOD as PALEO
from steptime.paleo.method import with_faults
from steptime.paleo.rules import rule_of
from steptime.prediction.lower import Lowered
from steptime.prediction.schedule import Timeline

REL = 1e-9
K40 = catalog.device("K40", "paleo")


def network(text: str, batch: int | None = None, phase: str = "train") -> Graph:
    return build_step(make_workload(read_model(text), batch, "float32", phase, "sgd"))


def times(graph: Graph, device: Device = K40, **options: str) -> Timeline:
    return step_model(graph, device, "paleo", options=options).timeline()


def lowered(graph: Graph) -> Lowered:
    return step_model(graph, K40, "paleo").lower_step()


@pytest.fixture
def paleo(shared):
    return shared / "paleo"


def packed(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def differing(found: Timeline, forward_ms: Any, backward_ms: Any) -> Iterator[str]:
    """Layers whose compute or memory time, in milliseconds, is another one."""
    for row in found.rows:
        for part, mine, table in (
            ("forward", row.forward, forward_ms),
            ("backward", row.backward, backward_ms),
        ):
            compute, memory = table[row.row.name]
            seconds = (1e3 * mine.compute_s, 1e3 * mine.memory_s)
            if seconds != pytest.approx((compute, memory), rel=REL, abs=0):
                yield f"{row.row.name} {part}: {seconds}, not {compute, memory}"


def test_every_case_of_the_original(paleo):
    cases = packed(paleo / "cases.json.gz")
    assert len(cases) == 54
    for name, case in cases.items():
        graph = network(str(paleo / "nets" / f"{case['net']}.json"), case["batch_size"])
        device = catalog.device(case["device"], "paleo")
        ppp = {"ppp_comp": str(case["ppp_comp"]), "ppp_comm": str(case["ppp_comm"])}
        plain = times(graph, device, **ppp)
        lower = times(graph, device, **ppp, pipeline="true")
        by_layer, totals = case["layer_times_ms"], case["totals"]
        assert {row.row.name for row in plain.rows} == set(by_layer["forward"]), name
        assert not list(differing(plain, by_layer["forward"], by_layer["backward"])), name
        for part, key in (("forward", "forward"), ("backward", "backward"), ("update", "apply")):
            total = totals[key]["comp_ms"] + totals[key]["comm_ms"]
            assert 1e3 * getattr(plain, f"{part}_s") == pytest.approx(total, rel=REL)
            bound = totals[key]["lowerbound_ms"]
            assert 1e3 * getattr(lower, f"{part}_s") == pytest.approx(bound, rel=REL)
        assert 4 * sum(row.row.parameters for row in plain.rows) == case["params_in_bytes"]


def test_work_of_every_layer_of_the_original(paleo):
    static = json.loads((paleo / "layers_static.json").read_text())
    assert len(static) >= 9
    for name, case in static.items():
        graph = network(str(paleo / "nets" / f"{case['net']}.json"), case["batch"])
        found = lowered(graph)
        for row in found.rows:
            for part in ("forward", "backward"):
                ours = list(kernels(found, row.name, part))
                flop = sum(kernel.flop for kernel in ours)
                moved = sum(kernel.bytes for kernel in ours)
                theirs = case[part][row.name]
                where = f"{name} {row.name} {part}"
                assert flop == pytest.approx(theirs["flops"], rel=REL), where
                assert moved == pytest.approx(theirs["mem_bytes"], rel=REL), where


def test_small_networks_of_the_original(paleo):
    """Products alone, kernels of less than a cycle, transposed, flat and explicit padding."""
    cases = json.loads((paleo / "synthetic_outputs.json").read_text())
    for name, case in cases.items():
        net, device, ppp = name.split("__")
        comp, comm = ppp.removeprefix("ppp").split("-")
        graph = network(str(paleo / "synthetic_nets" / f"{net}.json"))
        found = times(graph, catalog.device(device, "paleo"), ppp_comp=comp, ppp_comm=comm)
        tables = [
            {layer: (ms["comp_ms"], ms["comm_ms"]) for layer, ms in case[part].items()}
            for part in ("forward", "backward")
        ]
        assert not list(differing(found, *tables)), name
        parameters = {layer["name"]: layer["num_params"] for layer in case["static"]}
        assert {row.row.name: row.row.parameters for row in found.rows} == parameters


def test_how_much_the_originals_backward_pass_is_too_large(paleo):
    """FLOP of its gradients of convolutions over the true ones, which `backward=exact` counts."""
    table = json.loads((paleo / "backward_flops_inflation.json").read_text())
    exact = with_faults(PALEO, PALEO.settings.faults - {"backward"})
    for net, case in table.items():
        folder = "converted" if (paleo / f"nets/converted/{net}.json").exists() else "."
        graph = network(str(paleo / "nets" / folder / f"{net}.json"))
        layers = {layer.name for layer in layers_in(graph) if layer.kind == "conv"}
        flop = [
            sum(
                kernel.flop
                for kernel in step_model(graph, K40, method).lower_step().kernels
                if kernel.op in layers and kernel.pass_ == "backward"
            )
            for method in (PALEO, exact)
        ]
        assert flop[0] / flop[1] == pytest.approx(case["ratio"], rel=1e-6), net


CONV = Layer(
    "c", "conv", "Convolution", ("p",), (2, 7, 7, 3), (2, 3, 3, 5),
    kernel=(3, 3), strides=(2, 2), padding="VALID", parameters=3 * 3 * 3 * 5 + 5, op="c",
)  # fmt: skip


def test_a_strided_convolution_by_hand():
    (ahead,) = rule_of(CONV).forward(CONV, "gemm")
    assert ahead.flop == 2 * 3 * 3 * 3 * 3 * 3 * 5 * 2  # kernel, c_in, positions, c_out, images
    assert ahead.tensors == (4 * 2 * 7 * 7 * 3, 4 * 3 * 3 * 3 * 5, 4 * 2 * 3 * 3 * 5)
    # the output's gradient, spread out to 5x5 with 25 - 9 holes, padded by 2, gives back 7x7
    (data,) = rule_of(CONV).data_gradient(CONV, "gemm")
    elements = 2 * 5 * 5 * 5
    holes = (25 - 9) / 25
    assert data.flop == pytest.approx(2 * 9 * 5 * 49 * 3 * 2 + 2 * elements * (1 - holes))
    assert data.tensors == (4 * 2 * 9 * 9 * 5, 4 * 9 * 5 * 3, 4 * 2 * 49 * 3)
    # c_in images of N channels, a 5x5 filter of which 9 are no holes, to a map of 3x3
    (weights,) = rule_of(CONV).weight_gradient(CONV, "gemm")
    assert weights.flop == pytest.approx(2 * 9 * 2 * 9 * 5 * 3)
    assert weights.tensors == pytest.approx((4 * 3 * 49 * 2, 4 * 9 * 2 * 5, 4 * 3 * 9 * 5))


def test_a_gradient_that_is_not_of_its_shape_is_refused():
    """An even filter with SAME padding: the original stops there."""
    even = replace(CONV, inputs=(2, 6, 6, 3), outputs=(2, 6, 6, 5), kernel=(2, 2),
                   strides=(1, 1), padding="SAME")  # fmt: skip
    rule_of(even).forward(even, "gemm")
    with pytest.raises(InputError, match=r"layer 'c': its filter gradient comes out \[0, 0\]"):
        rule_of(even).weight_gradient(even, "gemm")


def test_transforms_by_hand():
    """One 3x3 convolution of 8x8 maps by Fourier transforms: 64 points, 10 * 64 * 3 FLOP each."""
    layer = replace(CONV, inputs=(2, 8, 8, 3), outputs=(2, 6, 6, 5), strides=(1, 1))
    of_inputs, of_filters, products, back = rule_of(layer).forward(layer, "fft")
    one = 10 * 64 * 3
    assert of_inputs.flop == 2 * 3 * one / 2
    assert of_filters.flop == 3 * 5 * one / 2
    assert products.flop == 4 * 2 * 3 * 5 * 64
    assert back.flop == 2 * 5 * one
    assert back.tensors == (8 * 2 * 5 * 64, 4 * 2 * 5 * 36)
    tiled = rule_of(layer).forward(layer, "fft-tiling")  # one tile of 32x32
    assert tiled[2].flop == 4 * 2 * 3 * 5 * 1024
    small = replace(layer, kernel=(1, 1))
    rule = rule_of(small)
    assert rule.forward(small, "fft") == rule.forward(small, "gemm")


def test_the_algorithm_is_an_option():
    graph = network("nin", 8)
    by_product, by_fourier = times(graph), times(graph, conv="fft")
    assert by_fourier.forward_s != by_product.forward_s
    assert by_fourier.update_s == by_product.update_s
    with pytest.raises(InputError, match="option conv is gemm, fft or fft-tiling, not 'winog"):
        times(graph, conv="winograd")


def test_a_zoo_network_costs_what_paleos_file_of_it_costs(paleo):
    """Biases, activations and the softmax are rows of their own, and cost nothing."""
    for name, file in (
        ("alexnet_v2", "alex_v2"),
        ("nin", "nin"),
        ("overfeat", "overfeat"),
        ("inception_v3", "inception_v3"),
    ):
        graphs = network(name, 16), network(str(paleo / "nets" / f"{file}.json"), 16)
        ours, theirs = map(times, graphs)
        for part in ("forward_s", "backward_s", "update_s"):
            assert getattr(ours, part) == pytest.approx(getattr(theirs, part), rel=REL), name
        one, other = (lowered(graph).executed_flop for graph in graphs)
        assert one == pytest.approx(other, rel=REL), name


def test_published_totals_without_the_reference():
    """Layer sums that a fork of Paleo printed for a Titan X, ppp 1, products only, in ms."""
    found = times(network("alexnet_v2", 128), catalog.device("TITAN_X", "paleo"))
    assert 1e3 * found.forward_s == pytest.approx(33.1617, rel=0.001)
    assert 1e3 * found.backward_s == pytest.approx(56.5851 + 32.4992, rel=0.001)
    assert sum(row.row.parameters for row in found.rows) == 50_303_912


def test_the_update_is_not_slowed_by_ppp():
    graph = network("nin", 4)
    assert times(graph).update_s == times(graph, ppp_comp="0.5").update_s
    halved = times(graph, ppp_comp="0.5").forward_s
    assert halved == pytest.approx(2 * times(graph).forward_s, rel=1e-6)


def test_no_term_is_less_than_a_cycle():
    slow = K40.with_figures(clock_hz=1.0)
    found = times(network("fc:layers=1,nodes=2,inputs=2,outputs=2", 1), slow)
    products = [row for row in found.rows if row.forward.value]
    assert [three(row.forward) for row in products] == [(1.0, 3.0, 4.0)] * 2  # FLOP; x, w, y
    gradients = [(2.0, 6.0, 8.0)] * 2  # of the input and of the weights together
    assert [three(row.backward) for row in products] == gradients
    assert found.update_s == 4.0


def test_what_paleo_does_not_know_is_said():
    graph = network("bert_base:length=8", 1)
    made = step_model(graph, K40, "paleo").predict()
    assert made.remarks == ("Paleo knows no attention: they count nothing",)
    narrow = build_step(make_workload(read_model("nin"), 1, "float16", optimizer="adam"))
    assert step_model(narrow, K40, "paleo", "float16").remarks() == (
        "Paleo counts elements of 4 bytes at the float32 peak, not float16",
        "Paleo updates by plain SGD, whatever the optimizer",
    )
    unclocked = K40.with_figures(clock_hz=None)
    made = step_model(network("nin", 1), unclocked, "paleo").predict()
    assert made.remarks == ("K40: no clock is known, so no kernel takes at least a cycle",)


def test_parameters_count_a_bias_for_every_filter():
    graph = network("resnet50", 1)
    convolutions = [op for op in graph.ops if op.kind == "conv2d" and op.part == "forward"]
    filters = sum(graph.tensors[op.outputs[0]].shape[1] for op in convolutions)
    weights = sum(prod(graph.tensors[op.inputs[1]].shape) for op in convolutions)
    rows = lowered(graph).rows
    assert sum(row.parameters for row in rows) == weights + filters + 2048 * 1000 + 1000
