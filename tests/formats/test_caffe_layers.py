"""Caffe's layers are read with Caffe's semantics: shapes, weights and FLOP by hand."""

from collections import Counter

import pytest

from every import every
from prototxt import DATA, fault, flop, kinds, layer, network, one, shape

# convolutions


def test_convolution_has_a_bias_unless_told_not_to():
    graph = one("Convolution", "convolution_param { num_output: 5 kernel_size: 3 }")
    assert shape(graph) == (2, 5, 6, 8)
    assert graph.weights == ("y/w", "y/b")
    assert [op.name for op in graph.ops] == ["y", "y/bias"]
    assert graph.parameters == 5 * 3 * 3 * 3 + 5
    assert flop(graph) == 2 * (3 * 3 * 3) * 5 * (6 * 8) * 2
    bare = one("Convolution", "convolution_param { num_output: 5 kernel_size: 3 bias_term: false }")
    assert bare.parameters == 5 * 3 * 3 * 3


@every(
    ("more", "out"),
    [
        ("kernel_size: 3 stride: 2 pad: 1", (4, 5)),  # (8+2-3)//2 + 1, (10+2-3)//2 + 1: down
        ("kernel_h: 1 kernel_w: 3 pad_h: 0 pad_w: 1 stride_h: 2 stride_w: 3", (4, 4)),
        ("kernel_size: 3 kernel_size: 5", (6, 6)),
        ("kernel_size: 3 kernel_size: 3 stride: 1 stride: 2 pad: 0 pad: 1", (6, 5)),
        ("kernel_size: 3 dilation: 2", (4, 6)),  # a window of 5
        ("kernel_size: 3 dilation: 1 dilation: 3", (6, 4)),
    ],
)
def test_windows_of_a_convolution(more, out):
    assert shape(one("Convolution", f"convolution_param {{ num_output: 4 {more} }}")) == (
        2,
        4,
        *out,
    )


def test_groups_of_a_convolution():
    graph = one("Convolution", "convolution_param { num_output: 6 kernel_size: 1 group: 3 }")
    assert graph.parameters == 6 * (3 // 3) * 1 + 6
    assert flop(graph) == 2 * 1 * 6 * (8 * 10) * 2
    assert fault(
        DATA + layer("Convolution", "convolution_param { num_output: 4 kernel_size: 1 group: 3 }")
    ) == ("net.prototxt: layer 'y': 3 channels and 4 outputs in 3 groups")


def test_deconvolution_up_samples_by_groups():
    graph = one(
        "Deconvolution",
        "convolution_param { num_output: 3 kernel_size: 4 stride: 2 pad: 1 group: 3"
        " bias_term: false }",
        phase="train",
    )
    assert shape(graph) == (2, 3, 16, 20)  # 2 * (8 - 1) + 4 - 2 * 1
    assert graph.parameters == 3 * 1 * 4 * 4
    assert flop(graph) == 2 * (4 * 4) * 1 * (2 * 3 * 8 * 10)  # each input reaches each weight once
    grown = one(
        "Deconvolution", "convolution_param { num_output: 5 kernel_size: 3 stride: 3 dilation: 2 }"
    )
    assert shape(grown) == (2, 5, 3 * 7 + 2 * 2 + 1, 3 * 9 + 2 * 2 + 1)
    assert grown.parameters == 3 * 5 * 3 * 3 + 5


# pooling


@every(
    ("more", "kind", "out"),
    [
        ("kernel_size: 3 stride: 2", "max_pool2d", (4, 5)),  # ceil(5/2) + 1, ceil(7/2) + 1
        ("kernel_size: 3 stride: 2 round_mode: FLOOR", "max_pool2d", (3, 4)),
        ("pool: AVE kernel_size: 2 stride: 2", "avg_pool2d", (4, 5)),
        ("pool: STOCHASTIC kernel_size: 2 stride: 2", "max_pool2d", (4, 5)),
        # ceil((8+2-2)/3) + 1 = 4, but that window begins at 9, in the padding; 10: ceil(10/3) + 1
        ("kernel_size: 2 stride: 3 pad: 1", "max_pool2d", (3, 4)),
        # without padding Caffe keeps a window that begins behind the map: ceil(7/4) + 1 = 3
        ("kernel_size: 1 stride: 4", "max_pool2d", (3, 4)),
        ("kernel_h: 2 kernel_w: 3 stride_h: 1 stride_w: 2", "max_pool2d", (7, 5)),
        ("kernel_size: 3 kernel_size: 2 pad: 1 pad: 0", "max_pool2d", (8, 9)),
        ("global_pooling: true", "max_pool2d", (1, 1)),
        ("pool: AVE global_pooling: true", "avg_pool2d", (1, 1)),
    ],
)
def test_pooling_rounds_up(more, kind, out):
    graph = one("Pooling", f"pooling_param {{ {more} }}")
    assert kinds(graph) == [kind]
    assert shape(graph) == (2, 3, *out)


def test_global_pooling_reads_the_whole_map():
    graph = one("Pooling", "pooling_param { pool: AVE global_pooling: true }")
    assert flop(graph) == 2 * 3 * 8 * 10
    assert graph.parameters == 0


@pytest.mark.framework
@every(
    "more",
    [
        "kernel_size: 3 stride: 2",
        "kernel_size: 3 stride: 2 pad: 1",
        "kernel_size: 2 stride: 3 pad: 1",
        "pool: AVE kernel_size: 3 stride: 2 pad: 1",
        "kernel_size: 4 stride: 3 pad: 2 round_mode: FLOOR",
    ],
)
def test_pooling_agrees_with_torch(more):
    import torch

    find = {part.rstrip(":"): value for part, value in zip(*[iter(more.split())] * 2, strict=True)}
    made = torch.nn.functional.max_pool2d(
        torch.zeros(2, 3, 8, 10),
        int(find["kernel_size"]),
        int(find["stride"]),
        int(find.get("pad", 0)),
        ceil_mode="round_mode" not in find,
    )
    assert shape(one("Pooling", f"pooling_param {{ {more} }}")) == tuple(made.shape)


@pytest.mark.framework
def test_deconvolution_agrees_with_torch():
    import torch

    made = torch.nn.ConvTranspose2d(3, 4, (3, 5), (2, 3), (1, 2), dilation=2)(
        torch.zeros(2, 3, 8, 10)
    )
    graph = one(
        "Deconvolution",
        "convolution_param { num_output: 4 kernel_h: 3 kernel_w: 5 stride_h: 2 stride_w: 3"
        " pad_h: 1 pad_w: 2 dilation: 2 }",
    )
    assert shape(graph) == tuple(made.shape)


# products


def test_inner_product_flattens_from_its_axis():
    graph = one("InnerProduct", "inner_product_param { num_output: 7 }")
    assert shape(graph) == (2, 7)
    assert graph.parameters == 7 * (3 * 8 * 10) + 7
    assert flop(graph) == 2 * 2 * 240 * 7
    assert [op.name for op in graph.ops] == ["y/flatten", "y", "y/bias"]
    inner = one("InnerProduct", "inner_product_param { num_output: 7 axis: -1 bias_term: false }")
    assert shape(inner) == (2, 3, 8, 7)
    assert inner.parameters == 7 * 10
    turned = one("InnerProduct", "inner_product_param { num_output: 7 transpose: true }")
    assert turned.parameters == graph.parameters


# norms


def test_batch_norm_and_scale_are_one_op():
    text = (
        DATA
        + layer("BatchNorm", top="bn", name="bn")
        + layer("Scale", "scale_param { bias_term: true }", bottom="bn", top="bn", name="sc")
        + layer("ReLU", bottom="bn", top="bn", name="act")
    )
    graph = network(text, "train")
    assert kinds(graph) == ["batch_norm", "relu", "mean"]
    assert graph.ops[0].attrs["training"] is True
    assert graph.weights == ("sc/w", "sc/b")
    assert graph.parameters == 3 + 3  # the three stored blobs of BatchNorm are not trained
    assert graph.buffers == ("bn/running_mean", "bn/running_variance")
    assert network(text).ops[0].attrs["training"] is False
    plain = network(text.replace("bias_term: true", ""), "train")
    assert plain.parameters == 3
    assert kinds(plain)[0] == "batch_norm"


def test_batch_norm_alone_has_nothing_to_train():
    weights = layer(
        "Convolution", "convolution_param { num_output: 3 kernel_size: 1 }", top="c", name="c"
    )
    graph = network(DATA + weights + layer("BatchNorm", bottom="c"), "train")
    assert graph.parameters == 3 * 3 + 3
    stored = layer("BatchNorm", "batch_norm_param { use_global_stats: true }", bottom="c")
    assert network(DATA + weights + stored, "train").ops[-2].attrs["training"] is False
    batch = layer("BatchNorm", "batch_norm_param { use_global_stats: false }", bottom="c")
    assert network(DATA + weights + batch).ops[-1].attrs["training"] is True


def test_a_batch_norm_that_others_read_keeps_its_scale_apart():
    text = (
        DATA
        + layer("BatchNorm", top="bn", name="bn")
        + layer("Scale", bottom="bn", top="s", name="s")
        + layer("Eltwise", bottom="bn s")
    )
    graph = network(text, "train")
    assert Counter(kinds(graph)) == Counter(batch_norm=1, transpose=2, mul=1, add=1, mean=1)
    assert graph.parameters == 3


def test_scale_alone_is_a_product_and_a_sum():
    graph = one("Scale", "scale_param { bias_term: true }", phase="train")
    assert kinds(graph) == ["transpose", "mul", "transpose", "bias", "mean"]
    assert graph.parameters == 3 + 3
    assert flop(graph) == flop(graph, "y/bias") == 2 * 3 * 8 * 10
    assert shape(graph, "y/bias") == (2, 3, 8, 10)
    rows = one("Scale", "scale_param { axis: 2 num_axes: -1 bias_term: true }", phase="train")
    assert rows.parameters == 2 * 8 * 10
    number = one("Scale", "scale_param { num_axes: 0 bias_term: true }", phase="train")
    assert number.parameters == 2


def test_scale_by_a_second_bottom_is_a_gate():
    text = (
        DATA
        + layer("InnerProduct", "inner_product_param { num_output: 3 }", top="gate", name="gate")
        + layer("Scale", "scale_param { axis: 0 }", bottom="data gate")
    )
    graph = network(text, "train")
    assert shape(graph, "y/out") == (2, 3, 8, 10)
    assert graph.parameters == 3 * 240 + 3


def test_bias_layer():
    graph = one("Bias", phase="train")
    assert graph.parameters == 3
    assert flop(graph) == 480


def test_local_response_norm_keeps_its_numbers():
    graph = one("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.25 k: 2 }")
    assert dict(graph.ops[0].attrs) == {"size": 3, "alpha": 0.5, "beta": 0.25, "k": 2}
    assert dict(one("LRN").ops[0].attrs) == {"size": 5, "alpha": 1, "beta": 0.75, "k": 1}
    message = fault(DATA + layer("LRN", "lrn_param { norm_region: WITHIN_CHANNEL }"))
    assert message.startswith("net.prototxt: layer 'y': LRN with norm_region WITHIN_CHANNEL is not")


# elementwise


@every(
    ("kind", "more", "op", "parameters"),
    [
        ("ReLU", "", "relu", 0),
        ("ReLU", "relu_param { negative_slope: 0.1 }", "prelu", 0),
        ("PReLU", "", "prelu", 3),
        ("PReLU", "prelu_param { channel_shared: true }", "prelu", 1),
        ("Sigmoid", "", "sigmoid", 0),
        ("TanH", "", "tanh", 0),
        ("Power", "power_param { power: 2 }", "mul", 0),
        ("Power", "power_param { scale: 2 }", "mul", 0),
    ],
)
def test_activations(kind, more, op, parameters):
    graph = one(kind, more)
    assert kinds(graph) == [op]
    assert graph.ops[0].name == "y"
    assert graph.parameters == parameters


def test_power_is_a_product_a_sum_and_a_square():
    graph = one("Power", "power_param { power: 2 scale: 0.5 shift: 1 }")
    assert [(op.name, op.kind) for op in graph.ops] == [
        ("y/scale", "mul"),
        ("y/shift", "add"),
        ("y", "mul"),
    ]
    assert kinds(one("Power")) == []
    assert "Power with power 0.5 is not" in fault(
        DATA + layer("Power", "power_param { power: 0.5 }")
    )


@every(
    ("more", "ops"),
    [
        ("", ["add", "add"]),
        ("eltwise_param { operation: PROD }", ["mul", "mul"]),
        ("eltwise_param { operation: MAX }", ["maximum", "maximum"]),
        ("eltwise_param { coeff: 1 coeff: -1 coeff: 1 }", ["mul", "add", "add"]),
    ],
)
def test_eltwise_of_three(more, ops):
    convolution = "convolution_param { num_output: 3 kernel_size: 1 }"
    text = (
        DATA
        + layer("Convolution", convolution, top="a", name="a")
        + layer("Convolution", convolution, top="b", name="b")
        + layer("Eltwise", more, bottom="data a b")
    )
    graph = network(text, "train")
    assert kinds(graph)[4:-1] == ops
    assert graph.ops[-2].name == "y"


def test_dropout_ratio_is_the_share_dropped():
    weights = layer("InnerProduct", "inner_product_param { num_output: 4 }", top="h", name="h")
    text = DATA + weights + layer("Dropout", "dropout_param { dropout_ratio: 0.2 }", bottom="h")
    (drop,) = (op for op in network(text, "train").ops if op.kind == "dropout")
    assert drop.attrs["p"] == 0.2
    assert "dropout" not in kinds(network(text))
    usual = DATA + weights + layer("Dropout", bottom="h")
    assert next(op for op in network(usual, "train").ops if op.kind == "dropout").attrs["p"] == 0.5
    tested = DATA + weights + layer("Dropout", "phase: TEST", bottom="h")
    assert "dropout" not in kinds(network(tested, "train"))


# shapes


def test_concat_and_slice():
    cut = layer("Slice", "slice_param { axis: 3 slice_point: 4 slice_point: 6 }", top="a b c")
    text = DATA + cut + layer("Concat", "concat_param { axis: -1 }", "c a", "z", "z")
    graph = network(text)
    assert [shape(graph, name) for name in ("y", "y/1", "y/2", "z")] == [
        (2, 3, 8, n) for n in (4, 2, 4, 8)
    ]
    old = (
        DATA + layer("Split", top="a b") + layer("Concat", "concat_param { concat_dim: 2 }", "a b")
    )
    assert shape(network(old), "y#1") == (2, 3, 16, 10)
    even = DATA + layer("Slice", top="a b c") + layer("Concat", bottom="a b c", name="z", top="z")
    assert shape(network(even), "y/2") == (2, 1, 8, 10)
    assert shape(network(even), "z") == (2, 3, 8, 10)


@every(
    ("kind", "more", "out"),
    [
        ("Flatten", "", (2, 240)),
        ("Flatten", "flatten_param { axis: 2 }", (2, 3, 80)),
        ("Flatten", "flatten_param { axis: 1 end_axis: 2 }", (2, 24, 10)),
        ("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 5 } }", (2, 48, 5)),
        ("Reshape", "reshape_param { shape { dim: 2 dim: 240 } }", (2, 240)),
        ("Reshape", "reshape_param { shape { dim: 20 dim: -1 } axis: 2 }", (2, 3, 20, 4)),
        ("Reshape", "reshape_param { shape { dim: 1 } axis: 1 num_axes: 0 }", (2, 1, 3, 8, 10)),
        ("Reshape", "reshape_param { shape { dim: -1 } axis: 1 num_axes: 2 }", (2, 24, 10)),
        ("Reshape", "reshape_param { shape { dim: 1 } axis: -1 num_axes: 0 }", (2, 3, 8, 10, 1)),
    ],
)
def test_other_shapes(kind, more, out):
    assert shape(one(kind, more)) == out


def test_a_reshape_that_names_the_batch_follows_it():
    graph = one("Reshape", "reshape_param { shape { dim: 2 dim: 240 } }", batch=6)
    assert shape(graph) == (6, 240)


def test_crop_cuts_to_the_second_bottom():
    pooled = layer("Pooling", "pooling_param { kernel_size: 3 }", top="p", name="p")
    text = DATA + pooled + layer("Crop", "crop_param { offset: 1 }", bottom="data p")
    graph = network(text)
    assert shape(graph) == (2, 3, 6, 8)
    assert graph.ops[-1].attrs == {"axis": 3, "start": 1, "stop": 9}


def test_softmax_is_along_the_channels():
    graph = one("Softmax")
    assert kinds(graph) == ["transpose", "softmax", "transpose"]
    assert shape(graph) == (2, 8, 10, 3)
    pooled = layer("Pooling", "pooling_param { global_pooling: true }", top="p", name="p")
    flat = network(DATA + pooled + layer("Softmax", bottom="p"))
    assert shape(flat) == (2, 3)  # one column: no need to turn
    assert shape(flat, flat.outputs[0]) == (2, 3, 1, 1)


def test_a_layer_in_place_makes_a_new_version_of_its_blob():
    text = (
        DATA
        + layer("Convolution", "convolution_param { num_output: 3 kernel_size: 1 }", top="a")
        + layer("ReLU", bottom="a", top="a", name="r")
        + layer("Eltwise", bottom="a data", top="a", name="e")
    )
    graph = network(text)
    assert [(op.name, op.inputs) for op in graph.ops[2:]] == [
        ("r", ("y/bias",)),
        ("e", ("r", "data")),
    ]


def test_slashes_and_twice_used_names():
    text = DATA + layer("ReLU", top="a", name="a/b") + layer("ReLU", bottom="a", name="a/b")
    assert [op.name for op in network(text).ops] == ["a/b", "a/b#1"]
