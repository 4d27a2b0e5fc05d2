"""ATen ops without a kind of their own: priced by the bytes of the shapes that a file states."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from steptime.core.graph import Op, TensorSpec, frozen
from steptime.core.toml_files import packaged
from steptime.core.units import counted, first_of
from steptime.formats import elements as el
from steptime.network.ops import cost_of
from steptime.network.ops.builder import Builder
from steptime.network.ops.elementwise import promoted
from steptime.network.ops.opaque import pack_specs

if TYPE_CHECKING:
    from steptime.formats.pytorch.walk import Call, Value

_TABLE: Mapping[str, Mapping[str, float]] = packaged("torch_names.toml")["opaque"]
MOVES, FUNCTIONS, TRANSFORMS = _TABLE["moves"], _TABLE["functions"], _TABLE["transforms"]
INCOMPARABLE_SHARE = 0.2  # of the bytes of a step that ops of unknown work may move
_ATEN_NAMESPACES = ("torch.ops.aten.", "torch.ops.prims.", "_operator.", "math.")
_PRODUCTS = re.compile(
    r"(^|_)(\w*mm|matmul|linear|conv\w*|attention|lstm|gru|rnn|dot|cell|multi_head\w*|einsum"
    r"|tensordot|bilinear|linalg|cholesky|solve|inverse|qr|svd|eig\w*|lu|lstsq|pinverse|expm)(_|$)"
)


def holds_no_products(op: str) -> bool:
    """Whether an op without a kind is known to hold no products."""
    return op in MOVES or op in FUNCTIONS or op in TRANSFORMS


def may_hold_products(target: str, op: str) -> bool:
    """Whether an unknown op may do work that bytes do not show: a custom op, a scan, a solver."""
    return not target.startswith(_ATEN_NAMESPACES) or bool(_PRODUCTS.search(op))


def append_opaque(call: "Call", reads: Sequence["Value"]) -> list[str]:
    """Append an op that reads tensors and makes the outputs that the file states."""
    b, node = call.b, call.node
    inputs = tuple(call.walk.tensor(value) for value in reads)
    specs = [b.tensors[name] for name in inputs]
    floats = [spec for spec in specs if spec.dtype.startswith(("float", "bfloat"))]
    wide = promoted(*floats) if floats else b.precision.weights
    outputs = [call.walk.opaque_spec(name, reads, node, wide) for name in node.outputs]
    return list(
        b.append(
            b.named(el.free_name(b, call.name)),
            "opaque",
            inputs,
            function=node.op,
            flop_count=_flop_count(node.op, specs, outputs),
            is_linear=node.op in MOVES or node.op in TRANSFORMS,
            **pack_specs(outputs),
        )
    )


def _flop_count(op: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
    """Return the FLOP of an op: of its elements, or of the Fourier transform of so many."""
    output_specs = max((spec.size for spec in outputs), default=0)
    if op in TRANSFORMS:
        size = max([output_specs, *[spec.size for spec in inputs]])
        longest = max([2, *[n for spec in outputs for n in spec.shape]])
        return round(TRANSFORMS[op] * size * math.log2(longest))
    return round(output_specs * MOVES.get(op, FUNCTIONS.get(op, 0)))


def describe_unpriced(b: Builder, names: Mapping[str, str], suspects: Sequence[str]) -> list[str]:
    """Return the notes on ops of unknown work.

    Args:
        b: the finished graph.
        names: the names of those ops -> what the file calls them.
        suspects: the names of those that may hold products.

    Example: `2 ops of unknown work (my.op): priced by their bytes, 3 % of the step's`.
    """
    moved = {op.name: _moved_bytes(b, op) for op in b.ops}
    unknown = [name for name in names if name in moved]
    if not unknown:
        return []
    share = sum(moved[name] for name in unknown) / max(1, sum(moved.values()))
    kinds = first_of(dict.fromkeys(names[name] for name in unknown), 3)
    ops = counted(len(unknown), "op")
    notes = [f"{ops} of unknown work ({kinds}): priced by bytes, {share:.0%} of the step's"]
    if share > INCOMPARABLE_SHARE or any(name in moved for name in suspects):
        notes.append("not comparable: the work of those ops may be a large part of the step")
    return notes


def _moved_bytes(b: Builder, op: Op) -> int:
    specs = tuple(b.tensors[name] for name in op.inputs)
    output_specs = tuple(b.tensors[name] for name in op.outputs)
    return cost_of(op.kind, specs, frozen(op.attrs), output_specs)[1]
