"""Prefix tuning: trained keys and values before those of each sequence, in every layer."""

from dataclasses import replace

from steptime.core.errors import InputError
from steptime.core.graph import Op, TensorSpec
from steptime.network.graph_editor import GraphEditor

PLAIN_INPUTS = 3  # queries, keys, values


def adapt(editor: GraphEditor, op: Op) -> None:
    """Append an op; before attention, trained keys and values are joined with its own."""
    if op.kind != "attention":
        editor.ops.append(op)
        return
    if len(op.inputs) > PLAIN_INPUTS:
        raise InputError(f"--adapter prefix: {op.name} adds to its scores; nearest: --lora 16")
    longer_inputs = tuple(
        _append_prefix(editor, op, name, part)
        for name, part in zip(op.inputs[1:], ("keys", "values"), strict=True)
    )
    editor.ops.append(replace(op, inputs=(op.inputs[0], *longer_inputs)))


def _append_prefix(editor: GraphEditor, op: Op, name: str, part: str) -> str:
    """Append the prefix of keys or values, the same for every sequence, before them."""
    spec = editor.tensors[name]
    tokens = editor.tuning.tokens
    n, length, width = spec.shape
    weight = editor.add_weight(f"{op.name}/prefix_{part}", (tokens, width), op, spec.dtype)
    shape = (n, tokens, width)
    repeated = editor.append_op(
        f"{op.name}/prefix_{part}_all",
        "broadcast",
        (weight,),
        TensorSpec(shape, spec.dtype),
        {"shape": shape},
    )
    longer = TensorSpec((n, tokens + length, width), spec.dtype)
    inputs = (repeated, name)
    return editor.append_op(
        f"{op.name}/prefix_{part}_joined", "concat", inputs, longer, {"axis": 1}
    )
