"""Layers of CDECatapult (Justus et al. 2018): one layer in a TensorFlow 1 session, float32.

In a training step the input and the target are variables too: both have gradients and updates.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from steptime.calibration.cases import Case
from steptime.core.dtypes import precision
from steptime.core.graph import Graph
from steptime.core.windows import tensorflow_padding
from steptime.network.ops.builder import Builder
from steptime.network.ops.training import training_graph
from steptime.prediction.kernel import Settings
from steptime.prediction.lower import lower
from validation.fitting.rows import device_of, rows

STACK = str(Path(__file__).with_name("tensorflow1.toml"))  # of these rows alone: not shipped
SETTINGS = Settings(stack=STACK)
EVERY = 8  # rows
MOVES_ABOUT_AS_MUCH = {"adagrad": "momentum", "adadelta": "adam"}  # 7 for 6, 12 for 10 passes


def convolutions(data: Path, table: str = "measured/cdecatapult/conv.csv.gz") -> Iterator[Case]:
    """Yield convolution layers, channels last: the forward pass, or a step."""
    for row in islice(rows(data / table), 0, None, EVERY):
        names = ("b", "size", "c_in", "c_out", "kernel", "stride")
        b, size, c_in, c_out, kernel, stride = (int(row[name]) for name in names)
        sides = tensorflow_padding(size, kernel, stride) if row["padding"] == "SAME" else (0, 0)
        builder = Builder("layer", precision("float32"), row["optimizer"] != "none")
        x = _leaf(builder, "x", (b, c_in, size, size))
        w = builder.weight("w", (c_out, c_in, kernel, kernel))
        strides, padding = (stride, stride), (*sides, *sides)
        y = builder.op("conv2d", x, w, name="conv", stride=strides, padding=padding)
        if row["bias"] == "1":
            y = builder.op("bias", y, builder.weight("b", (c_out,)), name="bias", axis=1)
        yield _case(builder, y, row, "conv layer")


def dense(data: Path, table: str = "measured/cdecatapult/dense.csv.gz") -> Iterator[Case]:
    """Yield dense layers with a bias: the forward pass, or a step."""
    for row in islice(rows(data / table), 0, None, EVERY):
        b, c_in, c_out = (int(row[name]) for name in ("b", "c_in", "c_out"))
        builder = Builder("layer", precision("float32"), row["optimizer"] != "none")
        x = _leaf(builder, "x", (b, c_in))
        w = builder.weight("w", (c_in, c_out))  # not along the contraction, as torch's is
        y = builder.op("matmul", x, w, name="dense")
        y = builder.op("bias", y, builder.weight("b", (c_out,)), name="bias")
        yield _case(builder, y, row, "dense layer")


def _leaf(builder: Builder, name: str, shape: tuple[int, ...]) -> str:
    return builder.weight(name, shape) if builder.training else builder.input(name, shape)


def _case(builder: Builder, y: str, row: Mapping[str, str], kind: str) -> Case:
    if row["activation"] != "none":
        y = builder.op(row["activation"], y, name="activation")
    kind += ", step" if builder.training else ""
    kernels = lower(_step(builder, y, row["optimizer"]), "float32", SETTINGS).kernels
    device = device_of(row["device"])
    return Case(kernels, device, float(row["time_ms"]) / 1e3, kind, "call", stack=STACK)


def _step(builder: Builder, y: str, optimizer: str) -> Graph:
    if not builder.training:
        return builder.graph(y)
    target = builder.weight("target", builder.shape(y))
    off = builder.op("sub", y, target, name="sub")
    loss = builder.op("mean", builder.op("mul", off, off, name="square"), name="loss")
    return training_graph(builder.graph(loss), MOVES_ABOUT_AS_MUCH.get(optimizer, optimizer))
