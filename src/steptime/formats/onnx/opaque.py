"""ONNX operators without a kind of their own: shapes by inference or as the file states them."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from steptime.core.errors import InputError, unknown
from steptime.core.graph import TensorSpec
from steptime.core.toml_files import packaged
from steptime.formats import opaque
from steptime.formats.onnx.fold import Spec, Value, cleaned, inferred
from steptime.formats.onnx.model import Shape, Static
from steptime.network.ops.table import ShapeError, require

if TYPE_CHECKING:
    from steptime.formats.onnx.run import Visit

TABLE = opaque.opaque_table(packaged("onnx.toml")["opaque"])
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


def lower_unknown(r: "Visit", values: Sequence[Value]) -> list[Value]:
    """Lower an operator that the table lacks.

    ONNX defines some operators by others: these are lowered. Else the outputs have the shapes that
    ONNX infers, or that the file states, and the operator counts by its bytes.

    Raises:
        InputError: if no shape of an output is known; --allow-unknown passes its input on.
    """
    body = r.model.body(r.node, [None if value is None else r.spec(value) for value in values])
    if body is not None:
        r.walk(body)
        return [r.env[name] for name in body.outputs]
    specs = output_specs(r, values)
    if specs is not None:
        return append_opaque(r, values, specs)
    if not r.allow_unknown:
        near = unknown("operator", r.node.op, r.ops, r.where(r.node))
        reason = ""
        if _CUSTOM_DOMAIN in r.node.op:
            reason = "the file does not state the shapes of its outputs (value_info); "
        raise InputError(f"{near}; {reason}--allow-unknown passes its input on")
    passed = next((v for v in values if isinstance(v, str)), values[0] if values else None)
    r.b.unmodelled.append(f"{r.name} ({r.node.op})")
    return [passed] * len(r.node.outputs)


def output_specs(r: "Visit", values: Sequence[Value]) -> list[Spec] | None:
    """Return type and shape of each output of a node, None if a shape is not known.

    ONNX infers them of its own operators; of others the file may state them for its own batch,
    which is the first axis.
    """
    try:
        specs = inferred(r.node, values, r.spec)
    except ShapeError:
        specs = []
    is_custom = _CUSTOM_DOMAIN in r.node.op
    stated = [r.stated_spec(name) if is_custom else None for name in r.node.outputs]
    merged = []
    for place, name in enumerate(r.node.outputs):
        spec = specs[place] if place < len(specs) and specs[place][1] is not None else stated[place]
        if name and (spec is None or spec[1] is None):
            return None
        merged.append(spec or ("float32", ()))
    return merged


def append_opaque(
    r: "Visit", values: Sequence[Value], specs: Sequence[Spec], flop_count: int | None = None
) -> list[Value]:
    """Append a node as an op that counts by its bytes; note it where its work is unknown."""
    numbers = [value for value in values if isinstance(value, Static) and value.dtype == "text"]
    require(not numbers, "reads texts")
    inputs = [r.tensor(_as_setting(value)) for value in values if value is not None]
    wide = opaque.float_type(r.b, inputs)
    places = [i for i, name in enumerate(r.node.outputs) if name]
    outputs = []
    for dtype, shape in (specs[i] for i in places):
        require(dtype != "text", "makes texts")
        outputs.append(TensorSpec(shape or (), wide if "float" in dtype else dtype))
    tensors = opaque.append_opaque(r.b, TABLE, r.node.op, r.name, inputs, outputs, flop_count)
    if r.node.op not in TABLE and flop_count is None:
        r.unpriced.add(tensors[0], cleaned(r.node.op), may_hold_products(r.node.op))
    results: list[Value] = [None] * len(r.node.outputs)
    for place, tensor in zip(places, tensors, strict=True):
        results[place] = tensor
    return results


def _as_setting(value: Value) -> Value:
    """Return a few numbers that the file holds, such as scales, as no weight: none trains them."""
    has_values = isinstance(value, Static) and value.values is not None
    return replace(value, derived=True) if isinstance(value, Static) and has_values else value


def append_stated(r: "Visit", *values: Value, flop_per_element: float | None = None) -> list[Value]:
    """Append a node of known work by its bytes, with the shapes that ONNX infers.

    Args:
        r: the walk, at the node.
        *values: what the node reads; sizes and the like may be left out.
        flop_per_element: FLOP of each element of the first output; None for those of the table.
    """
    specs = output_specs(r, r.values)
    require(specs is not None, "a size follows from numbers that are not known")
    stated: Sequence[Spec] = specs or ()
    flop = None
    if flop_per_element is not None:
        flop = round(flop_per_element * math.prod(stated[0][1] or ()))
    return append_opaque(r, values, stated, flop)


def grown(shape: Shape, file_batch: int, new: int) -> Shape:
    """Return a shape stated for a batch of `file_batch`, the first axis, for one of `new`."""
    return (new, *shape[1:]) if shape[:1] == (file_batch,) else shape
