"""DoRA: LoRA whose rows have a trained magnitude, over the norm of the adapted matrix.

Each forward pass makes the matrix W + 2 B A whole for the norm of its rows, through which no
gradient goes back (Liu et al. 2024, section 4.3). As in peft B A is the result of both small
products on a matrix of ones on the diagonal.
"""

from steptime.core.errors import InputError
from steptime.core.graph import Attr, Op, TensorSpec
from steptime.network.adapters.lora import SCALE, add_low_rank, read_dropped
from steptime.network.graph_editor import CONSTANT, MERGED_PRODUCTS, GraphEditor, product_names


def adapt(editor: GraphEditor, op: Op) -> None:
    """Append an op, and beside a product that is adapted its small ones and its magnitude."""
    editor.ops.append(op)
    if not editor.is_target(op):
        return
    is_merged_product = op.outputs[0] in editor.split_sizes  # its result is split afterwards
    adapted_parts = product_names(editor.tuning.on) & {*MERGED_PRODUCTS}
    adapts_single_parts = 0 < len(adapted_parts) < len(MERGED_PRODUCTS)
    if is_merged_product and adapts_single_parts:
        raise InputError(
            f"--adapter dora on={editor.tuning.on}: {op.name} makes queries, keys and values "
            "together; nearest: on=attention"
        )
    (output,) = op.outputs
    y = editor.tensors[output]
    base = output
    if editor.tuning.dropout:
        # DoRA rescales the frozen product of the input that LoRA reads, which is behind dropout;
        # the network's own product reads the input without dropout.
        base = _append_base_product(editor, op)
    # `is_merged`: queries, keys and values that one product makes are adapted as one matrix
    low_rank = add_low_rank(editor, op, is_merged=True)
    per_row = TensorSpec((y.shape[-1],), y.dtype)  # a number for each row of the matrix

    def append(suffix: str, kind: str, inputs: tuple[str, ...], spec: TensorSpec) -> str:
        return editor.append_op(f"{op.name}/dora_{suffix}", kind, inputs, spec)

    # The result is base + (share - 1) base + share low_rank, with share = magnitude / norm.
    magnitude = editor.add_weight(f"{op.name}/dora_magnitude", per_row.shape, op, y.dtype)
    norm = _append_norm(editor, op)
    division: dict[str, Attr] = {"function": "div"}
    share = editor.append_op(
        f"{op.name}/dora_share", "pointwise", (magnitude, norm), per_row, division
    )
    subtraction: dict[str, Attr] = {"function": "sub", "scalar": 1.0}
    change = editor.append_op(f"{op.name}/dora_change", "pointwise", (share,), per_row, subtraction)
    base_change = append("base", "mul", (base, change), y)
    rank_change = append("low_rank", "mul", (low_rank, share), y)
    both_changes = append("both", "add", (base_change, rank_change), y)
    # later ops of the network read the sum in place of the product's result
    editor.results[output] = append("sum", "add", (output, both_changes), y)


def _append_base_product(editor: GraphEditor, op: Op) -> str:
    """Append the frozen product once more, of the input behind dropout."""
    inputs = (read_dropped(editor, op), editor.append_wide_weight(op, "dora_again"))
    y = editor.tensors[op.outputs[0]]
    return editor.append_op(f"{op.name}/dora_product", "linear", inputs, y)


def _append_norm(editor: GraphEditor, op: Op) -> str:
    """Append the norm of the rows of W + 2 B A, which asks for no gradient."""
    x = editor.tensors[op.inputs[0]]
    y = editor.tensors[op.outputs[0]]
    columns = x.shape[-1]
    rows = y.shape[-1]
    rank = editor.tuning.rank
    weight = editor.append_wide_weight(op, "dora_wide")

    def append(
        suffix: str, kind: str, inputs: tuple[str, ...], shape: tuple[int, ...], **attrs: Attr
    ) -> str:
        spec = TensorSpec(shape, x.dtype)
        return editor.append_op(f"{op.name}/dora_{suffix}", kind, inputs, spec, attrs)

    def detach(part: str) -> str:
        """Append a copy of LoRA's `a` or `b` that passes no gradient on."""
        name = editor.read_name_by_weight[f"{op.name}/lora_{part}"]
        return append(f"detached_{part}", "detach", (name,), editor.tensors[name].shape)

    lora_a = detach("a")
    lora_b = detach("b")
    # B A as two products with the identity, transposed to the layout of W. Of the identity only
    # its size counts here: a row that is repeated has it.
    row = editor.add_buffer(f"identity{columns}/{CONSTANT}", TensorSpec((1, columns), x.dtype))
    identity = append("ones", "tile", (row,), (columns, columns), times=(columns, 1))
    product = append("down", "linear", (identity, lora_a), (columns, rank))
    product = append("up", "linear", (product, lora_b), (columns, rows))
    product = append("turned", "transpose", (product,), (rows, columns), order=(1, 0))
    scaled = append(
        "scaled", "pointwise", (product,), (rows, columns), function="mul", scalar=SCALE
    )
    matrix = append("matrix", "add", (weight, scaled), (rows, columns))
    squares = append("squares", "mul", (matrix, matrix), (rows, columns))
    sums = append("sums", "reduce", (squares,), (rows,), function="sum", axes=(1,))
    norm = append("norm", "pointwise", (sums,), (rows,), function="sqrt")
    return append("norm_detached", "detach", (norm,), (rows,))
