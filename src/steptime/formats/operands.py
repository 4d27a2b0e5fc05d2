"""The operands of an op in a graph that is being built: tensors and numbers."""

from collections.abc import Sequence

from steptime.core.graph import Attr, Op
from steptime.formats.tensors import clip_to_finite, free_name
from steptime.network.ops.builder import Builder

Operand = str | float  # a tensor or a number
LAST_OPERAND = -1  # the scalar place of an op that names none


def function_of_op(op: Op) -> str:
    """Return the function of an op of elements, or the kind of any other op."""
    return "add" if op.kind == "bias" else str(op.attrs.get("function", op.kind))


def operands_of(b: Builder, x: Operand, *functions: str) -> list[Operand]:
    """Return the operands of the op that makes `x`; [] if it is not one of `functions`."""
    op = b.made_by.get(x) if isinstance(x, str) else None
    if op is None or function_of_op(op) not in functions:
        return []
    operands: list[Operand] = list(op.inputs)
    scalar = op.attrs.get("scalar")
    if isinstance(scalar, float | int) and op.kind == "pointwise":
        scalar_index = op.attrs.get("scalar_place", LAST_OPERAND)
        if scalar_index == LAST_OPERAND or not isinstance(scalar_index, int):
            scalar_index = len(operands)
        operands.insert(scalar_index, float(scalar))
    return operands


def single_tensor(operands: Sequence[Operand]) -> str:
    """Return the only tensor among operands, "" for none or several."""
    tensors = [x for x in operands if isinstance(x, str)]
    return tensors[0] if len(tensors) == 1 else ""


def place_operands(
    b: Builder, operands: Sequence[Operand], attrs: dict[str, Attr], name: str
) -> list[str]:
    """Return the input tensors of a pointwise op; set its `scalar`, the first number, in `attrs`.

    `scalar_place` is set unless it is the last operand; a second number is a buffer of one element.

    Args:
        b: the graph so far.
        operands: tensors and numbers.
        attrs: the attributes of the op, which change.
        name: the name of the op.
    """
    inputs: list[str] = []
    for index, operand in enumerate(operands):
        if isinstance(operand, str):
            inputs.append(operand)
        # an op has one scalar: a second number is a buffer
        elif "scalar" in attrs:
            inputs.append(b.buffer(free_name(b, f"{name}/number"), ()))
        else:
            attrs["scalar"] = clip_to_finite(b, operand)
            is_last_operand = index == len(operands) - 1
            if not is_last_operand:
                attrs["scalar_place"] = index
    return inputs
