"""Paleo's network files: shapes, parameters and names of their layers, and what they run as."""

import pytest

from every import every
from paleo_net import (
    block,
    by_name,
    conv,
    graph_of,
    image,
    layer,
    op_of,
    pool,
    split,
    workload,
    written,
)
from steptime.build import build, build_step
from steptime.measure.contract import Options

# --- windows: VALID ceil((h - k + 1) / s), SAME ceil(h / s), explicit floor((h + 2p - k) / s) + 1


@every(
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
@every("kind", ["Convolution", "Pooling", "AvgPool"])
def test_windows(tmp_path, kind, padding, size, kernel, stride, out, pads):
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


def test_a_window_of_unequal_sides(tmp_path):
    graph = graph_of(tmp_path, {"data": image(1, 8, 9, 2), "c": conv("data", 1, 7, 2, 3)})
    assert by_name(graph)["c"].parameters == 1 * 7 * 2 * 3 + 3
    assert op_of(graph, "c").attrs["padding"] == (0, 0, 3, 3)
    assert graph.tensors["c/w"].shape == (3, 2, 1, 7)


# --- what goes with a product


@every(
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
def test_bias_norm_and_activation(tmp_path, keys, kinds, trained):
    graph = graph_of(
        tmp_path, {"data": image(1, 5, 5, 3), "c": conv("data", 3, 3, -1, 2, **keys)}, phase="infer"
    )
    assert [op.kind for op in graph.ops] == kinds
    assert [op.name for op in graph.ops] == ["c", *(f"c/{kind}" for kind in kinds[1:])]
    assert graph.parameters == trained
    assert by_name(graph)["c"].parameters == 3 * 3 * 3 * 2 + 2  # the file's rule: always a bias


def test_a_deconvolution_is_the_transpose_of_a_convolution(tmp_path):
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


def test_every_other_type(tmp_path):
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


def test_a_softmax_over_maps_has_a_label_for_each_place(tmp_path):
    layers = {"data": image(2, 3, 4, 5), "p": layer("Softmax", "data", num_classes=5)}
    assert graph_of(tmp_path, layers).tensors["p/labels"].shape == (2, 3, 4)
    layers = {"data": image(2, 1, 1, 5), "p": layer("Softmax", "data")}
    assert graph_of(tmp_path, layers).tensors["p/labels"].shape == (2,)
    assert by_name(graph_of(tmp_path, layers))["p"].outputs == (2, 5)


def test_several_ends_under_mixed_precision_add_in_the_type_of_the_weights(tmp_path):
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


def test_blocks_are_namespaces(tmp_path):
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


def test_model_parallel_blocks_repeat_their_layers(tmp_path):
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


def test_layers_ready_together_keep_the_order_of_the_file(tmp_path):
    layers = {
        "z": layer("ReLU", "b"),
        "b": layer("ReLU", "data"),
        "a": layer("ReLU", "data"),
        "data": image(1, 2),
    }
    assert list(by_name(graph_of(tmp_path, layers))) == ["data", "b", "z", "a"]


@pytest.mark.framework
@pytest.mark.parametrize("phase", ["train", "infer"])
def test_every_type_runs_on_torch(tmp_path, phase):
    from steptime.measure.backends.torch import backend as torch_backend

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
