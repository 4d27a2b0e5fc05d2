"""Paleo's network files: names, shapes and parameters of their layers, and what they run as."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest

from steptime.build import build, build_step, make_workload, read_model
from steptime.core.errors import InputError
from steptime.core.graph import LAYER_KINDS, Graph, Layer, Op, check
from steptime.core.workload import Workload
from steptime.measure.contract import Options

Table = dict[str, Any]


def workload(path: Path, batch: int | None = None, unknown: bool = False, **how: str) -> Workload:
    return make_workload(read_model(str(path), unknown), batch, **how)


def layer(kind: str, *parents: str, **keys: Any) -> Table:
    return {"type": kind, "parents": list(parents), **keys}


def image(*tensor: int) -> Table:
    return {"type": "Input", "parents": [], "tensor": list(tensor)}


def conv(parent: str, *size: int, stride: int = 1, padding: Any = "SAME", **keys: Any) -> Table:
    strides = [1, stride, stride, 1]
    parents = [parent] if parent else []
    return layer(
        "Convolution", *parents, filter=list(size), strides=strides, padding=padding, **keys
    )


def pool(kind: str, parent: str, size: int, stride: int, padding: Any = "VALID") -> Table:
    return layer(
        kind, parent, ksize=[1, size, size, 1], strides=[1, stride, stride, 1], padding=padding
    )


def written(folder: Path, layers: Mapping[str, Any], name: str = "net.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"name": "a net", "layers": layers}))
    return path


def graph_of(folder: Path, layers: Mapping[str, Any], **how: Any) -> Graph:
    graph = build(workload(written(folder, layers), **how))
    check(graph)
    return graph


def by_name(graph: Graph) -> dict[str, Layer]:
    return {made.name: made for made in graph.layers}


def op_of(graph: Graph, name: str) -> Op:
    return next(op for op in graph.ops if op.name == name)


def message(folder: Path, layers: Any) -> str:
    with pytest.raises(InputError) as caught:
        build(workload(written(folder, layers)))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("net.json: ")
    return text.removeprefix("net.json: ")


# --- windows: VALID ceil((h - k + 1) / s), SAME ceil(h / s), explicit floor((h + 2p - k) / s) + 1


@pytest.mark.parametrize(
    ("padding", "size", "kernel", "stride", "out", "pads"),
    [
        ("VALID", 11, 3, 2, 5, (0, 0)),  # ceil(9 / 2)
        ("VALID", 12, 3, 2, 5, (0, 0)),  # ceil(10 / 2)
        ("SAME", 11, 3, 2, 6, (1, 1)),  # 5*2 + 3 - 11 = 2
        ("SAME", 12, 3, 2, 6, (0, 1)),  # 5*2 + 3 - 12 = 1, the odd one after
        ("SAME", 6, 2, 1, 6, (0, 1)),
        ("SAME", 6, 1, 2, 3, (0, 0)),  # 2*2 + 1 - 6 is below 0
        ([1, 1], 12, 3, 2, 6, (1, 1)),  # (12 + 2 - 3) // 2 + 1
        ([2, 2], 7, 3, 1, 9, (2, 2)),
    ],
)
@pytest.mark.parametrize("kind", ["Convolution", "Pooling", "AvgPool"])
def test_windows(
    tmp_path: Path,
    kind: str,
    padding: Any,
    size: int,
    kernel: int,
    stride: int,
    out: int,
    pads: tuple[int, int],
) -> None:
    if kind == "Convolution":
        window = conv("data", kernel, kernel, 3, 4, stride=stride, padding=padding)
    else:
        window = pool(kind, "data", kernel, stride, padding)
    graph = graph_of(tmp_path, {"data": image(2, size, size, 3), "w": window})
    made = by_name(graph)["w"]
    channels = 4 if kind == "Convolution" else 3
    assert made.inputs == (2, size, size, 3)
    assert made.outputs == (2, out, out, channels)
    assert made.padding == (padding if isinstance(padding, str) else tuple(padding))
    assert made.kernel == (kernel, kernel)
    assert made.strides == (stride, stride)
    assert made.op == "w"
    assert op_of(graph, "w").attrs["padding"] == pads * 2
    assert graph.tensors["w"].shape == (2, channels, out, out)


def test_a_window_of_unequal_sides(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, {"data": image(1, 8, 9, 2), "c": conv("data", 1, 7, 2, 3)})
    assert by_name(graph)["c"].parameters == 1 * 7 * 2 * 3 + 3
    assert op_of(graph, "c").attrs["padding"] == (0, 0, 3, 3)
    assert graph.tensors["c/w"].shape == (3, 2, 1, 7)


# --- what goes with a product


@pytest.mark.parametrize(
    ("keys", "kinds", "trained"),
    [
        ({}, ["conv2d", "bias"], 54 + 2),
        ({"activation_fn": "relu"}, ["conv2d", "bias", "relu"], 54 + 2),
        ({"activation_fn": None, "normalizer_fn": None}, ["conv2d", "bias"], 54 + 2),
        (
            {"activation_fn": "relu", "normalizer_fn": "batch_norm"},
            ["conv2d", "batch_norm", "relu"],
            54 + 2 + 2,
        ),
        ({"bias": False}, ["conv2d"], 54),
        ({"bias": [2]}, ["conv2d", "bias"], 54 + 2),
    ],
)
def test_bias_norm_and_activation(
    tmp_path: Path, keys: Table, kinds: list[str], trained: int
) -> None:
    graph = graph_of(
        tmp_path, {"data": image(1, 5, 5, 3), "c": conv("data", 3, 3, -1, 2, **keys)}, phase="infer"
    )
    assert [op.kind for op in graph.ops] == kinds
    assert [op.name for op in graph.ops] == ["c", *(f"c/{kind}" for kind in kinds[1:])]
    assert graph.parameters == trained
    assert by_name(graph)["c"].parameters == 3 * 3 * 3 * 2 + 2  # the file's rule: always a bias


def test_a_deconvolution_is_the_transpose_of_a_convolution(tmp_path: Path) -> None:
    up = layer(
        "Deconvolution",
        "data",
        filter=[3, 3, 5, 7],
        output_shape=[4, 12, 12, 5],
        strides=[1, 2, 2, 1],
        padding="SAME",
    )
    graph = graph_of(tmp_path, {"data": image(4, 6, 6, 7), "up": up}, batch=2)
    made = by_name(graph)["up"]
    assert made.kind == "deconv"
    assert (made.inputs, made.outputs) == ((2, 6, 6, 7), (2, 12, 12, 5))
    assert made.parameters == 3 * 3 * 5 * 7 + 7
    assert op_of(graph, "up").attrs["padding"] == (0, 1, 0, 1)  # 5*2 + 3 - 12 = 1
    assert graph.tensors["up"].shape == (2, 5, 12, 12)
    assert graph.parameters == 3 * 3 * 5 * 7 + 5  # what runs has a bias for each of its own maps


def test_every_other_type(tmp_path: Path) -> None:
    layers = {
        "data": image(2, 4, 4, 6),
        "norm": layer("BatchNorm", "data"),
        "scale": layer("Scale", "norm"),
        "own": layer("Scale", "data"),
        "lrn": layer("LRN", "scale"),
        "relu": layer("ReLU", "own"),
        "sum": layer("Elementwise", "lrn", "relu", "data"),
        "join": layer("Concatenate", "sum", "data", dim=3),
        "below": layer("Concatenate", "join", "join", dim=1),
        "wide": layer("UpSampling2D", "below", ksize=[1, 2, 3, 1]),
        "seen": layer("Reshape", "wide", output_shape=[2, -1, 12]),
        "drop": layer("Dropout", "seen", dropout_keep_prob=0.75),
        "fc": layer("InnerProduct", "drop", num_outputs=5, activation_fn="tanh"),
        "top": layer("Accuracy", "fc"),
        "gate": layer("Sigmoid", "fc"),
        "prob": layer("Softmax", "fc", num_classes=5),
    }
    graph = graph_of(tmp_path, layers, batch=3)
    made = by_name(graph)
    assert list(made) == list(layers)
    assert {name: one.outputs for name, one in made.items()} == {
        **dict.fromkeys(["data", "norm", "scale", "own", "lrn", "relu", "sum"], (3, 4, 4, 6)),
        "join": (3, 4, 4, 12),
        "below": (3, 8, 4, 12),
        "wide": (3, 16, 12, 12),
        "seen": (3, 16 * 12, 12),
        "drop": (3, 16 * 12, 12),
        "fc": (3, 5),
        "top": (3, 5),
        "gate": (3, 1),
        "prob": (3, 5),
    }
    assert made["fc"].inputs == (3, 16 * 12 * 12)
    assert made["fc"].parameters == 16 * 12 * 12 * 5 + 5
    assert {made[name].kind for name in layers} == {
        "input", "other", "dropout", "inner_product"
    }  # fmt: skip
    assert {name for name, one in made.items() if not one.op} == {"data", "scale", "top", "prob"}
    assert op_of(graph, "drop").attrs == {"p": 0.25}
    assert op_of(graph, "join").attrs == {"axis": 1}
    assert op_of(graph, "below").attrs == {"axis": 2}
    assert graph.tensors["seen"].shape == (3, 12, 16 * 12)
    assert [op.name for op in graph.ops if op.kind == "add"] == ["sum/1", "sum", "prob/loss_sum"]
    kinds = [op.kind for op in graph.ops]
    assert kinds.count("batch_norm") == kinds.count("local_response_norm") == 1
    assert graph.tensors[graph.outputs[0]].shape == ()
    inference = build(workload(written(tmp_path, layers), phase="infer"))
    assert inference.tensors[inference.outputs[0]].shape == (2, 5)
    assert not any(op.kind == "dropout" for op in inference.ops)
    assert by_name(inference)["prob"].op == "prob"
    assert by_name(inference)["drop"].op == ""


def test_a_softmax_over_maps_has_a_label_for_each_place(tmp_path: Path) -> None:
    layers = {"data": image(2, 3, 4, 5), "p": layer("Softmax", "data", num_classes=5)}
    assert graph_of(tmp_path, layers).tensors["p/labels"].shape == (2, 3, 4)
    layers = {"data": image(2, 1, 1, 5), "p": layer("Softmax", "data")}
    assert graph_of(tmp_path, layers).tensors["p/labels"].shape == (2,)
    assert by_name(graph_of(tmp_path, layers))["p"].outputs == (2, 5)


def test_several_ends_under_mixed_precision_add_in_the_type_of_the_weights(tmp_path: Path) -> None:
    layers = {
        "data": image(2, 1, 1, 5),
        "fc": layer("InnerProduct", "data", num_outputs=3),
        "p": layer("Softmax", "fc"),
        "q": layer("Sigmoid", "fc"),
    }
    graph = graph_of(tmp_path, layers, dtype="bfloat16-mixed")
    assert graph.tensors[graph.outputs[0]].dtype == "float32"
    assert build_step(workload(tmp_path / "net.json", dtype="bfloat16-mixed")).ops


# --- blocks


def block(*parents: str, endpoint: str, **layers: Table) -> Table:
    return layer("Block", *parents, endpoint=endpoint, layers=layers)


def test_blocks_are_namespaces(tmp_path: Path) -> None:
    layers = {
        "data": image(2, 8, 8, 3),
        "mixed": block(
            "data",
            endpoint="join",
            a=conv("", 1, 1, 3, 4),
            b=conv("a", 3, 3, 4, 5),
            inner=block("b", endpoint="c", c=conv("", 1, 1, -1, 6), unused=conv("a", 1, 1, 4, 1)),
            join=layer("Concatenate", "a", "inner", "mixed/b", dim=3),
        ),
        "last": conv("mixed", 1, 1, 4 + 6 + 5, 2),
        "other": conv("mixed/inner/c", 1, 1, 6, 2),
    }
    made = by_name(graph_of(tmp_path, layers))
    assert {name: one.parents for name, one in made.items()} == {
        "data": (),
        "mixed/a": ("data",),
        "mixed/b": ("mixed/a",),
        "mixed/inner/c": ("mixed/b",),
        "mixed/inner/unused": ("mixed/a",),
        "mixed/join": ("mixed/a", "mixed/inner/c", "mixed/b"),
        "last": ("mixed/join",),
        "other": ("mixed/inner/c",),
    }
    assert made["mixed/join"].outputs == (2, 8, 8, 15)
    assert made["mixed/join"].inputs == (2, 8, 8, 4)


def split(parent: str, splits: int, **layers: Table) -> Table:
    return layer("ModelParallel", parent, splits=splits, layers=layers)


def test_model_parallel_blocks_repeat_their_layers(tmp_path: Path) -> None:
    layers = {
        "data": image(2, 5, 5, 4),
        "both": split(
            "data",
            2,
            fc6=conv("", 5, 5, 4, 7, padding="VALID", activation_fn="relu"),
            drop=layer("Dropout", "fc6@self", dropout_keep_prob=0.5),
            join=layer("Concatenate", "drop@all", dim=3),
            fc7=layer("InnerProduct", "join@self", num_outputs=8),
        ),
        "join7": layer("Concatenate", "both/fc7@all", dim=1),
        "one": layer("InnerProduct", "both/fc7@1", num_outputs=1),
    }
    graph = graph_of(tmp_path, layers)
    made = by_name(graph)
    assert {name: (one.parents, one.outputs, one.split) for name, one in made.items()} == {
        "data": ((), (2, 5, 5, 4), None),
        "both/fc6@0": (("data",), (2, 1, 1, 3), 0),  # 7 // 2 filters
        "both/fc6@1": (("data",), (2, 1, 1, 3), 1),
        "both/drop@0": (("both/fc6@0",), (2, 1, 1, 3), 0),
        "both/drop@1": (("both/fc6@1",), (2, 1, 1, 3), 1),
        "both/join@0": (("both/drop@0", "both/drop@1"), (2, 1, 1, 6), 0),
        "both/join@1": (("both/drop@0", "both/drop@1"), (2, 1, 1, 6), 1),
        "both/fc7@0": (("both/join@0",), (2, 4), 0),
        "both/fc7@1": (("both/join@1",), (2, 4), 1),
        "join7": (("both/fc7@0", "both/fc7@1"), (2, 8), None),
        "one": (("both/fc7@1",), (2, 1), None),
    }
    assert made["both/fc6@1"].parameters == 5 * 5 * 4 * 3 + 3
    assert made["both/fc7@1"].parameters == 6 * 4 + 4
    assert graph.parameters == 2 * (303 + 28) + 5
    assert made["both/fc6@1"].op == "both/fc6@1"


def test_layers_ready_together_keep_the_order_of_the_file(tmp_path: Path) -> None:
    layers = {
        "z": layer("ReLU", "b"),
        "b": layer("ReLU", "data"),
        "a": layer("ReLU", "data"),
        "data": image(1, 2),
    }
    assert list(by_name(graph_of(tmp_path, layers))) == ["data", "b", "z", "a"]


# --- what is refused

DATA = {"data": image(2, 8, 8, 3)}


def nested(depth: int) -> Table:
    inner: Table = {"r": layer("ReLU")}
    for i in range(depth):
        end = "r" if i == 0 else "b"
        inner = {"b": layer("Block", endpoint=end, layers=inner)}
    inner["b"]["parents"] = ["data"]
    return inner


BAD: dict[str, tuple[Table, str]] = {
    "no layers": ({}, "the network has no layers"),
    "only an input": (DATA, "no layers besides its input"),
    "no input": (
        {"a": layer("ReLU", "b"), "b": layer("ReLU", "a")},
        "layer 'a': is its own ancestor: 'a' <- 'b' <- 'a'",
    ),
    "two inputs": (
        {**DATA, "more": image(2, 8, 8, 3), "s": layer("Elementwise", "data", "more")},
        "one layer of type Input; found 'data', 'more'",
    ),
    "orphan": ({**DATA, "a": layer("ReLU")}, "layer 'a': type 'ReLU' has one parent"),
    "two parents": (
        {**DATA, "a": layer("ReLU", "data", "data")},
        "layer 'a': type 'ReLU' has one parent, not 2",
    ),
    "unknown parent": (
        {**DATA, "a": layer("ReLU", "dta")},
        "layer 'a': unknown parent 'dta'; did you mean 'data'?",
    ),
    "unknown parent in a block": (
        {**DATA, "b": block("data", endpoint="one", one=layer("ReLU"), two=layer("ReLU", "onw"))},
        "layer 'b/two': unknown parent 'onw'; did you mean 'one'?",
    ),
    "unknown type": (
        {**DATA, "a": layer("Convolutoin", "data")},
        "layer 'a': unknown type of layer 'Convolutoin'; did you mean 'Convolution'?",
    ),
    "no type": ({**DATA, "a": {"parents": ["data"]}}, "layer 'a': the key 'type' is missing"),
    "no parents": ({**DATA, "a": {"type": "ReLU"}}, "layer 'a': the key 'parents' is missing"),
    "parents of an input": (
        {"data": image(2, 4) | {"parents": ["data"]}},
        "layer 'data': an input has no parents",
    ),
    "a text for parents": (
        {**DATA, "a": {"type": "ReLU", "parents": "data"}},
        "layer 'a': parents must be a list of names",
    ),
    "no table": ({**DATA, "a": 7}, "layer 'a': must be a table, not '7'"),
    "missing filter": (
        {**DATA, "a": layer("Convolution", "data", strides=[1, 1, 1, 1], padding="SAME")},
        "layer 'a': the key 'filter' is missing",
    ),
    "filter of rank 3": (
        {**DATA, "a": conv("data", 3, 3, 3)},
        "layer 'a': filter must be [kh, kw, c_in, c_out]",
    ),
    "channels": (
        {**DATA, "a": conv("data", 3, 3, 4, 5)},
        "layer 'a': its filter takes 4 channels, its parent gives 3",
    ),
    "rank": (
        {
            **DATA,
            "f": layer("InnerProduct", "data", num_outputs=2),
            "a": pool("Pooling", "f", 2, 2),
        },
        "layer 'a': needs [n, h, w, c], but its parent gives [2, 2]",
    ),
    "zero": ({**DATA, "a": conv("data", 3, 3, 3, 0)}, "layer 'a': filter must be whole numbers"),
    "stride of zero": (
        {**DATA, "a": conv("data", 3, 3, 3, 1, stride=0)},
        "layer 'a': strides must be whole numbers from 1",
    ),
    "float": (
        {**DATA, "a": layer("InnerProduct", "data", num_outputs=2.0)},
        "layer 'a': num_outputs must be whole numbers",
    ),
    "bool": (
        {**DATA, "a": layer("InnerProduct", "data", num_outputs=True)},
        "layer 'a': num_outputs must be whole numbers",
    ),
    "huge": (
        {**DATA, "a": layer("InnerProduct", "data", num_outputs=2**53)},
        "layer 'a': weights '[192, 9007199254740992]' has more than 2^53 elements",
    ),
    "larger than huge": (
        {"data": image(2, 10**400), "a": layer("ReLU", "data")},
        "layer 'data': tensor must be whole numbers from 1 to 2^53",
    ),
    "huge input": (
        {"data": image(2, 2**30, 2**30), "a": layer("ReLU", "data")},
        "layer 'data': output '[2, 1073741824, 1073741824]' has more than 2^53 elements",
    ),
    "window": (
        {**DATA, "a": conv("data", 9, 9, 3, 1, padding="VALID")},
        "layer 'a': a window [9, 9] does not fit into [2, 8, 8, 3]",
    ),
    "padding": (
        {**DATA, "a": conv("data", 3, 3, 3, 1, padding="same")},
        "layer 'a': padding must be VALID, SAME or [height, width], not 'same'",
    ),
    "strides over images": (
        {**DATA, "a": conv("data", 3, 3, 3, 1) | {"strides": [2, 1, 1, 1]}},
        "layer 'a': strides must be [1, height, width, 1]",
    ),
    "keep": (
        {**DATA, "a": layer("Dropout", "data", dropout_keep_prob=0)},
        "layer 'a': dropout_keep_prob must be above 0",
    ),
    "activation": (
        {**DATA, "a": conv("data", 1, 1, 3, 1, activation_fn="rleu")},
        "layer 'a': unknown activation_fn 'rleu'; did you mean 'relu'?",
    ),
    "bias": (
        {**DATA, "a": conv("data", 1, 1, 3, 4, bias=[5])},
        "layer 'a': bias must be true, false or [filters], not '[5]'",
    ),
    "concat": (
        {
            **DATA,
            "p": pool("Pooling", "data", 2, 2),
            "a": layer("Concatenate", "p", "data", dim=3),
        },
        "layer 'a': [2, 8, 8, 3] of 'data' does not fit to [2, 4, 4, 3] along axis 3",
    ),
    "sum": (
        {**DATA, "p": pool("Pooling", "data", 2, 2), "a": layer("Elementwise", "p", "data")},
        "layer 'a': [2, 8, 8, 3] of 'data' is not the shape [2, 4, 4, 3]",
    ),
    "reshape": (
        {**DATA, "a": layer("Reshape", "data", output_shape=[2, -1, 7])},
        "layer 'a': [2, 8, 8, 3] cannot be seen as '[2, -1, 7]'",
    ),
    "deconvolution": (
        {
            **DATA,
            "a": conv("data", 3, 3, 4, 3, stride=2)
            | {"type": "Deconvolution", "output_shape": [2, 18, 18, 4]},
        },
        "layer 'a': its convolution leads from [2, 18, 18, 4] to [9, 9], not to the [8, 8]",
    ),
    "endpoint": (
        {**DATA, "b": block("data", endpoint="lsat", last=layer("ReLU"))},
        "block 'b': unknown endpoint 'lsat'; did you mean 'last'?",
    ),
    "nesting": ({**DATA, **nested(51)}, "more than 50 blocks within each other"),
    "splits": (
        {**DATA, "b": split("data", 0, a=layer("ReLU"))},
        "layer 'b': splits must be a whole number from 1 on, not '0'",
    ),
    "more splits than filters": (
        {**DATA, "b": split("data", 4, a=conv("", 1, 1, 3, 3))},
        "layer 'b/a@0': 3 filters cannot be divided by 4 splits",
    ),
    "a million layers": (
        {**DATA, "b": split("data", 10**6, a=layer("ReLU"), c=layer("ReLU"))},
        "layer 'b': '1000000' splits make more than 1000000 layers",
    ),
    "a million parents": (
        {
            **DATA,
            "b": split("data", 2000, a=layer("ReLU"), c=layer("Concatenate", "a@all", dim=3)),
        },
        "the network has more than 1000000 parents",
    ),
    "a block in splits": (
        {**DATA, "b": split("data", 2, a=block(endpoint="c", c=layer("ReLU")))},
        "layer 'b/a': a ModelParallel block holds layers, not blocks",
    ),
    "self outside": (
        {**DATA, "b": split("data", 2, a=layer("ReLU")), "c": layer("ReLU", "b/a@self")},
        "layer 'c': parent 'b/a@self': @self has a meaning only inside its own block",
    ),
    "all of one": (
        {**DATA, "c": layer("ReLU", "data@all")},
        "layer 'c': parent 'data@all': 'data' is not split",
    ),
    "no such split": (
        {**DATA, "b": split("data", 2, a=layer("ReLU")), "c": layer("ReLU", "b/a@2")},
        "layer 'c': parent 'b/a@2': write @self or @all",
    ),
    "a split as parent": (
        {**DATA, "b": split("data", 2, a=layer("ReLU")), "c": layer("ReLU", "b")},
        "layer 'c': parent 'b' is split: name a layer of the block, with @all",
    ),
    "the same name": (
        {
            **DATA,
            "b": block("data", endpoint="c", c=layer("ReLU")),
            "b/c": layer("ReLU", "data"),
        },
        "layer 'b/c': there are two of this name",
    ),
    "a name of gradients": (
        {**DATA, "c": conv("data", 1, 1, 3, 1), "c/grad_input": layer("ReLU", "c")},
        "layer 'c/grad_input': 'grad_input' inside 'c' is a name of gradients",
    ),
    "a name of weights": (
        {**DATA, "c": conv("data", 1, 1, 3, 1), "c/w": layer("ReLU", "c")},
        "two ops are named 'c/w'",
    ),
    "a name with @": ({**DATA, "c@0": layer("ReLU", "data")}, "'c@0' is no name of a layer"),
    "a long name": ({**DATA, "c" * 301: layer("ReLU", "data")}, "is no name of a layer"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_networks(tmp_path: Path, case: str) -> None:
    layers, expected = BAD[case]
    assert expected in message(tmp_path, layers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"layers": [1]}', "a table of 'layers'"),
        ('{"layers": ' + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}", "is no JSON"),
        ('{"layers": {"a": 1, "a": 2}}', "key 'a' is given twice"),
        ("\ufeff{}", "is no JSON"),
        ('{"layers": {"a": ' + "9" * 5000 + "}}", "is no JSON"),
        ("", "is no JSON"),
        ("[]", "a table of 'layers'"),
    ],
)
def test_junk(text: str, expected: str) -> None:
    from steptime.importers.paleo import read

    with pytest.raises(InputError, match=expected) as caught:
        read(text, "x.json", allow_unknown=False)
    assert "\n" not in str(caught.value)


def test_unknown_layers_pass_their_input_on_if_asked(tmp_path: Path) -> None:
    layers = {**DATA, "odd": layer("Swizzle", "data"), "c": conv("odd", 1, 1, 3, 2)}
    assert "unknown type of layer 'Swizzle'" in message(tmp_path, layers)
    graph = graph_of(tmp_path, layers, unknown=True)
    assert graph.unmodelled == ("odd",)
    assert by_name(graph)["odd"].outputs == (2, 8, 8, 3)
    assert by_name(graph)["odd"].op == ""


# --- the files of Paleo's authors, and what their program said of them

PARAMETERS = {"alex_v2": 50_303_912, "vgg16": 138_357_544}


def files(shared: Path) -> dict[str, Path]:
    folder = shared / "paleo"
    found = [
        path for kind in ("nets", "synthetic_nets") for path in folder.glob(f"{kind}/**/*.json")
    ]
    assert len(found) == 17
    return {path.stem: path for path in found}


def test_every_file_builds(shared: Path) -> None:
    for name, path in files(shared).items():
        for phase in ("infer", "train"):
            graph = build_step(workload(path, batch=2, phase=phase))
            check(graph)
            assert {made.kind for made in graph.layers} <= set(LAYER_KINDS)
            assert all(made.outputs[0] == 2 for made in graph.layers)
            ops = {op.name for op in graph.ops}
            assert all(made.op in ops for made in graph.layers if made.op)
            for made in graph.layers:
                if made.op:
                    assert graph.tensors[made.op].size == prod(made.outputs)
        if name in PARAMETERS:
            assert sum(made.parameters for made in graph.layers) == PARAMETERS[name]
            assert graph.parameters == PARAMETERS[name]


def assert_same(made: Layer, said: Mapping[str, Any]) -> None:
    assert made.name == said["name"]
    assert made.type == said["spec_type"]
    assert list(made.parents) == said["parents"]
    assert list(made.inputs) == said["inputs"]
    assert list(made.outputs) == said["outputs"]
    assert made.parameters == said["num_params"]
    padding = made.padding if isinstance(made.padding, str) else list(made.padding)
    assert padding == said.get("padding", "VALID")
    kernel = said["filters"][:2] if "filters" in said else said.get("kernel", [1, 1, 1, 1])[1:3]
    assert list(made.kernel) == kernel
    assert [1, *made.strides, 1] == said.get("strides", [1, 1, 1, 1])


def test_layers_are_those_of_the_original(shared: Path) -> None:
    folder, found = shared / "paleo", files(shared)
    compared = 0
    for said in json.loads((folder / "layers_static.json").read_text()).values():
        graph = build(workload(found[said["net"]], said["batch"]))
        for made, layer_said in zip(graph.layers, said["layers"], strict=True):
            assert_same(made, layer_said)
            compared += 1
    for said in json.loads((folder / "graph.json").read_text()).values():
        graph = build(workload(found[said["net"]]))
        assert [made.name for made in graph.layers] == said["topology_order"]
        for made, layer_said in zip(graph.layers, said["native_batch"], strict=True):
            assert_same(made, layer_said)
    for key, said in json.loads((folder / "synthetic_outputs.json").read_text()).items():
        graph = build(workload(found[key.partition("__")[0]]))
        for made, layer_said in zip(graph.layers, said["static"], strict=True):
            assert_same(made, layer_said)
    assert compared == 3 * (15 + 19 + 25)


def test_split_layers_have_the_names_and_work_of_the_original(shared: Path) -> None:
    with gzip.open(shared / "paleo/model_hybrid.json.gz", "rt") as stream:
        details = json.load(stream)["layer_detail_hybrid_mode"]
    for key, said in details.items():
        graph = build(workload(files(shared)[key.partition("__")[0]], 128))
        made = by_name(graph)
        assert made.keys() >= said["forward"].keys()
        for name, work in said["forward"].items():
            if made[name].kind == "conv":
                one, (kh, kw) = made[name], made[name].kernel
                assert 2 * kh * kw * one.inputs[3] * prod(one.outputs) == work["flops"]


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.parametrize("name", ["alex_v2_2gpu", "inception_v3", "deconv"])
def test_files_train_on_torch(shared: Path, name: str) -> None:
    from steptime.measure.backends import torch_backend

    work = workload(files(shared)[name], batch=2)
    prepared = torch_backend.prepare(build(work), work, Options())
    prepared.step()
    prepared.sync()


@pytest.mark.framework
@pytest.mark.parametrize("phase", ["train", "infer"])
def test_every_type_runs_on_torch(tmp_path: Path, phase: str) -> None:
    from steptime.measure.backends import torch_backend

    layers = {
        "data": image(2, 9, 9, 4),
        "c": conv("data", 2, 2, 4, 6, stride=2, normalizer_fn="batch_norm", activation_fn="relu"),
        "s": layer("Scale", "c"),
        "own": layer("Scale", "data"),
        "n": layer("LRN", "own"),
        "m": pool("Pooling", "n", 2, 2, "SAME"),
        "a": pool("AvgPool", "n", 3, 2, "SAME"),
        "j": layer("Concatenate", "m", "a", "s", dim=3),
        "both": split(
            "j",
            2,
            one=conv("", 1, 1, 14, 4, padding=[1, 1]),
            sum=layer("Elementwise", "one@all"),
            gate=layer("Sigmoid", "sum@self"),
        ),
        "k": layer("Concatenate", "both/sum@all", dim=3),
        "up": layer("UpSampling2D", "k", ksize=[1, 2, 2, 1]),
        "r": layer("Reshape", "up", output_shape=[2, -1]),
        "d": layer("Dropout", "r", dropout_keep_prob=0.5),
        "fc": layer("InnerProduct", "d", num_outputs=3),
        "p": layer("Softmax", "fc"),
        "map": layer("Softmax", "up", num_classes=4),
    }
    for dtype in ("float32", "bfloat16-mixed"):
        work = workload(written(tmp_path, layers), batch=3, phase=phase, dtype=dtype)
        prepared = torch_backend.prepare(build(work), work, Options())
        prepared.step()
        prepared.sync()
