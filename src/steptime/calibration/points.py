"""The points that a calibration may measure: small graphs of every kind of op, and whole steps.

A point is a text: an op and its sizes (`linear 64 1024 1024`), or a network and a batch.
`calibration/choice.py` chooses among them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product

from steptime.build import build, make_workload, read_model
from steptime.calibration.cases import SETTINGS, Case, Shape
from steptime.core.dtypes import precision
from steptime.core.graph import PASSES, Graph
from steptime.core.toml_files import DATA, read_toml
from steptime.hardware.device import Device
from steptime.network.layers.dense import mean_loss
from steptime.network.layers.image import batch_norm, conv2d
from steptime.network.ops.builder import Builder
from steptime.network.ops.sequence import GATES
from steptime.network.ops.training import training_graph
from steptime.prediction.kernel import Kernel
from steptime.prediction.lower import lower

CANDIDATES_FILE = DATA / "calibration_points.toml"
MIN_PASS_S = 2e-4  # of a pass that is a row of its own: calling a pass takes some 10 us
MIN_PASS_SHARE = 0.1  # of its step, for the same reason
SHORT_STEP_S = 1e-3  # a shorter step is one row, which shows the time to begin a step

NETWORK_STEP = "whole step"  # the kind of points that are networks
SMALL_OPS = "small ops"  # the kind of points that show the time of calls

AddOp = Callable[..., str]  # adds an op of some sizes to a Builder, returns the output's name


@dataclass(frozen=True)
class Point:
    """Something to measure.

    Attributes:
        text: an op and its sizes, or a network and a batch.
        kind: its group in tables of errors.
        phase: `train` or `infer`.
        optimizer: the optimizer of a training step.
        dtype: the type of the tensors.
    """

    text: str
    kind: str
    phase: str = "train"
    optimizer: str = "sgd"
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """The text with the settings that differ from the defaults."""
        setting_and_default = (
            (self.phase, "train"),
            (self.optimizer, "sgd"),
            (self.dtype, "float32"),
        )
        changed = [setting for setting, default in setting_and_default if setting != default]
        return " ".join((self.text, *changed))

    @cached_property
    def graph(self) -> Graph:
        """The forward graph."""
        name, _, sizes = self.text.partition(" ")
        # The text is a network with its sizes, or an op with its sizes.
        if name not in OP_ADDERS:
            workload = make_workload(
                read_model(name), sizes, self.dtype, self.phase, self.optimizer
            )
            return build(workload)
        b = Builder(name, precision(self.dtype), training=self.phase == "train")
        y = OP_ADDERS[name](b, *map(int, sizes.split()))
        # A scalar result is a loss already.
        return b.graph(mean_loss(b, y) if b.training and b.shape(y) else y)

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of a step."""
        step = training_graph(self.graph, self.optimizer) if self.phase == "train" else self.graph
        return lower(step, self.dtype, SETTINGS).kernels

    def cases(self, device: Device, seconds: Mapping[str, float]) -> list[Case]:
        """Return the measured times as cases: the longer passes, or a short step as a whole.

        The update of a single op is no case: its weights are not those of a network.

        Args:
            device: the device.
            seconds: seconds by pass, or of the `step`; empty if the point could not be measured.
        """
        if not seconds:
            return []
        step_s = sum(seconds.values())
        has_step_alone = "step" in seconds
        # Calling a pass takes some 10 us: of short steps only the whole is a measurement.
        if has_step_alone or self.kind == SMALL_OPS or step_s < SHORT_STEP_S:
            return [
                Case(self.kernels, device, step_s, self.kind, condition="step", family=self.name)
            ]
        min_pass_s = max(MIN_PASS_S, MIN_PASS_SHARE * step_s)
        forward_and_backward = PASSES[:2]  # the update of a single op is no network's
        case_passes = PASSES if self.kind == NETWORK_STEP else forward_and_backward
        cases = []
        for pass_ in case_passes:
            pass_s = seconds.get(pass_, 0)
            kernels = tuple(kernel for kernel in self.kernels if kernel.pass_ == pass_)
            if kernels and pass_s >= min_pass_s:
                case = Case(
                    kernels, device, pass_s, self.kind, condition="repeated", family=self.name
                )
                cases.append(case)
        return cases


def _make_op_adder(kind: str, shapes_of: Callable[..., Mapping[str, Shape]]) -> AddOp:
    """Return a function that adds an op of some sizes.

    Args:
        kind: the kind of the op.
        shapes_of: takes the sizes and returns the shapes of the inputs by name. The input `ids`
            holds whole numbers; all others have gradients.
    """

    def add_op(b: Builder, *sizes: int) -> str:
        # Inputs are weights, so that the backward pass computes their gradients, too.
        inputs = [
            b.input(name, shape, "int64") if name == "ids" else b.weight(name, shape)
            for name, shape in shapes_of(*sizes).items()
        ]
        return b.op(kind, *inputs, name="y")

    return add_op


def _make_recurrent_adder(kind: str) -> AddOp:
    """Return a function that adds a recurrent layer: batch, length, width, hidden size."""

    def shapes_of(n: int, length: int, width: int, hidden: int) -> Mapping[str, Shape]:
        rows = GATES[kind] * hidden
        weights = {"w_ih": (rows, width), "w_hh": (rows, hidden), "b_ih": (rows,), "b_hh": (rows,)}
        return {"x": (n, length, width), **weights}

    return _make_op_adder(kind, shapes_of)


def _add_convolution(b: Builder, *sizes: int, is_first_layer: bool = False) -> str:
    """Add a convolution: n, c, size, filters, kernel, and stride and groups, 1 if left out.

    The input of a first layer has no gradient.
    """
    n, c, size, filters, kernel, *stride_and_groups = sizes
    stride = stride_and_groups[0] if stride_and_groups else 1
    groups = stride_and_groups[1] if len(stride_and_groups) > 1 else 1
    # A weight gets a gradient; the input of a first layer needs none.
    add_input = b.input if is_first_layer else b.weight
    x = add_input("x", (n, c, size, size))
    padding = kernel // 2
    return conv2d(b, x, filters, kernel, "y", stride=stride, padding=padding, groups=groups)


def _make_pool_adder(kind: str) -> AddOp:
    """Return a function that adds pooling of an image: n, c, size, kernel, stride."""

    def add_pool(b: Builder, n: int, c: int, size: int, kernel: int, stride: int) -> str:
        x = b.weight("x", (n, c, size, size))  # a weight, so that it gets a gradient
        return b.op(
            kind,
            x,
            name="y",
            kernel=(kernel,) * 2,
            stride=(stride,) * 2,
            padding=(kernel // 2,) * 4,  # before and after, of both axes
        )

    return add_pool


def _add_attention(b: Builder, n: int, length: int, heads: int, width: int) -> str:
    q, k, v = (b.weight(name, (n, length, heads * width)) for name in "qkv")
    return b.op("attention", q, k, v, name="y", heads=heads, kv_heads=heads, causal=False)


def _add_elementwise_chain(b: Builder, count: int, *shape: int) -> str:
    """Add a chain of sums and products, each of which reads the one before."""
    x = b.weight("x", shape)
    z = b.input("z", shape)
    for i in range(count):
        x = b.op("mul" if i % 2 else "add", x, z, name=f"y{i}")
    return x


def _add_weights(b: Builder, count: int, *shape: int) -> str:
    """Add sums with as many weights: an optimizer updates many small tensors."""
    x = b.input("x", shape)
    for i in range(count):
        x = b.op("add", x, b.weight(f"w{i}", shape), name=f"y{i}")
    return x


OP_ADDERS: dict[str, AddOp] = {
    "linear": _make_op_adder("linear", lambda m, n, k: {"x": (m, k), "w": (n, k)}),
    "batched": _make_op_adder("matmul", lambda b, m, n, k: {"x": (b, m, k), "w": (b, k, n)}),
    "conv": _add_convolution,
    "first": partial(_add_convolution, is_first_layer=True),
    "add": _make_op_adder("add", lambda *shape: {"x": shape, "z": shape}),
    "batch_norm": lambda b, *shape: batch_norm(b, b.weight("x", shape), "y"),
    "layer_norm": _make_op_adder("layer_norm", lambda *x: {"x": x, "w": x[-1:], "b": x[-1:]}),
    "rms_norm": _make_op_adder("rms_norm", lambda *x: {"x": x, "w": x[-1:]}),
    "max_pool": _make_pool_adder("max_pool2d"),
    "avg_pool": _make_pool_adder("avg_pool2d"),
    "cross_entropy": _make_op_adder(
        "cross_entropy", lambda n, classes: {"x": (n, classes), "ids": (n,)}
    ),
    "embedding": _make_op_adder(
        "embedding", lambda n, words, width: {"ids": (n,), "w": (words, width)}
    ),
    "attention": _add_attention,
    "chain": _add_elementwise_chain,
    "weights": _add_weights,
    **{
        kind: _make_op_adder(kind, lambda *x: {"x": x})
        for kind in ("relu", "tanh", "gelu", "softmax")
    },
    **{kind: _make_recurrent_adder(kind) for kind in GATES},
}


def candidates(dtypes: tuple[str, ...] = ("float32",)) -> Iterator[Point]:
    """Yield all points in the first type, and products in every type."""
    for row in read_toml(CANDIDATES_FILE)["points"]:
        types = dtypes if row.pop("in_every_type", False) else dtypes[:1]
        for text, dtype in product(row.pop("texts"), types):
            yield Point(text, **row, dtype=dtype)
