"""What the stack `jax` says is what XLA compiles: one kernel for a chain, few for an update."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from steptime.build import build, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.graph import Graph
from steptime.hardware import catalog
from steptime.network.count import count
from steptime.network.layers.dense import mean_loss
from steptime.network.ops.builder import Builder
from steptime.network.ops.execution import list_launches
from steptime.network.ops.optimizers import STATES
from steptime.network.ops.training import training_graph

pytestmark = pytest.mark.jax


def compiled(graph: Graph, optimizer: str = "") -> Any:
    import jax
    import numpy as np

    from steptime.measure.backends.jax.program import carry_of, output_of, training_step

    jax.config.update("jax_enable_x64", True)
    values = {
        name: np.zeros(graph.tensors[name].shape, jax.numpy.dtype(graph.tensors[name].dtype))
        for name in (*graph.inputs, *graph.weights, *graph.buffers)
    }
    carry = carry_of(graph, optimizer, values)
    inputs = {name: values[name] for name in graph.inputs}
    program = training_step(graph, optimizer) if optimizer else output_of(graph)
    return jax.jit(program).lower(carry, inputs).compile()


def fusions(program: Any) -> list[str]:
    """The names of the fused kernels that a program calls."""
    text = program.as_text()
    return re.findall(
        r"^\s*(?:ROOT )?%?([\w.-]+) = \S+ fusion\(", text[text.index("ENTRY") :], re.MULTILINE
    )


def test_a_chain_of_functions_is_one_kernel():
    b = Builder("chain", precision("float32"), training=False)
    x = b.input("x", (64, 512))
    y = b.op("sigmoid", b.op("tanh", x, name="a"), name="b")
    graph = b.graph(b.op("mul", y, x, name="c"))
    assert len(fusions(compiled(graph))) == 1
    assert count(graph, catalog.stack("jax")).kernels == 1
    assert len(list_launches(graph, catalog.stack("torch-eager"))) == 3


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_each_weight_is_updated_by_fused_kernels(optimizer):
    from steptime.measure.backends.jax.profile import scopes_of

    work = make_workload(read_model("fc:layers=1,nodes=512,inputs=256,outputs=128,batch=32"), None)
    graph = build(work)
    program = compiled(graph, optimizer)
    scopes = scopes_of(program.as_text())
    of_updates = [name for name in fusions(program) if "/optimizer/" in scopes.get(name, "")]
    large = sum("512" in _shapes(program, name) for name in of_updates)
    # two matrices and the bias of 512; on a CPU a loop for each result, on a GPU one for them all
    assert large == 3 * (1 + STATES[optimizer])
    launches = list_launches(training_graph(graph, optimizer), catalog.stack("jax"))
    kernels = Counter(launch.ops[0].kind for launch in launches)
    assert kernels[optimizer] == 4  # two matrices, two biases


def _shapes(program: Any, name: str) -> str:
    found = re.search(
        rf"^\s*(?:ROOT )?%?{re.escape(name)} = (.*?) fusion\(", program.as_text(), re.MULTILINE
    )
    return found[1] if found else ""


def test_the_loss_of_a_product_is_fused_behind_it():
    """A product is not what others are fused into: it is a library's."""
    b = Builder("product", precision("float32"), training=True)
    y = b.op("linear", b.input("x", (8, 64)), b.weight("w", (32, 64)), name="linear")
    graph = b.graph(mean_loss(b, b.op("relu", y, name="relu")))
    kinds = [launch.ops[0].kind for launch in list_launches(graph, catalog.stack("jax"))]
    assert kinds[:2] == ["linear", "relu"]
