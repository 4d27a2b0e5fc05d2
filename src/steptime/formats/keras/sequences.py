"""Recurrent layers and wrappers of Keras, as functions `(layer, *tensors) -> tensor`.

The table `LAYERS` holds the layers of attention, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from steptime.core.errors import check_choice, shorten
from steptime.core.json_types import JsonObject, JsonValue
from steptime.formats import elements, lowering, sequence_lowering
from steptime.formats.keras.attention import (
    add_additive_attention,
    add_dot_attention,
    add_multi_head_attention,
)
from steptime.formats.keras.layer import AddCall, KerasLayer, KerasTensor
from steptime.formats.keras.layers import LAYERS as SINGLE_LAYERS
from steptime.formats.keras.layers import add_average, add_merge
from steptime.network.ops.sequence import GATES
from steptime.network.ops.table import require

CELLS = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "rnn"}
CELL_CLASSES = {"LSTMCell": "lstm", "GRUCell": "gru", "SimpleRNNCell": "rnn"}
STATE_COUNTS = {"lstm": 2, "gru": 1, "rnn": 1}
MERGE_MODES = ("concat", "sum", "mul", "ave")
MERGE_FUNCTIONS = {"sum": "add", "mul": "mul"}  # merge mode: function of elements


class _RecurrentOutput(NamedTuple):
    """The outputs of a recurrent layer.

    Attributes:
        steps: the output of each step in the order of computation, `[batch, steps, units]`.
        last: the output of the step that is computed last, `[batch, units]`; also its state. The
            cell state of an LSTM, as large, is taken to be the same tensor.
    """

    steps: str
    last: str


def _run_cell(
    layer: KerasLayer,
    x: KerasTensor,
    cell: str,
    is_reversed: bool,
    states: Sequence[KerasTensor] = (),
) -> _RecurrentOutput:
    """Append a recurrent layer.

    Args:
        layer: the layer, or the cell, with the settings and weights.
        x: its input, `[batch, steps, width]`.
        cell: its kind of cell, one of `GATES`.
        is_reversed: whether the last step is computed first.
        states: its first states, `[batch, units]`; none for zeros.
    """
    y = layer.to_channels_last(x)
    units = layer.read_int("units")
    require(len(layer.b.shape(y)) == 3, f"a recurrent layer of {list(layer.shape(x))}")
    batch, _steps, width = layer.b.shape(y)
    _check_cell(layer, states, (batch, units))
    weights = _add_cell_weights(layer, width, units, cell)
    y = _drop_inputs(layer, y)
    if is_reversed:
        y = elements.append_op(layer.b, "flip", y, name=f"{layer.name}/flip", axes=(1,))
    first_states = [
        elements.unsqueeze(layer.b, state.name, axis=0, name=f"{layer.name}/first_state")
        for state in states
    ]
    steps, _ = sequence_lowering.recurrent(
        layer.b, y, cell, [weights], layer.name, states=first_states
    )
    last = elements.select(layer.b, steps, axis=1, index=-1, name=f"{layer.name}/last")
    return _RecurrentOutput(steps, last)


def _check_cell(
    layer: KerasLayer, states: Sequence[KerasTensor], state_shape: tuple[int, int]
) -> None:
    """Refuse activations that the ops do not have, and first states of another shape."""
    layer.read_choice("activation", "tanh", ("tanh",))
    # a hard sigmoid counts as a sigmoid
    layer.read_choice("recurrent_activation", "sigmoid", ("sigmoid", "hard_sigmoid"))
    for state in states:
        shape = layer.shape(state)
        require(shape == state_shape, f"a state of {list(shape)}, not {list(state_shape)}")


def _drop_inputs(layer: KerasLayer, x: str) -> str:
    """Append dropout of the inputs in training; that of states is only noted."""
    if layer.b.training and layer.read_number("recurrent_dropout"):
        place = f"layer {shorten(layer.name)}"
        layer.b.remarks.append(f"{place}: recurrent_dropout is not counted; it has no products")
    return lowering.dropout(layer.b, x, layer.read_number("dropout"), f"{layer.name}/dropout")


def _add_cell_weights(layer: KerasLayer, width: int, units: int, cell: str) -> list[str]:
    """Return the weights of a cell; a GRU with `reset_after` has a second bias."""
    rows = GATES[cell] * units
    weights = [
        layer.add_weight("kernel", rows, width),
        layer.add_weight("recurrent_kernel", rows, units),
    ]
    if layer.read_flag("use_bias", True):
        weights.append(layer.add_weight("bias", rows))
        if cell == "gru" and layer.read_flag("reset_after", True):
            weights.append(layer.add_weight("recurrent_bias", rows))
    return weights


def _add_recurrent(
    cell: str,
    layer: KerasLayer,
    x: KerasTensor,
    *states: KerasTensor,
    initial_state: JsonValue = None,
) -> list[KerasTensor]:
    """Append a recurrent layer; first states are positional or the argument `initial_state`."""
    first_states = _collect_states(layer, cell, states, initial_state)
    output = _run_cell(layer, x, cell, layer.read_flag("go_backwards"), first_states)
    return _select_outputs(layer, output, cell)


def _collect_states(
    layer: KerasLayer,
    cell: str,
    states: Sequence[KerasTensor],
    initial_state: JsonValue,
    directions: int = 1,
) -> list[KerasTensor]:
    """Return the first states of a recurrent layer, none if it starts from zeros."""
    stated = initial_state if isinstance(initial_state, list) else [initial_state]
    first_states = [*states, *(state for state in stated if state is not None)]
    are_tensors = all(isinstance(state, KerasTensor) for state in first_states)
    state_count = STATE_COUNTS[cell] * directions
    if len(first_states) not in (0, state_count) or not are_tensors:
        raise layer.error(f"{len(first_states)} first states, not {state_count} tensors")
    return first_states


def _select_outputs(layer: KerasLayer, output: _RecurrentOutput, cell: str) -> list[KerasTensor]:
    """Return all steps or the last one, and behind it the last states with `return_state`."""
    y = output.steps if layer.read_flag("return_sequences") else output.last
    # the last output stands for each state, also for an LSTM's cell state, which is as large
    state_count = STATE_COUNTS[cell] if layer.read_flag("return_state") else 0
    return [KerasTensor(y), *[KerasTensor(output.last)] * state_count]


def add_rnn(
    layer: KerasLayer, x: KerasTensor, *states: KerasTensor, initial_state: JsonValue = None
) -> list[KerasTensor]:
    """Append an `RNN` layer of one cell, or of cells that each read the steps of the one before."""
    tables = _read_cells(layer)
    is_stacked = len(tables) > 1
    is_reversed = layer.read_flag("go_backwards")
    if is_stacked and (states or initial_state is not None or layer.read_flag("return_state")):
        raise layer.error("states of stacked cells")
    cells = [CELL_CLASSES[str(table.get("class_name"))] for table in tables]
    first_states = _collect_states(layer, cells[0], states, initial_state)
    output = _RecurrentOutput(steps="", last="")  # of no cell yet
    for number, (table, cell) in enumerate(zip(tables, cells, strict=True)):
        cell_layer = layer.wrapped_layer(f"cell{number}" if is_stacked else "cell", table)
        reverses_steps = is_reversed and number == 0  # later cells read the reversed steps
        output = _run_cell(cell_layer, x, cell, reverses_steps, first_states)
        x = KerasTensor(output.steps)
    return _select_outputs(layer, output, cells[-1])


def _read_cells(layer: KerasLayer) -> list[JsonObject]:
    """Return the cells of an `RNN` layer as Keras serializes them."""
    table: JsonValue = layer.config.get("cell")
    is_stacked = isinstance(table, dict) and table.get("class_name") == "StackedRNNCells"
    config = table.get("config") if is_stacked else None
    tables = config.get("cells") if isinstance(config, dict) else [table]
    if not isinstance(tables, list) or not tables:
        raise layer.error("an RNN without a cell")
    for cell_table in tables:
        class_name = cell_table.get("class_name") if isinstance(cell_table, dict) else cell_table
        check_choice("cell", class_name, CELL_CLASSES, layer.layer_place)
    return tables


def _read_wrapped_class(layer: KerasLayer) -> object:
    """Return the class of the layer that a wrapper wraps."""
    table = layer.config.get("layer")
    return table.get("class_name") if isinstance(table, dict) else table


def add_bidirectional(
    layer: KerasLayer, x: KerasTensor, *states: KerasTensor, initial_state: JsonValue = None
) -> list[KerasTensor]:
    """Append a recurrent layer in both directions, and the outputs of both merged.

    The first half of the first states is the forward layer's. Behind the merged output (both
    outputs with `merge_mode` null) stand the last states of the forward layer, then those of the
    backward one.
    """
    class_name = _read_wrapped_class(layer)
    check_choice("recurrent layer", class_name, CELLS, layer.layer_place)
    cell = CELLS[str(class_name)]
    forward_table = layer.config.get("layer")
    backward_table = layer.config.get("backward_layer") or forward_table
    forward = layer.wrapped_layer("forward", forward_table)
    backward = layer.wrapped_layer("backward", backward_table)
    first_states = _collect_states(layer, cell, states, initial_state, directions=2)
    # the first half of the states is the forward layer's
    middle = len(first_states) // 2
    y, *last_states = _run_direction(forward, x, cell, first_states[:middle])
    y_back, *last_states_back = _run_direction(
        backward, x, cell, first_states[middle:], is_backward=True
    )
    return [*_merge_directions(layer, y, y_back), *last_states, *last_states_back]


def _merge_directions(
    layer: KerasLayer, forward: KerasTensor, backward: KerasTensor
) -> list[KerasTensor]:
    """Append the merge of the outputs of both directions; without one, return both."""
    if layer.config.get("merge_mode", "concat") is None:
        return [forward, backward]
    merge_mode = layer.read_choice("merge_mode", "concat", MERGE_MODES)
    if merge_mode == "concat":
        return [layer.apply(elements.concat, [forward.name, backward.name], axis=-1)]
    if merge_mode == "ave":
        return [add_average(layer, forward, backward)]
    return [add_merge(MERGE_FUNCTIONS[merge_mode], layer, forward, backward)]


def _run_direction(
    layer: KerasLayer,
    x: KerasTensor,
    cell: str,
    first_states: Sequence[KerasTensor],
    is_backward: bool = False,
) -> list[KerasTensor]:
    """Append one direction of a bidirectional layer, with its steps in the order of the input."""
    output = _run_cell(layer, x, cell, is_backward, first_states)
    y, *last_states = _select_outputs(layer, output, cell)
    # a backward layer makes the last step first: its steps are put in order
    if not is_backward or not layer.read_flag("return_sequences"):
        return [y, *last_states]
    flipped = elements.append_op(
        layer.b, "flip", output.steps, name=f"{layer.name}/flip_back", axes=(1,)
    )
    return [KerasTensor(flipped), *last_states]


def add_time_distributed(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a layer that is applied to each step, as if steps were further examples."""
    class_name = _read_wrapped_class(layer)
    check_choice("layer", class_name, SINGLE_LAYERS, layer.layer_place)
    y = layer.to_channels_last(x)
    batch, steps, *sizes = layer.b.shape(y)
    rows = elements.reshape(layer.b, y, (batch * steps, *sizes), f"{layer.name}/steps")
    wrapped = layer.wrapped_layer("layer", layer.config.get("layer"))
    output = SINGLE_LAYERS[str(class_name)](wrapped, KerasTensor(rows))
    output_rows = wrapped.to_channels_last(output)
    output_shape = (batch, steps, *layer.b.shape(output_rows)[1:])
    return layer.apply(elements.reshape, output_rows, output_shape, suffix="/joined")


LAYERS: dict[str, AddCall] = {
    **{name: partial(_add_recurrent, cell) for name, cell in CELLS.items()},
    "RNN": add_rnn,
    "Bidirectional": add_bidirectional,
    "TimeDistributed": add_time_distributed,
    "AdditiveAttention": add_additive_attention,
    "Attention": add_dot_attention,
    "MultiHeadAttention": add_multi_head_attention,
    "GroupQueryAttention": add_multi_head_attention,
}
