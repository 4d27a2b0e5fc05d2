"""ONNX's loops, whose turns the file says, written out turn by turn; and short-time spectra."""

from collections.abc import Mapping, Sequence

from steptime.importers import constants, elements, lowering, windows
from steptime.importers.onnx.model import MOST_NODES, Subgraph
from steptime.importers.onnx.run import Run
from steptime.importers.onnx.values import Constant, Function, Value
from steptime.ops.table import require

Values = Sequence[Value]
_UNKNOWN = "a loop, whose number of turns the file does not say"


def _body(r: Run, turns: int) -> Subgraph:
    body: Subgraph = r.node.attrs["body"]
    require(turns * len(body.nodes) <= MOST_NODES, f"{turns} turns of {len(body.nodes)} nodes")
    return body


def _stacked(r: Run, parts: Values, axis: int = 0) -> Value:
    """Return what each turn made, along a new axis."""
    seen = []
    for part in parts:
        shape = r.shape(part)
        at = axis % (len(shape) + 1)
        seen.append(r.view(part, "reshape", (*shape[:at], 1, *shape[at:])))
    if all(isinstance(part, Constant) for part in seen):
        return r.constant(constants.concat([r.of(part) for part in seen], axis), *seen)
    return r.do(elements.concat, seen, axis)


def _loop(r: Run, count: Value = None, condition: Value = None, *carried: Value) -> Values:
    turns = r.number(count)
    require(turns is not None, _UNKNOWN)
    body, made = _body(r, int(turns or 0)), [condition, *carried]
    kept: list[Values] = []
    for i in range(int(turns or 0)):
        if made[0] is not None:
            goes_on = r.number(made[0])
            require(goes_on is not None, _UNKNOWN)
            if not goes_on:
                break
        number = r.constant(constants.scalar(i), derived=True)
        made = r.branch(body, (number, made[0], *made[1 : 1 + len(carried)]))
        kept.append(made[1 + len(carried) :])
    stacks = len(body.outputs) > 1 + len(carried)
    require(bool(kept) or not stacks, "a loop of no turns, whose output is empty")
    columns = zip(*kept, strict=True)
    return [*made[1 : 1 + len(carried)], *(_stacked(r, column) for column in columns)]


def _scan(r: Run, *given: Value) -> Values:
    taken: int = r.attr("num_scan_inputs", 1)
    states, inputs = list(given[: len(given) - taken]), given[len(given) - taken :]
    axes = r.attr("scan_input_axes", (0,) * taken)
    ways = r.attr("scan_input_directions", (0,) * taken)
    turns = r.shape(inputs[0])[axes[0]]
    body, kept, count = _body(r, turns), [], len(states)
    for i in range(turns):
        parts = [
            r.do(elements.select, x, axis, -1 - i if back else i, at="/turn")
            for x, axis, back in zip(inputs, axes, ways, strict=True)
        ]
        made = r.branch(body, (*states, *parts))
        states, rest = list(made[:count]), made[count:]
        kept.append(rest)
    out_axes = r.attr("scan_output_axes", (0,) * (len(r.node.outputs) - count))
    backwards = r.attr("scan_output_directions", (0,) * len(out_axes))
    columns = zip(zip(*kept, strict=True), out_axes, backwards, strict=True)
    return [*states, *(_stacked(r, c[::-1] if back else c, axis) for c, axis, back in columns)]


def _spectra(r: Run, x: Value, step: Value, window: Value = None, length: Value = None) -> Value:
    """Return the spectrum of each window, a product with the table of waves: ONNX says no way."""
    shape, stride = r.shape(x), r.of(step).whole("frame_step")[0]
    size = r.of(length).whole("frame_length")[0] if length is not None else r.shape(window)[0]
    bins = size // 2 + 1 if r.attr("onesided", 1) else size
    parts = 2 if shape[2:] == (2,) else 1  # a complex signal has two
    y = r.do(windows.windows, x, 1, size, at="/frames", step=stride)
    y = r.do(elements.reshape, y, (*r.shape(y)[:3], parts), at="/parts")
    if window is not None:
        column = r.view(window, "reshape", (size, 1))
        y = r.do(elements.pointwise, "mul", y, column, at="/window")
    n, frames = r.shape(y)[:2]
    y = r.do(elements.reshape, y, (n, frames, size * parts), at="/rows")
    waves = r.b.buffer(elements.free_name(r.b, f"{r.name}/waves"), (2 * bins, size * parts))
    y = r.do(lowering.linear, y, waves)
    return r.do(elements.reshape, y, (n, frames, bins, 2), at="/bins")


LOOPS: Mapping[str, Function] = {"Loop": _loop, "Scan": _scan, "STFT": _spectra}
