"""The named convolutional networks: multiply-adds, shapes of every layer, torch as a witness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steptime.build import build, build_step, make_workload, read_model
from steptime.core.graph import Graph
from test_flop_witness import our_flop, witnessed_flop
from test_models import macs, network

NEW = ("alexnet_v2", "overfeat", "nin", "inception_v3")


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


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("alexnet_v2", "alex_v2"),
        ("overfeat", "overfeat"),
        ("nin", "nin"),
        ("vgg16", "vgg16"),
    ],
)
def test_every_layer_has_the_shape_of_paleos_file(shared: Path, name: str, file: str) -> None:
    path = shared / f"paleo/nets/{file}.json"
    ours = network(name)
    assert differing_layers(path, ours, lambda layer: layer.replace("-", "_")) == {}
    theirs = [kind for kind, _ in paleo_shapes(path).values()]
    mine = [op.kind for op in ours.ops]
    products = mine.count("conv2d") + mine.count("linear")
    assert products == theirs.count("Convolution")
    assert mine.count("max_pool2d") == theirs.count("Pooling")
    assert mine.count("avg_pool2d") == theirs.count("AvgPool")


def test_inception_is_paleos_file_but_for_the_convolution_that_the_file_lacks(
    shared: Path,
) -> None:
    path = shared / "paleo/nets/inception_v3.json"
    ours = network("inception_v3")
    # the file goes from 64 maps of 35x35 to 96 of 17x17 at once, we (and torchvision) in two steps
    branch = "Mixed_6a/Branch_1"
    assert paleo_shapes(path)[f"{branch}/Conv2d_0b_3x3"][1] == (96, 17, 17)
    assert differing_layers(path, ours) == {f"{branch}/Conv2d_0b_3x3": (1, 96, 35, 35)}
    assert shapes(ours)[f"{branch}/Conv2d_1a_3x3/conv2d"] == (1, 96, 17, 17)
    theirs = [kind for kind, _ in paleo_shapes(path).values()]
    mine = [op.kind for op in ours.ops]
    assert mine.count("conv2d") == theirs.count("Convolution") + 1
    assert mine.count("max_pool2d") == theirs.count("Pooling")
    assert mine.count("avg_pool2d") == theirs.count("AvgPool")
    assert mine.count("concat") == theirs.count("Concatenate")


@pytest.mark.parametrize(
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
def test_multiply_adds_by_hand(name: str, count: int) -> None:
    assert macs(network(name)) == count


@pytest.mark.parametrize(
    ("name", "published"),
    [  # multiply-adds of an image
        ("inception_v3", 5.71e9),  # torchvision
    ],
)
def test_multiply_adds_are_the_published_ones(name: str, published: float) -> None:
    assert macs(network(name)) == pytest.approx(published, rel=0.01)


@pytest.mark.framework
@pytest.mark.slow
@pytest.mark.parametrize("name", NEW)
def test_flop_are_torchs(name: str) -> None:
    for phase in ("infer", "train"):
        work = make_workload(read_model(name), 2, phase=phase)
        witness = witnessed_flop(build(work), phase == "train")
        assert our_flop(build_step(work)) == witness, phase
