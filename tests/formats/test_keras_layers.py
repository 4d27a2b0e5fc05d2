"""Layers of Keras held against numpy and hand arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from every import every
from keras_networks import flop_of, functional, graph_of, input_layer, layer
from reference.backend import execute, initial_values
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.network.ops.training import training_graph


def run(graph: Graph, seed: int = 3) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Random values of all inputs and weights, and the output for them."""
    values = initial_values(graph, seed)
    (output,) = graph.outputs
    return values, execute(graph, values)[output]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def convolve_same(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """A convolution `[n, c, h, w]` by `[f, c, 3, 3]` with padding that keeps the size."""
    height, width = image.shape[2:]
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    output = np.zeros((image.shape[0], kernel.shape[0], height, width))
    for row in range(3):
        for column in range(3):
            window = padded[:, :, row : row + height, column : column + width]
            output += np.einsum("nchw,fc->nfhw", window, kernel[:, :, row, column])
    return output


@pytest.mark.parametrize("axis", [-1, [1, 2]])
def test_a_unit_normalization_is_numpys(axis, tmp_path):
    norm = layer("UnitNormalization", "u", "x", axis=axis)
    graph = graph_of(functional(input_layer("x", 5, 6), norm), tmp_path)
    assert graph.parameters == 0
    values, output = run(graph)
    axes = axis if axis == -1 else tuple(axis)
    length = np.sqrt((values["x"] ** 2).sum(axis=axes, keepdims=True))
    np.testing.assert_allclose(output, values["x"] / length, rtol=1e-5)


@pytest.mark.parametrize("return_sequences", [False, True])
def test_a_convolutional_lstm_is_numpys(return_sequences, tmp_path):
    """5 steps of 6x7 with 3 channels and 4 filters; the first state of zeros is convolved, too."""
    config = {"filters": 4, "kernel_size": [3, 3], "padding": "same"}
    lstm = layer("ConvLSTM2D", "l", "x", return_sequences=return_sequences, **config)
    graph = graph_of(functional(input_layer("x", 5, 6, 7, 3), lstm), tmp_path)
    assert graph.parameters == 4 * 4 * (9 * 3 + 9 * 4 + 1)
    assert flop_of(graph, "conv2d") == 2 * 2 * 5 * (6 * 7) * 9 * (3 + 4) * 16
    values, output = run(graph)
    kernel, recurrent, bias = (
        values[f"l/{name}"] for name in ("kernel", "recurrent_kernel", "bias")
    )
    hidden = memory = np.zeros((2, 4, 6, 7))
    outputs = []
    for image in values["x"].transpose(1, 0, 4, 2, 3):
        total = convolve_same(image, kernel) + convolve_same(hidden, recurrent)
        gates = np.split(total + bias[:, None, None], 4, axis=1)
        memory = sigmoid(gates[1]) * memory + sigmoid(gates[0]) * np.tanh(gates[2])
        hidden = sigmoid(gates[3]) * np.tanh(memory)
        outputs.append(hidden)
    expected = np.stack(outputs, 1).transpose(0, 1, 3, 4, 2) if return_sequences else hidden
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


@every("class_name", {"ConvLSTM1D": (9, 8), "ConvLSTM3D": (3, 6, 5, 4)})
def test_other_convolutional_lstms_have_keras_shapes(class_name, tmp_path):
    """Kernel 3 at stride 2 without padding; the recurrent convolution keeps that size."""
    axis_count = int(class_name[-2])
    sizes = {"ConvLSTM1D": (9,), "ConvLSTM3D": (6, 5, 7)}[class_name]
    config = {"filters": 5, "kernel_size": 3, "strides": 2, "return_sequences": True}
    lstm = layer(class_name, "l", "x", **config)
    graph = graph_of(functional(input_layer("x", 4, *sizes, 2), lstm), tmp_path)
    (output,) = graph.outputs
    output_sizes = tuple((size - 3) // 2 + 1 for size in sizes)
    assert graph.tensors[output].shape == (2, 4, *output_sizes, 5)
    assert graph.parameters == 4 * 5 * (3**axis_count * (2 + 5) + 1)


X_SHAPE, Y_SHAPE = (4, 6, 3), (5, 6)
DOTS = {
    "last axes of vectors": ((6,), (6,), 1, "nk,nk->n"),
    "an axis of each": (X_SHAPE, Y_SHAPE, [2, 2], "nakb,nck->nabc"),
    "negative": ((4, 6), (5, 6), -1, "nak,nbk->nab"),
    "a vector and a matrix": ((6,), (5, 6), [1, 2], "nk,nbk->nb"),
}


@every("case", DOTS)
def test_dot_is_einsum(case, tmp_path):
    x_shape, y_shape, axes, equation = DOTS[case]
    for normalize in (False, True):
        dot = layer("Dot", "d", "x", "y", axes=axes, normalize=normalize)
        table = functional(
            input_layer("x", *x_shape), input_layer("y", *y_shape), dot, inputs=("x", "y")
        )
        graph = graph_of(table, tmp_path)
        values, output = run(graph)
        x, y = values["x"], values["y"]
        if x.ndim == 4:  # an image: its channels stand behind the batch in the graph
            x = x.transpose(0, 2, 3, 1)
        if normalize:
            x_axis, y_axis = axes if isinstance(axes, list) else (axes, axes)
            x = x / np.linalg.norm(x, axis=x_axis, keepdims=True)
            y = y / np.linalg.norm(y, axis=y_axis, keepdims=True)
        expected = np.einsum(equation, x, y)
        expected = expected[:, None] if expected.ndim == 1 else expected
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-6)
        products = 2 * np.prod(expected.shape) * 6
        assert flop_of(graph, "matmul") == products


@pytest.mark.parametrize("use_scale", [True, False])
def test_additive_attention_is_numpys(use_scale, tmp_path):
    """12 queries and 9 keys of width 8: a sum, a tanh, a product for each pair and feature."""
    attention = layer("AdditiveAttention", "a", "x", "y", use_scale=use_scale)
    table = functional(
        input_layer("x", 12, 8), input_layer("y", 9, 8), attention, inputs=("x", "y")
    )
    graph = graph_of(table, tmp_path)
    values, output = run(graph)
    query, value = values["x"], values["y"]
    terms = np.tanh(query[:, :, None] + value[:, None])
    scores = (terms * (values["a/scale"] if use_scale else 1)).sum(-1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(output, weights @ value, rtol=1e-4, atol=1e-6)
    assert graph.parameters == (8 if use_scale else 0)
    assert flop_of(graph, "matmul") == 2 * 2 * 12 * 9 * 8


def test_masking_sets_steps_of_the_mask_value_to_zero(tmp_path):
    masking = layer("Masking", "m", "x", mask_value=-1.0)
    graph = graph_of(functional(input_layer("x", 4, 3), masking), tmp_path)
    x = initial_values(graph, 1)["x"].copy()
    x[:, 1] = -1.0
    x[0, 2, 0] = -1.0  # one feature alone is no mask
    expected = x.copy()
    expected[:, 1] = 0.0
    (output,) = execute(graph, {"x": x}).values()
    np.testing.assert_array_equal(output, expected)


def recurrent_parameters(gates: int, width: int, units: int) -> int:
    return gates * units * (width + units + 1)


def test_states_of_a_layer_are_the_first_states_of_another(tmp_path):
    """An encoder of 12 steps and a decoder of 3, both of width 8 with 5 units."""
    encoder = layer("LSTM", "encoder", "x", units=5, return_state=True)
    decoder = layer("LSTM", "decoder", "y", units=5, return_sequences=True)
    states = [
        {"class_name": "__keras_tensor__", "config": {"keras_history": ["encoder", 0, output]}}
        for output in (1, 2)
    ]
    decoder["inbound_nodes"][0]["kwargs"] = {"initial_state": states}
    table = functional(
        input_layer("x", 12, 8), input_layer("y", 3, 8), encoder, decoder, inputs=("x", "y")
    )
    graph = graph_of(table, tmp_path)
    assert graph.parameters == 2 * recurrent_parameters(4, 8, 5)
    assert flop_of(graph, "lstm") == 2 * 2 * (12 + 3) * 4 * 5 * (8 + 5)
    (output,) = graph.outputs
    assert graph.tensors[output].shape == (2, 3, 5)
    step = training_graph(graph_of(table, tmp_path, phase="train"), "sgd")
    trained = {name for op in step.ops if op.part == "update" for name in op.inputs}
    assert {"encoder/kernel", "decoder/kernel"} <= trained


def keras_tensor(name: str, output: int = 0) -> dict[str, object]:
    """An output of a layer, as an argument of a call."""
    return {"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, output]}}


def test_states_of_both_directions_are_first_states_of_others(tmp_path):
    """Hidden and cell states of both directions go to a layer in both directions, and joined."""
    lstm = layer("LSTM", "cell", units=5, return_state=True)
    encoder = layer("Bidirectional", "encoder", "x", layer=lstm)
    steps = layer("LSTM", "cell", units=5, return_sequences=True)
    decoder = layer("Bidirectional", "decoder", "y", layer=steps)
    states = [keras_tensor("encoder", number) for number in (1, 2, 3, 4)]
    decoder["inbound_nodes"][0]["kwargs"] = {"initial_state": states}
    table = functional(
        input_layer("x", 12, 8), input_layer("y", 3, 8), encoder, decoder, inputs=("x", "y")
    )
    graph = graph_of(table, tmp_path)
    assert graph.parameters == 4 * recurrent_parameters(4, 8, 5)
    assert flop_of(graph, "lstm") == 2 * 2 * 2 * (12 + 3) * 4 * 5 * (8 + 5)
    (output,) = graph.outputs
    assert graph.tensors[output].shape == (2, 3, 10)
    step = training_graph(graph_of(table, tmp_path, phase="train"), "sgd")
    trained = {name for op in step.ops if op.part == "update" for name in op.inputs}
    assert {"encoder/forward/kernel", "encoder/backward/kernel"} <= trained


def test_directions_that_are_not_merged_are_two_outputs(tmp_path):
    gru = layer("GRU", "cell", units=4, return_sequences=True)
    both = layer("Bidirectional", "both", "x", layer=gru, merge_mode=None)
    last = layer("Dense", "last", "both", units=3)
    last["inbound_nodes"][0]["args"] = [keras_tensor("both", 1)]
    graph = graph_of(functional(input_layer("x", 5, 3), both, last), tmp_path)
    (output,) = graph.outputs
    assert graph.tensors[output].shape == (2, 5, 3)
    assert flop_of(graph, "linear") == 2 * 2 * 5 * 4 * 3


def test_stacked_cells_read_the_steps_of_the_cell_before(tmp_path):
    """An LSTM cell of 4 units and a GRU cell of 3 over 12 steps of width 8."""
    cells = [layer("LSTMCell", "c0", units=4), layer("GRUCell", "c1", units=3, reset_after=False)]
    stacked = layer("StackedRNNCells", "cells", cells=cells)
    table = functional(input_layer("x", 12, 8), layer("RNN", "r", "x", cell=stacked))
    graph = graph_of(table, tmp_path)
    assert graph.parameters == recurrent_parameters(4, 8, 4) + recurrent_parameters(3, 4, 3)
    assert flop_of(graph, "lstm") == 2 * 2 * 12 * 4 * 4 * (8 + 4)
    assert flop_of(graph, "gru") == 2 * 2 * 12 * 3 * 3 * (4 + 3)
    (output,) = graph.outputs
    assert graph.tensors[output].shape == (2, 3)


def test_dropout_of_a_recurrent_layer_is_counted_or_noted(tmp_path):
    lstm = layer("LSTM", "l", "x", units=4, dropout=0.5, recurrent_dropout=0.25)
    table = functional(input_layer("x", 5, 3), lstm)
    assert not any(op.kind == "dropout" for op in graph_of(table, tmp_path).ops)
    graph = graph_of(table, tmp_path, phase="train")
    (dropout,) = (op for op in graph.ops if op.kind == "dropout")
    assert graph.tensors[dropout.outputs[0]].shape == (2, 5, 3)
    assert any("'l': recurrent_dropout is not counted" in remark for remark in graph.remarks)


def test_a_mask_given_as_a_tensor_is_refused(tmp_path):
    attention = layer("Attention", "l", "x", "x")
    mask = {"class_name": "__keras_tensor__", "config": {"keras_history": ["m", 0, 0]}}
    attention["inbound_nodes"][0]["kwargs"] = {"mask": [None, mask]}
    table = functional(
        input_layer("x", 5, 3), input_layer("m", 5, dtype="bool"), attention, inputs=("x", "m")
    )
    with pytest.raises(InputError, match="layer 'l': a mask given as a tensor is not counted"):
        graph_of(table, tmp_path)


SEQUENCE_REFUSALS = {
    "own cell": (layer("RNN", "l", "x", cell=layer("MyCell", "c")), "unknown cell 'MyCell'"),
    "no cell": (layer("RNN", "l", "x"), "unknown cell"),
    "one state": (layer("LSTM", "l", "x", "x", units=4), "1 first states, not 2 tensors"),
    "wide state": (layer("GRU", "l", "x", "x", units=4), r"a state of \[2, 5, 3\], not \[2, 4\]"),
    "both ways": (
        layer("Bidirectional", "l", "x", "x", layer=layer("GRU", "g", units=4)),
        "1 first states, not 2 tensors",
    ),
}


@every("case", SEQUENCE_REFUSALS)
def test_recurrent_layers_that_cannot_be_read_are_one_line(case, tmp_path):
    table, message = SEQUENCE_REFUSALS[case]
    with pytest.raises(InputError, match=message) as raised:
        graph_of(functional(input_layer("x", 5, 3), table), tmp_path)
    assert "layer 'l" in str(raised.value)
    assert "\n" not in str(raised.value)


REFUSALS = {
    "states": (
        layer("ConvLSTM2D", "l", "x", filters=2, kernel_size=3, return_state=True),
        "return_state",
    ),
    "rank": (layer("ConvLSTM1D", "l", "x", filters=2, kernel_size=3), "a convolutional LSTM of"),
    "batch axis": (layer("Dot", "l", "x", "x", axes=0), r"axes \[0, 0\] hold the batch"),
    "no axes": (layer("Dot", "l", "x", "x"), "axes is 2 whole numbers"),
}


@every("case", REFUSALS)
def test_settings_that_cannot_be_counted_are_one_line(case, tmp_path):
    table, message = REFUSALS[case]
    with pytest.raises(InputError, match=message) as raised:
        graph_of(functional(input_layer("x", 5, 6, 6, 2), table), tmp_path)
    assert "layer 'l'" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_all_train(tmp_path):
    """Every op of these layers has a gradient."""
    lstm = layer(
        "ConvLSTM2D", "l", "x", filters=4, kernel_size=3, dropout=0.1, recurrent_dropout=0.2
    )
    flat = layer("Flatten", "f", "l")
    dot = layer("Dot", "d", "f", "f", axes=1, normalize=True)
    graph = graph_of(
        functional(input_layer("x", 3, 6, 6, 2), lstm, flat, dot), tmp_path, phase="train"
    )
    step = training_graph(graph, "sgd")
    trained = {name for op in step.ops if op.part == "update" for name in op.inputs}
    assert set(graph.weights) <= trained
