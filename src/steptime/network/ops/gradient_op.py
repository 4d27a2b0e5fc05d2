"""Gradients that one op makes: its rule, and the row of the op table that follows from it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

from steptime.core.graph import Op
from steptime.network.ops.table import (
    Backward,
    Example,
    Gradient,
    GradientOp,
    Operand,
    OpKind,
    Specs,
    like_first_input,
    matrix_kind,
)

Part = TypeVar("Part")  # of an op: the name of a tensor, or its spec


def emit_single_op(
    kind: str,
    reads: tuple[Operand, ...],
    suffix: str = "grad_input",
    attrs: Callable[[Backward], Mapping[str, Any]] = lambda b: b.attrs,
) -> Gradient:
    """Return the gradient rule that emits one op for the gradients of the first inputs.

    Args:
        kind: the kind of the op.
        reads: its inputs, in order.
        suffix: end of its name.
        attrs: its attributes, from those of the forward op.
    """

    def emit_gradients(b: Backward) -> tuple[str | None, ...]:
        operands = _find_operands(reads, b.op.inputs, b.op.outputs, b.saved, b.grad)
        gradients = b.emit(kind, operands, suffix, **attrs(b))
        # The op makes gradients of the first inputs; the others have none.
        other_inputs = b.op.inputs[len(gradients) :]
        return (*gradients, *[None for _ in other_inputs])

    return emit_gradients


def _find_operands(
    reads: tuple[Operand, ...],
    inputs: tuple[Part, ...],
    outputs: tuple[Part, ...],
    saved: tuple[Part, ...],
    grad: Part,
) -> tuple[Part, ...]:
    """Return the names, or the specs, of the operands that a gradient op reads."""
    parts: dict[Operand, tuple[Part, ...]] = {
        Operand.INPUT: inputs[:1],
        Operand.SECOND_INPUT: inputs[1:2],
        Operand.INPUTS: inputs,
        Operand.OUTPUT: outputs[:1],
        Operand.SECOND_OUTPUT: outputs[1:2],
        Operand.SAVED: saved,
        Operand.GRADIENT: (grad,),
    }
    return tuple(chain.from_iterable(parts[operand] for operand in reads))


def expand_kind(kind: str, row: OpKind) -> dict[str, OpKind]:
    """Return the row of a kind and, if one op makes its gradients, the row of `<kind>_grad`."""
    if row.gradient_op is None:
        return {kind: row}
    gradient_kind = f"{kind}_grad"
    gradient_row = _make_gradient_row(kind, row, row.gradient_op)
    example = gradient_row.example
    gradient_count = len(gradient_row.outputs(*example.specs, **example.attrs))
    suffix = "grad" if gradient_count > 1 else "grad_input"
    gradient = emit_single_op(gradient_kind, row.gradient_op.reads, suffix, row.gradient_op.attrs)
    return {kind: replace(row, gradient=gradient), gradient_kind: gradient_row}


def _make_gradient_row(kind: str, row: OpKind, gradient_op: GradientOp) -> OpKind:
    """Return the row of `<kind>_grad`, with some columns of the forward kind's row."""
    outputs = gradient_op.outputs or _default_outputs(gradient_op)
    example = _make_gradient_example(kind, row, gradient_op)
    if row.products:  # the gradients consist of matrix products, too: `cost` is the rule of these
        gradient_row = matrix_kind(
            outputs,
            gradient_op.cost,
            example,
            gradient_op.source,
            work=row.work,
            read=row.read,
        )
    else:
        gradient_row = OpKind(
            outputs,
            gradient_op.cost,
            example,
            gradient_op.source,
            pointwise=row.pointwise,
            row=row.row,
            window=row.window,
        )
    return replace(gradient_row, **gradient_op.columns)


def _make_gradient_example(kind: str, row: OpKind, gradient_op: GradientOp) -> Example:
    """Return the example of a gradient op from the example of the forward kind."""
    specs, attrs = row.example.specs, row.example.attrs
    outputs = row.outputs(*specs, **attrs)
    saved = row.saved(*specs, **attrs) if row.saved else ()
    operands = _find_operands(gradient_op.reads, specs, outputs, saved, grad=outputs[0])
    forward_op = Op("", kind, (), (), attrs)
    # the rule of the attributes reads only specs and attributes: all else may be empty
    backward = Backward(
        forward_op, specs, outputs[0], grads=(), needs=(), saved=(), emit=lambda *_: ()
    )
    return Example(operands, gradient_op.attrs(backward))


def _default_outputs(gradient_op: GradientOp) -> Callable[..., Specs]:
    """Return the rule of the outputs of a gradient op that states none.

    These are the gradients of all inputs if it reads all of them, else of the first input.
    """
    if Operand.INPUTS not in gradient_op.reads:
        return like_first_input
    operands_after_inputs = len(gradient_op.reads) - 1
    return lambda *specs, **_: specs[: len(specs) - operands_after_inputs]
