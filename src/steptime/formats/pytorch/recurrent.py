"""ATen's recurrent layers and cells."""

from collections.abc import Mapping
from functools import partial

from steptime.formats import elements, lowering, sequence_lowering
from steptime.formats.pytorch.call import Call, Handler, Result
from steptime.network.ops.table import require


def _lower_recurrent(cell: str, call: Call) -> Result:
    """Lower a recurrent layer or several; an LSTM's cell state has the width before projection."""
    initial_states = call["hx"]
    states = initial_states if isinstance(initial_states, list) else [initial_states]
    computed_states = [state for state in states if isinstance(state, str)]
    _refuse_grown_time(call)
    state_widths = [call.walk.shape(state)[-1] for state in states]
    is_projected = len(set(state_widths)) > 1
    weights_by_layer = _group_weights_by_layer(call, is_projected)
    y, state = call.lower(
        sequence_lowering.recurrent,
        call.tensor("input"),
        cell,
        weights_by_layer,
        p=float(call.argument("dropout", 0.0)),
        states=computed_states,
        bidirectional=bool(call.argument("bidirectional")),
        batch_first=bool(call.argument("batch_first")),
    )
    if not is_projected:
        # an LSTM's cell state is as large as its hidden one, which stands for both
        return [y, state, state]
    hidden_width = state_widths[0]
    cell_width = state_widths[-1]
    pads = (0, 0, 0, 0, 0, cell_width - hidden_width)  # behind the last of three axes
    cell_state = call.lower(elements.pad, state, pads, suffix="/cells")
    return [y, state, cell_state]


def _group_weights_by_layer(call: Call, is_projected: bool) -> list[list[str]]:
    """Return the weights of each layer and direction, which torch lists one after the other."""
    weights = [call.walk.tensor(value) for value in call["params"]]
    weights_per_layer = 4 if call["has_biases"] else 2  # w_ih, w_hh, b_ih, b_hh
    if is_projected:
        weights_per_layer += 1  # w_hr
    layer_starts = range(0, len(weights), weights_per_layer)
    return [weights[start : start + weights_per_layer] for start in layer_starts]


def _refuse_grown_time(call: Call) -> None:
    """Raise `ShapeError` if another batch makes the sequence longer: time is the first axis."""
    time_is_first = not call.argument("batch_first")
    if not (time_is_first and call.walk.batches.differs_from_file):
        return
    length = call.walk.shape(call["input"])[0]
    file_length = call.walk.file_shape(call.node.args["input"])[0]
    has_grown = length != file_length
    require(not has_grown, "its first axis is time: leave the batch, axis 1, open in the export")


def _lower_cell(kind: str, call: Call) -> Result:
    """Lower one step of a recurrent cell: two products, and functions of the gates."""
    x = call.tensor("input")
    stated_states = call["hx"]
    states = stated_states if isinstance(stated_states, list) else [stated_states]
    h, *cell_states = [call.walk.tensor(state) for state in states]
    input_bias = call.optional_tensor("b_ih") or ""
    hidden_bias = call.optional_tensor("b_hh") or ""
    input_product = call.lower(
        lowering.linear, x, call.tensor("w_ih"), suffix="/input", bias=input_bias
    )
    hidden_product = call.lower(
        lowering.linear, h, call.tensor("w_hh"), suffix="/hidden", bias=hidden_bias
    )
    if kind == "lstm":
        return _lower_lstm_step(call, input_product, hidden_product, cell_states[0])
    if kind == "gru":
        return _lower_gru_step(call, input_product, hidden_product, h)
    activation = "relu" if kind == "relu" else "tanh"
    return _append_function(
        call, activation, _append_function(call, "add", input_product, hidden_product)
    )


def _lower_lstm_step(
    call: Call, input_product: str, hidden_product: str, cell_state: str
) -> list[str]:
    """Return the hidden and the cell state after a step of an LSTM."""
    gate_sums = _append_function(call, "add", input_product, hidden_product)
    i, f, g, o = _split_gates(call, gate_sums, count=4, suffix="/gates")
    input_gate = _append_function(call, "sigmoid", i)
    forget_gate = _append_function(call, "sigmoid", f)
    output_gate = _append_function(call, "sigmoid", o)
    remembered_state = _append_function(call, "mul", forget_gate, cell_state)
    candidate = _append_function(call, "tanh", g)
    added_state = _append_function(call, "mul", input_gate, candidate)
    new_cell_state = _append_function(call, "add", remembered_state, added_state)
    cell_output = _append_function(call, "tanh", new_cell_state)
    hidden_state = _append_function(call, "mul", output_gate, cell_output)
    return [hidden_state, new_cell_state]


def _lower_gru_step(call: Call, input_product: str, hidden_product: str, h: str) -> str:
    """Return the hidden state after a step of a GRU."""
    reset_x, update_x, candidate_x = _split_gates(call, input_product, count=3, suffix="/gates_x")
    reset_h, update_h, candidate_h = _split_gates(call, hidden_product, count=3, suffix="/gates_h")
    reset_gate = _append_function(call, "sigmoid", _append_function(call, "add", reset_x, reset_h))
    update_gate = _append_function(
        call, "sigmoid", _append_function(call, "add", update_x, update_h)
    )
    reset_candidate_h = _append_function(call, "mul", reset_gate, candidate_h)
    candidate = _append_function(
        call, "tanh", _append_function(call, "add", candidate_x, reset_candidate_h)
    )
    # the new state is candidate + update * (h - candidate)
    difference = _append_function(call, "sub", h, candidate)
    change = _append_function(call, "mul", update_gate, difference)
    return _append_function(call, "add", candidate, change)


def _append_function(call: Call, function: str, *operands: str) -> str:
    return call.lower(elements.pointwise, function, *operands)


def _split_gates(call: Call, x: str, count: int, suffix: str) -> list[str]:
    last_axis = len(call.b.shape(x)) - 1
    width = call.b.shape(x)[last_axis] // count
    return call.lower(elements.split, x, [width] * count, last_axis, suffix=suffix)


RECURRENT: Mapping[str, Handler] = {
    "lstm": partial(_lower_recurrent, "lstm"),
    "gru": partial(_lower_recurrent, "gru"),
    **dict.fromkeys(("rnn_tanh", "rnn_relu"), partial(_lower_recurrent, "rnn")),
    "lstm_cell": partial(_lower_cell, "lstm"),
    "gru_cell": partial(_lower_cell, "gru"),
    "rnn_tanh_cell": partial(_lower_cell, "rnn"),
    "rnn_relu_cell": partial(_lower_cell, "relu"),
}
