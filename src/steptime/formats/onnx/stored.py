"""Quantised weights of an ONNX file, kept in the bits that the file has them in.

Runtimes scale them in the kernel of the product that reads them. In training they are of the run's
own type, since no step can move a weight of few bits.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from steptime.core.dtypes import SIZE_BYTES
from steptime.core.graph import Op
from steptime.core.units import format_count
from steptime.formats.elements import PRODUCTS
from steptime.formats.onnx.constant import FileConstant
from steptime.formats.onnx.fold import clean_name
from steptime.formats.onnx.run import OnnxWalk
from steptime.formats.tensors import free_name, index_readers
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder

_NARROW_DTYPES = [name for name, size in SIZE_BYTES.items() if name.startswith("int") and size <= 1]


class _WeightReaders(NamedTuple):
    """A weight with its views and casts, and the other ops that read any of them."""

    views: Sequence[str]
    ops: Sequence[Op]


def store_quantised(walk: OnnxWalk) -> list[str]:
    """Store the quantised weights that products alone read as the file does.

    Changes the types of their tensors, and adds their scales to the inputs of linear layers.

    Returns:
        Remarks on the weights that are counted as stored, and those that are not.
    """
    b = walk.b
    if not walk.quantised_by_weight:
        return []
    readers_by_tensor = index_readers(b)
    index_by_op = {op.name: index for index, op in enumerate(b.ops)}
    buffer_by_scale: dict[str, str] = {}
    stored_count = 0
    full_width_count = 0
    for name, (dtype, scales) in walk.quantised_by_weight.items():
        is_in_graph = name in walk.root_by_constant
        if not is_in_graph:
            continue
        readers = _find_weight_readers(readers_by_tensor, walk.root_by_constant[name].tensor)
        is_narrow = dtype in _NARROW_DTYPES
        # no step can train a weight of few bits
        if is_narrow and not b.training and _is_read_by_products(readers):
            stored_count += 1
            _store_tensors(b, readers.views, dtype, index_by_op)
            buffers = [_find_scale_buffer(b, scale, buffer_by_scale) for scale in scales]
            _add_scales(b, readers.ops, buffers, index_by_op)
        # what is trained, or read by other ops than products, counts in full width; so does a
        # weight that the file holds in float32 and quantises by ops of its own
        elif is_narrow or dtype == "float32":
            full_width_count += 1
    return _describe_counts(b, stored_count, full_width_count)


def _find_weight_readers(readers_by_tensor: Mapping[str, list[Op]], weight: str) -> _WeightReaders:
    """Return the readers of a weight, through its views and casts."""
    views: list[str] = []
    readers: list[Op] = []
    pending = deque([weight])
    while pending:
        view = pending.popleft()
        views.append(view)
        for op in readers_by_tensor.get(view, ()):
            is_view_or_cast = OPS[op.kind].storage == "view" or op.kind == "cast"
            if is_view_or_cast:
                pending.extend(op.outputs)
            else:
                readers.append(op)
    return _WeightReaders(views, readers)


def _is_read_by_products(readers: _WeightReaders) -> bool:
    """Return whether only matrix products and convolutions read a weight, as their weight."""
    return all(op.kind in PRODUCTS and op.inputs[1] in readers.views for op in readers.ops)


def _store_tensors(
    b: Builder, tensors: Sequence[str], dtype: str, index_by_op: Mapping[str, int]
) -> None:
    """Set the type of a weight and its views; a cast of it becomes a view, as it is not made.

    `index_by_op` has the indices of ops in `b.ops`, by their name.
    """
    for tensor in tensors:
        b.tensors[tensor] = b.tensors[tensor]._replace(dtype=dtype)
        producer = b.made_by.get(tensor)
        # kernels widen the weight inside the product: the cast is not made
        if producer and producer.kind == "cast":
            view = replace(producer, kind="reshape", attrs={"shape": b.shape(tensor)})
            b.ops[index_by_op[producer.name]] = view


def _add_scales(
    b: Builder, ops: Sequence[Op], buffers: Sequence[str], index_by_op: Mapping[str, int]
) -> None:
    """Add buffers of scales to the inputs of the linear layers among some ops."""
    for op in ops:
        if op.kind == "linear":
            b.ops[index_by_op[op.name]] = replace(op, inputs=(*op.inputs, *buffers))


def _find_scale_buffer(b: Builder, scale: FileConstant, buffer_by_scale: dict[str, str]) -> str:
    """Return the buffer of a weight's scales or zero points; append it at first use."""
    if scale.name not in buffer_by_scale:
        name = free_name(b, clean_name(scale.name) or "scales")
        dtype = "" if scale.is_float else scale.dtype
        buffer_by_scale[scale.name] = b.buffer(name, scale.shape, dtype)
    return buffer_by_scale[scale.name]


def _describe_counts(b: Builder, stored_count: int, full_width_count: int) -> list[str]:
    """Return remarks such as "2 quantised weights counted as stored, multiplied in float32"."""
    remarks: list[str] = []
    if stored_count:
        weights = format_count(stored_count, "quantised weight")
        remarks.append(f"{weights} counted as stored, multiplied in {b.precision.compute}")
    if full_width_count:
        weights = format_count(full_width_count, "quantised weight")
        remarks.append(f"{weights} counted in {b.precision.weights}, not as stored")
    return remarks
