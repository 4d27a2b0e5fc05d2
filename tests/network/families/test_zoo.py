"""The named convolutional networks: multiply-adds, shapes of every layer, torch as a witness."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_flop_witness import our_flop, witnessed_flop
from test_models import macs, network

from every import every
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.dtypes import precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.measure.contract import Options
from steptime.network.count import op_cost
from steptime.network.families import family
from steptime.network.layers.image import conv2d
from steptime.network.ops.builder import Builder

NEW = (
    "alexnet_v2",
    "overfeat",
    "nin",
    "inception_v3",
    "densenet121",
    "densenet_cifar",
    "squeezenet1_0",
    "squeezenet1_1",
    "mobilenet_v1",
    "mobilenet_v2",
    "efficientnet_b0",
    "convnext_tiny",
)


def shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Shape of what each op gives."""
    return {op.name: graph.tensors[op.outputs[0]].shape for op in graph.ops}


def layers_of(table: dict[str, Any], prefix: str = "", start: Any = ()) -> dict[str, Any]:
    """Layers of one of Paleo's files in order, blocks unrolled: `{name: (layer, parents)}`."""
    found: dict[str, Any] = {}
    for name, layer in table.items():
        inside = [prefix + parent for parent in layer["parents"] if parent in table]
        parents = inside or layer["parents"] or start
        if layer["type"] == "Block":
            found |= layers_of(layer["layers"], f"{prefix}{name}/", parents)
        else:
            found[prefix + name] = (layer, parents)
    return found


def out(size: int, kernel: int, stride: int, padding: str) -> int:
    return -(-(size if padding == "SAME" else size - kernel + 1) // stride)


def paleo_shapes(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """`{layer: (type, (channels, height, width))}` of one of Paleo's files."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, (layer, parents) in layers_of(json.loads(path.read_text())["layers"]).items():
        kind = layer["type"]
        if kind == "Input":
            _, height, width, channels = layer["tensor"]
        else:
            above = [found[parent][1] for parent in parents]
            channels, height, width = above[0]
        if kind == "Convolution":
            assert layer["filter"][2] == channels, name
            channels = layer["filter"][3]
        if kind == "Concatenate":
            channels = sum(shape[0] for shape in above)
        if kind in ("Convolution", "Pooling", "AvgPool"):
            kernel = layer["filter"][:2] if kind == "Convolution" else layer["ksize"][1:3]
            _, down, right, _ = layer["strides"]
            height = out(height, kernel[0], down, layer["padding"])
            width = out(width, kernel[1], right, layer["padding"])
        found[name] = (kind, (channels, height, width))
    return found


OP_OF = {  # type of a layer in Paleo's files: the op that does its work
    "Convolution": "{}/conv2d",
    "Pooling": "{}",
    "AvgPool": "{}",
    "Concatenate": "{}",
}


def differing_layers(path: Path, ours: Graph, rename: Any = str) -> dict[str, object]:
    """Layers of Paleo's file whose shape is another one in our network: `{name: ours}`."""
    found = shapes(ours)
    differing: dict[str, object] = {}
    for name, (kind, shape) in paleo_shapes(path).items():
        if kind not in OP_OF:
            continue
        layer = rename(name)
        mine = found.get(OP_OF[kind].format(layer), found.get(f"{layer}/linear"))
        if mine is None or mine[1:] + (1, 1) * (len(mine) == 2) != shape:
            differing[layer] = mine
    return differing


@every(
    ("name", "file"),
    [
        ("alexnet_v2", "alex_v2"),
        ("overfeat", "overfeat"),
        ("nin", "nin"),
        ("vgg16", "vgg16"),
        ("inception_v3", "inception_v3"),
    ],
)
def test_every_layer_has_the_shape_of_paleos_file(shared, name, file):
    path = shared / f"paleo/nets/{file}.json"
    ours = network(name)
    assert differing_layers(path, ours, lambda layer: layer.replace("-", "_")) == {}
    theirs = [kind for kind, _ in paleo_shapes(path).values()]
    mine = [op.kind for op in ours.ops]
    products = mine.count("conv2d") + mine.count("linear")
    assert products == theirs.count("Convolution")
    assert mine.count("max_pool2d") == theirs.count("Pooling")
    assert mine.count("avg_pool2d") == theirs.count("AvgPool")
    assert mine.count("concat") == theirs.count("Concatenate")


def test_the_published_inception_has_one_convolution_more_than_paleos_file(shared):
    path = shared / "paleo/nets/inception_v3.json"
    ours = network("inception_v3:variant=published")
    # the file goes from 64 maps of 35x35 to 96 of 17x17 at once, the paper in two steps
    branch = "Mixed_6a/Branch_1"
    assert paleo_shapes(path)[f"{branch}/Conv2d_0b_3x3"][1] == (96, 17, 17)
    assert differing_layers(path, ours) == {f"{branch}/Conv2d_0b_3x3": (1, 96, 35, 35)}
    assert shapes(ours)[f"{branch}/Conv2d_1a_3x3/conv2d"] == (1, 96, 17, 17)


@every(
    ("name", "count"),
    [  # a pass over one image, by hand: filter x maps
        (
            "alexnet_v2",
            11 * 11 * 3 * 64 * 54**2 + 5 * 5 * 64 * 192 * 26**2
            + (3 * 3 * 192 * 384 + 3 * 3 * 384 * 384 + 3 * 3 * 384 * 256) * 12**2
            + 5 * 5 * 256 * 4096 + 4096 * 4096 + 4096 * 1000,
        ),
        (
            "overfeat",
            11 * 11 * 3 * 64 * 56**2 + 5 * 5 * 64 * 256 * 24**2
            + (3 * 3 * 256 * 512 + 3 * 3 * 512 * 1024 + 3 * 3 * 1024 * 1024) * 12**2
            + 6 * 6 * 1024 * 3072 + 3072 * 4096 + 4096 * 1000,
        ),
        (
            "nin",
            (11 * 11 * 3 * 96 + 2 * 96 * 96) * 54**2 + (5 * 5 * 96 * 256 + 2 * 256 * 256) * 26**2
            + (3 * 3 * 256 * 384 + 2 * 384 * 384) * 12**2
            + (3 * 3 * 384 * 1024 + 1024 * 1024 + 1024 * 1000) * 5**2,
        ),
    ],
)  # fmt: skip
def test_multiply_adds_by_hand(name, count):
    assert macs(network(name)) == count


@every(
    ("name", "published"),
    [  # multiply-adds of an image
        ("inception_v3:variant=published", 5.713e9),  # torchvision's table of its models
        ("densenet121", 2.834e9),  # the same
        ("squeezenet1_0", 0.819e9),  # the same
        ("squeezenet1_1", 0.349e9),  # the same
        ("mobilenet_v1", 569e6),  # Howard et al. 2017, table 4
        ("mobilenet_v2", 300e6),  # Sandler et al. 2018, table 4
        ("efficientnet_b0", 0.386e9),  # torchvision's table of its models
        ("convnext_tiny", 4.456e9),  # the same
    ],
)
def test_multiply_adds_are_the_published_ones(name, published):
    assert macs(network(name)) == pytest.approx(published, rel=0.01)


def test_densenet_has_the_layers_of_caffes_file(shared):
    graph = network("densenet_cifar")
    found = shapes(graph)
    text = (shared / "paleo/nets/caffe/densenet.prototxt").read_text()
    layer = r'name: "(Convolution\d+)"[^"]+"Convolution"[^{]+{\s+num_output: (\d+)'
    filters = {f"{name}/conv2d": int(number) for name, number in re.findall(layer, text)}
    assert filters == {op.name: found[op.name][1] for op in graph.ops if op.kind == "conv2d"}
    trained = [op.name for op in network("densenet_cifar", phase="train").ops]
    for number in re.findall(r'name: "((?:Dropout|Concat|ReLU|Pooling)\d+)"', text):
        assert number in trained


def test_densenet_for_cifar_by_hand():
    graph = network("densenet_cifar")
    found = shapes(graph)
    channels, parameters, products = 16, 3 * 3 * 3 * 16, 3 * 3 * 3 * 16 * 32**2
    for block, side in enumerate((32, 16, 8)):
        for _ in range(12):  # norm of all channels, 3x3 to 12 more
            parameters += 2 * channels + 3 * 3 * channels * 12
            products += 3 * 3 * channels * 12 * side**2
            channels += 12
        assert found[f"Concat{12 * (block + 1)}"] == (1, channels, side, side)
        if block < 2:  # norm, 1x1 to as many
            parameters += 2 * channels + channels * channels
            products += channels * channels * side**2
            assert found[f"Pooling{block + 1}"] == (1, channels, side // 2, side // 2)
    assert channels == 16 + 36 * 12
    assert graph.parameters == parameters + 2 * channels + channels * 10 + 10 == 1_019_722
    assert macs(graph) == products + channels * 10


@every(
    ("name", "expected"),
    [
        (
            "densenet121",
            {
                "pool0": (64, 56, 56),
                "transition1/pool": (128, 28, 28),  # (64 + 6*32) / 2
                "transition2/pool": (256, 14, 14),  # (128 + 12*32) / 2
                "transition3/pool": (512, 7, 7),  # (256 + 24*32) / 2
                "relu5": (1024, 7, 7),  # 512 + 16*32
            },
        ),
        (
            "squeezenet1_0",  # pooling rounds up: 109, 54, 27, 13
            {
                "conv1/conv2d": (96, 109, 109),
                "pool1": (96, 54, 54),
                "pool4": (256, 27, 27),
                "pool8": (512, 13, 13),
                "conv10/conv2d": (1000, 13, 13),
            },
        ),
        (
            "squeezenet1_1",
            {
                "conv1/conv2d": (64, 111, 111),
                "pool1": (64, 55, 55),
                "pool3": (128, 27, 27),
                "pool5": (256, 13, 13),
                "conv10/conv2d": (1000, 13, 13),
            },
        ),
        (
            "mobilenet_v1",  # Howard et al. 2017, table 1
            {
                "Conv2d_0/conv2d": (32, 112, 112),
                "Conv2d_3_pointwise/relu": (128, 56, 56),
                "Conv2d_5_pointwise/relu": (256, 28, 28),
                "Conv2d_11_pointwise/relu": (512, 14, 14),
                "Conv2d_13_pointwise/relu": (1024, 7, 7),
            },
        ),
        (
            "efficientnet_b0",  # Tan, Le 2019, table 1
            {
                "block1/project/conv2d": (16, 112, 112),
                "block3/add": (24, 56, 56),
                "block5/add": (40, 28, 28),
                "block8/add": (80, 14, 14),
                "block11/add": (112, 14, 14),
                "block15/add": (192, 7, 7),
                "head/silu": (1280, 7, 7),
            },
        ),
        (
            "convnext_tiny",  # Liu et al. 2022, table 9
            {
                "stage1/block3/add": (96, 56, 56),
                "stage2/block3/add": (192, 28, 28),
                "stage3/block9/add": (384, 14, 14),
                "stage4/block3/add": (768, 7, 7),
            },
        ),
        (
            "mobilenet_v2",  # Sandler et al. 2018, table 2
            {
                "expanded_conv/project/conv2d": (16, 112, 112),
                "expanded_conv_2/add": (24, 56, 56),
                "expanded_conv_5/add": (32, 28, 28),
                "expanded_conv_9/add": (64, 14, 14),
                "expanded_conv_12/add": (96, 14, 14),
                "expanded_conv_15/add": (160, 7, 7),
                "expanded_conv_16/project/conv2d": (320, 7, 7),
                "Conv_1/relu": (1280, 7, 7),
            },
        ),
    ],
)
def test_shapes_are_those_of_the_publication(name, expected):
    found = shapes(network(name))
    assert {layer: found[layer][1:] for layer in expected} == expected
    assert found[network(name).ops[-1].name] == (1, 1000)


@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 7), st.integers(1, 7), st.integers(1, 4)
)
def test_same_padding_is_tensorflows(h, w, kh, kw, stride):
    b = Builder("same", precision("float32"), training=False)
    x = b.input("x", (1, 2, h, w))
    y = conv2d(b, x, 3, (kh, kw), "conv", stride=stride, padding="same")
    assert b.shape(y) == (1, 3, -(-h // stride), -(-w // stride))
    sides: Any = b.ops[0].attrs["padding"]
    top, bottom, left, right = sides
    for size, kernel, before, after in ((h, kh, top, bottom), (w, kw, left, right)):
        assert before + after == max((-(-size // stride) - 1) * stride + kernel - size, 0)
        assert after - before in (0, 1)


def test_same_padding_of_an_even_image_is_at_its_end():
    ops = {op.name: op for op in network("mobilenet_v1").ops}
    # (112 - 1) * 2 + 3 - 224 = 1 row and column
    assert ops["Conv2d_0/conv2d"].attrs["padding"] == (0, 1, 0, 1)
    assert ops["Conv2d_1_depthwise/conv2d"].attrs["padding"] == (1, 1, 1, 1)
    assert ops["Conv2d_1_depthwise/conv2d"].attrs["groups"] == 32


@every("name", NEW)
def test_image_sizes_change_no_parameter_and_impossible_ones_are_refused(name):
    if not family(name).parameters:
        with pytest.raises(InputError, match="takes no hyperparameters"):
            network(f"{name}:image=64")
        return
    assert network(f"{name}:image=160").parameters == network(name).parameters
    if name not in ("mobilenet_v1", "mobilenet_v2", "efficientnet_b0"):  # a map of 1x1 stays
        with pytest.raises(InputError, match=f"{name}: .*does not fit"):
            network(f"{name}:image=4")


@pytest.mark.framework
@every(
    "text",
    ["inception_v3:image=75", "densenet_cifar", "squeezenet1_1:image=48", "mobilenet_v1:image=32"],
)
def test_a_step_of_training_runs_on_torch(text):
    from steptime.measure.backends.torch import backend as torch_backend

    work = make_workload(read_model(text), 2)
    ready = torch_backend.prepare(build(work), work, Options(threads=1))
    ready.step()
    ready.sync()
    assert list(ready.parts) == ["forward", "backward", "update"]


def overcounted_by_torch(graph: Graph) -> int:
    """Torch counts the weight gradient of a convolution in groups as if it had one group."""
    products = [op for op in graph.ops if op.kind == "conv2d" and op.attrs["groups"] != 1]
    return sum(op_cost(graph, op).flop * (int(str(op.attrs["groups"])) - 1) for op in products)


@pytest.mark.framework
@pytest.mark.slow
@pytest.mark.parametrize("name", NEW)
def test_flop_are_torchs(name):
    for phase in ("infer", "train"):
        work = make_workload(read_model(name), 2, phase=phase)
        witness = witnessed_flop(build(work), phase == "train")
        if phase == "train":
            witness -= overcounted_by_torch(build(work))
        assert our_flop(build_step(work)) == witness, phase
