"""What a calibration may measure: small graphs of every kind of op, and whole steps.

A point is text: an op and its sizes (`linear 64 1024 1024`), or a network and a batch.
`calibration/choice.py` says which of them are measured.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

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

_CANDIDATES = DATA / "calibration_points.toml"
LEAST_S = 2e-4  # of a part that is a row of its own: calling a part takes some 10 us
LEAST_SHARE = 0.1  # of its step, likewise
SHORT_S = 1e-3  # a step that is a row as a whole: what it takes to begin one shows

WHOLE_STEP = "whole step"  # the kind of points that are networks
SMALL = "small ops"  # of those that show what calls cost

Maker = Callable[..., str]


@dataclass(frozen=True)
class Point:
    """Something to measure: its text, the kind in tables of errors, phase, optimizer and type."""

    text: str
    kind: str
    phase: str = "train"
    optimizer: str = "sgd"
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """The text with what is not the default."""
        more = [self.phase] if self.phase != "train" else []
        more += [self.optimizer] if self.optimizer != "sgd" else []
        more += [self.dtype] if self.dtype != "float32" else []
        return " ".join((self.text, *more))

    @cached_property
    def graph(self) -> Graph:
        """The forward graph."""
        name, _, sizes = self.text.partition(" ")
        if name not in OPS:
            workload = make_workload(
                read_model(name), sizes, self.dtype, self.phase, self.optimizer
            )
            return build(workload)
        b = Builder(name, precision(self.dtype), training=self.phase == "train")
        y = OPS[name](b, *map(int, sizes.split()))
        return b.graph(mean_loss(b, y) if b.training and b.shape(y) else y)

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of a step."""
        step = training_graph(self.graph, self.optimizer) if self.phase == "train" else self.graph
        return lower(step, self.dtype, SETTINGS).kernels

    def cases(self, device: Device, seconds: Mapping[str, float]) -> list[Case]:
        """Return what was measured as cases: the longer passes, or a short step as a whole.

        `seconds` are by part, or of the `step`; none for what could not be measured. The update of
        a single op is no case: its weights are no network's.
        """
        whole = sum(seconds.values())
        if not seconds:
            return []
        if "step" in seconds or self.kind == SMALL or whole < SHORT_S:
            return [Case(self.kernels, device, whole, self.kind, "step", self.name)]
        passes = PASSES if self.kind == WHOLE_STEP else PASSES[:2]
        return [
            Case(own, device, seconds[part], self.kind, "repeated", self.name)
            for part in passes
            if seconds.get(part, 0) >= max(LEAST_S, LEAST_SHARE * whole)
            and (own := tuple([one for one in self.kernels if one.pass_ == part]))
        ]


def _op(kind: str, tensors: Callable[..., Mapping[str, Shape]]) -> Maker:
    """Return what makes an op of some sizes: of whole numbers (`ids`), else of what has gradients.

    `tensors` are the shapes of its inputs by their names.
    """

    def make(b: Builder, *sizes: int) -> str:
        inputs = [
            b.input(name, shape, "int64") if name == "ids" else b.weight(name, shape)
            for name, shape in tensors(*sizes).items()
        ]
        return b.op(kind, *inputs, name="y")

    return make


def _cell(kind: str) -> Maker:
    def tensors(n: int, length: int, width: int, hidden: int) -> Mapping[str, Shape]:
        rows = GATES[kind] * hidden
        weights = {"w_ih": (rows, width), "w_hh": (rows, hidden), "b_ih": (rows,), "b_hh": (rows,)}
        return {"x": (n, length, width), **weights}

    return _op(kind, tensors)


def _conv(b: Builder, *sizes: int, first: bool = False) -> str:
    """Take n, c, size, filters, kernel, and also stride and groups, 1 each if they are left out.

    The input of a `first` one has no gradient.
    """
    n, c, size, out, kernel, stride, groups = (*sizes, 1, 1)[:7]
    x = (b.input if first else b.weight)("x", (n, c, size, size))
    pads = kernel // 2
    return conv2d(b, x, out, kernel, "y", stride=stride, padding=pads, groups=groups)


def _pool(kind: str) -> Maker:
    def pool(b: Builder, n: int, c: int, size: int, kernel: int, stride: int) -> str:
        window: dict[str, Any] = {"kernel": (kernel,) * 2, "stride": (stride,) * 2}
        window["padding"] = (kernel // 2,) * 4
        return b.op(kind, b.weight("x", (n, c, size, size)), name="y", **window)

    return pool


def _attention(b: Builder, n: int, length: int, heads: int, width: int) -> str:
    q, k, v = (b.weight(name, (n, length, heads * width)) for name in "qkv")
    return b.op("attention", q, k, v, name="y", heads=heads, kv_heads=heads, causal=False)


def _chain(b: Builder, count: int, *shape: int) -> str:
    x = b.weight("x", shape)
    z = b.input("z", shape)
    for i in range(count):
        x = b.op("mul" if i % 2 else "add", x, z, name=f"y{i}")
    return x


def _weights(b: Builder, count: int, *shape: int) -> str:
    x = b.input("x", shape)
    for i in range(count):
        x = b.op("add", x, b.weight(f"w{i}", shape), name=f"y{i}")
    return x


OPS: dict[str, Maker] = {
    "linear": _op("linear", lambda m, n, k: {"x": (m, k), "w": (n, k)}),
    "batched": _op("matmul", lambda b, m, n, k: {"x": (b, m, k), "w": (b, k, n)}),
    "conv": _conv,
    "first": partial(_conv, first=True),
    "add": _op("add", lambda *shape: {"x": shape, "z": shape}),
    "batch_norm": lambda b, *shape: batch_norm(b, b.weight("x", shape), "y"),
    "layer_norm": _op("layer_norm", lambda *x: {"x": x, "w": x[-1:], "b": x[-1:]}),
    "rms_norm": _op("rms_norm", lambda *x: {"x": x, "w": x[-1:]}),
    "max_pool": _pool("max_pool2d"),
    "avg_pool": _pool("avg_pool2d"),
    "cross_entropy": _op("cross_entropy", lambda n, of: {"x": (n, of), "ids": (n,)}),
    "embedding": _op("embedding", lambda n, words, width: {"ids": (n,), "w": (words, width)}),
    "attention": _attention,
    "chain": _chain,
    "weights": _weights,
    **{kind: _op(kind, lambda *x: {"x": x}) for kind in ("relu", "tanh", "gelu", "softmax")},
    **{kind: _cell(kind) for kind in GATES},
}


def candidates(dtypes: tuple[str, ...] = ("float32",)) -> Iterator[Point]:
    """Yield what may be measured: everything in the first type, products also in the others."""
    for row in read_toml(_CANDIDATES)["points"]:
        types = dtypes if row.pop("in_every_type", False) else dtypes[:1]
        for text, dtype in product(row.pop("texts"), types):
            yield Point(text, **row, dtype=dtype)
