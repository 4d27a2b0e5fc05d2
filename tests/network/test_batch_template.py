"""A network of a file at any batch: the lines of its sizes give the graphs that building gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from steptime.build import build_step, make_workload, read_model
from steptime.core.graph import Graph
from steptime.core.workload import Workload
from steptime.network.batch_template import NotLinearError, make_template
from steptime.prediction.steps.step_graphs import build_steps

pytestmark = pytest.mark.onnx


def workload_of(folder: Path, squares: bool = False) -> Workload:
    """Return the training of a small ONNX network, which may multiply a batch with itself."""
    pytest.importorskip("onnx")
    from numpy import ones
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["r", "t"], ["y"]),
    ]
    used = nodes if squares else nodes[:2]
    output = helper.make_tensor_value_info("y" if squares else "r", TensorProto.FLOAT, None)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])]
    weights = [numpy_helper.from_array(ones((8, 4), "float32"), "w")]
    path = folder / "net.onnx"
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(used, "network", inputs, [output], weights)
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return make_workload(read_model(str(path)), 4)


def built(workload: Workload, batch: int) -> Graph:
    return build_step(replace(workload, batch_per_replica=batch))


def test_every_batch_has_the_graph_that_building_it_gives(tmp_path: Path) -> None:
    workload = workload_of(tmp_path)
    build_at = build_steps(workload)
    for batch in (4, 1, 2, 3, 5, 64, 1000, 1 << 20):
        assert build_at(batch) == built(workload, batch)


def test_a_network_whose_remarks_follow_the_batch_is_built_each_time(tmp_path: Path) -> None:
    workload = workload_of(tmp_path, squares=True)
    with pytest.raises(NotLinearError):
        make_template({batch: built(workload, batch) for batch in (2, 3, 50)})
    build_at = build_steps(workload)
    assert build_at(20) == built(workload, 20)


def test_graphs_of_other_ops_are_refused(tmp_path: Path) -> None:
    squares = workload_of(tmp_path, squares=True)
    first = built(squares, 2)
    plain = workload_of(tmp_path)
    with pytest.raises(NotLinearError):
        make_template({2: first, 3: built(plain, 3), 5: built(plain, 5)})


def test_a_share_follows_the_batch_and_a_larger_factor_is_refused(tmp_path: Path) -> None:
    """A loss that is weighted by 16 over the batch has no whole number as its reciprocal."""

    def with_scale(factor: float, batch: int) -> Graph:
        graph = built(workload, batch)
        first = replace(graph.ops[0], attrs={**graph.ops[0].attrs, "scale": factor / batch})
        return replace(graph, ops=(first, *graph.ops[1:]))

    workload = workload_of(tmp_path)
    template = make_template({batch: with_scale(1.0, batch) for batch in (2, 3, 50)})
    assert template.build_graph(20).ops[0].attrs["scale"] == 1 / 20
    with pytest.raises(NotLinearError):
        make_template({batch: with_scale(16.0, batch) for batch in (2, 3, 50)})
