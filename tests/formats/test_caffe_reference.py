"""The two Caffe files of Paleo's authors: what they count, and that they run."""

from __future__ import annotations

from pathlib import Path

import pytest

from prototxt import shape
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.graph import Graph, check
from steptime.measure.contract import Options
from steptime.network.count import count


def of_file(shared: Path, name: str, phase: str, batch: int = 1) -> Graph:
    path = shared / "paleo/nets/caffe" / name
    return build_step(make_workload(read_model(str(path)), batch, phase=phase))


def products(graph: Graph) -> list[tuple[int, tuple[int, ...]]]:
    """FLOP and output shape of every forward convolution and product, in order of size."""
    ops = count(graph).ops
    forward = [op for op in ops if op.part == "forward" and op.kind in ("conv2d", "linear")]
    return sorted((op.flop, op.output_shape) for op in forward)


@pytest.mark.parametrize("phase", ["train", "infer"])
def test_resnet50_of_the_file_is_resnet50_v1(shared, phase):
    graph = of_file(shared, "resnet50.prototxt", phase, 2)
    ours = build_step(make_workload(read_model("resnet50_v1"), 2, phase=phase))
    check(graph)
    # the file leaves conv1 its bias, which the batch norm after it would take away again
    assert graph.parameters == ours.parameters + 64 == 25_557_032 + 64
    assert products(graph) == products(ours)
    assert sum(flop for flop, _ in products(graph)) == 2 * 2 * 3_857_973_248
    for kind in ("conv2d_grad_weight", "conv_transpose2d", "matmul"):
        mine, other = (
            sorted(op.flop for op in count(g).ops if op.kind == kind) for g in (graph, ours)
        )
        assert mine == other
    assert shape(graph, "conv1") == (2, 64, 112, 112)
    assert shape(graph, "pool1") == (2, 64, 56, 56)  # rounded up; the original Paleo has 55
    assert shape(graph, "res3a_branch1") == (2, 512, 28, 28)
    assert shape(graph, "pool5") == (2, 2048, 1, 1)
    assert shape(graph, "fc1000") == (2, 1000)
    assert "scale_conv1/w" in graph.weights


def test_densenet_of_the_file(shared):
    graph = of_file(shared, "densenet.prototxt", "train")
    check(graph)
    # three blocks of 12 convolutions that add 12 channels each, 16 at first
    widths = [16 + 12 * i for i in range(36 + 1)]
    parameters = 3 * 3 * 3 * 16
    for i, width in enumerate(widths[:-1]):
        parameters += 2 * width + 9 * width * 12  # norm, 3x3
        if i in (11, 23):
            last = width + 12
            parameters += 2 * last + last * last  # transition: norm, 1x1
    parameters += 2 * widths[-1] + widths[-1] * 10 + 10
    assert graph.parameters == parameters == 1_019_722
    assert shape(graph, "InnerProduct1/w") == (10, 448)  # global pooling; Paleo has 16128
    assert shape(graph, "Pooling1") == (1, 160, 16, 16)
    assert shape(graph, "Pooling2") == (1, 304, 8, 8)
    assert shape(graph, "Pooling3") == (1, 448, 1, 1)
    drops = [op for op in graph.ops if op.kind == "dropout"]
    assert len(drops) == 38
    assert {op.attrs["p"] for op in drops} == {0.2}
    assert graph.tensors["SoftmaxWithLoss1/labels"].dtype == "int64"


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.parametrize("name", ["resnet50.prototxt", "densenet.prototxt"])
@pytest.mark.parametrize("phase", ["train", "infer"])
def test_the_files_run_on_torch(shared, name, phase):
    from steptime.measure.backends.torch import backend as torch_backend

    path = shared / "paleo/nets/caffe" / name
    work = make_workload(read_model(str(path)), 1, phase=phase)
    prepared = torch_backend.prepare(build(work), work, Options())
    prepared.step()
    prepared.sync()
    assert next(iter(prepared.parts)) == "forward"
