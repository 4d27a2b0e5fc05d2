"""Networks of Keras: hand arithmetic, what is refused, and files that mean harm."""

from __future__ import annotations

import base64
import copy
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from every import every
from keras_networks import (
    buffer_elements,
    flop_of,
    functional,
    graph_of,
    input_layer,
    layer,
    sequential,
)
from reference.backend import execute, initial_values
from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.network.count import count

CNN = (
    input_layer("x", 10, 12, 3),
    layer("Conv2D", "c", "x", filters=8, kernel_size=[3, 5], strides=[2, 2], padding="same"),
    layer("BatchNormalization", "bn", "c", axis=-1, center=True, scale=True),
    layer("ReLU", "relu", "bn", max_value=6.0, negative_slope=0.0, threshold=0.0),
    layer("DepthwiseConv2D", "d", "relu", kernel_size=[3, 3], depth_multiplier=2, use_bias=False),
    layer("GlobalAveragePooling2D", "pool", "d"),
    layer("Dense", "out", "pool", units=7, activation="softmax"),
)


def test_a_convolutional_network_by_hand(tmp_path):
    """10x12 at stride 2 is 5x6, a depthwise 3x3 without padding makes 3x4 of 16 channels."""
    graph = graph_of(functional(*CNN), tmp_path)
    convolutions = 2 * 2 * (3 * 5 * 3 * 8 * 5 * 6 + 3 * 3 * 16 * 3 * 4)
    assert flop_of(graph, "conv2d") == convolutions
    assert flop_of(graph, "linear") == 2 * 2 * 16 * 7
    assert graph.parameters == (3 * 5 * 3 * 8 + 8) + 2 * 8 + 9 * 16 + (16 * 7 + 7)
    assert buffer_elements(graph) == 2 * 8
    (conv,) = (op for op in graph.ops if op.name == "c")
    assert conv.attrs["padding"] == (0, 1, 1, 2)  # SAME has more after
    assert graph.tensors[graph.outputs[0]].shape == (2, 7)


def test_it_trains_on_its_classes(tmp_path):
    graph = graph_of(functional(*CNN), tmp_path, phase="train")
    assert graph.ops[-1].kind == "cross_entropy"
    assert not any(op.kind == "softmax" for op in graph.ops)


def test_batch_eight_is_eight_times_batch_one(tmp_path):
    one, eight = (count(graph_of(functional(*CNN), tmp_path, batch=n)).flop for n in (1, 8))
    assert eight == 8 * one


def test_a_layer_that_is_not_trained_has_buffers(tmp_path):
    layers = copy.deepcopy(CNN)
    layers[2]["config"]["trainable"] = False
    graph = graph_of(functional(*layers), tmp_path, phase="train")
    assert buffer_elements(graph) == 4 * 8
    (norm,) = (op for op in graph.ops if op.kind == "batch_norm")
    assert norm.attrs["training"] is False


def test_recurrent_layers_and_sizes_left_open(tmp_path):
    lstm = layer("LSTM", "lstm", units=16, return_sequences=True)
    both = layer("Bidirectional", "both", layer=lstm, merge_mode="concat")
    table = sequential(
        input_layer("x", None),
        layer("Embedding", "table", input_dim=1000, output_dim=32),
        both,
        layer("GRU", "gru", units=8),
        layer("Dense", "out", units=3, activation="softmax"),
    )
    graph = graph_of(table, tmp_path, ":length=20")
    lstms, gru = 2 * 4 * 16 * (32 + 16 + 1), 3 * 8 * (32 + 8 + 2)
    assert graph.parameters == 1000 * 32 + lstms + gru + 8 * 3 + 3
    assert flop_of(graph, "lstm") == 2 * 2 * 2 * 20 * 4 * 16 * (32 + 16)
    assert flop_of(graph, "gru") == 2 * 2 * 20 * 3 * 8 * (32 + 8)
    assert graph.tensors[graph.outputs[0]].shape == (2, 3)


def test_attention_over_steps(tmp_path):
    """4 heads of 6, width 24: four matrices with biases, and 4 n h l^2 d."""
    heads = layer("MultiHeadAttention", "mha", num_heads=4, key_dim=6, value_dim=6)
    tensor = {"class_name": "__keras_tensor__", "config": {"keras_history": ["x", 0, 0]}}
    heads["inbound_nodes"] = [{"args": [tensor, tensor], "kwargs": {"use_causal_mask": True}}]
    dense = layer("Dense", "inner", units=5, activation="gelu")
    table = functional(
        input_layer("x", 16, 24),
        heads,
        layer("Add", "sum", "mha", "x"),
        layer("LayerNormalization", "norm", "sum", axis=[-1]),
        layer("TimeDistributed", "steps", "norm", layer=dense),
        layer("GlobalAveragePooling1D", "pool", "steps"),
    )
    graph = graph_of(table, tmp_path)
    assert graph.parameters == 4 * (24 * 24 + 24) + 2 * 24 + 24 * 5 + 5
    assert flop_of(graph, "attention") == 4 * 2 * 4 * 16 * 16 * 6
    (op,) = (op for op in graph.ops if op.kind == "attention")
    assert op.attrs["causal"] is True


def test_a_network_of_volumes(tmp_path):
    """3x3x3 from 2 to 4 channels over 6^3 places, halved, padded, cut to 3^3, doubled, averaged."""
    cube = {"filters": 4, "kernel_size": 3, "padding": "same"}
    table = functional(
        input_layer("x", 6, 6, 6, 2),
        layer("Conv3D", "conv", "x", **cube),
        layer("MaxPooling3D", "pool", "conv", pool_size=2),
        layer("ZeroPadding3D", "pad", "pool", padding=[[1, 1], [1, 1], [1, 1]]),
        layer("Cropping3D", "cut", "pad", cropping=1),
        layer("Conv3DTranspose", "wide", "cut", filters=5, kernel_size=2, strides=2),
        layer("GlobalAveragePooling3D", "mean", "wide"),
        layer("Dense", "out", "mean", units=3),
    )
    graph = graph_of(table, tmp_path)
    assert graph.parameters == 27 * 2 * 4 + 4 + 8 * 4 * 5 + 5 + 5 * 3 + 3
    assert flop_of(graph, "conv3d") == 2 * 2 * 27 * 2 * 4 * 6**3
    assert flop_of(graph, "conv_transpose3d") == 2 * 2 * 8 * 4 * 5 * 3**3
    values = initial_values(graph, 1)
    assert execute(graph, values)[graph.outputs[0]].shape == (2, 3)


EQUATIONS: dict[str, tuple[str, Any, str | None, tuple[int, ...], int, int]] = {
    # equation, output_shape, bias_axes, shape made of [2, 5, 12] or [2, 5, 3, 4], weights, products
    "dense": ("abc,cd->abd", [None, 7], "d", (2, 5, 7), 12 * 7 + 7, 2 * 10 * 12 * 7),
    "heads": ("abc,cde->abde", [None, 3, 4], "de", (2, 5, 3, 4), 144 + 12, 2 * 10 * 12 * 12),
    "back": ("abcd,cde->abe", [None, 6], None, (2, 5, 6), 12 * 6, 2 * 10 * 12 * 6),
}


@every("case", EQUATIONS)
def test_linear_layers_by_an_equation(case, tmp_path):
    equation, shape, bias, made, parameters, flop = EQUATIONS[case]
    own = {"equation": equation, "output_shape": shape, "bias_axes": bias}
    size = (5, 3, 4) if equation.startswith("abcd") else (5, 12)
    graph = graph_of(
        functional(input_layer("x", *size), layer("EinsumDense", "e", "x", **own)), tmp_path
    )
    assert graph.tensors[graph.outputs[0]].shape == made
    assert (graph.parameters, flop_of(graph, "linear")) == (parameters, flop)


def test_attention_without_weights(tmp_path):
    attention = layer("Attention", "seen", "x", "y", use_scale=True)
    table = functional(input_layer("x", 5, 8), input_layer("y", 9, 8), attention, inputs=("x", "y"))
    graph = graph_of(table, tmp_path)
    assert graph.parameters == 1
    assert flop_of(graph, "attention") == 4 * 2 * 5 * 9 * 8
    assert graph.tensors[graph.outputs[0]].shape == (2, 5, 8)


def test_layers_that_are_called_twice_share_their_weights(tmp_path):
    dense = layer("Dense", "d", "x", units=4)
    again = layer("Dense", "d", "d", units=4)["inbound_nodes"]
    dense["inbound_nodes"] += again
    table = functional(input_layer("x", 4), dense, layer("Add", "sum", "x", "d"))
    table["config"]["output_layers"] = [["d", 1, 0]]
    graph = graph_of(table, tmp_path)
    assert graph.parameters == 4 * 4 + 4
    assert flop_of(graph, "linear") == 2 * (2 * 2 * 4 * 4)


def test_networks_in_networks(tmp_path):
    inner = functional(input_layer("x", 4), layer("Dense", "d", "x", units=4))
    outer = layer("Functional", "inner", "x")
    outer |= {"module": "keras", "config": inner["config"] | {"name": "inner"}}
    table = functional(input_layer("x", 4), outer, layer("Dense", "d", "inner", units=3))
    graph = graph_of(table, tmp_path)
    assert [op.name for op in graph.ops if op.kind == "linear"] == ["inner/d", "d"]
    assert graph.parameters == 4 * 4 + 4 + 4 * 3 + 3


def test_layers_of_version_2(tmp_path):
    layers = [input_layer("x", 6), layer("Dense", "d", units=5), layer("Add", "sum")]
    layers[0]["config"]["batch_input_shape"] = layers[0]["config"].pop("batch_shape")
    layers[1]["inbound_nodes"] = [[["x", 0, 0, {}]]]
    layers[2]["inbound_nodes"] = [[["d", 0, 0, {}], ["d", 0, 0, {}]]]
    for one in layers:
        del one["module"], one["registered_name"]
    table = functional(*layers)
    assert graph_of(table, tmp_path).parameters == 6 * 5 + 5


IMAGES = {
    "Conv2DTranspose": (
        {"filters": 4, "kernel_size": 3, "strides": 2, "padding": "same"},
        (14, 16, 4),
    ),
    "Conv2DTranspose valid": (
        {"filters": 4, "kernel_size": [2, 3], "strides": [3, 2]},
        (21, 17, 4),
    ),
    "SeparableConv2D": ({"filters": 5, "kernel_size": 3, "padding": "valid"}, (5, 6, 5)),
    "MaxPooling2D": ({"pool_size": [2, 2], "padding": "same"}, (4, 4, 3)),
    "AveragePooling2D": ({"pool_size": 3, "strides": 1}, (5, 6, 3)),
    "ZeroPadding2D": ({"padding": [[0, 1], [2, 3]]}, (8, 13, 3)),
    "Cropping2D": ({"cropping": [[1, 1], [2, 0]]}, (5, 6, 3)),
    "UpSampling2D": ({"size": 2, "interpolation": "bilinear"}, (14, 16, 3)),
    "GroupNormalization": ({"groups": 3}, (7, 8, 3)),
    "LayerNormalization": ({"axis": -1}, (7, 8, 3)),
    "PReLU": ({"shared_axes": [1, 2]}, (7, 8, 3)),
    "Flatten": ({}, (168,)),
    "Permute": ({"dims": [3, 1, 2]}, (3, 7, 8)),
    "Reshape": ({"target_shape": [-1, 4]}, (42, 4)),
    "Softmax": ({"axis": -1}, (7, 8, 3)),
    "Rescaling": ({"scale": 2.0, "offset": 1.0}, (7, 8, 3)),
    "Normalization": ({"axis": -1}, (7, 8, 3)),
    "LeakyReLU": ({"negative_slope": 0.1}, (7, 8, 3)),
    "SpatialDropout2D": ({"rate": 0.5}, (7, 8, 3)),
    "GlobalMaxPooling2D": ({"keepdims": True}, (1, 1, 3)),
}


@every("case", IMAGES)
def test_layers_of_images_have_the_shapes_that_keras_has(case, tmp_path):
    config, shape = IMAGES[case]
    kind = case.partition(" ")[0]
    table = functional(
        input_layer("x", 7, 8, 3), layer(kind, "l", "x", **config), layer("Flatten", "f", "l")
    )
    graph = graph_of(table, tmp_path)
    assert graph.tensors[graph.outputs[0]].shape == (2, int(np.prod(shape)))
    values = initial_values(graph, 1)
    assert np.isfinite(execute(graph, values)[graph.outputs[0]]).all()


def test_flatten_puts_channels_last_as_keras_does(tmp_path):
    table = functional(input_layer("x", 2, 2, 3), layer("Flatten", "f", "x"))
    graph = graph_of(table, tmp_path, batch=1)
    x = np.arange(12, dtype=np.float32).reshape(1, 2, 2, 3)  # as Keras has it
    (name,) = graph.inputs
    (y,) = execute(graph, {name: x.transpose(0, 3, 1, 2)}).values()
    assert (y == x.reshape(1, 12)).all()


def operation(kind: str, name: str, *args: Any, **config: Any) -> dict[str, Any]:
    """A function of `keras.ops`; a text among its arguments is a tensor."""
    found = layer(kind, name, **config)
    tensors = [
        {"class_name": "__keras_tensor__", "config": {"keras_history": [one, 0, 0]}}
        if isinstance(one, str)
        else one
        for one in args
    ]
    nodes = [{"args": tensors, "kwargs": {}}]
    return found | {
        "module": "keras.src.ops.numpy",
        "registered_name": kind,
        "inbound_nodes": nodes,
    }


def _slice(start: int | None, stop: int | None) -> dict[str, Any]:
    return {"class_name": "__slice__", "config": {"start": start, "stop": stop, "step": None}}


X = np.arange(48, dtype=np.float32).reshape(2, 4, 6)
OPERATIONS: dict[str, tuple[dict[str, Any], Any]] = {
    "mean": (operation("Mean", "y", "x", axis=1, keepdims=False), X.mean(1)),
    "max": (operation("Max", "y", "x", axis=[-1], keepdims=True), X.max(-1, keepdims=True)),
    "transpose": (operation("Transpose", "y", "x", axes=[0, 2, 1]), X.transpose(0, 2, 1)),
    "reshape": (operation("Reshape", "y", "x", newshape=[-1, 24]), X.reshape(2, 24)),
    "expand": (operation("ExpandDims", "y", "x", axis=-1), X[..., None]),
    "item": (operation("GetItem", "y", "x", [_slice(None, None), 0]), X[:, 0]),
    "items": (operation("GetItem", "y", "x", [_slice(None, None), _slice(1, 3)]), X[:, 1:3]),
    "less": (operation("Subtract", "y", 1.0, "x"), 1 - X),
    "square": (operation("Square", "y", "x"), X * X),
    "split": (operation("Split", "y", "x", indices_or_sections=2, axis=1), X[:, :2]),
    "softmax": (operation("Softmax", "y", "x", axis=-1), None),
}


@every("case", OPERATIONS)
def test_functions_are_numpys(case, tmp_path):
    said, wanted = OPERATIONS[case]
    graph = graph_of(functional(input_layer("x", 4, 6), said), tmp_path)
    (y,) = execute(graph, {"x": X}).values()
    if wanted is None:
        wanted = np.exp(X - X.max(-1, keepdims=True))
        wanted = wanted / wanted.sum(-1, keepdims=True)
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


def test_what_varies_its_input_in_training_infers_alone(tmp_path):
    table = functional(
        input_layer("x", 4, 4, 3), layer("RandomFlip", "flip", "x"), layer("Flatten", "f", "flip")
    )
    assert graph_of(table, tmp_path).parameters == 0
    with pytest.raises(InputError, match="layer 'flip': it varies its input in training"):
        graph_of(table, tmp_path, phase="train")


CANARY = "canary.txt"


def _lambda(folder: Path) -> dict[str, Any]:
    """A Lambda whose code would write a file."""
    import marshal

    code = compile(f"open({str(folder / CANARY)!r}, 'w').write('run')", "x", "exec")
    held = {
        "class_name": "__lambda__",
        "config": {"code": base64.b64encode(marshal.dumps(code)).decode()},
    }
    return layer("Lambda", "evil", "x", function=held)


REFUSED: dict[str, tuple[Any, str]] = {
    "own class": (
        lambda _: layer("Dense", "mine", "x", units=4) | {"module": "my_package.layers"},
        "layer 'mine': 'Dense' of 'my_package.layers' is a class of its own",
    ),
    "registered": (
        lambda _: layer("Dense", "mine", "x", units=4) | {"registered_name": "Custom>Dense"},
        "layer 'mine': 'Custom>Dense' of 'keras.layers' is a class of its own",
    ),
    "lambda": (_lambda, "layer 'evil': a Lambda holds code, which is not run"),
    "unknown": (lambda _: layer("Dens", "d", "x"), "did you mean 'Dense'"),
    "activation": (
        lambda _: layer("Dense", "d", "x", units=4, activation="reluu"),
        "unknown activation 'reluu'; did you mean 'relu'",
    ),
    "equation": (
        lambda _: layer("EinsumDense", "e", "x", equation="ab,bc->ca", output_shape=4),
        "layer 'e': equation 'ab,bc->ca' is not of a linear layer",
    ),
    "bias of a part": (
        lambda _: layer(
            "EinsumDense", "e", "x", equation="ab,bc->ac", output_shape=4, bias_axes="a"
        ),
        "layer 'e': bias_axes 'a': known is 'c', the new axes",
    ),
    "own function": (
        lambda _: layer(
            "Dense",
            "d",
            "x",
            units=4,
            activation={"class_name": "function", "config": "f", "registered_name": "pkg>f"},
        ),
        "activation 'pkg>f' is a function of its own",
    ),
    "no units": (
        lambda _: layer("Dense", "d", "x"),
        "layer 'd': units is a whole number from 1 on",
    ),
    "negative": (lambda _: layer("Dense", "d", "x", units=-4), "units is a whole number from 1 on"),
    "huge": (lambda _: layer("Dense", "d", "x", units=10**30), "units is a whole number"),
    "states": (
        lambda _: layer("LSTM", "d", "x", units=4, return_state=True),
        "layer 'd':",
    ),
    "wrong rank": (
        lambda _: layer("Conv2D", "d", "x", filters=4, kernel_size=3),
        "layer 'd': a convolution of",
    ),
}


@every("case", REFUSED)
def test_what_cannot_be_read_is_one_line(case, tmp_path):
    make, said = REFUSED[case]
    with pytest.raises(InputError, match=r"net\.json") as raised:
        graph_of(functional(input_layer("x", 4), make(tmp_path)), tmp_path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / CANARY).exists()


def test_what_is_unknown_passes_its_input_on_where_that_is_allowed(tmp_path):
    table = functional(input_layer("x", 4), _lambda(tmp_path), layer("Dense", "d", "evil", units=2))
    graph = graph_of(table, tmp_path, allow_unknown=True)
    assert graph.unmodelled == ("evil",)
    assert graph.parameters == 4 * 2 + 2
    assert not (tmp_path / CANARY).exists()


def test_circles_and_missing_layers(tmp_path):
    circle = functional(
        input_layer("x", 4),
        layer("Add", "a", "x", "b"),
        layer("Add", "b", "a", "x"),
        layer("Dense", "d", "b", units=2),
    )
    with pytest.raises(InputError, match=r"'[ab]' and '[ab]' wait for each other"):
        graph_of(circle, tmp_path)
    dense = layer("Dense", "d", "x", units=2)
    dense["inbound_nodes"] = [[["x", 0, 3, {}]]]  # an input has no fourth output
    with pytest.raises(InputError, match="output 'd' is never made: inputs are missing"):
        graph_of(functional(input_layer("x", 4), dense), tmp_path)
    with pytest.raises(InputError, match="unknown layer 'y'"):
        graph_of(functional(input_layer("x", 4), layer("Dense", "d", "y", units=2)), tmp_path)


@pytest.mark.rare  # mutations in test_formats_fuzz.py end soon
def test_networks_in_networks_are_bounded(tmp_path):
    deep = functional(input_layer("x", 4), layer("Activation", "a", "x", activation="linear"))
    for _ in range(60):
        outer = layer("Functional", "inner", "x") | {"module": "keras", "config": deep["config"]}
        deep = functional(input_layer("x", 4), outer)
    with pytest.raises(InputError, match="nested more than 50 deep"):
        graph_of(deep, tmp_path)
    wide = functional(input_layer("x", 4), layer("Activation", "a", "x", activation="linear"))
    for _ in range(30):  # each calls the one before twice
        first = layer("Functional", "one", "x") | {"module": "keras", "config": wide["config"]}
        first["inbound_nodes"] += layer("Functional", "one", "one")["inbound_nodes"]
        wide = functional(input_layer("x", 4), first)
        wide["config"]["output_layers"] = [["one", 1, 0]]
    with pytest.raises(InputError, match="more than 200000 calls of layers"):
        graph_of(wide, tmp_path)


def keras_file(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", content)
        archive.writestr("model.weights.h5", b"\0" * 5_000_000)
    return path


def test_an_archive_is_read_by_its_settings_alone(tmp_path):
    path = keras_file(tmp_path / "net.keras", json.dumps(functional(*CNN)).encode())
    chosen = read_model(str(path))
    graph = build(make_workload(chosen, 2, phase="infer"))
    assert graph.parameters == graph_of(functional(*CNN), tmp_path).parameters
    with zipfile.ZipFile(path, "a") as archive:  # other weights are the same network
        archive.writestr("more", b"x")
    assert read_model(str(path)).sha256 == chosen.sha256


@pytest.mark.slow
def test_reading_needs_no_framework(tmp_path):
    path = keras_file(tmp_path / "net.keras", json.dumps(functional(*CNN)).encode())
    code = (
        "import sys; from steptime.cli.main import run; code = run(sys.argv[1:]);"
        "sys.exit(code or [m for m in ('torch', 'onnx', 'jax', 'keras', 'numpy', 'h5py')"
        " if m in sys.modules] or 0)"
    )
    command = [sys.executable, "-c", code, "count", str(path), "--batch", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_many_parts_are_refused_before_they_are_listed(tmp_path):
    split = operation("Split", "y", "x", indices_or_sections=2**40, axis=1)
    with pytest.raises(InputError, match="in 1099511627776 parts"):
        graph_of(functional(input_layer("x", 2**40), split), tmp_path)


def test_a_bomb_is_not_unpacked(tmp_path):
    path = keras_file(tmp_path / "net.keras", b" " * 65_000_000)
    with pytest.raises(InputError, match=r"config\.json of 65000000 bytes"):
        read_model(str(path))
    path.write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InputError, match="not a ZIP archive that can be read"):
        read_model(str(path))


@pytest.mark.rare
def test_ten_thousand_mutations_are_networks_or_one_line(tmp_path):
    rng = random.Random(7)  # noqa: S311  # no secret
    text = json.dumps(functional(*CNN))
    path = tmp_path / "net.json"
    values = ["null", "-1", "1e400", "true", '"x"', "[]", "{}", "999999999999", "[null]", "0.5"]
    networks, faults = 0, set[str]()
    for _ in range(10_000):
        at = rng.randrange(len(text))
        cut = at + rng.randrange(1, 12)
        path.write_text(text[:at] + rng.choice(["", *values]) + text[cut:])
        try:
            build(make_workload(read_model(str(path)), 1, phase="infer"))
            networks += 1
        except InputError as error:
            faults.add(str(error))
    assert networks > 0
    assert len(faults) > 20
    assert not any("\n" in one for one in faults)
