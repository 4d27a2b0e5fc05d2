"""DoRA: LoRA whose rows have a trained magnitude, over the norm of the adapted matrix.

Each forward pass makes the matrix W + 2 B A whole for the norm of its rows, through which no
gradient goes back (Liu et al. 2024, section 4.3). As in peft B A is the result of both small
products on a matrix of ones on the diagonal.
"""

from dataclasses import dataclass

from steptime.core.errors import InputError
from steptime.core.graph import Attr, Op, TensorSpec
from steptime.network.adapters.lora import SCALE, add_low_rank, read_dropped
from steptime.network.graph_editor import CONSTANT, MERGED_PRODUCTS, GraphEditor, product_names


def adapt(editor: GraphEditor, op: Op) -> None:
    """Append an op, and beside a product that is adapted its small ones and its magnitude."""
    editor.ops.append(op)
    if not editor.is_target(op):
        return
    _check_merged_product(editor, op)
    (output,) = op.outputs
    y = editor.tensors[output]
    base = output
    if editor.tuning.dropout:
        # DoRA rescales the frozen product of the input that LoRA reads, which is behind dropout;
        # the network's own product reads the input without dropout.
        base = _append_base_product(editor, op)
    # `is_merged`: queries, keys and values that one product makes are adapted as one matrix
    low_rank = add_low_rank(editor, op, is_merged=True)
    # The result is base + (share - 1) base + share low_rank, with share = magnitude / norm.
    share = _append_share(editor, op)
    subtraction: dict[str, Attr] = {"function": "sub", "scalar": 1.0}
    change = editor.append_op(
        f"{op.name}/dora_change", "pointwise", (share,), editor.tensors[share], subtraction
    )
    base_change = editor.append_op(f"{op.name}/dora_base", "mul", (base, change), y)
    rank_change = editor.append_op(f"{op.name}/dora_low_rank", "mul", (low_rank, share), y)
    both_changes = editor.append_op(f"{op.name}/dora_both", "add", (base_change, rank_change), y)
    # later ops of the network read the sum in place of the product's result
    editor.results[output] = editor.append_op(
        f"{op.name}/dora_sum", "add", (output, both_changes), y
    )


def _check_merged_product(editor: GraphEditor, op: Op) -> None:
    """Raise an error for a product of queries, keys and values of which only some are adapted."""
    is_merged_product = op.outputs[0] in editor.split_sizes  # its result is split afterwards
    adapted_parts = product_names(editor.tuning.on) & {*MERGED_PRODUCTS}
    adapts_single_parts = 0 < len(adapted_parts) < len(MERGED_PRODUCTS)
    if is_merged_product and adapts_single_parts:
        raise InputError(
            f"--adapter dora on={editor.tuning.on}: {op.name} makes queries, keys and values "
            "together; nearest: on=attention"
        )


def _append_share(editor: GraphEditor, op: Op) -> str:
    """Append the trained magnitude of each row of a matrix over the row's norm."""
    y = editor.tensors[op.outputs[0]]
    per_row = TensorSpec((y.shape[-1],), y.dtype)
    magnitude = editor.add_weight(f"{op.name}/dora_magnitude", per_row.shape, op, y.dtype)
    norm = _RowNorm(editor, op).append()
    division: dict[str, Attr] = {"function": "div"}
    return editor.append_op(
        f"{op.name}/dora_share", "pointwise", (magnitude, norm), per_row, division
    )


def _append_base_product(editor: GraphEditor, op: Op) -> str:
    """Append the frozen product once more, of the input behind dropout."""
    inputs = (read_dropped(editor, op), editor.append_wide_weight(op, "dora_again"))
    y = editor.tensors[op.outputs[0]]
    return editor.append_op(f"{op.name}/dora_product", "linear", inputs, y)


@dataclass(frozen=True)
class _RowNorm:
    """Ops for the norm of each row of W + 2 B A, the matrix of a product with LoRA's added.

    Attributes:
        editor: the graph that the ops are appended to.
        op: the product.
    """

    editor: GraphEditor
    op: Op

    def append(self) -> str:
        """Append the norm of each row, which asks for no gradient, and return it."""
        weight = self.editor.append_wide_weight(self.op, "dora_wide")
        change = self._append_change()
        shape = self.editor.tensors[change].shape
        per_row = shape[:1]
        matrix = self._append("matrix", "add", (weight, change), shape)
        squares = self._append("squares", "mul", (matrix, matrix), shape)
        sums = self._append("sums", "reduce", (squares,), per_row, function="sum", axes=(1,))
        norm = self._append("norm", "pointwise", (sums,), per_row, function="sqrt")
        return self._append("norm_detached", "detach", (norm,), per_row)

    def _append_change(self) -> str:
        """Append the matrix 2 B A, `[rows, columns]` as W, and return it.

        As in peft these are two products with the identity, whose result is transposed.
        """
        x = self.editor.tensors[self.op.inputs[0]]
        columns = x.shape[-1]
        rows = self.editor.tensors[self.op.outputs[0]].shape[-1]
        lora_a = self._append_detached("a")
        lora_b = self._append_detached("b")
        # Of the identity only its size counts here: a row that is repeated has it.
        row_spec = TensorSpec((1, columns), x.dtype)
        row = self.editor.add_buffer(f"identity{columns}/{CONSTANT}", row_spec)
        identity = self._append("ones", "tile", (row,), (columns, columns), times=(columns, 1))
        rank = self.editor.tuning.rank
        product = self._append("down", "linear", (identity, lora_a), (columns, rank))
        product = self._append("up", "linear", (product, lora_b), (columns, rows))
        product = self._append("turned", "transpose", (product,), (rows, columns), order=(1, 0))
        scaling: dict[str, Attr] = {"function": "mul", "scalar": SCALE}
        return self._append("scaled", "pointwise", (product,), (rows, columns), **scaling)

    def _append_detached(self, part: str) -> str:
        """Append a copy of LoRA's `a` or `b` that passes no gradient on."""
        name = self.editor.read_name_by_weight[f"{self.op.name}/lora_{part}"]
        shape = self.editor.tensors[name].shape
        return self._append(f"detached_{part}", "detach", (name,), shape)

    def _append(
        self, suffix: str, kind: str, inputs: tuple[str, ...], shape: tuple[int, ...], **attrs: Attr
    ) -> str:
        """Append an op with a result of this shape, and return the result."""
        spec = TensorSpec(shape, self.editor.tensors[self.op.inputs[0]].dtype)
        return self.editor.append_op(f"{self.op.name}/dora_{suffix}", kind, inputs, spec, attrs)
