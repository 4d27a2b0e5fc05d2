"""The contract of backends: built from one graph, each gives numpy's numbers, op by op and whole.

Values of every kind in float32 within 1e-5; values, gradients and whole steps in float64, where
deep networks do not amplify the rounding of one op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reference.backend import execute, initial_values
from steptime.build import build, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.graph import Graph
from steptime.core.workload import OPTIMIZERS
from steptime.network.layers.dense import classify, mean_loss
from steptime.network.ops import OPS, communication, opaque
from steptime.network.ops.builder import Builder
from steptime.network.ops.elementwise import FUNCTIONS
from steptime.network.ops.loss import IGNORED_LABEL
from steptime.network.ops.sequence import GATES
from steptime.network.ops.training import training_graph

Network = Callable[[Builder], str]
Values = dict[str, Any]
RELATIVE = 1e-10
SINGLE = 1e-5  # of float32
ROUNDING = 1e-13  # of gradients that are 0 but for it: a softmax does not feel the bias of the keys


def weighed(b: Builder, y: str) -> str:
    """The mean of `y` times fixed numbers, so that every element has a gradient of its own."""
    return mean_loss(b, b.op("mul", y, b.input("weighing", b.shape(y)), name="weighed"))


def op(kind: str, *shapes: tuple[int, ...], **attrs: Any) -> Network:
    """A network of one op of which every input is a weight."""

    def network(b: Builder) -> str:
        inputs = [b.weight(f"in{i}", shape) for i, shape in enumerate(shapes)]
        return weighed(b, b.op(kind, *inputs, name="op", **attrs))

    return network


def _cross_entropy(b: Builder) -> str:
    return classify(b, b.weight("x", (2, 3, 5)))


def _mean(b: Builder) -> str:
    return mean_loss(b, b.weight("x", (3, 4)))


def _embedding(b: Builder) -> str:
    ids = b.input("ids", (4, 6), "int64")
    return weighed(b, b.op("embedding", ids, b.weight("w", (5, 3)), name="op"))


def _rotary(turned: int) -> Network:
    def network(b: Builder) -> str:
        x, table = b.weight("x", (2, 5, 16)), b.buffer("angles", (5, turned))
        return weighed(b, b.op("rotary", x, table, name="op", head_width=8))

    return network


def _parts(b: Builder) -> str:
    x, y = b.append("op", "split", (b.weight("x", (2, 6, 3)),), axis=1, sizes=(3, 3))
    return weighed(b, b.op("mul", x, y, name="product"))


def _two_parts(b: Builder) -> str:
    x, _, y = b.append("op", "split", (b.weight("x", (2, 3, 7)),), axis=-1, sizes=(3, 1, 3))
    return weighed(b, b.op("mul", x, y, name="product"))


def _cast(b: Builder) -> str:
    x = b.op("cast", b.weight("x", (3, 4)), name="narrow", dtype="float32")
    return weighed(b, b.op("cast", x, name="wide", dtype="float64"))


def _batch_norm(*shape: int) -> Network:
    def network(b: Builder) -> str:
        weights = (b.weight("x", shape), b.weight("w", shape[1:2]), b.weight("b", shape[1:2]))
        buffers = (b.buffer("mean", shape[1:2]), b.buffer("variance", shape[1:2]))
        return weighed(b, b.op("batch_norm", *weights, *buffers, name="op", training=True))

    return network


def _positive(b: Builder, shape: tuple[int, ...], name: str) -> str:
    """Numbers above 0, for roots and logarithms."""
    return b.op("sigmoid", b.weight(name, shape), name=f"{name}/positive")


def _function(function: str, **attrs: Any) -> Network:
    """A network of a pointwise function of operands that broadcast."""

    def network(b: Builder) -> str:
        count = len(FUNCTIONS[function].gradients)
        names = [_positive(b, shape, f"in{i}") for i, shape in enumerate(SHAPES[:count])]
        if function == "where":
            zero = b.op("pointwise", names[0], name="zero", function="gt", scalar=0.5)
            names[0] = zero
        if "scalar" in attrs and count > 1:
            del names[attrs.get("scalar_place", -1)]
        if function in ("and", "or", "xor"):
            names = [
                b.op("pointwise", x, name=f"{x}/bool", function="gt", scalar=0.5) for x in names
            ]
        how = {"low": 0.3, "high": 0.6} if function == "clamp" else attrs
        y = b.op("pointwise", *names, name="op", function=function, **how)
        if b.tensors[y].dtype == "bool":  # added to something that has a gradient
            y = b.op("cast", y, name="number", dtype="float64")
        return weighed(b, b.op("add", y, b.weight("also", b.shape(y)), name="sum"))

    return network


SHAPES = ((2, 3, 1), (3, 4), (2, 1, 4))


def _at(kind: str, indices: tuple[int, ...], **attrs: Any) -> Network:
    """A network of one op at places along an axis of 5."""

    def network(b: Builder) -> str:
        at = b.input("ids", indices, "int64")
        return weighed(b, b.op(kind, b.weight("x", (3, 5, 2)), at, name="op", **attrs))

    return network


IMAGE = (2, 4, 7, 8)
VOLUME = (2, 4, 3, 5, 4)
CASES: dict[str, Network] = {
    "linear": op("linear", (4, 6), (5, 6)),
    "linear of rank 3": op("linear", (2, 4, 6), (5, 6)),
    "matmul": op("matmul", (2, 3, 4), (2, 4, 5)),
    "matmul transposed": op("matmul", (2, 3, 4), (2, 5, 4), transpose_b=True),
    "bias": op("bias", (2, 3, 4), (4,)),
    "bias on an axis": op("bias", (2, 3, 4, 4), (3,), axis=1),
    "mean": _mean,
    "conv2d": op("conv2d", IMAGE, (3, 4, 3, 3)),
    "conv2d strided": op("conv2d", IMAGE, (3, 4, 3, 2), stride=(2, 3), padding=(1, 1, 2, 2)),
    "conv2d uneven": op("conv2d", IMAGE, (3, 4, 3, 3), stride=(2, 2), padding=(0, 1, 1, 2)),
    "conv2d dilated": op("conv2d", IMAGE, (3, 4, 2, 3), dilation=(3, 2), padding=(1, 1, 1, 1)),
    "conv2d grouped": op("conv2d", IMAGE, (6, 2, 3, 3), groups=2),
    "conv2d depthwise": op("conv2d", IMAGE, (4, 1, 3, 3), groups=4, stride=(2, 1)),
    "conv2d 1x1": op("conv2d", IMAGE, (3, 4, 1, 1), stride=(2, 2)),
    "conv_transpose2d": op(
        "conv_transpose2d",
        (2, 4, 3, 4),
        (4, 3, 3, 2),
        output_size=(8, 8),
        stride=(3, 2),
        padding=(1, 1, 0, 0),
    ),
    "conv_transpose2d grouped, uneven, dilated": op(
        "conv_transpose2d",
        (2, 4, 3, 4),
        (4, 3, 3, 2),
        output_size=(8, 8),
        stride=(2, 2),
        padding=(1, 0, 0, 1),
        dilation=(2, 2),
        groups=2,
    ),
    "conv3d": op("conv3d", VOLUME, (3, 4, 2, 3, 3)),
    "conv3d grouped, uneven, dilated": op(
        "conv3d",
        VOLUME,
        (6, 2, 2, 3, 2),
        stride=(1, 2, 1),
        padding=(0, 1, 1, 1, 2, 0),
        dilation=(2, 1, 2),
        groups=2,
    ),
    "conv_transpose3d": op(
        "conv_transpose3d",
        (2, 4, 2, 3, 2),
        (4, 3, 2, 3, 2),
        output_size=(5, 5, 4),
        stride=(3, 2, 2),
        padding=(0, 0, 1, 1, 0, 0),
    ),
    "conv_transpose3d uneven": op(
        "conv_transpose3d",
        (2, 4, 2, 3, 2),
        (4, 3, 2, 3, 2),
        output_size=(3, 6, 4),
        stride=(2, 2, 2),
        padding=(1, 0, 0, 1, 0, 0),
    ),
    "max_pool3d": op("max_pool3d", VOLUME, kernel=(2, 2, 3), stride=(1, 2, 2)),
    "max_pool3d ceil uneven": op(
        "max_pool3d",
        VOLUME,
        kernel=(2, 2, 3),
        stride=(2, 3, 2),
        padding=(0, 1, 1, 0, 1, 1),
        ceil=True,
    ),
    "avg_pool3d": op(
        "avg_pool3d", VOLUME, kernel=(2, 3, 2), stride=(1, 2, 2), padding=(1, 1, 1, 1, 0, 0)
    ),
    "avg_pool3d ceil uneven": op(
        "avg_pool3d",
        VOLUME,
        kernel=(2, 2, 3),
        stride=(2, 3, 3),
        padding=(0, 1, 0, 1, 0, 2),
        ceil=True,
    ),
    "max_pool2d": op("max_pool2d", IMAGE, kernel=(2, 2), stride=(2, 2)),
    "max_pool2d overlapping": op(
        "max_pool2d", IMAGE, kernel=(3, 3), stride=(2, 1), padding=(1, 1, 1, 1)
    ),
    "max_pool2d uneven": op(
        "max_pool2d", IMAGE, kernel=(3, 2), stride=(2, 2), padding=(0, 1, 1, 0)
    ),
    "max_pool2d ceil": op(
        "max_pool2d", IMAGE, kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1), ceil=True
    ),
    "max_pool2d ceil uneven": op(
        "max_pool2d", IMAGE, kernel=(2, 3), stride=(4, 3), padding=(0, 1, 0, 2), ceil=True
    ),
    "avg_pool2d": op("avg_pool2d", IMAGE, kernel=(2, 3), stride=(2, 1), padding=(1, 1, 1, 1)),
    "avg_pool2d uneven": op(
        "avg_pool2d", IMAGE, kernel=(3, 2), stride=(2, 2), padding=(0, 1, 1, 0)
    ),
    "avg_pool2d ceil": op(
        "avg_pool2d", IMAGE, kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1), ceil=True
    ),
    "avg_pool2d ceil uneven": op(
        "avg_pool2d", IMAGE, kernel=(2, 3), stride=(4, 3), padding=(0, 1, 0, 2), ceil=True
    ),
    "global_avg_pool": op("global_avg_pool", IMAGE),
    "resize2d by whole numbers": op("resize2d", IMAGE, size=(14, 24), mode="nearest"),
    "batch_norm": _batch_norm(*IMAGE),
    "batch_norm of rank 2": _batch_norm(6, 4),
    "layer_norm": op("layer_norm", (2, 3, 6), (6,), (6,)),
    "rms_norm": op("rms_norm", (2, 3, 6), (6,)),
    "local_response_norm": op("local_response_norm", IMAGE, size=3, alpha=0.5, beta=0.75, k=2.0),
    "local_response_norm even": op(
        "local_response_norm", IMAGE, size=4, alpha=0.5, beta=0.5, k=1.0
    ),
    **{kind: op(kind, (3, 5)) for kind in ("relu", "sigmoid", "tanh", "gelu", "silu", "softmax")},
    "add": op("add", (2, 3, 4), (2, 3, 4)),
    "add broadcast": op("add", (2, 3, 4), (3, 4)),
    "sub": op("sub", (2, 3, 4), (2, 3, 4)),
    "sub broadcast": op("sub", (2, 3, 4), (3, 4)),
    "mul": op("mul", (2, 3, 4), (2, 3, 4)),
    "mul broadcast": op("mul", (2, 3, 4), (4,)),
    "maximum": op("maximum", (2, 3, 4), (2, 3, 4)),
    "prelu": op("prelu", (2, 3, 4, 5), (3,)),
    "prelu of rank 2, one slope": op("prelu", (6, 4), (1,)),
    "cast": _cast,
    "concat": op("concat", (2, 3, 4), (2, 2, 4), axis=1),
    "concat from the end": op("concat", (2, 3), (2, 5), (2, 1), axis=-1),
    "reshape": op("reshape", (2, 6), shape=(3, 4)),
    "flatten": op("flatten", (2, 3, 4)),
    "transpose": op("transpose", (2, 3, 4), order=(2, 0, 1)),
    "slice": op("slice", (2, 5, 3), axis=1, start=1, stop=4),
    "slice from the end": op("slice", (2, 5, 3), axis=-1, start=2, stop=3),
    "split": _parts,
    "split, a part unread": _two_parts,
    "slice with steps": op("slice", (2, 8, 3), axis=1, start=1, stop=7, step=2),
    "matmul of a shared matrix": op("matmul", (2, 3, 4), (4, 5)),
    "matmul of a shared matrix, transposed": op("matmul", (2, 3, 4), (5, 4), transpose_b=True),
    "matmul broadcast": op("matmul", (2, 1, 3, 4), (5, 4, 6)),
    "matmul of one matrix by many": op("matmul", (3, 4), (2, 4, 5)),
    "group_norm": op("group_norm", IMAGE, (4,), (4,), groups=2),
    "group_norm of instances": op("group_norm", (2, 4, 6), (4,), (4,), groups=4),
    **{f"pointwise {name}": _function(name) for name in FUNCTIONS},
    "pointwise by a scalar": _function("mul", scalar=3.0),
    "pointwise from a scalar": _function("sub", scalar=3.0, scalar_place=0),
    "pointwise over a scalar": _function("div", scalar=2.0),
    "pointwise scalar over": _function("div", scalar=2.0, scalar_place=0),
    "pointwise squared": _function("pow", scalar=2.0),
    "pointwise power of a scalar": _function("pow", scalar=2.0, scalar_place=0),
    "pointwise at least": _function("maximum", scalar=0.7),
    "pointwise at most": _function("minimum", scalar=0.7),
    "pointwise leaky": _function("leaky_relu", scalar=0.3),
    "pointwise masked": _function("where", scalar=0.3, scalar_place=1),
    **{
        f"reduce {name}": op("reduce", (2, 3, 4), function=name, axes=(0, 2))
        for name in ("sum", "mean", "max", "min", "prod")
    },
    "reduce kept": op("reduce", (2, 3, 4), function="mean", axes=(1,), keep=True),
    "broadcast": op("broadcast", (3, 1), shape=(2, 3, 4)),
    "tile": op("tile", (2, 3), times=(2, 3)),
    "pad": op("pad", (2, 3, 4), pads=(0, 0, 1, -1, 2, 3), value=0.5),
    **{
        f"pad {mode}": op("pad", IMAGE, pads=(0, 0, 0, 0, 2, 1, 0, 3), mode=mode)
        for mode in ("reflect", "edge", "circular")
    },
    "gather": _at("gather", (2, 4), axis=1),
    "gather_elements": _at("gather_elements", (3, 5, 2), axis=1),
    "topk": op("topk", (3, 6), k=4, axis=1),
    "topk smallest": op("topk", (3, 6), k=2, axis=0, largest=False),
    "cumsum": op("cumsum", (3, 4), axis=1),
    "flip": op("flip", (2, 3, 4), axes=(0, 2)),
    **{
        f"resize2d {mode}": op("resize2d", IMAGE, size=(10, 5), mode=mode)
        for mode in ("nearest", "bilinear", "bicubic")
    },
    "resize2d corners": op("resize2d", IMAGE, size=(9, 3), mode="bilinear", align_corners=True),
    "resize2d cubic corners": op(
        "resize2d", IMAGE, size=(9, 3), mode="bicubic", align_corners=True
    ),
    "embedding": _embedding,
    "attention": op(
        "attention", (2, 3, 8), (2, 5, 8), (2, 5, 8), heads=2, kv_heads=2, causal=False
    ),
    "attention causal": op(
        "attention", (2, 4, 8), (2, 4, 8), (2, 4, 8), heads=4, kv_heads=4, causal=True
    ),
    "attention grouped": op(
        "attention", (2, 4, 8), (2, 4, 4), (2, 4, 4), heads=4, kv_heads=2, causal=True
    ),
    "attention with other values": op(
        "attention", (2, 4, 8), (2, 4, 4), (2, 4, 6), heads=4, kv_heads=2, causal=True
    ),
    "attention in a window": op(
        "attention", (2, 5, 8), (2, 5, 8), (2, 5, 8), heads=2, kv_heads=2, causal=True, window=2
    ),
    "attention in a window to both sides": op(
        "attention", (2, 5, 8), (2, 5, 8), (2, 5, 8), heads=2, kv_heads=2, causal=False, window=2
    ),
    "attention with relative positions": op(
        "attention", (2, 3, 8), (2, 5, 8), (2, 5, 8), (2, 3, 5), heads=2, kv_heads=2, causal=False
    ),
    "attention with sinks": op(
        "attention", (2, 4, 8), (2, 4, 4), (2, 4, 4), (4,), heads=4, kv_heads=2, causal=True
    ),
    "attention with all": op(
        "attention",
        *((2, 4, 8), (2, 4, 4), (2, 4, 6), (4, 4, 4), (4,)),
        heads=4,
        kv_heads=2,
        causal=True,
        window=3,
    ),
    "delta_rule": op(
        "delta_rule",
        *((2, 5, 6), (2, 5, 6), (2, 5, 8), (2, 5, 4), (2, 5, 4)),
        heads=4,
        key_heads=2,
    ),
    "delta_rule by feature": op(
        "delta_rule",
        *((2, 5, 6), (2, 5, 6), (2, 5, 4), (2, 5, 6), (2, 5, 2)),
        heads=2,
        key_heads=2,
    ),
    "delta_rule as a sum": op(
        "delta_rule",
        *((2, 5, 6), (2, 5, 6), (2, 5, 8), (2, 5, 4), (2, 5, 4)),
        heads=4,
        key_heads=2,
        rule="sum",
    ),
    "delta_rule as a scan": op(
        "delta_rule",
        *((2, 5, 3), (2, 5, 3), (2, 5, 4), (2, 5, 4), (2, 5, 4), (4, 3)),
        heads=4,
        key_heads=1,
        rule="scan",
    ),
    "experts": op(
        "experts", (2, 3, 4), (2, 3, 5), (5, 6, 4), (5, 4, 6), per_token=2, activation="gelu"
    ),
    "experts gated, with biases": op(
        "experts",
        *((7, 4), (7, 3), (3, 12, 4), (3, 4, 6), (3, 12), (3, 4)),
        per_token=2,
        activation="swiglu",
    ),
    "gelu by tanh": op("gelu", (3, 5), tanh=True),
    "silu of more": op("silu", (3, 5), beta=1.5),
    "rotary": _rotary(8),
    "rotary of a part": _rotary(4),
    "cross_entropy": _cross_entropy,
    **{
        cell: op(cell, (2, 3, 4), (rows * 5, 4), (rows * 5, 5), (rows * 5,), (rows * 5,))
        for cell, rows in GATES.items()
    },
    "lstm with a projection": op("lstm", (2, 3, 4), (20, 4), (20, 2), (20,), (20,), (2, 5)),
}
BACKWARD = {kind for kind in OPS if kind.endswith(("_grad", "_grad_weight"))}
MEASURED = ("sgd", "momentum", "rmsprop", "adam", "adamw")  # optimizers that backends run
NOT_RUN = {*communication.KINDS, *opaque.KINDS}
FORWARD = [k for k in OPS if k not in {*BACKWARD, *OPTIMIZERS, *NOT_RUN}]
APART = {"dropout": "it draws, and has tests of its own", "cast": "numpy has no bfloat16"}


def test_every_differentiable_kind_has_a_case():
    covered = {name.split(maxsplit=1)[0] for name in CASES}
    differentiable = {kind for kind, row in OPS.items() if row.gradient}
    assert differentiable - covered == {"dropout", *NOT_RUN} & differentiable


def example(kind: str) -> Graph:
    """A graph of the example of a kind."""
    b = Builder(kind, precision("float32"), training=False)
    row = OPS[kind].example
    names = [b.input(f"in{i}", spec.shape, spec.dtype) for i, spec in enumerate(row.specs)]
    return b.graph(b.op(kind, *names, name="op", **row.attrs))


def drawn_values(graph: Graph) -> dict[str, np.ndarray]:
    """Values of a training graph: ordinary numbers for all weights, some labels ignored."""
    values = initial_values(graph, 3)
    rng = np.random.default_rng(4)
    for name in graph.weights:
        values[name] = rng.standard_normal(values[name].shape).astype(values[name].dtype)
    if "labels" in values:
        values["labels"].flat[::5] = IGNORED_LABEL
    return values


def torch_module(graph: Graph, values: Values) -> tuple[Any, dict[str, Any]]:
    """The module of a forward graph and its tensors, copied from numpy's values."""
    import torch

    from steptime.measure.backends.torch.module import module_of

    tensors: dict[str, Any] = {}
    for name in (*graph.inputs, *graph.weights, *graph.buffers):
        tensor = torch.from_numpy(values[name].copy())
        tensors[name] = torch.nn.Parameter(tensor) if name in graph.weights else tensor
    return module_of(graph, tensors, precision("float64")), tensors


def torch_output(graph: Graph, values: Values) -> Any:
    module, tensors = torch_module(graph, values)
    return module(*(tensors[name] for name in graph.inputs)).detach().numpy()


def torch_gradients(graph: Graph, values: Values) -> tuple[Any, Values]:
    module, tensors = torch_module(graph, values)
    loss = module(*(tensors[name] for name in graph.inputs))
    loss.backward()
    grads = {name: tensors[name].grad for name in graph.weights}
    return loss.detach().numpy(), {
        name: np.zeros(()) if grad is None else grad.numpy() for name, grad in grads.items()
    }


def torch_steps(graph: Graph, values: Values, optimizer: str, steps: int) -> tuple[Any, Values]:
    from steptime.measure.backends.torch.module import optimizer_of

    module, tensors = torch_module(graph, values)
    theirs = optimizer_of(optimizer, [tensors[name] for name in graph.weights], "float64")
    losses = []
    for _ in range(steps):
        theirs.zero_grad(set_to_none=True)
        loss = module(*(tensors[name] for name in graph.inputs))
        loss.backward()
        theirs.step()
        losses.append(loss.item())
    return losses, {name: tensors[name].detach().numpy() for name in graph.weights}


def jax_arguments(graph: Graph, values: Values, optimizer: str = "") -> tuple[Any, Values]:
    import steptime.measure.backends.jax.backend  # noqa: F401  # turns 64-bit types on
    from steptime.measure.backends.jax.program import carry_of

    carry = carry_of(graph, optimizer, values)
    return carry, {name: values[name] for name in graph.inputs}


def jax_output(graph: Graph, values: Values) -> Any:
    import jax

    arguments = jax_arguments(graph, values)
    from steptime.measure.backends.jax.program import output_of

    return np.asarray(jax.jit(output_of(graph))(*arguments))


def jax_gradients(graph: Graph, values: Values) -> tuple[Any, Values]:
    import jax

    arguments = jax_arguments(graph, values)
    from steptime.measure.backends.jax.program import network_of, run_forward

    def differentiated(carry: Any, inputs: Values) -> Any:
        loss, back, _ = run_forward(network_of(graph), carry, inputs)
        return loss, back(jax.numpy.ones_like(loss))[0]

    loss, grads = jax.jit(differentiated)(*arguments)
    return np.asarray(loss), {name: np.asarray(grads[name]) for name in graph.weights}


def jax_steps(graph: Graph, values: Values, optimizer: str, steps: int) -> tuple[Any, Values]:
    import jax

    carry, inputs = jax_arguments(graph, values, optimizer)
    from steptime.measure.backends.jax.program import training_step

    step, losses = jax.jit(training_step(graph, optimizer)), []
    for _ in range(steps):
        loss, carry = step(carry, inputs)
        losses.append(float(loss))
    return losses, {name: np.asarray(carry.weights[name]) for name in graph.weights}


OUTPUT = {"torch": torch_output, "jax": jax_output}
GRADIENTS = {"torch": torch_gradients, "jax": jax_gradients}
STEPS = {"torch": torch_steps, "jax": jax_steps}
MARKS = {"torch": pytest.mark.framework, "jax": pytest.mark.jax}


def each(table: dict[str, Any], slow: str = "") -> Any:
    """Run a test on every backend of a table, each in its group; one may be `slow` to compile."""
    marks = {name: (MARKS[name], *((pytest.mark.slow,) if name == slow else ())) for name in table}
    rows = [pytest.param(name, marks=marks[name], id=name) for name in table]
    return pytest.mark.parametrize("backend", rows)


def assert_same(ours: Any, theirs: Any, relative: float = RELATIVE) -> None:
    scale = float(np.abs(theirs).max(initial=0))
    atol = max(relative * scale, ROUNDING)
    np.testing.assert_allclose(ours, theirs, rtol=relative, atol=atol)


def compare_gradients(backend: str, graph: Graph, relative: float = RELATIVE) -> None:
    training = training_graph(graph, "sgd")
    values = drawn_values(training)
    grads = {o.inputs[0]: o.inputs[-1] for o in training.ops if o.part == "update"}
    made = execute(training, values, keep=grads.values())
    loss, theirs = GRADIENTS[backend](graph, values)
    assert_same(made[graph.outputs[0]], loss, relative)
    for weight in graph.weights:
        if weight in grads:
            assert_same(made[grads[weight]], theirs[weight], relative)
        else:  # a function without a slope
            assert not theirs[weight].any()


@pytest.mark.jax
def test_jax_has_a_row_for_every_forward_kind():
    from steptime.measure.backends.jax.kinds import RUNS

    assert sorted(set(FORWARD) - RUNS.keys()) == []
    assert sorted(RUNS.keys() - set(FORWARD)) == []


@each(GRADIENTS)
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient_agree(case, backend):
    b = Builder("small", precision("float64"), training=True)
    graph = b.graph(CASES[case](b))
    # a cast to float32 and back rounds to 24 bits, and so does torch the sixth of a hard sigmoid
    rounded = case in ("cast", "pointwise hard_sigmoid")
    compare_gradients(backend, graph, 1e-6 if rounded else RELATIVE)


@each(OUTPUT)
@pytest.mark.parametrize("kind", [kind for kind in FORWARD if kind not in APART])
def test_the_example_of_every_kind_agrees_in_float32(kind, backend):
    graph = example(kind)
    rng = np.random.default_rng(9)
    values = initial_values(graph, 3)  # integers of the right range
    for name in graph.inputs:
        if values[name].dtype == np.float32:
            values[name] = rng.standard_normal(values[name].shape, np.float32)
    output = OUTPUT[backend](graph, values)
    assert_same(execute(graph, values)[graph.outputs[0]], output, SINGLE)


@pytest.mark.framework
def test_dropout_agrees_under_the_same_mask():
    import torch

    b = Builder("small", precision("float64"), training=True)
    x = b.weight("x", (20, 20))
    graph = b.graph(weighed(b, b.op("dropout", x, name="op", p=0.25)))
    training = training_graph(graph, "sgd")
    values = drawn_values(training)
    made = execute(training, values, keep=["op/saved0", "op/grad_input"], seed=7)
    mask = torch.from_numpy(made["op/saved0"])
    assert 0.65 < float(mask.double().mean()) < 0.85
    tensor = torch.from_numpy(values["x"].copy()).requires_grad_()
    loss = (tensor * mask / (1 - 0.25) * torch.from_numpy(values["weighing"])).mean()
    loss.backward()
    assert_same(made["loss"], loss.item())
    assert_same(made["op/grad_input"], tensor.grad.numpy())


NETWORKS = {
    "fc": "fc:layers=3,nodes=16,inputs=10,outputs=7,batch=5",
    "cnn residual": "cnn:block=residual,blocks=1,filters=4,image=33,classes=7,batch=3",
    "cnn bottleneck": "cnn:block=bottleneck,blocks=1-2-1-1,filters=4,image=33,classes=7,batch=3",
    **{
        cell: f"rnn:cell={cell},layers=2,embedding=4,length=5,vocabulary=7,batch=3"
        for cell in GATES
    },
    "encoder": "transformer:kind=encoder,layers=2,width=16,heads=2,ffn=24,length=6,vocabulary=11,"
    "batch=2",
    "decoder": "transformer:kind=decoder,layers=2,width=16,heads=2,ffn=24,length=6,vocabulary=11,"
    "max_length=9,batch=2",
    "llama": "transformer:kind=decoder,layers=2,width=16,heads=4,kv_heads=2,ffn=24,length=6,"
    "vocabulary=11,norm=rms,activation=swiglu,positions=rotary,bias=no,tied=no,batch=2",
    "mixture, windows, norms of queries and keys, sinks": "transformer:layers=2,width=16,heads=4,"
    "kv_heads=2,head_width=6,ffn=24,length=6,vocabulary=11,norm=rms,activation=swiglu,window=3,"
    "windows=wa,positions=rotary,rotary_width=4,experts=4,expert_ffn=8,shared_ffn=8,router_bias=yes,"
    "qk_norm=head,sinks=yes,norms=both,head_bias=yes,batch=2",
    "latent": "transformer:layers=2,width=16,heads=2,head_width=10,value_width=6,rotary_width=4,"
    "latent_q=8,latent_kv=6,ffn=24,length=6,vocabulary=11,norm=rms,activation=geglu_tanh,"
    "positions=rotary,bias=no,norms=output,qk_norm=all,batch=2",
    "parallel": "transformer:layers=2,width=16,heads=2,length=6,vocabulary=11,norms=parallel,"
    "activation=quick_gelu,max_length=9,first_position=2,batch=2",
}


@each(GRADIENTS, slow="jax")
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_of_whole_networks_agree(network, backend):
    graph = build(make_workload(read_model(NETWORKS[network]), None, "float64"))
    compare_gradients(backend, graph)


@each(STEPS)
@pytest.mark.parametrize(
    ("network", "optimizer"), [*(("fc", name) for name in MEASURED), ("llama", "adam")]
)
def test_three_steps_of_each_optimizer_agree(network, optimizer, backend):
    work = make_workload(read_model(NETWORKS[network]), None, "float64", optimizer=optimizer)
    graph = build(work)
    training = training_graph(graph, optimizer)
    values = initial_values(training, 5)
    losses, theirs = STEPS[backend](graph, values, optimizer, 3)
    updates = [o for o in training.ops if o.part == "update"]
    for step in (1, 2, 3):
        made = execute(training, values, [name for o in updates for name in o.outputs], step)
        for o in updates:
            values |= {old: made[new] for old, new in zip(o.inputs, o.outputs, strict=False)}
        assert_same(made[graph.outputs[0]], losses[step - 1])
    for name in graph.weights:
        assert_same(values[name], theirs[name])


@each(OUTPUT)
def test_inference_agrees_with_running_statistics(backend):
    work = make_workload(read_model(NETWORKS["cnn residual"]), None, "float64", phase="infer")
    graph = build(work)
    values = initial_values(graph, 6)
    rng = np.random.default_rng(7)
    values |= {name: rng.uniform(0.5, 1.5, values[name].shape) for name in graph.buffers}
    assert_same(execute(graph, values)[graph.outputs[0]], OUTPUT[backend](graph, values))
