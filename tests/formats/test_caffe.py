"""Caffe networks as a whole: their inputs, phases and losses, and that they run."""

from collections import Counter

import pytest

from every import every
from prototxt import DATA, HEAD, PRODUCT, fault, kinds, layer, network, one, phased, shape
from reference.backend import execute, initial_values
from steptime.build import build, build_step, make_workload, read_model
from steptime.core.graph import check
from steptime.formats import Source
from steptime.formats.caffe.read import read
from steptime.measure.contract import Options

IMAGES = layer("Data", "data_param { batch_size: 5 }", "", "data label", "images")


# inputs


@every(
    "text",
    [
        'input: "data" input_dim: 2 input_dim: 3 input_dim: 8 input_dim: 10\n',
        DATA,
        layer("Input", "input_param { shape { dim: 2 dim: 3 dim: 8 dim: 10 } }", "", "data"),
        layer("DummyData", "dummy_data_param { shape { dim: [2, 3, 8, 10] } }", "", "data"),
        layer(
            "DummyData", "dummy_data_param { num: 2 channels: 3 height: 8 width: 10 }", "", "data"
        ),
        layer(
            "MemoryData",
            "memory_data_param { batch_size: 2 channels: 3 height: 8 width: 10 }",
            "",
            "data label",
        ),
        layer(
            "ImageData",
            "image_data_param { batch_size: 2 new_height: 8 new_width: 10 }",
            "",
            "data",
        ),
    ],
)
def test_an_input_is_given_four_ways(text):
    text += layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", name="p")
    assert shape(network(text), "data") == (2, 3, 8, 10)
    assert shape(network(text), "p") == (2, 3, 4, 5)
    assert shape(network(text, batch=7), "p") == (7, 3, 4, 5)
    assert read(Source("net.prototxt", text.encode()), False).batch == 2


@every("kind", ["Data", "ImageData", "HDF5Data", "WindowData"])
def test_images_have_the_size_of_their_crop(kind):
    key = {"Data": "data", "ImageData": "image_data", "HDF5Data": "hdf5_data"}.get(
        kind, "window_data"
    )
    more = f"{key}_param {{ batch_size: 5 }} transform_param {{ crop_size: 16 mirror: true"
    text = layer(kind, more + "}", "", "data label", "in") + layer("ReLU")
    assert shape(network(text), "data") == (5, 3, 16, 16)
    gray = layer(kind, more + " force_gray: true }", "", "data label", "in") + layer("ReLU")
    assert shape(network(gray), "data") == (5, 1, 16, 16)


def test_an_input_of_unknown_size_is_an_error():
    assert fault(IMAGES + layer("ReLU")) == (
        "net.prototxt: layer 'images': the file does not say how large its images are"
        " (no crop_size); give an Input layer with the shape"
    )


def test_only_inputs_that_name_the_batch_follow_it():
    text = (
        'input: "data" input_shape { dim: 2 dim: 4 } input: "table" input_shape { dim: 9 dim: 4 }'
        + layer("InnerProduct", PRODUCT, "data", "a", "a")
        + layer("InnerProduct", PRODUCT, "table", "b", "b")
    )
    graph = network(text, batch=6)
    assert (shape(graph, "data"), shape(graph, "table")) == ((6, 4), (9, 4))


# phases


def test_each_phase_has_its_layers():
    text = (
        phased("TRAIN", 8)
        + phased("TEST", 2)
        + layer("InnerProduct", PRODUCT, top="h", name="h")
        + layer("Dropout", "include { phase: TRAIN }", "h", "h", "drop")
        + layer("Accuracy", "include { phase: TEST }", "h label", "a", "a")
        + layer("SoftmaxWithLoss", "exclude { phase: TEST }", "h label", "l", "loss")
        + layer("Softmax", "include { phase: TEST }", "h", "p", "prob")
    )
    assert read(Source("net.prototxt", text.encode()), False).batch == 8
    train = network(text, "train")
    assert [op.name for op in train.ops] == ["h/flatten", "h", "h/bias", "drop", "loss"]
    assert shape(train, "data") == (8, 3, 6, 6)
    assert train.tensors["label"].dtype == "int64"
    infer = network(text)
    assert [op.name for op in infer.ops] == ["h/flatten", "h", "h/bias", "prob"]
    assert infer.inputs == ("data",)


@every(
    ("state", "rule", "there"),
    [
        ("", "include { stage: 'deploy' }", False),
        ("state { stage: 'deploy' }", "include { stage: 'deploy' }", True),
        ("state { stage: 'deploy' }", "include { not_stage: 'deploy' }", False),
        ("state { level: 2 }", "include { min_level: 3 } include { max_level: 2 }", True),
        ("state { level: 2 }", "exclude { min_level: 2 phase: TEST }", False),
        ("state { phase: TRAIN }", "include { phase: TEST }", True),  # what was asked for counts
    ],
)
def test_rules_of_level_and_stage(state, rule, there):
    text = state + DATA + layer("ReLU", top="a", name="a") + layer("ReLU", rule, "a", "b", "b")
    assert ("b" in network(text).tensors) is there


def test_the_older_form_says_the_same():
    text = (
        DATA
        + 'layers { name: "c" type: CONVOLUTION bottom: "data" top: "c" blobs_lr: 1 blobs_lr: 2'
        " weight_decay: 1 convolution_param { num_output: 4 kernel_size: 3 } }"
        ' layers { name: "r" type: RELU bottom: "c" top: "c" }'
        ' layers { name: "p" type: POOLING bottom: "c" top: "p"'
        " pooling_param { pool: AVE kernel_size: 3 stride: 2 } }"
        ' layers { name: "n" type: LRN bottom: "p" top: "n" }'
        ' layers { name: "ip" type: INNER_PRODUCT bottom: "n" top: "ip"'
        " inner_product_param { num_output: 5 } }"
        ' layers { name: "l" type: SOFTMAX_LOSS bottom: "ip" bottom: "data" top: "l" }'
    )
    graph = network(text, "train")
    assert kinds(graph) == [
        *("conv2d", "bias", "relu", "avg_pool2d", "local_response_norm"),
        *("reshape", "linear", "bias", "cross_entropy"),
    ]
    assert graph.parameters == 4 * 27 + 4 + 5 * (4 * 3 * 4) + 5  # ceil(3/2)+1, ceil(5/2)+1
    frozen = network(text.replace("blobs_lr: 1", "blobs_lr: 0"), "train")
    assert frozen.parameters == graph.parameters - 4 * 27


def test_weights_are_shared_by_name_and_frozen_by_rate():
    shared = 'param { name: "w" } param { lr_mult: 0 }' + PRODUCT
    text = (
        'input: "data" input_shape { dim: 2 dim: 4 }'
        + layer("InnerProduct", shared, "data", "a", "a")
        + layer("InnerProduct", shared, "a", "b", "b")
    )
    graph = network(text, "train")
    assert graph.weights == ("a/w",)
    assert graph.buffers == ("a/b", "b/b")
    assert [op.inputs[1] for op in graph.ops if op.kind == "linear"] == ["a/w", "a/w"]
    other = text.replace("dim: 4", "dim: 3", 1)
    assert fault(other) == "net.prototxt: layer 'b': shares 'w' [4, 3], but needs [4, 4]"


# ends


def test_a_softmax_at_the_end_is_trained_as_its_loss():
    text = DATA + HEAD + layer("Softmax", bottom="h", name="prob", top="prob")
    train = network(text, "train")
    assert kinds(train)[-1] == "cross_entropy"
    assert train.outputs == ("prob",)
    assert shape(train, "prob/labels") == (2,)
    assert kinds(network(text))[-1] == "softmax"
    assert shape(network(text), "prob") == (2, 4)


def test_a_network_without_a_loss_is_trained_on_its_mean():
    graph = network(DATA + HEAD, "train")
    assert kinds(graph) == ["reshape", "linear", "bias", "mean"]
    assert graph.outputs == ("h/loss",)


def test_a_loss_over_maps_has_a_label_a_position():
    graph = network(
        'input: "data" input_shape { dim: 2 dim: 3 dim: 8 dim: 10 } input: "label"'
        " input_shape { dim: 2 dim: 1 dim: 8 dim: 10 }"
        + layer(
            "Convolution", "convolution_param { num_output: 5 kernel_size: 1 }", top="s", name="s"
        )
        + layer("SoftmaxWithLoss", bottom="s label", name="loss", top="loss"),
        "train",
    )
    assert shape(graph, "label") == (2, 8, 10)
    assert kinds(graph)[-2:] == ["transpose", "cross_entropy"]


AUXILIARY = (
    phased("TRAIN", 8)
    + phased("TEST", 2)
    + layer("InnerProduct", PRODUCT, top="h", name="h")
    + layer("InnerProduct", PRODUCT, "h", "side", "side")
    + layer("SoftmaxWithLoss", "loss_weight: 0.3", "side label", "l1", "loss1")
    + layer("Accuracy", "", "side label", "top1", "top1")
    + layer("InnerProduct", PRODUCT, "h", "main", "main")
    + layer("SoftmaxWithLoss", "loss_weight: 1", "main label", "l2", "loss2")
)


def test_losses_are_added_and_measures_cost_nothing():
    train = network(AUXILIARY, "train")
    assert Counter(kinds(train)) == Counter(reshape=1, linear=3, bias=3, cross_entropy=2, add=1)
    assert train.outputs == ("loss_sum/1",)
    assert train.inputs == ("data", "label")  # one label for both losses


def test_inference_leaves_auxiliary_losses_out():
    infer = network(AUXILIARY)
    assert [op.name for op in infer.ops if op.kind == "linear"] == ["h", "main"]
    assert infer.outputs == ("loss2",)
    assert infer.ops[-1].kind == "softmax"


def test_a_loss_of_weight_0_is_no_end():
    graph = network(AUXILIARY.replace("0.3", "0"), "train")
    assert graph.outputs == ("loss2",)
    assert [op.name for op in graph.ops if op.kind == "linear"] == ["h", "main"]


def test_silence_ends_a_branch():
    text = DATA + HEAD + layer("ReLU", bottom="h", name="r", top="r") + layer("ReLU", bottom="h")
    assert "r" in network(text).tensors
    assert "r" not in network(text + layer("Silence", bottom="r", top="", name="s")).tensors


def test_euclidean_loss():
    text = (
        DATA
        + 'input: "target" input_shape { dim: 2 dim: 4 }'
        + HEAD
        + layer("EuclideanLoss", bottom="h target", name="loss", top="loss")
    )
    graph = network(text, "train")
    assert kinds(graph)[-3:] == ["sub", "mul", "mean"]
    assert shape(graph, "target") == (2, 4)
    assert network(text).outputs == ("h/bias",)


@pytest.mark.parametrize("kind", ["SigmoidCrossEntropyLoss", "HingeLoss"])
def test_losses_without_op_kinds_are_told(kind):
    text = DATA + HEAD + layer(kind, bottom="h data", name="loss", top="loss")
    assert fault(text, "train") == (
        f"net.prototxt: layer 'loss': a layer of type '{kind}' is not modelled;"
        " --allow-unknown passes its input on"
    )
    assert network(text, "train", allow_unknown=True).unmodelled == ("loss",)
    assert network(text).unmodelled == ()  # it is no part of inference


def test_mixed_precision_has_its_loss_in_the_type_of_the_weights():
    graph = network(AUXILIARY, "train", dtype="bfloat16-mixed")
    assert graph.tensors[graph.outputs[0]].dtype == "float32"
    assert graph.tensors["main"].dtype == "bfloat16"


def test_the_same_network_runs_on_numpy():
    text = (
        DATA
        + layer(
            "Convolution", "convolution_param { num_output: 4 kernel_size: 3 }", top="c", name="c"
        )
        + layer("BatchNorm", bottom="c", top="c", name="n")
        + layer("Scale", "scale_param { bias_term: true }", bottom="c", top="c", name="s")
        + layer("PReLU", bottom="c", top="c", name="r")
        + layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", "c", "p", "p")
        + layer("Scale", "scale_param { bias_term: true }", "p", "q", "q")
        + layer("InnerProduct", PRODUCT, "q", "h", "h")
        + layer("Softmax", bottom="h")
    )
    graph = network(text)
    made = execute(graph, initial_values(graph, 1), keep=graph.outputs)[graph.outputs[0]]
    assert made.shape == (2, 4)
    assert made.sum(-1) == pytest.approx([1, 1])


@pytest.mark.slow
@pytest.mark.framework
def test_everything_that_can_be_read_runs_on_torch(tmp_path):
    import torch

    from steptime.measure.backends.torch import backend as torch_backend

    convolution = "convolution_param { num_output: 4 kernel_size: 3 pad: 1 bias_term: false }"
    up = "convolution_param { num_output: 4 kernel_size: 4 stride: 2 pad: 1 group: 2 }"
    text = (
        DATA
        + layer("Convolution", convolution, "data", "c", "c")
        + layer("BatchNorm", "batch_norm_param { use_global_stats: true }", "c", "c", "n")
        + layer("Scale", "scale_param { bias_term: true }", "c", "c", "s")
        + layer("ReLU", "relu_param { negative_slope: 0.1 }", "c", "c", "leaky")
        + layer("Pooling", "pooling_param { kernel_size: 1 stride: 3 }", "c", "p", "p")
        + layer("Deconvolution", up, "p", "u", "u")
        + layer("Crop", "crop_param { axis: 2 }", "u p", "v", "v")
        + layer("Eltwise", "eltwise_param { operation: MAX }", "v p", "m", "m")
        + layer("PReLU", "", "m", "m", "prelu")
        + layer("LRN", "", "m", "l", "l")
        + layer("Scale", "scale_param { bias_term: true }", "l", "l", "alone")
        + layer("Slice", "", "l", "a b", "cut")
        + layer("Power", "power_param { power: 2 shift: 1 }", "a", "a", "power")
        + layer("Concat", "", "a b", "k", "k")
        + layer("Flatten", "", "k", "k", "flat")
        + layer("Dropout", "", "k", "k", "drop")
        + layer("InnerProduct", PRODUCT, "k", "h", "h")
        + layer("SoftmaxWithLoss", "", "h data", "loss", "loss")
        + layer("EuclideanLoss", "", "h h", "loss2", "loss2")
    )
    path = tmp_path / "all.prototxt"
    path.write_text(text)
    for phase in ("train", "infer"):
        work = make_workload(read_model(str(path)), 3, phase=phase)
        check(build_step(work))
        prepared = torch_backend.prepare(build(work), work, Options())
        prepared.step()
    assert torch.is_grad_enabled()
    assert one("Flatten").outputs == ("y",)
