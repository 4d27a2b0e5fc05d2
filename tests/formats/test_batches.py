"""A file that was written for one batch, followed to another: which sizes grow, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exported_for_one import NETWORKS, exported, network_of
from onnx_bytes import model, node, tensor, value, whole
from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.formats.batches import infer_view_shape
from steptime.network.count import count

L, H, D = 12, 4, 8  # tokens, heads, width of a head


@pytest.mark.parametrize("own", [1, 2])
def test_views_of_attention_with_the_length_first_follow_the_batch(own):
    e, b = H * D, 6  # torch's MultiheadAttention takes the tokens first, and joins the batch
    steps = [
        ((L, own, e), (L, own * H, D), (L, b * H, D)),  # to the heads
        ((own * H, L, D), (own, H, L, D), (b, H, L, D)),
        ((L, own, H, D), (L * own, e), (L * b, e)),  # to the tokens
        ((L * own, e), (L, own, e), (L, b, e)),
        ((L, own * H, D), (L * own, e), (L * b, e)),  # to the tokens, where weights are wanted
    ]
    grown = [(L, b, e), (b * H, L, D), (L, b, H, D), (L * b, e), (L, b * H, D)]
    for (before, told, wanted), actual in zip(steps, grown, strict=True):
        assert infer_view_shape(before, actual, told, own) == wanted


def test_views_of_windows_and_flat_images_grow_in_their_first_size():
    assert infer_view_shape((1, 8, 7, 8, 7, 3), (5, 8, 7, 8, 7, 3), (64, 49, 3), 1) == (320, 49, 3)
    assert infer_view_shape((64, 49, 3), (320, 49, 3), (1, 8, 8, 7, 7, 3), 1) == (5, 8, 8, 7, 7, 3)
    assert infer_view_shape((2, 256, 6, 6), (5, 256, 6, 6), (2, 9216), 2) == (5, 9216)
    assert infer_view_shape((1, 512, 1, 1), (5, 512, 1, 1), (1, 512), 1) == (5, 512)


def test_what_does_not_depend_on_the_batch_stays_and_what_does_not_fit_is_none():
    assert infer_view_shape((4, 6), (4, 6), (24,), 4) == (24,)
    assert infer_view_shape((4, 6), (8, 6), (23,), 4) is None


QUERIES = tensor("q", (1, 7, 32))  # learnt, the same for every example
REPEATED = {
    "Expand": lambda own: whole("s", own, 7, 32),
    "Tile": lambda own: whole("s", own, 1, 1),
}


def built(folder: Path, content: bytes, batch: int) -> Graph:
    """The graph of an ONNX file."""
    pytest.importorskip("onnx")
    path = folder / "net.onnx"
    path.write_bytes(content)
    return build(make_workload(read_model(str(path)), batch, phase="infer"))


@pytest.mark.onnx
@pytest.mark.parametrize(("own", "rows"), [(1, 6 * 7), (2, 6 * 7), ("batch", 0)])
@pytest.mark.parametrize("repeat", REPEATED)
def test_what_is_learnt_and_repeated_to_the_batch_is_computed_for_each_example(
    own, rows, repeat, tmp_path
):
    """Only the sum after the product of queries says so; a file of an open batch means one."""
    nodes = [node(repeat, "q s", "each"), node("MatMul", "each w", "m"), node("Add", "m x", "y")]
    sizes = REPEATED[repeat](own if isinstance(own, int) else 1)
    weights = [QUERIES, tensor("w", (32, 32)), sizes]
    graph = built(tmp_path, model(nodes, weights, [value("x", own, 7, 32)]), 6)
    assert count(graph).flop == rows * 2 * 32 * 32 + 6 * 7 * 32
    assert graph.tensors[graph.outputs[0]].shape == (6, 7, 32)


@pytest.mark.onnx
@pytest.mark.parametrize("own", [1, 2, "batch"])
def test_statistics_of_the_batch_do_not_grow_and_what_reads_them_does(own, tmp_path):
    nodes = [node("ReduceMean", "x axes", "m", keepdims=0), node("Sub", "x m", "y")]
    content = model(nodes, [whole("axes", 0)], [value("x", own, 5)])
    assert count(built(tmp_path, content, 6)).flop == 6 * 5 + 6 * 5


@pytest.mark.onnx
def test_a_squeeze_of_every_axis_of_one_keeps_more_examples(tmp_path):
    nodes = [node("Squeeze", "x", "f"), node("Gemm", "f w", "y", transB=1)]
    content = model(nodes, [tensor("w", (5, 8))], [value("x", 1, 8, 1, 1)])
    assert count(built(tmp_path, content, 6)).flop == 6 * 2 * 5 * 8


@pytest.mark.framework
@pytest.mark.parametrize("own", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_exports_of_torch_for_one_batch_are_as_those_for_another(own, tmp_path):
    """Queries that read tokens by torch's attention, which takes the tokens first."""
    torch = pytest.importorskip("torch")

    class Reads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries = torch.nn.Parameter(torch.zeros(1, 7, 32))
            self.table = torch.nn.Parameter(torch.zeros(64, 5, 32))
            self.decoder = torch.nn.TransformerDecoderLayer(32, 4, 64, batch_first=True)
            self.attention = torch.nn.MultiheadAttention(32, 4)

        def forward(self, x: Any) -> Any:
            x = (x + self.table[: x.shape[0]]).transpose(0, 1)
            x = self.attention(x, x, x)[0].transpose(0, 1)
            return self.decoder(self.queries.repeat(x.shape[0], 1, 1), x)

    flop = []
    for batch in (own, 6):
        program = torch.export.export(Reads().eval(), (torch.zeros(batch, 5, 32),))
        path = tmp_path / f"{batch}.pt2"
        torch.export.save(program, path)
        graph = build(make_workload(read_model(str(path)), 6, phase="infer"))
        assert graph.tensors[graph.outputs[0]].shape == (6, 7, 32)
        flop.append(count(graph).flop)
    assert flop[0] == flop[1]


@pytest.mark.framework
def test_a_squeeze_of_every_axis_of_one_keeps_more_examples_of_torch(tmp_path):
    torch = pytest.importorskip("torch")

    class Squeezes(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x.squeeze())

    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Squeezes(8, 5), (torch.zeros(1, 8, 1, 1),)), path)
    graph = build(make_workload(read_model(str(path)), 6, phase="infer"))
    assert count(graph).flop == 6 * (2 * 5 * 8 + 5)


@pytest.mark.onnx
def test_an_output_that_does_not_follow_the_batch_is_refused_by_name(tmp_path):
    nodes = [node("ReduceSum", "x axes", "y", keepdims=0)]
    content = model(nodes, [whole("axes", 0)], inputs=[value("x", 1, 3)])
    graph = built(tmp_path, content, 1)
    assert graph.tensors[graph.outputs[0]].shape == (3,)
    with pytest.raises(InputError, match="exported for batch 1; output 'y' does not follow"):
        built(tmp_path, content, 2)


@pytest.mark.onnx
def test_what_grows_otherwise_than_the_batch_is_refused_by_name(tmp_path):
    nodes = [node("Transpose", "x", "t", perm=(1, 0)), node("MatMul", "x t", "y")]
    with pytest.raises(InputError, match=r"MatMul.*it cannot be made for 3: \[2, 2\] would be"):
        built(tmp_path, model(nodes, inputs=[value("x", 2, 8)]), 3)


def counted(folder: Path, name: str, own: int, form: str) -> tuple[int, tuple[int, ...], list[str]]:
    """FLOP and shape of 6 examples of a network that was exported for `own`, and remarks."""
    graph = build(make_workload(read_model(exported(folder, name, own, form)), 6, phase="infer"))
    remarks = [text for text in graph.remarks if "are read by no op" not in text]  # most are not
    return count(graph).flop, graph.tensors[graph.outputs[0]].shape, remarks


EVERY_OTHER = [
    pytest.param(name, marks=pytest.mark.rare if number % 2 else ())
    for number, name in enumerate(NETWORKS)
]


@pytest.mark.framework
@pytest.mark.onnx
@pytest.mark.parametrize("form", ["onnx", pytest.param("pt2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_an_export_has_of_its_batch_follows_as_the_export_for_another_has_it(
    name, form, tmp_path
):
    """Positions `[1, length]` of one example are those of all, as the file broadcasts them."""
    wanted = counted(tmp_path, name, 6, form)
    assert wanted[2] == []
    assert counted(tmp_path, name, 3, form) == wanted
    flop, shape, remarks = counted(tmp_path, name, 1, form)
    assert shape == wanted[1]
    assert flop == wanted[0] or "of constants alone" in remarks[0]


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.parametrize("name", EVERY_OTHER)
def test_products_of_an_export_for_3_are_those_that_torch_counts_of_6(name, tmp_path):
    flop_counter = pytest.importorskip("torch.utils.flop_counter")
    attention = pytest.importorskip("torch.nn.attention")
    module, given = network_of(name, 6)
    with (
        flop_counter.FlopCounterMode(display=False) as wanted,
        attention.sdpa_kernel(attention.SDPBackend.MATH),
    ):
        module(*given)
    path = exported(tmp_path, name, 3, "pt2")
    ops = count(build(make_workload(read_model(path), 6, phase="infer"))).ops
    products = [op.flop for op in ops if op.kind in {"linear", "matmul", "conv2d", "attention"}]
    assert sum(products) == wanted.get_total_flops()


@pytest.mark.onnx
@pytest.mark.parametrize("own", [1, 2])
def test_queries_repeated_along_the_second_axis_are_computed_for_each_example(own, tmp_path):
    nodes = [node("Tile", "q s", "each"), node("MatMul", "each w", "m"), node("Add", "m x", "y")]
    weights = [tensor("q", (7, 1, 32)), tensor("w", (32, 32)), whole("s", 1, own, 1)]
    turned = [node("Transpose", "i", "x", perm=(1, 0, 2)), *nodes]
    graph = built(tmp_path, model(turned, weights, [value("i", own, 7, 32)]), 6)
    assert count(graph).flop == 6 * 7 * 2 * 32 * 32 + 6 * 7 * 32
    assert graph.tensors["q"].shape == (7, 1, 32)


@pytest.mark.onnx
@pytest.mark.parametrize("batch", [1, 6])
def test_a_table_of_the_batch_is_no_more_parameters_of_another(batch, tmp_path):
    """Learnt queries that an exporter has repeated already, [2, 7, 32]."""
    nodes = [node("Concat", "q x", "c", axis=1), node("MatMul", "c w", "y")]
    weights = [tensor("q", (2, 7, 32)), tensor("w", (32, 8))]
    graph = built(tmp_path, model(nodes, weights, [value("x", 2, 4, 32)]), batch)
    assert count(graph).flop == batch * 11 * 2 * 32 * 8
    assert graph.tensors["q"].shape == (2, 7, 32)
