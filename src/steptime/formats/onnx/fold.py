"""Folds constants of an ONNX file, by the shape inference and the reference of `onnx`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.shape_inference import InferenceError, infer_node_outputs

from steptime.core.errors import escape_controls
from steptime.core.toml_files import read_packaged_toml
from steptime.formats import READ_ERRORS
from steptime.formats.export.onnx_nodes import TYPES
from steptime.formats.onnx.constant import FileConstant, Spec
from steptime.formats.onnx.model import OnnxNode
from steptime.formats.onnx.weightless import MAX_VALUES, element_type
from steptime.network.ops.table import ShapeError, require

MAX_NAME_LENGTH = 200
FALLBACK_DTYPE = "int8"  # stands in ONNX's inference for types that `TYPES` lacks
WEIGHT_MOVING_OPS = ("Gather", "GatherND", "Slice", "Split", "Expand", "Tile", "Concat", "Pad")
ROW_TAKING_OPS = ("Gather", "Expand", "Tile")  # the rows of a weight stay those of that weight
TABLE_MAKING_OPS = ("Range", "NonZero", "Trilu", "ScatterND", "ScatterElements", "Scatter")
_NAMES = read_packaged_toml("onnx.toml")
_POINTWISE_OPS = {
    *_NAMES["functions"].values(),
    *_NAMES["kinds"].values(),
    *_NAMES["read"],
    *("Cast", "CastLike", "Clip", "Sum", "Mean"),
}
_COMPUTABLE_OPS = {  # operators whose numbers are worked out, where they are few
    *_POINTWISE_OPS,
    *_NAMES["reductions"],
    *WEIGHT_MOVING_OPS,
    *("Range", "NonZero", "Trilu"),
    *("ConstantOfShape", "GatherElements", "CumSum", "TopK", "ArgMax", "ArgMin", "Constant"),
}
_GROWING_OPS = ("ConstantOfShape", "Expand", "Tile", "Pad", "Range")  # may make more than they read
_REFUSALS = (RuntimeError, InferenceError, onnx.checker.ValidationError, onnx.defs.SchemaError)


Value = str | FileConstant | None  # a tensor of the graph, a constant, or an input left out
SpecOf = Callable[[Value], Spec]  # returns type and shape of a value
Function = Callable[..., Value | Sequence[Value]]  # (walk, *inputs) -> the outputs


class Quantised(NamedTuple):
    """The type of few bits in which a file stores a weight, with its scales and zero points."""

    dtype: str
    scales: tuple[FileConstant, ...]


def clean_name(name: str) -> str:
    """Return a name of the file of bounded length, its control characters escaped."""
    return escape_controls(name[:MAX_NAME_LENGTH])


def as_weight(value: Value) -> Value:
    """Return a table of floats as a weight, whose numbers are not known, though the file has them.

    Small tables are read with the file; they are trained all the same.
    """
    if not isinstance(value, FileConstant) or value.derived or not value.is_float:
        return value
    # without values a constant is no longer worked out: ops that read it are ops of the step
    is_table = len(value.shape) > 1 and math.prod(value.shape) > 1
    return replace(value, values=None) if is_table else value


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front; raises `ShapeError` where there is none."""
    require(-rank <= axis < rank, f"axis {axis} of {rank}")
    return axis % rank


def infer_outputs(node: OnnxNode, values: Sequence[Value], spec_of: SpecOf) -> list[Spec]:
    """Return type and shape of each output by ONNX's inference, None for an unknown shape.

    Args:
        node: the node.
        values: the values that it reads.
        spec_of: returns type and shape of a value.

    Raises:
        ShapeError: if ONNX refuses the node.
    """
    inputs = dict(zip(node.proto.input, values, strict=True))
    type_by_input = {
        name: _type_of_spec(spec_of(value)) for name, value in inputs.items() if value is not None
    }
    numbers_by_input = {
        name: onnx.numpy_helper.from_array(value.values, name)
        for name, value in inputs.items()
        if isinstance(value, FileConstant) and value.values is not None
    }
    try:
        schema = onnx.defs.get_schema(node.op, node.opset, domain="")
        opsets = [onnx.helper.make_opsetid(domain="", version=node.opset)]
        type_by_output = infer_node_outputs(
            schema, node.proto, type_by_input, numbers_by_input, opset_imports=opsets
        )
    except (*READ_ERRORS, *_REFUSALS) as error:
        raise ShapeError(_first_line(error)) from None
    return [_spec_of_type(type_by_output.get(name)) for name in node.proto.output]


def _type_of_spec(spec: Spec) -> onnx.TypeProto:
    """Return type and shape as ONNX's inference reads them."""
    dtype, shape = spec
    # floats of any width have the run's own type, which does not matter for shapes
    stated_dtype = "float32" if "float" in dtype else dtype
    onnx_dtype = TYPES.get(stated_dtype, TYPES[FALLBACK_DTYPE])
    return onnx.helper.make_tensor_type_proto(onnx_dtype, shape)


def _spec_of_type(type_proto: onnx.TypeProto | None) -> Spec:
    """Return our form of a type of ONNX; it may leave a size open."""
    tensor = (type_proto or onnx.TypeProto()).tensor_type
    dtype = element_type(tensor.elem_type).name
    sizes = tensor.shape.dim
    states_shape = tensor.HasField("shape")
    states_sizes = all(size.HasField("dim_value") and size.dim_value >= 0 for size in sizes)
    if states_shape and states_sizes:
        return dtype, tuple(size.dim_value for size in sizes)
    return dtype, None


def fold_node(node: OnnxNode, values: Sequence[Value], spec_of: SpecOf) -> list[FileConstant]:
    """Return the outputs of a node that reads constants alone.

    Their numbers are worked out where they are few and cheap. Raises `ShapeError` for a node that
    ONNX refuses, and where a shape is not known.
    """
    outputs: list[FileConstant]
    arrays = _compute_outputs(node, values) if _is_cheap_to_compute(node, values, spec_of) else []
    # a node need not name all outputs that its operator has
    if arrays:
        outputs = [
            FileConstant(name, array.shape, _dtype_of_array(array), array)
            for name, array in zip(node.outputs, arrays, strict=False)
        ]
    else:
        specs = infer_outputs(node, values, spec_of)
        outputs = [
            _constant_without_values(name, spec)
            for name, spec in zip(node.outputs, specs, strict=False)
        ]
    constants = [value for value in values if isinstance(value, FileConstant)]
    return [
        replace(output, derived=_makes_table(node, constants, output.dtype)) for output in outputs
    ]


def _constant_without_values(name: str, spec: Spec) -> FileConstant:
    """Return a constant of a shape whose numbers are not worked out."""
    dtype, shape = spec
    if shape is None:
        raise ShapeError("a size follows from numbers that are not known")
    return FileConstant(name, shape, dtype)


def _makes_table(node: OnnxNode, constants: Sequence[FileConstant], output_dtype: str) -> bool:
    """Whether a node makes a table, which is not trained; another float may be a weight."""
    if node.op in TABLE_MAKING_OPS or any(constant.derived for constant in constants):
        return True
    # floats that are worked out of integers are positions
    reads_integers = any(constant.shape and not constant.is_float for constant in constants)
    return "float" in output_dtype and reads_integers and node.op in _POINTWISE_OPS


def _is_cheap_to_compute(node: OnnxNode, values: Sequence[Value], spec_of: SpecOf) -> bool:
    """Return whether the numbers of a node of constants can be worked out, and are few."""
    constants = [value for value in values if isinstance(value, FileConstant)]
    have_values = all(constant.values is not None for constant in constants)
    if node.op not in _COMPUTABLE_OPS or not have_values:
        return False
    input_sizes = [math.prod(constant.shape) for constant in constants]
    # inputs that broadcast make at most as many elements
    broadcast_bound = math.prod(input_sizes)
    may_grow = node.op in _GROWING_OPS
    if not may_grow and broadcast_bound <= MAX_VALUES:
        return True
    shapes = [shape for _, shape in infer_outputs(node, values, spec_of)]
    output_sizes = [math.prod(shape) for shape in shapes if shape is not None]
    have_shapes = len(output_sizes) == len(shapes)
    return have_shapes and math.prod(output_sizes) <= MAX_VALUES


def _dtype_of_array(array: NDArray[Any]) -> str:
    return element_type(onnx.helper.np_dtype_to_tensor_dtype(array.dtype)).name


def _compute_outputs(node: OnnxNode, values: Sequence[Value]) -> list[NDArray[Any]]:
    """Return the outputs of a node by ONNX's reference; [] for an opset that this lacks."""
    from onnx.reference.ops import load_op  # a tenth of a second, and few files need it

    arrays = [value.values if isinstance(value, FileConstant) else None for value in values]
    # the fields that an op of the reference reads of its runtime
    settings: dict[str, object] = {
        "log": lambda *_: None,
        "verbose": 0,
        "new_ops": None,
        "opsets": {"": node.opset},
    }
    try:
        with np.errstate(all="ignore"):
            op = load_op(domain="", op_type=node.op, version=node.opset)(node.proto, settings)
            return [np.asarray(array) for array in op.run(*arrays)]
    except (TypeError, NotImplementedError):  # the reference lacks the op, or this use of it
        return []
    except (*READ_ERRORS, RuntimeError) as error:
        raise ShapeError(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    """Return the first line of a message of `onnx`."""
    line = f"{error}".partition("\n")[0]
    return escape_controls(line[:MAX_NAME_LENGTH]) or type(error).__name__
