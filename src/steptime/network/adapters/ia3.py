"""(IA)3: vectors that scale keys, values and what a feed-forward product reads.

What a product of attention makes is scaled, of another product what it reads: peft's
`feedforward_modules`.
"""

from dataclasses import replace

from steptime.core.graph import Op
from steptime.network.graph_editor import MERGED_PRODUCTS, GraphEditor, product_names
from steptime.network.products import is_attention_name


def adapt(editor: GraphEditor, op: Op) -> None:
    """Append an op, and the scaling of its input or of its results."""
    x, *further_inputs = op.inputs
    output = op.outputs[0]
    splits_merged_product = op.kind == "split" and x in editor.split_sources
    is_split_later = output in editor.split_sizes
    if splits_merged_product:  # into queries, keys and values, which are scaled one by one
        editor.ops.append(op)
        _scale_parts(editor, op)
    elif is_split_later or not editor.is_target(op):
        editor.ops.append(op)
    elif is_attention_name(op.name):  # the keys or values that the product makes are scaled
        editor.ops.append(op)
        editor.results[output] = _append_scaling(editor, op, output, "output")
    else:  # what a feed-forward product reads is scaled
        scaled = _append_scaling(editor, op, x, "input")
        editor.ops.append(replace(op, inputs=(scaled, *further_inputs)))


def _scale_parts(editor: GraphEditor, op: Op) -> None:
    """Append the scaling of queries, keys and values that one product makes together."""
    names = product_names(editor.tuning.on)
    for part, result in zip(MERGED_PRODUCTS, op.outputs, strict=False):
        if part in names:
            # later ops of the network read the scaled part
            editor.results[result] = _append_scaling(editor, op, result, part)


def _append_scaling(editor: GraphEditor, op: Op, name: str, suffix: str) -> str:
    """Append a product of a tensor and a trained vector, and return the result."""
    spec = editor.tensors[name]
    vector = editor.add_weight(f"{op.name}/ia3_{suffix}", spec.shape[-1:], op, spec.dtype)
    return editor.append_op(f"{op.name}/ia3_{suffix}_scaled", "mul", (name, vector), spec)
