"""LoRA: to a product x W^T the small ones (x A^T) B^T, scaled; the frozen product's stays."""

from steptime.core.graph import Attr, Op, TensorSpec
from steptime.network.graph_editor import CONSTANT, MERGED_PRODUCTS, GraphEditor, product_names

SCALE = 2.0  # alpha over rank; its value costs nothing


def adapt(editor: GraphEditor, op: Op) -> None:
    """Append an op, and beside a product that is adapted the two small ones and their sum."""
    editor.ops.append(op)
    if editor.is_target(op):
        result = add_low_rank(editor, op)
        total = editor.tensors[op.outputs[0]]
        editor.results[op.outputs[0]] = editor.append_op(
            f"{op.name}/lora_sum", "add", (op.outputs[0], result), total
        )


def add_low_rank(editor: GraphEditor, op: Op, *, is_merged: bool = False) -> str:
    """Append the two small products of a product and their scaling, and return the result.

    Args:
        editor: the graph.
        op: the product.
        is_merged: whether queries, keys and values that one product makes share its small ones.
    """
    x, y = editor.tensors[op.inputs[0]], editor.tensors[op.outputs[0]]
    columns, parts = (y.shape[-1], 1) if is_merged else _adapted_columns(editor, op)
    rank = editor.tuning.rank
    read = read_dropped(editor, op)
    down = editor.add_weight(f"{op.name}/lora_a", (rank * parts, x.shape[-1]), op, x.dtype)
    up = editor.add_weight(f"{op.name}/lora_b", (columns, rank), op, x.dtype)
    small = TensorSpec((*x.shape[:-1], rank * parts), x.dtype)
    result = editor.append_op(f"{op.name}/lora_down", "linear", (read, down), small)
    if parts > 1:  # each from columns of its own
        part = TensorSpec((*x.shape[:-1], rank), x.dtype)
        cut: dict[str, Attr] = {"axis": -1, "start": 0, "stop": rank}
        result = editor.append_op(f"{op.name}/lora_own", "slice", (result,), part, cut)
    wide = TensorSpec((*x.shape[:-1], columns), x.dtype)
    result = editor.append_op(f"{op.name}/lora_up", "linear", (result, up), wide)
    if columns < y.shape[-1]:
        result = _pad_columns(editor, op, result)
    scale: dict[str, Attr] = {"function": "mul", "scalar": SCALE}
    return editor.append_op(f"{op.name}/lora_scaled", "pointwise", (result,), y, scale)


def read_dropped(editor: GraphEditor, op: Op) -> str:
    """Return the input of the small products of an op: its own, behind dropout where there is."""
    if not editor.tuning.dropout:
        return op.inputs[0]
    name = f"{op.name}/lora_dropout"
    if name not in editor.tensors:
        x = editor.tensors[op.inputs[0]]
        editor.append_op(name, "dropout", (op.inputs[0],), x, {"p": editor.tuning.dropout})
    return name


def _adapted_columns(editor: GraphEditor, op: Op) -> tuple[int, int]:
    """Return the columns of a product that are adapted, and of how many parts these are."""
    sizes = editor.split_sizes.get(op.outputs[0])
    names = product_names(editor.tuning.on)
    if not isinstance(sizes, tuple) or not names & {*MERGED_PRODUCTS}:
        return editor.tensors[op.outputs[0]].shape[-1], 1
    columns = [
        int(size) for name, size in zip(MERGED_PRODUCTS, sizes, strict=True) if name in names
    ]
    return sum(columns), len(columns)


def _pad_columns(editor: GraphEditor, op: Op, result: str) -> str:
    """Append zeros beside the columns that are adapted, for the others of the product."""
    wide, y = editor.tensors[result], editor.tensors[op.outputs[0]]
    columns = y.shape[-1] - wide.shape[-1]
    zeros = editor.add_buffer(
        f"zeros{columns}/{CONSTANT}", TensorSpec((*y.shape[:-1], columns), y.dtype)
    )
    return editor.append_op(f"{op.name}/lora_padded", "concat", (result, zeros), y, {"axis": -1})
