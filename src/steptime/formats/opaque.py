"""Ops without an op kind, priced by the bytes and FLOP of their shapes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steptime.core.errors import InputError
from steptime.core.graph import Attr, Op, TensorSpec
from steptime.core.units import first_of, format_count
from steptime.formats.linear_algebra import OpWork
from steptime.formats.tensors import free_name
from steptime.network.ops import cost_of
from steptime.network.ops.builder import Builder
from steptime.network.ops.elementwise import promote_types
from steptime.network.ops.opaque import pack_specs

INCOMPARABLE_SHARE = 0.2  # of the bytes of a step that ops of unknown work may move


@dataclass(frozen=True)
class OpaqueTable:
    """Ops of a format without a kind of their own whose work is known, by the format's names.

    Attributes:
        flop_by_move: ops that move elements -> FLOP of each element written. They are linear.
        flop_by_function: ops whose gradient reads what they read -> FLOP of each element written.
        log_flop_by_transform: Fourier transforms -> FLOP of each element, in multiples of log2(N).
    """

    flop_by_move: Mapping[str, float]
    flop_by_function: Mapping[str, float]
    log_flop_by_transform: Mapping[str, float]

    def __contains__(self, op: str) -> bool:
        """Whether the op is known to hold no products."""
        return (
            op in self.flop_by_move
            or op in self.flop_by_function
            or op in self.log_flop_by_transform
        )

    def count_flop(
        self, op: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]
    ) -> int:
        """Return the FLOP of an op: of its elements, or of the Fourier transform of so many."""
        output_size = max((spec.size for spec in outputs), default=0)
        if op in self.log_flop_by_transform:  # n log2(n) FLOP along an axis of n, as an FFT
            element_count = max([output_size, *[spec.size for spec in inputs]])
            # shapes do not tell along which axis a transform runs: the longest is taken
            # of at least 2 elements, so that a transform is not free
            longest_axis = max([2, *[size for spec in outputs for size in spec.shape]])
            return round(self.log_flop_by_transform[op] * element_count * math.log2(longest_axis))
        flop_per_element = self.flop_by_move.get(op, self.flop_by_function.get(op, 0))
        return round(output_size * flop_per_element)

    def is_linear(self, op: str) -> bool:
        """Whether the gradient of an op reads none of its floating inputs."""
        return op in self.flop_by_move or op in self.log_flop_by_transform


def opaque_table(table: Mapping[str, Any]) -> OpaqueTable:
    """Return the table of a format's data file."""
    return OpaqueTable(table["moves"], table["functions"], table["transforms"])


@dataclass
class UnpricedOps:
    """The ops of a graph whose work is unknown.

    Attributes:
        operator_by_op: the name of each op in the graph -> the operator of the file that it is.
        possible_products: the names of those that may hold products.
    """

    operator_by_op: dict[str, str] = field(default_factory=dict)
    possible_products: list[str] = field(default_factory=list)

    def add(self, name: str, operator: str, may_hold_products: bool) -> None:
        """Note an op of unknown work."""
        self.operator_by_op[name] = operator
        if may_hold_products:
            self.possible_products.append(name)

    def describe(self, b: Builder) -> list[str]:
        """Return the notes on the ops of unknown work in a finished graph.

        Example: `2 ops of unknown work (my.op): priced by bytes, 3 % of the step's`.
        """
        moved_bytes_by_name = {op.name: cost_of_op(b, op)[1] for op in b.ops}
        # ops that lead nowhere were removed from the graph, and do not count
        unknown_ops = [name for name in self.operator_by_op if name in moved_bytes_by_name]
        if not unknown_ops:
            return []
        unknown_bytes = sum(moved_bytes_by_name[name] for name in unknown_ops)
        share = unknown_bytes / max(1, sum(moved_bytes_by_name.values()))
        kind_list = first_of(dict.fromkeys(self.operator_by_op[name] for name in unknown_ops), 3)
        ops = format_count(len(unknown_ops), "op")
        notes = [f"{ops} of unknown work ({kind_list}): priced by bytes, {share:.0%} of the step's"]
        may_hold_products = any(name in moved_bytes_by_name for name in self.possible_products)
        if share > INCOMPARABLE_SHARE or may_hold_products:
            notes.append("not comparable: the work of those ops may be a large part of the step")
        return notes

    def refuse(self, b: Builder, file_label: str) -> None:
        """Raise `InputError` if a finished graph has an op of unknown work: `--strict` asks it."""
        op_names = {op.name for op in b.ops}
        operators = [operator for name, operator in self.operator_by_op.items() if name in op_names]
        if operators:
            ops = f"{format_count(len(operators), 'op')} of unknown work"
            kind_list = first_of(dict.fromkeys(operators), 3)
            raise InputError(
                f"{file_label}: {ops} ({kind_list}); without --strict they count by bytes"
            )


def append_opaque(
    b: Builder,
    table: OpaqueTable,
    op: str,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[TensorSpec],
    work: OpWork | None = None,
) -> list[str]:
    """Append an op that reads tensors and makes outputs of these specs.

    Args:
        b: the graph so far.
        table: the ops of the format whose work is known.
        op: what the format calls it.
        name: its name in the graph, made free.
        inputs: the tensors that it reads.
        outputs: what it makes.
        work: its FLOP; None for those of the table.
    """
    specs = [b.tensors[tensor] for tensor in inputs]
    if work is None:
        work = OpWork(table.count_flop(op, specs, outputs))
    gradient: dict[str, Attr] = {}
    if work.gradient_flop is not None:
        gradient["gradient_flop"] = work.gradient_flop
    return list(
        b.append(
            b.full_path(free_name(b, name)),
            "opaque",
            tuple(inputs),
            function=op,
            flop_count=work.flop,
            is_linear=table.is_linear(op),
            **gradient,
            **pack_specs(outputs),
        )
    )


def float_type(b: Builder, inputs: Sequence[str]) -> str:
    """Return the type of floating results: the widest of the inputs', else that of weights."""
    specs = [b.tensors[name] for name in inputs]
    floats = [spec for spec in specs if spec.dtype.startswith(("float", "bfloat"))]
    return promote_types(*floats) if floats else b.precision.weights


def cost_of_op(b: Builder, op: Op) -> tuple[int, int]:
    """Return FLOP and bytes of an op of a graph that is being built."""
    input_specs = tuple(b.tensors[name] for name in op.inputs)
    output_specs = tuple(b.tensors[name] for name in op.outputs)
    return cost_of(op.kind, input_specs, op.settings, output_specs)
