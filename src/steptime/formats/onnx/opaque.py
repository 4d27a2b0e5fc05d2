"""ONNX operators without an op kind, priced by the bytes and FLOP of their shapes."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from steptime.core.errors import InputError, unknown
from steptime.core.graph import TensorSpec
from steptime.core.toml_files import read_packaged_toml
from steptime.formats import opaque
from steptime.formats.linear_algebra import OpWork, count_work
from steptime.formats.onnx.constant import FileConstant, Shape, Spec
from steptime.formats.onnx.fold import Value, clean_name, infer_outputs
from steptime.network.ops.table import ShapeError, require

if TYPE_CHECKING:
    from steptime.formats.onnx.run import OnnxWalk

TABLE = opaque.opaque_table(read_packaged_toml("onnx.toml")["opaque"])
UNREAD_SPEC: Spec = ("float32", ())  # of an output without a name, which no node reads
ATEN_SOLVER_BY_OPERATOR = {"Det": "det", "com.microsoft.Inverse": "inverse"}
_CUSTOM_DOMAIN = "."  # names of operators outside of ONNX's own domain have one
_RUNTIME_DOMAIN = "com.microsoft."
_PRODUCTS = re.compile(
    r"gemm|matmul|conv|attention|lstm|gru|rnn|scan|linear|moe|experts|mlp|nbits|det$|inverse|loop"
    r"|decoder|sequencemap",
    re.IGNORECASE,
)


def may_hold_products(op: str) -> bool:
    """Whether an unknown operator may do work that bytes do not show: a custom one, a scan."""
    is_custom = _CUSTOM_DOMAIN in op and not op.startswith(_RUNTIME_DOMAIN)
    return is_custom or bool(_PRODUCTS.search(op))


def lower_unknown(walk: "OnnxWalk", values: Sequence[Value]) -> list[Value]:
    """Lower an operator that the table lacks.

    ONNX defines some operators by others: these are lowered. Else the outputs have the shapes that
    ONNX infers, or that the file states, and the operator counts by its bytes.

    Raises:
        InputError: if no shape of an output is known; --allow-unknown passes its input on.
    """
    input_specs = [None if value is None else walk.spec(value) for value in values]
    # ONNX defines some operators by others
    definition = walk.model.expand_operator(walk.node, input_specs)
    if definition is not None:
        walk.lower_graph(definition)
        return [walk.value_by_name[name] for name in definition.outputs]
    specs = output_specs(walk, values)
    if specs is not None:
        return append_opaque(walk, values, specs)
    if not walk.allow_unknown:
        raise _unknown_operator(walk)
    return _pass_input_on(walk, values)


def _pass_input_on(walk: "OnnxWalk", values: Sequence[Value]) -> list[Value]:
    """Return the first tensor that a node reads as each of its outputs, and note the node."""
    tensors = [value for value in values if isinstance(value, str)]
    first_input = values[0] if values else None
    walk.b.unmodelled.append(f"{walk.name} ({walk.node.op})")
    return [tensors[0] if tensors else first_input] * len(walk.node.outputs)


def _unknown_operator(walk: "OnnxWalk") -> InputError:
    """Return the error of an operator whose outputs have no known shape."""
    place = walk.describe_node(walk.node)
    error = unknown("operator", walk.node.op, walk.handler_by_operator, place)
    reason = ""
    is_custom = _CUSTOM_DOMAIN in walk.node.op  # an operator that is not ONNX's
    if is_custom:
        reason = "the file does not state the shapes of its outputs (value_info); "
    return InputError(f"{error}; {reason}--allow-unknown passes its input on")


def output_specs(walk: "OnnxWalk", values: Sequence[Value]) -> list[Spec] | None:
    """Return type and shape of each output of a node, None if a shape is not known.

    ONNX infers them of its own operators; of others the file may state them for its own batch,
    which is the first axis.
    """
    try:
        inferred = infer_outputs(walk.node, values, walk.spec)
    except ShapeError:
        inferred = []
    is_custom = _CUSTOM_DOMAIN in walk.node.op
    specs: list[Spec] = []
    for output_index, name in enumerate(walk.node.outputs):
        spec = inferred[output_index] if output_index < len(inferred) else None
        if not _has_shape(spec):
            # of operators that are not ONNX's the file may state the shapes
            spec = walk.stated_spec(name) if is_custom else None
        is_read = name != ""
        if is_read and not _has_shape(spec):
            return None
        specs.append(spec or UNREAD_SPEC)
    return specs


def _has_shape(spec: Spec | None) -> bool:
    """Whether the shape of an output is known."""
    return spec is not None and spec[1] is not None


def append_opaque(
    walk: "OnnxWalk", values: Sequence[Value], specs: Sequence[Spec], flop_count: int | None = None
) -> list[Value]:
    """Append a node as an op that counts by its bytes; note it where its work is unknown.

    Args:
        walk: the walk, at the node.
        values: the values that the node reads.
        specs: type and shape of each of its outputs.
        flop_count: its FLOP; None for those of the table.

    Returns:
        The tensors of its outputs, None for an output without a name.

    Raises:
        ShapeError: if it reads or makes text.
    """
    inputs = _list_inputs(walk, values)
    output_indices = [index for index, name in enumerate(walk.node.outputs) if name]  # "": unused
    float_dtype = opaque.float_type(walk.b, inputs)
    outputs = [_output_spec(specs[index], float_dtype) for index in output_indices]
    stated_work = None if flop_count is None else OpWork(flop_count)
    work = stated_work or _count_solver_work(walk, inputs, outputs)
    op = walk.node.op
    tensors = opaque.append_opaque(walk.b, TABLE, op, walk.name, inputs, outputs, work)
    is_priced = op in TABLE or work is not None
    if not is_priced:  # a remark names these ops at the end of the walk
        walk.unpriced.add(tensors[0], clean_name(op), may_hold_products(op))
    tensor_by_index = dict(zip(output_indices, tensors, strict=True))
    return [tensor_by_index.get(index) for index in range(len(walk.node.outputs))]


def _list_inputs(walk: "OnnxWalk", values: Sequence[Value]) -> list[str]:
    """Return the tensors that a node reads; raises `ShapeError` for text."""
    constants = [value for value in values if isinstance(value, FileConstant)]
    require(all(constant.dtype != "text" for constant in constants), "reads text")
    # the few numbers that a file holds, such as scales, are settings of the op, not trained
    return [walk.tensor(_as_untrained(value)) for value in values if value is not None]


def _count_solver_work(
    walk: "OnnxWalk", inputs: Sequence[str], outputs: Sequence[TensorSpec]
) -> OpWork | None:
    """Return the work of a determinant or an inverse; None for all other operators."""
    solver = ATEN_SOLVER_BY_OPERATOR.get(walk.node.op, "")
    return count_work(solver, [walk.b.tensors[name] for name in inputs], outputs)


def _output_spec(spec: Spec, float_dtype: str) -> TensorSpec:
    """Return the tensor of an output, floats in the run's own type; refuses text."""
    dtype, shape = spec
    require(dtype != "text", "makes text")
    return TensorSpec(shape or (), float_dtype if "float" in dtype else dtype)


def _as_untrained(value: Value) -> Value:
    """Return a constant whose few numbers the file holds, such as scales, as one not trained."""
    if isinstance(value, FileConstant) and value.values is not None:
        return replace(value, derived=True)
    return value


def append_stated(
    walk: "OnnxWalk", *values: Value, flop_per_element: float | None = None
) -> list[Value]:
    """Append a node of known work by its bytes, with the shapes that ONNX infers.

    Args:
        walk: the walk, at the node.
        *values: what the node reads; sizes and the like may be left out.
        flop_per_element: FLOP of each element of the first output; None for those of the table.
    """
    specs = output_specs(walk, walk.input_values)
    if specs is None:
        raise ShapeError("a size follows from numbers that are not known")
    flop_count = None
    if flop_per_element is not None:
        _, shape = specs[0]
        flop_count = round(flop_per_element * math.prod(shape or ()))
    return append_opaque(walk, values, specs, flop_count)


def scale_batch(shape: Shape, file_batch: int, new_batch: int) -> Shape:
    """Return a shape stated for `file_batch` examples, its first axis, for `new_batch`."""
    return (new_batch, *shape[1:]) if shape[:1] == (file_batch,) else shape
