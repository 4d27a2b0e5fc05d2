"""ATen ops without an op kind, priced by the bytes and FLOP of their shapes."""

import re
from collections.abc import Sequence

from steptime.core.toml_files import read_packaged_toml
from steptime.formats import opaque
from steptime.formats.linear_algebra import WORK, count_work
from steptime.formats.pytorch.call import Call, Value

TABLE = opaque.opaque_table(read_packaged_toml("torch_names.toml")["opaque"])
_ATEN_NAMESPACES = ("torch.ops.aten.", "torch.ops.prims.", "_operator.", "math.")
_PRODUCTS = re.compile(
    r"(^|_)(\w*mm|matmul|linear|conv\w*|attention|lstm|gru|rnn|dot|cell|multi_head\w*|einsum"
    r"|tensordot|bilinear|linalg|cholesky|solve|inverse|qr|svd|eig\w*|lu|lstsq|pinverse|expm)(_|$)"
)


def may_hold_products(target: str, op: str) -> bool:
    """Whether an unknown op may do work that bytes do not show: a custom op, a scan, a solver."""
    return not target.startswith(_ATEN_NAMESPACES) or bool(_PRODUCTS.search(op))


def is_priced(op: str) -> bool:
    """Whether the work of an ATen op without a kind of its own is known."""
    return op in TABLE or op in WORK


def append_opaque(call: Call, inputs: Sequence[Value], op: str = "") -> list[str]:
    """Append an op that reads tensors and makes the outputs that the file states.

    Args:
        call: the node and the walk.
        inputs: what the op reads.
        op: the op of the table that it works as; "" for the node's own.
    """
    node = call.node
    op = op or node.op
    tensors = tuple(call.walk.tensor(value) for value in inputs)
    float_dtype = opaque.float_type(call.b, tensors)
    outputs = [call.walk.opaque_spec(name, inputs, node, float_dtype) for name in node.outputs]
    work = count_work(op, [call.b.tensors[tensor] for tensor in tensors], outputs)
    return opaque.append_opaque(call.b, TABLE, op, call.name, tensors, outputs, work)
