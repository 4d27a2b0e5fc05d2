"""ATen's recurrent layers and cells."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from steptime.formats import elements as el
from steptime.formats import lowering as low
from steptime.formats import sequence_lowering
from steptime.formats.pytorch.walk import Call, Handler, Result
from steptime.network.ops.table import require


def _recurrent(cell: str, c: Call) -> Result:
    given = c["hx"]
    states = given if isinstance(given, list) else [given]
    computed = [state for state in states if isinstance(state, str)]
    _refuse_grown_time(c)
    widths = [c.walk.shape(state)[-1] for state in states]
    projected = len({*widths}) > 1
    tensors = [c.walk.tensor(state) for state in c["params"]]
    per_layer = (4 if c["has_biases"] else 2) + projected
    weights = [tensors[i : i + per_layer] for i in range(0, len(tensors), per_layer)]
    options = ("bidirectional", "batch_first")
    settings: dict[str, Any] = {name: bool(c.get(name)) for name in options}
    p = float(c.get("dropout", 0.0))
    y, state = c.do(
        sequence_lowering.recurrent, c.x("input"), cell, weights, p=p, states=computed, **settings
    )
    wider = (0, 0, 0, 0, 0, widths[-1] - widths[0])  # the last cells: as the last output is made
    return [y, state, c.do(el.pad, state, wider, at="/cells") if projected else state]


def _refuse_grown_time(c: Call) -> None:
    """Raise `ShapeError` where another batch makes the sequence longer: time is the first axis."""
    if c.get("batch_first") or not c.walk.batches.differ:
        return
    grown = c.walk.shape(c["input"])[0] != c.walk.told(c.node.args["input"])[0]
    require(not grown, "its first axis is time: leave the batch, axis 1, open in the export")


def _cell(gates: str, c: Call) -> Result:
    """Return one step of a recurrent cell: two products, and functions of the gates."""
    x, states = c.x("input"), c["hx"]
    h, *cells = map(c.walk.tensor, states if isinstance(states, list) else [states])
    from_x = c.do(low.linear, x, c.x("w_ih"), at="/input", bias=c.maybe("b_ih") or "")
    from_h = c.do(low.linear, h, c.x("w_hh"), at="/hidden", bias=c.maybe("b_hh") or "")
    f = partial(_apply, c)
    if gates == "lstm":
        parts = _gates(c, f("add", from_x, from_h), 4, "/gates")
        i, forget, out = (f("sigmoid", parts[place]) for place in (0, 1, 3))
        cell = f("add", f("mul", forget, cells[0]), f("mul", i, f("tanh", parts[2])))
        return [f("mul", out, f("tanh", cell)), cell]
    if gates == "gru":
        input_parts = _gates(c, from_x, 3, "/gates_x")
        hidden_parts = _gates(c, from_h, 3, "/gates_h")
        reset, update = (f("sigmoid", f("add", input_parts[i], hidden_parts[i])) for i in (0, 1))
        new = f("tanh", f("add", input_parts[2], f("mul", reset, hidden_parts[2])))
        return f("add", new, f("mul", update, f("sub", h, new)))
    return f("relu" if gates == "relu" else "tanh", f("add", from_x, from_h))


def _apply(c: Call, function: str, *operands: str) -> str:
    return c.do(el.pointwise, function, *operands)


def _gates(c: Call, x: str, count: int, place: str) -> list[str]:
    width = c.b.shape(x)[-1] // count
    return c.do(el.split, x, [width] * count, len(c.b.shape(x)) - 1, at=place)


RECURRENT: Mapping[str, Handler] = {
    "lstm": partial(_recurrent, "lstm"),
    "gru": partial(_recurrent, "gru"),
    **dict.fromkeys(("rnn_tanh", "rnn_relu"), partial(_recurrent, "rnn")),
    "lstm_cell": partial(_cell, "lstm"),
    "gru_cell": partial(_cell, "gru"),
    "rnn_tanh_cell": partial(_cell, "rnn"),
    "rnn_relu_cell": partial(_cell, "relu"),
}
