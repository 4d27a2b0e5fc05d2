"""What is wrong with a Caffe network is told in one line, which names the layer."""

import pytest

from every import every
from prototxt import DATA, HEAD, PRODUCT, fault, kinds, layer, network
from steptime.build import build, make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError


@every(
    ("text", "message"),
    [
        ("", "no layers in phase TRAIN"),
        (DATA, "no layers in phase TRAIN"),
        (
            'input: "data"' + HEAD,
            "1 'input' with 0 'input_shape' and 0 'input_dim' (four an input)",
        ),
        ('input: "data" input_shape { dim: 0 }', "input 'data': size 0 is not from 1 to 2^53"),
        (HEAD, "layer 'h': unknown bottom 'data'; there is none"),
        (
            DATA + layer("ReLU", bottom="dta"),
            "layer 'y': unknown bottom 'dta'; did you mean 'data'?",
        ),
        (DATA + layer("ReLU", bottom=""), "layer 'y': has no bottom"),
        (DATA + layer("Eltwise"), "layer 'y': 1 bottoms, not 2 to 1000"),
        (DATA + layer("ReLU", bottom="data data"), "layer 'y': 2 bottoms, not 1"),
        (
            DATA + layer("Convolutoin"),
            "layer 'y': unknown type of layer 'Convolutoin'; did you mean 'Convolution'?",
        ),
        (
            DATA + layer("Convolution", "convolution_param { num_outputs: 4 }"),
            "line 2, in convolution_param: unknown field 'num_outputs'; did you mean 'num_output'?",
        ),
        (
            DATA + layer("Convolution", "convolution_param { kernel_size: 3 }"),
            "layer 'y': num_output is missing or below 1",
        ),
        (
            DATA + layer("Convolution", "convolution_param { num_output: 3 }"),
            "layer 'y': kernel [0, 0]: kernel_size is missing or below 1",
        ),
        (
            DATA + layer("Convolution", "convolution_param { num_output: 3 kernel_size: 9 }"),
            "layer 'y': a filter [3, 3, 9, 9] does not fit into [2, 3, 8, 10]",
        ),
        (
            DATA + layer("Convolution", "convolution_param { num_output: -3 kernel_size: 9 }"),
            "line 2: is no network in Caffe's text form: Value out of range: -3",
        ),
        (
            DATA
            + layer("Convolution", "convolution_param { num_output: 3 kernel_size: [1, 1, 1] }"),
            "layer 'y': 3 sizes of 'kernel_size', not height and width alone is not modelled",
        ),
        (DATA + layer("InnerProduct"), "layer 'y': num_output is missing or below 1"),
        (
            DATA + HEAD + layer("Eltwise", bottom="h data"),
            "layer 'y': shapes [2, 4] and [2, 3, 8, 10] differ",
        ),
        (
            DATA + HEAD + layer("Concat", bottom="h data"),
            "layer 'y': concat of [2, 4] and [2, 3, 8, 10] along axis 1",
        ),
        (DATA + HEAD + layer("ReLU", top="h"), "layer 'y': blob 'h' is made a second time"),
        (
            DATA + layer("Softmax", "softmax_param { axis: 4 }"),
            "layer 'y': axis 4 of a blob with 4 axes",
        ),
        (DATA + layer("ELU"), "layer 'y': a layer of type 'ELU' is not modelled"),
        (
            DATA + layer("ReLU", top="a b") + layer("ReLU", bottom="b", name="z"),
            "layer 'z': reads a blob that its layer does not make",
        ),
        (
            DATA + layer("ReLU", "include { } exclude { }"),
            "layer 'y': has both 'include' and 'exclude'",
        ),
        (DATA + "layers { } layer { }", "has both 'layer' and the older 'layers'"),
        (
            DATA + layer("Dropout", "dropout_param { dropout_ratio: nan }"),
            "layer 'y': dropout_ratio nan is not",
        ),
        (
            DATA + layer("Reshape", "reshape_param { shape { dim: 0 dim: 7 } }"),
            "layer 'y': reshape [2, 3, 8, 10] to [2, 7]",
        ),
        ("layer {\n" * 5000, "nested too deeply for a network"),
        ("foo {\n" * 50_000 + "}\n" * 50_000, "nested too deeply for a network"),
        ("\0\1\2", "line 1: is no network in Caffe's text form: "),
        ("{}", "line 1: is no network in Caffe's text form: "),
    ],
)
def test_faults_are_one_line(text, message):
    assert fault(text).startswith(f"net.prototxt: {message}")


def test_what_has_nothing_to_train_is_told():
    assert fault(DATA + layer("ReLU"), "train") == "net.prototxt: has no weights to train"


def test_sizes_beyond_bounds_are_told(tmp_path):
    path = tmp_path / "large.prototxt"
    path.write_text(
        DATA
        + layer(
            "Convolution",
            "convolution_param { num_output: 4000000000 kernel_size: 1 pad: 4000000000 }",
        )
    )
    with pytest.raises(InputError, match=r"tensor 'y.*' has more than 2\^53 bytes"):
        build(make_workload(read_model(str(path))))


def test_unknown_layers_pass_their_input_on_if_allowed():
    text = (
        DATA
        + HEAD
        + layer("Mystery", "mystery_param { deep { er: 1 } list: [1, 2] }", "h data", "m", "odd")
        + layer("ReLU", "relu_param { smooth: true }", "m")
        + layer("ELU", bottom="y", top="e", name="e")
    )
    assert "layer 'odd': unknown type of layer 'Mystery'; known: " in fault(text)
    graph = network(text, "train", allow_unknown=True)
    assert graph.unmodelled == ("odd", "y", "e")
    assert kinds(graph) == ["reshape", "linear", "bias", "relu", "mean"]


def test_a_gradient_stopped_inside_a_network_is_told():
    text = DATA + HEAD + layer("InnerProduct", PRODUCT + "propagate_down: false", "h")
    assert "propagate_down: false is not modelled" in fault(text, "train")
    assert network(text).unmodelled == ()
    first = layer("InnerProduct", PRODUCT + "propagate_down: false")
    assert network(DATA + first, "train").parameters == 4 * 240 + 4  # no gradient there anyway


def test_the_command_line_tells_a_fault(tmp_path, capsys):
    path = tmp_path / "net.prototxt"
    path.write_text(DATA + layer("Convolutoin"))
    assert run(["count", str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert "did you mean 'Convolution'?" in err
    passed = make_workload(read_model(str(path), allow_unknown=True), phase="infer")
    assert build(passed).unmodelled == ("y",)
