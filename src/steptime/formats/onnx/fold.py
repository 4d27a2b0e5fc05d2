"""What follows from the constants of an ONNX file: by `onnx`, its inference and its reference."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.shape_inference import InferenceError, infer_node_outputs

from steptime.core.errors import escape_controls
from steptime.core.toml_files import packaged
from steptime.formats import READ_ERRORS
from steptime.formats.export.onnx_nodes import TYPES
from steptime.formats.onnx.model import OnnxNode, Shape, Static
from steptime.formats.onnx.weightless import DTYPES, MAX_VALUES
from steptime.network.ops.table import ShapeError, require

LONGEST_NAME = 200
WEIGHTS_MOVED = ("Gather", "GatherND", "Slice", "Split", "Expand", "Tile", "Concat", "Pad")
REPEATS = ("Gather", "Expand", "Tile")  # of rows that stay the weight that they are
TABLES = ("Range", "NonZero", "Trilu", "ScatterND", "ScatterElements", "Scatter")
_NAMES = packaged("onnx.toml")
_POINTWISE = {*_NAMES["functions"].values(), *_NAMES["kinds"].values(), *_NAMES["read"]}
_POINTWISE |= {"Cast", "CastLike", "Clip", "Sum", "Mean"}
_MOVES = ("ConstantOfShape", "GatherElements", "CumSum", "TopK", "ArgMax", "ArgMin", "Constant")
_CHEAP = _POINTWISE | {*_NAMES["reductions"], *WEIGHTS_MOVED, *TABLES[:3], *_MOVES}
_GROWING = ("ConstantOfShape", "Expand", "Tile", "Pad", "Range")  # beyond all that they read
_REFUSALS = (RuntimeError, InferenceError, onnx.checker.ValidationError, onnx.defs.SchemaError)
_QUIET: dict[str, Any] = {"log": lambda *_: None, "verbose": 0, "new_ops": None}


Value = str | Static | None
Spec = tuple[str, Shape | None]  # type and shape
Specs = Callable[[Value], Spec]
Function = Callable[..., Value | Sequence[Value]]


class Quantised(NamedTuple):
    """The type that a file keeps a weight in, and its scales and zero points there."""

    dtype: str
    scales: tuple[Static, ...]


def cleaned(name: str) -> str:
    """Return a name of the file without what cannot be shown, of bounded length."""
    return escape_controls(name[:LONGEST_NAME])


def as_weight(value: Value) -> Value:
    """Return floating numbers in rows as the weight that they are, though they are known."""
    if not isinstance(value, Static) or value.derived or not value.is_float:
        return value
    rows = len(value.shape) > 1 < math.prod(value.shape)
    return replace(value, values=None) if rows else value


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front; raises `ShapeError` where there is none."""
    require(-rank <= axis < rank, f"axis {axis} of {rank}")
    return axis % rank


def inferred(node: OnnxNode, values: Sequence[Value], specs: Specs) -> list[Spec]:
    """Return type and shape of each output as ONNX has it, None for a shape that it does not know.

    Raises `ShapeError` for a node that cannot be.
    """
    types, data = {}, {}
    for name, value in zip(node.proto.input, values, strict=True):
        if value is not None:
            dtype, shape = specs(value)
            number = TYPES["float32"] if "float" in dtype else TYPES.get(dtype, TYPES["int8"])
            types[name] = onnx.helper.make_tensor_type_proto(number, shape)
        if isinstance(value, Static) and value.values is not None:
            data[name] = onnx.numpy_helper.from_array(value.values, name)
    try:
        schema = onnx.defs.get_schema(node.op, node.opset, "")
        opsets = [onnx.helper.make_opsetid("", node.opset)]
        made = infer_node_outputs(schema, node.proto, types, data, opset_imports=opsets)
    except (*READ_ERRORS, *_REFUSALS) as error:
        raise ShapeError(_said(error)) from None
    return [_spec(made.get(name)) for name in node.proto.output]


def _spec(proto: onnx.TypeProto | None) -> Spec:
    tensor = (proto or onnx.TypeProto()).tensor_type
    sizes = [n.dim_value if n.HasField("dim_value") else -1 for n in tensor.shape.dim]
    known = tensor.HasField("shape") and min(sizes, default=0) >= 0
    return DTYPES.get(tensor.elem_type, ("text",))[0], tuple(sizes) if known else None


def folded(node: OnnxNode, values: Sequence[Value], specs: Specs) -> list[Static]:
    """Return what a node makes of constants alone; numbers are known where they are few."""
    constants = [value for value in values if isinstance(value, Static)]
    known = node.op in _CHEAP and all(value.values is not None for value in constants)
    sizes = math.prod(math.prod(value.shape) for value in constants)
    rows: list[Spec] = []
    if not known or node.op in _GROWING or sizes > MAX_VALUES:
        rows = inferred(node, values, specs)
        known = known and math.prod(math.prod(shape or ()) for _, shape in rows) <= MAX_VALUES
        known = known and not any(shape is None for _, shape in rows)
    arrays = _numbers(node, values) if known else []
    rows = [(_dtype(array), array.shape) for array in arrays] or rows
    rows = rows or inferred(node, values, specs)
    derived = node.op in TABLES or any(value.derived for value in constants)
    whole = any(value.shape and not value.is_float for value in constants)
    made = []
    for i, (name, (dtype, shape)) in enumerate(zip(node.outputs, rows, strict=False)):
        require(shape is not None, "a size follows from numbers that are not known")
        table = derived or ("float" in dtype and whole and node.op in _POINTWISE)
        array = arrays[i] if arrays else None
        made.append(Static(name, shape or (), dtype, array, derived=table))
    return made


def _dtype(array: NDArray[Any]) -> str:
    return DTYPES.get(onnx.helper.np_dtype_to_tensor_dtype(array.dtype), ("text",))[0]


def _numbers(node: OnnxNode, values: Sequence[Value]) -> list[NDArray[Any]]:
    """Return what the reference of ONNX makes of a few numbers, nothing for an opset it lacks."""
    from onnx.reference.ops import load_op  # a tenth of a second, and few files need it

    arrays = [value.values if isinstance(value, Static) else None for value in values]
    try:
        with np.errstate(all="ignore"):
            op = load_op("", node.op, node.opset)(node.proto, _QUIET | {"opsets": {"": node.opset}})
            return [np.asarray(array) for array in op.run(*arrays)]
    except (TypeError, NotImplementedError):
        return []
    except (*READ_ERRORS, RuntimeError) as error:
        raise ShapeError(_said(error)) from None


def _said(error: Exception) -> str:
    """Return the first line of what `onnx` says."""
    return escape_controls(f"{error}".partition("\n")[0][:LONGEST_NAME]) or type(error).__name__
