"""Networks built by the shared lowering alone: counted by hand and torch, run by JAX too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from every import every
from measure.test_backend_values import GRADIENTS, compare_gradients, each
from steptime.core.dtypes import precision
from steptime.core.graph import Graph, check
from steptime.formats import elements as el
from steptime.formats import lowering as low
from steptime.formats import sequence_lowering, windows
from steptime.formats.attention_pattern import is_learnt
from steptime.formats.loss import add_loss
from steptime.network.count import count
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError
from steptime.network.ops.training import training_graph

BATCH = 2


def conv(b: Builder, x: str, channels: int, kernel: int, name: str, stride: int = 1) -> str:
    """A convolution as a file says it, its weights in the file's order."""
    w = b.weight(f"{name}.weight", (channels, b.shape(x)[1], kernel, kernel))
    bias = b.weight(f"{name}.bias", (channels,))
    how: dict[str, Any] = {"stride": (stride, stride), "padding": (kernel // 2,) * 4}
    return low.convolution(b, x, w, name, bias, dilation=(1, 1), **how)


def dense(b: Builder, x: str, width: int, name: str) -> str:
    w = b.weight(f"{name}.weight", (width, b.shape(x)[-1]))
    return low.linear(b, x, w, name, b.weight(f"{name}.bias", (width,)))


def double(b: Builder, x: str, channels: int, name: str) -> str:
    for i in (1, 2):
        y = conv(b, x, channels, 3, f"{name}.conv{i}")
        norms = (b.weight(f"{name}.norm{i}.{s}", (channels,)) for s in ("weight", "bias"))
        y = low.group_norm(b, y, 2, f"{name}.norm{i}", *norms)
        x = el.pointwise(b, "silu", y, name=f"{name}.silu{i}")
    return x


def unet(b: Builder) -> str:
    """16 pixels: 4 channels, then 8 at half the size, and back by a transposed convolution."""
    x = b.input("image", (BATCH, 3, 16, 16))
    first = double(b, x, 4, "down1")
    halved = low.pool(b, first, "max", "pool", kernel=(2, 2), stride=(2, 2), padding=(0,) * 4)
    deep = double(b, halved, 8, "down2")
    up = low.convolution(
        b, deep, b.weight("up.weight", (8, 4, 2, 2)), "up", b.weight("up.bias", (4,)),
        stride=(2, 2), padding=(0,) * 4, dilation=(1, 1), transposed=True,
    )  # fmt: skip
    joined = el.concat(b, [up, first], 1, "join")
    return add_loss(b, [conv(b, double(b, joined, 4, "up1"), 5, 1, "classes")])


def vit(b: Builder) -> str:
    """16 patches of 4 pixels and a class token, one block of 4 heads of width 8."""
    x = b.input("image", (BATCH, 3, 16, 16))
    w = b.weight("patch.weight", (32, 3, 4, 4))
    how: dict[str, Any] = {"stride": (4, 4), "padding": (0,) * 4, "dilation": (1, 1)}
    x = low.convolution(b, x, w, "patch", b.weight("patch.bias", (32,)), **how)
    x = el.transpose(b, el.reshape(b, x, (BATCH, 32, 16), "flat"), (0, 2, 1), "tokens")
    token = el.expand(b, b.weight("class_token", (1, 1, 32)), (BATCH, -1, -1), "class_token/all")
    x = el.concat(b, [token, x], 1, "with_class")
    x = el.pointwise(b, "add", x, b.weight("position", (1, 17, 32)), name="add_position")
    y = layer_norm(b, x, "norm1")
    q, k, v = (
        el.transpose(
            b,
            el.reshape(b, dense(b, y, 32, f"attention.{s}"), (BATCH, 17, 4, 8), f"{s}/heads"),
            (0, 2, 1, 3),
            f"{s}/transpose",
        )
        for s in "qkv"
    )
    y = sequence_lowering.attention(b, q, k, v, "attention")
    y = el.reshape(b, el.transpose(b, y, (0, 2, 1, 3), "merge"), (BATCH, 17, 32), "merge/heads")
    x = el.pointwise(b, "add", x, dense(b, y, 32, "attention.out"), name="add1")
    y = dense(b, layer_norm(b, x, "norm2"), 64, "mlp.up")
    y = dense(b, el.pointwise(b, "gelu", y, name="mlp.gelu"), 32, "mlp.down")
    x = layer_norm(b, el.pointwise(b, "add", x, y, name="add2"), "norm")
    return add_loss(b, [dense(b, el.select(b, x, 1, 0, "class"), 10, "head")])


def layer_norm(b: Builder, x: str, name: str) -> str:
    weights = (b.weight(f"{name}.{s}", b.shape(x)[-1:]) for s in ("weight", "bias"))
    return low.layer_norm(b, x, name, *weights)


def squeeze_excite(b: Builder) -> str:
    """A convolution whose channels are weighed by what all of the image says."""
    x = conv(b, b.input("image", (BATCH, 3, 8, 8)), 8, 3, "stem", stride=2)
    y = low.adaptive_pool(b, x, "avg", (1, 1), "squeeze")
    y = el.pointwise(b, "relu", conv(b, y, 4, 1, "reduce"), name="relu")
    y = el.pointwise(b, "hard_sigmoid", conv(b, y, 8, 1, "expand"), name="gate")
    x = el.pointwise(b, "mul", x, y, name="scale")
    return add_loss(b, [dense(b, el.reduce(b, "mean", x, (2, 3), "pool"), 10, "head")])


def tagger(b: Builder) -> str:
    """Two LSTM layers of 5 both ways over 6 words, and 7 tags for each."""
    ids = b.input("words", (BATCH, 6), "int64")
    x = el.embedding(b, ids, b.weight("embedding.weight", (11, 4)), "embedding")
    layers = []
    for i, width in enumerate((4, 10)):
        for way in ("", "_reverse"):
            shapes = ((20, width), (20, 5), (20,), (20,))
            layers.append([b.weight(f"lstm.l{i}{way}.{j}", s) for j, s in enumerate(shapes)])
    x, _ = sequence_lowering.recurrent(b, x, "lstm", layers, "lstm", bidirectional=True)
    return add_loss(b, [dense(b, x, 7, "tags")])


NETWORKS: dict[str, Callable[[Builder], str]] = {
    "unet": unet,
    "vit": vit,
    "squeeze_excite": squeeze_excite,
    "tagger": tagger,
}


def graph_of(name: str, training: bool = True, dtype: str = "float32") -> Graph:
    b = Builder(name, precision(dtype), training)
    return b.graph(NETWORKS[name](b))


def test_flop_of_products_by_hand():
    """Forward, two examples, 2 FLOP a multiply-add."""

    def products(name: str) -> int:
        graph = graph_of(name, training=False)
        return sum(one.flop for one in count(graph).ops if OPS[one.kind].work)

    large, small = 16 * 16, 8 * 8
    assert products("unet") == 2 * BATCH * (
        large * 9 * (3 * 4 + 4 * 4)
        + small * 9 * (4 * 8 + 8 * 8)
        + small * 8 * 4 * 4  # each place of the small map fills 2 x 2
        + large * 9 * (8 * 4 + 4 * 4)
        + large * 4 * 5
    )
    tokens = 17
    assert products("vit") == 2 * BATCH * (
        16 * 3 * 16 * 32
        + 4 * tokens * 32 * 32
        + 2 * 4 * tokens * tokens * 8  # scores and values of 4 heads of width 8
        + 2 * tokens * 32 * 64
        + 32 * 10
    )
    assert products("squeeze_excite") == 2 * BATCH * (16 * 27 * 8 + 8 * 4 + 4 * 8 + 8 * 10)
    steps = 6
    assert products("tagger") == 2 * BATCH * steps * (2 * 20 * (4 + 5) + 2 * 20 * (10 + 5) + 10 * 7)


def test_single_functions_count_one_flop_an_element():
    costs = {one.name: one for one in count(graph_of("squeeze_excite", training=False)).ops}
    assert costs["scale"].kind == "pointwise"  # [n, c, h, w] by [n, c, 1, 1]
    assert costs["scale"].flop == BATCH * 8 * 16
    assert costs["gate"].flop == 3 * BATCH * 8  # a sum, a clamp, a quotient
    assert costs["squeeze"].kind == costs["pool"].kind == "global_avg_pool"


def test_what_a_file_writes_out_becomes_the_kinds_that_families_have():
    b = Builder("x", precision("float32"), training=False)
    x = b.input("x", (BATCH, 5, 8))
    y = low.matmul(b, x, b.weight("w", (8, 6)), "fc")
    y = el.pointwise(b, "add", b.weight("b", (6,)), y, name="plus")
    kinds = [op.kind for op in b.graph(add_loss(b, [y])).ops]
    assert kinds == ["linear", "bias"]

    b = Builder("x", precision("float32"), training=False)
    x = b.input("x", (BATCH, 3, 8, 8))
    how: dict[str, Any] = {"stride": (1, 1), "padding": (0,) * 4, "dilation": (1, 1)}
    y = low.convolution(b, x, b.weight("w", (4, 3, 1, 1)), "conv", **how)
    y = el.pointwise(b, "add", y, b.weight("b", (1, 4, 1, 1)), name="plus")
    y = el.softmax(b, y, 1, "softmax")
    kinds = [op.kind for op in b.graph(add_loss(b, [y])).ops]
    assert kinds == ["conv2d", "bias", "transpose", "softmax", "transpose"]
    graph = graph_of("vit")
    (position,) = [op for op in graph.ops if op.name == "add_position"]
    assert (position.kind, graph.tensors[position.inputs[1]].shape) == ("add", (17, 32))
    around = [op.kind for op in graph.ops if op.name.startswith(("attention", "q/", "merge"))]
    # heads that a file splits off and joins again leave no view around the attention
    assert around == ["linear", "bias"] * 3 + ["attention", "linear", "bias"]


def test_what_a_network_is_trained_on():
    def losses(*outputs: Callable[[Builder, str], str], shape: tuple[int, ...] = (4, 6)) -> Any:
        b = Builder("x", precision("float32"), training=True)
        x = b.weight("x", shape)
        graph = b.graph(add_loss(b, [make(b, x) for make in outputs]))
        check(graph)
        return [op.kind for op in graph.ops]

    def fc(b: Builder, x: str) -> str:
        return low.linear(b, x, b.weight("w", (7, 6)), "fc")

    def single(b: Builder, x: str) -> str:
        return low.linear(b, x, b.weight("v", (1, 6)), "single")

    assert losses(fc) == ["linear", "cross_entropy"]
    assert losses(single) == ["linear", "mean"]  # one number is no class
    assert losses(lambda b, x: el.softmax(b, fc(b, x), -1, "p")) == ["linear", "cross_entropy"]
    assert losses(lambda b, x: b.op("tanh", x, name="y")) == ["tanh", "mean"]
    assert losses(fc, single) == ["linear", "linear", "mean", "mean", "add"]
    dead = losses(lambda b, x: (fc(b, x), single(b, x))[1])
    assert dead == ["linear", "mean"]  # what nobody reads is left out
    with pytest.raises(ShapeError, match="without an output of numbers"):
        losses(lambda b, x: el.pointwise(b, "gt", x, 0.0, name="y"))


def test_slices_follow_the_rules_of_python():
    b = Builder("x", precision("float32"), training=False)
    x = b.input("x", (3, 10))
    for start, stop, step in (
        *((0, 10, 1), (2, 99, 3), (-4, -1, 1), (9, -99, -1), (-1, 2, -3), (1, 8, 4)),
    ):
        made = el.slice_(b, x, -1, start, stop, "slice", step)
        assert b.shape(made) == (3, len(range(10)[start:stop:step]))
    assert el.slice_(b, x, 1, 0, 10, "all") == x
    with pytest.raises(ShapeError, match="slice 5:5"):
        el.slice_(b, x, 1, 5, 5, "none")


def test_what_no_kind_can_do_is_refused_by_name():
    b = Builder("x", precision("float32"), training=False)
    x = b.input("x", (1, 2, 4, 4, 4))
    how: dict[str, Any] = {"stride": (1,) * 4, "padding": (0,) * 8, "dilation": (1,) * 4}
    films, w = b.input("films", (1, 2, 4, 4, 4, 4)), b.weight("w", (2, 2, 3, 3, 3, 3))
    with pytest.raises(ShapeError, match=r"films: over 4 axes: there are kinds for 1, 2 and 3"):
        low.convolution(b, films, w, "films", **how)
    with pytest.raises(ShapeError, match=r"film: resizing needs \[batch, channels, h, w\], not"):
        low.resize(b, x, (8, 8, 8), "bilinear", "film")
    with pytest.raises(ShapeError, match=r"gru2: a cell 'gru2', not rnn, lstm, gru"):
        sequence_lowering.recurrent(b, x, "gru2", [], "gru2")
    with pytest.raises(ShapeError, match=r"axis 7 of \[1, 2, 4, 4, 4\]"):
        el.softmax(b, x, 7, "softmax")


def executed(b: Builder, y: str, values: dict[str, Any]) -> Any:
    """What the reference makes of given values; the places of windows are their real ones."""
    from reference.backend import execute

    graph = b.graph(y)
    for op in graph.ops:
        if op.kind == "gather" and op.inputs[1] not in values:
            count, size = graph.tensors[op.inputs[1]].shape
            step, apart = values.pop(op.inputs[1].partition("/places")[0])
            values[op.inputs[1]] = np.arange(count)[:, None] * step + np.arange(size) * apart
    return execute(graph, values)[y]


@pytest.mark.framework
@every(
    ("kernel", "stride", "padding", "dilation", "groups"),
    [
        ((3, 3, 2), (2, 1, 2), (1, 1, 0, 1, 1, 0), (1, 2, 1), 1),
        ((2, 2, 2), (2, 2, 2), (0,) * 6, (1, 1, 1), 1),  # patches
        ((1, 3, 3), (1, 1, 1), (0, 0, 1, 1, 1, 1), (1, 1, 1), 2),  # images of their own
        ((3, 1, 1), (1, 1, 1), (1, 1, 0, 0, 0, 0), (1, 1, 1), 4),  # along the depth alone
    ],
)
def test_a_convolution_over_three_axes(kernel, stride, padding, dilation, groups):
    import torch

    b = Builder("x", precision("float64"), training=False)
    x, w = b.input("x", (2, 4, 6, 8, 7)), b.weight("w", (8, 4 // groups, *kernel))
    y = low.convolution(
        b, x, w, "conv", b.weight("bias", (8,)),
        stride=stride, padding=padding, dilation=dilation, groups=groups,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    values = {name: rng.standard_normal(b.shape(name)) for name in ("x", "w", "bias")}
    sides = [n for i in (2, 1, 0) for n in padding[2 * i : 2 * i + 2]]
    padded = torch.nn.functional.pad(torch.from_numpy(values["x"]), sides)
    theirs = torch.nn.functional.conv3d(
        padded, *(torch.from_numpy(values[n]) for n in ("w", "bias")), stride, 0, dilation, groups
    )
    np.testing.assert_allclose(executed(b, y, values), theirs.numpy(), rtol=1e-9, atol=1e-9)
    flop = {one.kind: one.flop for one in count(b.graph(y)).ops}
    positions = theirs[:, 0].numel()
    taps = 8 * (4 // groups) * np.prod(kernel)
    assert flop == {"conv3d": 2 * positions * taps, "bias": theirs.numel()}


@pytest.mark.framework
def test_a_transposed_convolution_over_three_axes():
    import torch

    b = Builder("x", precision("float64"), training=False)
    x, w = b.input("x", (2, 4, 3, 2, 5)), b.weight("w", (4, 3, 2, 3, 2))
    y = low.convolution(
        b, x, w, "conv", b.weight("bias", (6,)), transposed=True, groups=2, stride=(2, 1, 3),
        padding=(0, 0, 1, 1, 0, 0), dilation=(1, 2, 1), output_padding=(1, 0, 2),
    )  # fmt: skip
    rng = np.random.default_rng(1)
    values = {name: rng.standard_normal(b.shape(name)) for name in ("x", "w", "bias")}
    theirs = torch.nn.functional.conv_transpose3d(
        *map(torch.from_numpy, values.values()), (2, 1, 3), (0, 1, 0), (1, 0, 2), 2, (1, 2, 1)
    )
    np.testing.assert_allclose(executed(b, y, values), theirs.numpy(), rtol=1e-9, atol=1e-9)
    flop = {one.kind: one.flop for one in count(b.graph(y)).ops}
    assert flop["conv_transpose3d"] == 2 * (2 * 3 * 2 * 5) * 4 * 3 * (2 * 3 * 2)


@pytest.mark.framework
def test_windows_and_volumes_are_those_of_torch():
    import torch

    b = Builder("x", precision("float64"), training=False)
    x = b.input("x", (2, 3, 7, 8))
    y = windows.unfold(b, x, (3, 2), (2, 1), (1, 2), "unfold")
    value = np.random.default_rng(1).standard_normal((2, 3, 7, 8))
    places = {"unfold/rows": (2, 1), "unfold/columns": (1, 2)}
    theirs = torch.nn.functional.unfold(torch.from_numpy(value), (3, 2), (1, 2), 0, (2, 1))
    np.testing.assert_array_equal(executed(b, y, {"x": value, **places}), theirs.numpy())

    b = Builder("x", precision("float64"), training=False)
    x = b.input("x", (2, 3, 6, 7, 8))
    how: dict[str, Any] = {"kernel": (2, 3, 2), "stride": (2, 1, 2)}
    value = np.random.default_rng(2).standard_normal((2, 3, 6, 7, 8))
    for kind, run in (("max", "max_pool3d"), ("avg", "avg_pool3d")):
        y = low.pool(b, x, kind, kind, padding=(0, 0, 1, 1, 0, 0), **how)
        theirs = getattr(torch.nn.functional, run)(
            torch.from_numpy(value), *how.values(), (0, 1, 0)
        )
        np.testing.assert_allclose(executed(b, y, {"x": value}), theirs.numpy(), rtol=1e-12)


@each(GRADIENTS)  # framework, and mark.jax
@pytest.mark.parametrize("name", NETWORKS)
def test_values_and_gradients_are_those_of_the_reference(name, backend):
    compare_gradients(
        backend, graph_of(name, dtype="float64"), 1e-7
    )  # a sixth of a hard sigmoid is rounded


@pytest.mark.slow
@pytest.mark.framework
@every("name", NETWORKS)
@every("training", [True, False])
def test_the_torch_backend_runs_a_step(name, training):
    from steptime.core.workload import Workload
    from steptime.measure.backends.torch import backend
    from steptime.measure.contract import Options

    phase, optimizer = ("train", "adam") if training else ("infer", "none")
    work = Workload(name, {}, BATCH, phase=phase, optimizer=optimizer)
    graph = graph_of(name, training)
    step = backend.prepare(graph, work, Options())
    step.step()
    first = step.loss() if step.loss else 0.0
    for _ in range(3):
        step.step()
    assert step.loss is None or 0 < step.loss() < first


@pytest.mark.framework
def test_torch_counts_the_same_products_of_the_same_modules():
    import torch
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    def own(name: str) -> int:
        step = training_graph(graph_of(name), "sgd")
        return sum(one.flop for one in count(step).ops if OPS[one.kind].work)

    def theirs(module: nn.Module, *shape: int) -> int:
        with torch.device("meta"):
            module = module.to("meta")
            counter = FlopCounterMode(display=False)
            with counter, sdpa_kernel(SDPBackend.MATH):
                module(torch.empty(shape)).mean().backward()
        return int(counter.get_total_flops())

    def block(inside: int, channels: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inside, channels, 3, padding=1), nn.GroupNorm(2, channels), nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(2, channels), nn.SiLU(),
        ]  # fmt: skip

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down1, self.down2 = nn.Sequential(*block(3, 4)), nn.Sequential(*block(4, 8))
            self.up, self.up1 = nn.ConvTranspose2d(8, 4, 2, 2), nn.Sequential(*block(8, 4))
            self.classes = nn.Conv2d(4, 5, 1)

        def forward(self, x: Any) -> Any:
            first = self.down1(x)
            deep = self.down2(nn.functional.max_pool2d(first, 2))
            return self.classes(self.up1(torch.cat((self.up(deep), first), 1)))

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, 32, 4, 4)
            self.token = nn.Parameter(torch.zeros(1, 1, 32))
            self.block = nn.TransformerEncoderLayer(
                32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.head = nn.Linear(32, 10)

        def forward(self, x: Any) -> Any:
            x = self.patch(x).flatten(2).mT
            x = torch.cat((self.token.expand(len(x), -1, -1), x), 1)
            return self.head(self.block(x)[:, 0])

    class SqueezeExcite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, 2, 1)
            self.gate = nn.Sequential(
                nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 8, 1),
                nn.Hardsigmoid(),
            )  # fmt: skip
            self.head = nn.Linear(8, 10)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            return self.head((x * self.gate(x)).mean((2, 3)))

    for name, module in (("unet", UNet()), ("vit", ViT()), ("squeeze_excite", SqueezeExcite())):
        size = 8 if name == "squeeze_excite" else 16
        assert own(name) == theirs(module, BATCH, 3, size, size), name
        if name != "vit":  # torch's block has no norm at the end, and no positions
            weights = sum(one.numel() for one in module.parameters())
            assert graph_of(name).parameters == weights, name


@every(("steps", "learnt"), [(3, False), (499, False), (600, True)])
def test_what_is_made_in_many_steps_may_be_learnt(steps, learnt):
    b = Builder("deep", precision("float32"), training=False)
    x = b.input("mask", (BATCH, 4))
    for i in range(steps):
        x = el.pointwise(b, "exp", x, name=f"exp{i}")
    assert is_learnt(b, x) is learnt
    assert is_learnt(b, el.pointwise(b, "add", x, b.weight("bias", (4,)), name="sum"))
