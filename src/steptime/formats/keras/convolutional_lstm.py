"""The convolutional LSTMs of Keras: `ConvLSTM1D`, `ConvLSTM2D` and `ConvLSTM3D`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from steptime.formats import elements, lowering
from steptime.formats.keras.convolutions import Window, convolve_image, read_window
from steptime.formats.keras.layer import AddLayer, KerasLayer, KerasTensor
from steptime.network.ops.builder import Builder
from steptime.network.ops.sequence import GATES
from steptime.network.ops.table import require

GATE_COUNT = GATES["lstm"]  # input, forget, cell and output gate


class _Cell(NamedTuple):
    """The weights and the windows of a convolutional LSTM.

    Attributes:
        kernel: weight of the convolution of the input, with the filters of all gates.
        recurrent_kernel: weight of the convolution of the hidden state.
        bias: bias of the gates, "" without one.
        window: window of the convolution of the input.
        recurrent_window: window of the convolution of the hidden state, which keeps its size.
        filters: channels of a state.
    """

    kernel: str
    recurrent_kernel: str
    bias: str
    window: Window
    recurrent_window: Window
    filters: int

    @property
    def gate_sizes(self) -> list[int]:
        """The channels of each gate in a convolution of all."""
        return [self.filters] * GATE_COUNT


class _States(NamedTuple):
    """The states after a step, images with their channels behind the batch."""

    hidden: str
    memory: str


def add_convolutional_lstm(
    axis_count: int, layer: KerasLayer, x: KerasTensor, *states: object, **arguments: object
) -> KerasTensor:
    """Append an LSTM whose products are convolutions, step by step.

    As in Keras, the first step convolves a hidden state of zeros, too. The four convolutions of a
    step, one for each gate, count as one.

    Source: Shi et al. 2015; Keras 3, `keras/src/layers/rnn/conv_lstm.py` (no peepholes).
    """
    if states or arguments:
        raise layer.error("a first state of its own")
    if layer.read_flag("return_state"):
        raise layer.error("return_state: states are no outputs here")
    images = _read_sequence(layer, x, axis_count)
    _batch, step_count, channels, *_sizes = layer.b.shape(images)
    dropout_rate = layer.read_number("dropout")
    images = lowering.dropout(layer.b, images, dropout_rate, f"{layer.name}/dropout")
    cell = _read_cell(layer, channels, axis_count)
    steps = list(range(step_count))
    if layer.read_flag("go_backwards"):
        steps.reverse()
    outputs = _add_steps(layer, images, cell, steps)
    if not layer.read_flag("return_sequences"):
        return layer.from_image(outputs[-1])
    sequence = elements.stack(layer.b, outputs, axis=1, name=f"{layer.name}/outputs")
    return KerasTensor(_restore_layout(layer, sequence))


def _add_steps(layer: KerasLayer, images: str, cell: _Cell, steps: Sequence[int]) -> list[str]:
    """Append the steps in this order and return their hidden states."""
    states: _States | None = None  # the first step starts from zeros
    outputs: list[str] = []
    for number, step in enumerate(steps):
        image_name = f"{layer.name}/input{number}"
        image = elements.select(layer.b, images, axis=1, index=step, name=image_name)
        states = _add_step(layer, image, states, cell, f"{layer.name}/step{number}")
        outputs.append(states.hidden)
    return outputs


def _read_sequence(layer: KerasLayer, x: KerasTensor, axis_count: int) -> str:
    """Return a sequence of images as `[batch, steps, channels, ...]`."""
    y = layer.to_channels_last(x)
    rank = len(layer.b.shape(y))
    require(rank == axis_count + 3, f"a convolutional LSTM of {list(layer.shape(x))}")
    if not layer.has_channels_last:
        return y
    # [batch, steps, ..., channels] -> [batch, steps, channels, ...]
    order = (0, 1, rank - 1, *range(2, rank - 1))
    return elements.transpose(layer.b, y, order, f"{layer.name}/channels_first")


def _restore_layout(layer: KerasLayer, sequence: str) -> str:
    """Return a sequence `[batch, steps, channels, ...]` in the layout that the layer has."""
    if not layer.has_channels_last:
        return sequence
    order = (0, 1, *range(3, len(layer.b.shape(sequence))), 2)
    return elements.transpose(layer.b, sequence, order, f"{layer.name}/channels_last")


def _read_cell(layer: KerasLayer, channels: int, axis_count: int) -> _Cell:
    window = read_window(layer, axis_count)
    filters = layer.read_int("filters")
    rows = GATE_COUNT * filters
    kernel = layer.add_weight("kernel", rows, channels, *window.kernel)
    recurrent_kernel = layer.add_weight("recurrent_kernel", rows, filters, *window.kernel)
    bias = layer.add_optional_weight("use_bias", "bias", rows)
    unit = [1] * axis_count
    recurrent_window = Window(window.kernel, stride=unit, padding="same", dilation=unit)
    return _Cell(kernel, recurrent_kernel, bias, window, recurrent_window, filters)


def _add_step(
    layer: KerasLayer, image: str, states: _States | None, cell: _Cell, name: str
) -> _States:
    """Append one step; the first one has no states yet, and starts from zeros."""
    from_input = convolve_image(
        layer, image, cell.kernel, f"{name}/input", cell.window, groups=1, bias=cell.bias
    )
    if states is None:
        states = _make_zeros(layer.b, from_input, cell, name)
    gate_sums = _add_hidden_state(layer, from_input, states.hidden, cell, name)
    gates = elements.split(layer.b, gate_sums, cell.gate_sizes, 1, f"{name}/gates")
    return _update_states(layer, gates, states.memory, name)


def _add_hidden_state(
    layer: KerasLayer, from_input: str, hidden: str, cell: _Cell, name: str
) -> str:
    """Append the sum of the input's convolution and of that of the hidden state."""
    b = layer.b
    dropout_rate = layer.read_number("recurrent_dropout")
    dropped = lowering.dropout(b, hidden, dropout_rate, f"{name}/dropout")
    window = cell.recurrent_window
    from_state = convolve_image(
        layer, dropped, cell.recurrent_kernel, f"{name}/state", window, groups=1
    )
    return elements.pointwise(b, "add", from_input, from_state, name=f"{name}/sum")


def _update_states(layer: KerasLayer, gates: Sequence[str], memory: str, name: str) -> _States:
    """Append the functions of the four gates, and return the states after the step."""
    b = layer.b
    input_gate = _activate_gate(layer, gates[0], f"{name}/input_gate")
    forget_gate = _activate_gate(layer, gates[1], f"{name}/forget_gate")
    candidate = _activate_state(layer, gates[2], f"{name}/candidate")
    output_gate = _activate_gate(layer, gates[3], f"{name}/output_gate")
    remembered = elements.pointwise(b, "mul", forget_gate, memory, name=f"{name}/remember")
    added = elements.pointwise(b, "mul", input_gate, candidate, name=f"{name}/new")
    new_memory = elements.pointwise(b, "add", remembered, added, name=f"{name}/memory")
    squashed = _activate_state(layer, new_memory, f"{name}/squash")
    new_hidden = elements.pointwise(b, "mul", output_gate, squashed, name=f"{name}/output")
    return _States(new_hidden, new_memory)


def _make_zeros(b: Builder, from_input: str, cell: _Cell, name: str) -> _States:
    """Append states of zeros, of the shape of a gate; Keras convolves them, too."""
    gate = elements.split(b, from_input, cell.gate_sizes, 1, f"{name}/shape")[0]
    zeros = elements.pointwise(b, "mul", gate, 0.0, name=f"{name}/zeros")
    return _States(zeros, zeros)


def _activate_gate(layer: KerasLayer, gate: str, name: str) -> str:
    """Append the setting `recurrent_activation`, by default a sigmoid."""
    activation = layer.config.get("recurrent_activation", "sigmoid")
    return layer.apply_activation(KerasTensor(gate), activation, name).name


def _activate_state(layer: KerasLayer, x: str, name: str) -> str:
    """Append the setting `activation`, by default tanh."""
    activation = layer.config.get("activation", "tanh")
    return layer.apply_activation(KerasTensor(x), activation, name).name


LAYERS: dict[str, AddLayer] = {
    f"ConvLSTM{n}D": partial(add_convolutional_lstm, n) for n in (1, 2, 3)
}
