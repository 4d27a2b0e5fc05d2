"""Instance norm is no group norm under autocast: torch's list of ops in float32 lacks it."""

import pytest

from every import every
from steptime.core.dtypes import precision
from steptime.formats import lowering
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph


def kinds_and_type(groups):
    b = Builder("one", precision("float16-mixed"), training=True)
    x = b.input("x", (2, 32, 8, 8, 8))
    x = b.op("cast", x, name="half", dtype="float16")
    y = lowering.group_norm(b, x, groups, "norm")
    graph = b.graph(y)
    casts = [op.name for op in graph.ops if op.kind == "cast"]
    return graph.tensors[y].dtype, len(casts)


@every(("groups", "dtype"), [(None, "float16"), (32, "float32"), (4, "float32")])
def test_a_norm_runs_in_the_type_that_torch_runs_it_in(groups, dtype):
    assert kinds_and_type(groups)[0] == dtype


def test_its_gradient_has_the_same_shapes_and_flop():
    sizes = []
    for groups in (None, 32):
        b = Builder("one", precision("float32"), training=True)
        y = lowering.group_norm(b, b.input("x", (2, 32, 8, 8)), groups, "norm")
        graph = training_graph(b.graph(b.op("mean", y, name="loss")), "sgd")
        sizes.append([(op.kind, graph.tensors[op.outputs[0]].shape) for op in graph.ops])
    assert sizes[0] == sizes[1]


def test_an_instance_norm_has_a_group_for_each_channel():
    b = Builder("one", precision("float32"), training=True)
    x, w = b.input("x", (2, 32, 8, 8)), b.weight("w", (32,))
    with pytest.raises(ShapeError, match="instance norm of 4 groups"):
        b.op("group_norm", x, w, b.weight("v", (32,)), name="norm", groups=4, instance=True)
