"""LoRA: to a product x W^T the small ones (x A^T) B^T, scaled; the frozen product's stays."""

from typing import NamedTuple

from steptime.core.graph import Attr, Op, TensorSpec
from steptime.network.graph_editor import CONSTANT, MERGED_PRODUCTS, GraphEditor, product_names

SCALE = 2.0  # alpha over rank; its value costs nothing


def adapt(editor: GraphEditor, op: Op) -> None:
    """Append an op, and beside a product that is adapted the two small ones and their sum."""
    editor.ops.append(op)
    if editor.is_target(op):
        result = add_low_rank(editor, op)
        total = editor.tensors[op.outputs[0]]
        # later ops of the network read the sum in place of the product's result
        editor.results[op.outputs[0]] = editor.append_op(
            f"{op.name}/lora_sum", "add", (op.outputs[0], result), total
        )


class _AdaptedColumns(NamedTuple):
    """The columns of a product that are adapted, and the number of parts that they are of."""

    columns: int
    part_count: int


def add_low_rank(editor: GraphEditor, op: Op, *, is_merged: bool = False) -> str:
    """Append the two small products of a product and their scaling, and return the result.

    Args:
        editor: the graph.
        op: the product.
        is_merged: whether queries, keys and values that one product makes share its small ones.
    """
    y = editor.tensors[op.outputs[0]]
    if is_merged:
        adapted = _AdaptedColumns(y.shape[-1], part_count=1)
    else:
        adapted = _adapted_columns(editor, op)
    result = _append_small_products(editor, op, adapted)
    if adapted.columns < y.shape[-1]:
        result = _pad_columns(editor, op, result)
    scale: dict[str, Attr] = {"function": "mul", "scalar": SCALE}
    return editor.append_op(f"{op.name}/lora_scaled", "pointwise", (result,), y, scale)


def _append_small_products(editor: GraphEditor, op: Op, adapted: _AdaptedColumns) -> str:
    """Append (x A^T) B^T of an op's input x, and return the adapted columns of the result."""
    x = editor.tensors[op.inputs[0]]
    *leading_sizes, input_width = x.shape
    rank = editor.tuning.rank
    small_width = rank * adapted.part_count
    source = read_dropped(editor, op)
    down = editor.add_weight(f"{op.name}/lora_a", (small_width, input_width), op, x.dtype)
    up = editor.add_weight(f"{op.name}/lora_b", (adapted.columns, rank), op, x.dtype)
    small = TensorSpec((*leading_sizes, small_width), x.dtype)
    result = editor.append_op(f"{op.name}/lora_down", "linear", (source, down), small)
    # Each part has its own `rank` columns of the small result. One product that reads the first
    # `rank` columns and makes the results of all parts stands for theirs: it costs as much.
    if adapted.part_count > 1:
        part = TensorSpec((*leading_sizes, rank), x.dtype)
        first_columns: dict[str, Attr] = {"axis": -1, "start": 0, "stop": rank}
        result = editor.append_op(f"{op.name}/lora_own", "slice", (result,), part, first_columns)
    wide = TensorSpec((*leading_sizes, adapted.columns), x.dtype)
    return editor.append_op(f"{op.name}/lora_up", "linear", (result, up), wide)


def read_dropped(editor: GraphEditor, op: Op) -> str:
    """Return the input of the small products of an op: its own, behind dropout where there is."""
    if not editor.tuning.dropout:
        return op.inputs[0]
    name = f"{op.name}/lora_dropout"
    if name not in editor.tensors:
        x = editor.tensors[op.inputs[0]]
        editor.append_op(name, "dropout", (op.inputs[0],), x, {"p": editor.tuning.dropout})
    return name


def _adapted_columns(editor: GraphEditor, op: Op) -> _AdaptedColumns:
    """Return the columns of a product that are adapted.

    They are all columns, or those of some of queries, keys and values that one product makes.
    """
    (output,) = op.outputs
    part_sizes = editor.split_sizes.get(output)
    names = product_names(editor.tuning.on)
    adapts_parts = bool(names & {*MERGED_PRODUCTS})
    if not isinstance(part_sizes, tuple) or not adapts_parts:
        return _AdaptedColumns(editor.tensors[output].shape[-1], part_count=1)
    adapted_sizes = [
        int(size) for name, size in zip(MERGED_PRODUCTS, part_sizes, strict=True) if name in names
    ]
    return _AdaptedColumns(sum(adapted_sizes), len(adapted_sizes))


def _pad_columns(editor: GraphEditor, op: Op, result: str) -> str:
    """Append zeros beside the columns that are adapted, for the others of the product."""
    y = editor.tensors[op.outputs[0]]
    *leading_sizes, all_columns = y.shape
    columns = all_columns - editor.tensors[result].shape[-1]  # that are not adapted
    zeros_spec = TensorSpec((*leading_sizes, columns), y.dtype)
    zeros = editor.add_buffer(f"zeros{columns}/{CONSTANT}", zeros_spec)
    return editor.append_op(f"{op.name}/lora_padded", "concat", (result, zeros), y, {"axis": -1})
