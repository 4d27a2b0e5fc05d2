"""The answer of `list stacks`: software stacks, how they run kinds of ops, and their constants."""

import re
from dataclasses import fields
from typing import ClassVar

from steptime.core.answer import AnswerRow
from steptime.core.tables.table import Column
from steptime.core.tables.table import Row as TableRow
from steptime.hardware import catalog
from steptime.hardware.constants import stack_uses
from steptime.hardware.stack import Stack
from steptime.questions.list.topics import TopicAnswer


class JoinRow(AnswerRow, frozen=True, kw_only=True):
    """A kind of op that runs inside the kernel before it.

    Attributes:
        kind: the kind.
        producers: the kinds of kernels that it runs in.
    """

    kind: str
    producers: tuple[str, ...]


class ExecutionRow(AnswerRow, frozen=True, kw_only=True):
    """How a stack runs a kind that is not one kernel which moves every tensor once.

    Attributes:
        kind: the kind.
        kernels: kernels that are launched.
        flop_factor: executed FLOP per counted one.
        is_chunked: whether it works in several chunks.
        condition: the attribute that an op must have; "" for all ops.
        source: where this is known from.
    """

    kind: str
    kernels: int
    flop_factor: float
    is_chunked: bool
    condition: str
    source: str


class ConstantRow(AnswerRow, frozen=True, kw_only=True):
    """A constant of a stack.

    Attributes:
        name: its full name, units in it.
        value: its value.
        spread: natural logarithm of the factor by which it usually errs.
        fitted_on: the rows that it was fitted on; "" for none.
        reason: why it has this value, where no rows were fitted.
    """

    name: str
    value: float | bool
    spread: float
    fitted_on: str
    reason: str


class StackRow(AnswerRow, frozen=True, kw_only=True):
    """A software stack.

    Attributes:
        name: its name.
        source: what it is, and the source of its description.
        backend: the backend that measures it; "" for none.
        is_compiled: whether the backend compiles.
        trains: whether it trains; else it only runs inference.
        since: the month of the release that the file describes; "" for none.
        base: the stack that it equals in all that its file does not say; "" for none.
        fuses: units whose kernels also run the elementwise ops that follow: vector, matrix.
        joins: kinds of ops that run inside the kernel before them.
        executions: kinds of ops that do not run as one kernel.
        constants: its constants.
        channels_last: whether images are laid out with their channels last.
        conv_tf32: whether convolutions in float32 run as TF32.
        matmul_tf32: whether other products in float32 run as TF32.
        pads: whether rows of 16-bit products are padded to 16 bytes.
        master_weights: whether mixed precision keeps float32 weights in the optimizer.
        tunes: the kinds of fine-tuning that it runs.
    """

    name: str
    source: str
    backend: str
    is_compiled: bool
    trains: bool
    since: str
    base: str
    fuses: tuple[str, ...]
    joins: tuple[JoinRow, ...]
    executions: tuple[ExecutionRow, ...]
    constants: tuple[ConstantRow, ...]
    channels_last: bool
    conv_tf32: bool
    matmul_tf32: bool
    pads: bool
    master_weights: bool
    tunes: tuple[str, ...]


class StacksAnswer(TopicAnswer, frozen=True, kw_only=True):
    """The software stacks.

    Attributes:
        rows: the stacks.
    """

    rows: tuple[StackRow, ...]
    COLUMNS: ClassVar[tuple[Column, ...]] = (Column("name"), Column("description"))
    CSV_COLUMNS: ClassVar[tuple[Column, ...]] = (Column("fuses"), Column("joins"), Column("source"))

    def _cells(self, row: StackRow) -> TableRow:  # type: ignore[override]  # each topic has rows of its own
        description = re.split(r"[:;(]", row.source)[0].strip()
        producers_by_kind = {join.kind: join.producers for join in row.joins}
        return {**row.to_dict(), "description": description, "joins": producers_by_kind}


def read_stacks() -> tuple[StackRow, ...]:
    """Return all software stacks."""
    return tuple(_read_stack(catalog.stack(name)) for name in catalog.stack_names())


def _read_stack(stack: Stack) -> StackRow:
    # Fields of the same name and type are copied; `joins` become rows.
    shared_names = {field.name for field in fields(stack)} & set(StackRow.__struct_fields__)
    copied_fields = {name: getattr(stack, name) for name in shared_names - {"joins"}}
    return StackRow(
        **copied_fields,
        is_compiled=stack.compile,
        joins=tuple(
            JoinRow(kind=kind, producers=producers) for kind, producers in stack.joins.items()
        ),
        executions=tuple(
            ExecutionRow(
                kind=kind,
                kernels=execution.kernels,
                flop_factor=execution.flop,
                is_chunked=execution.chunks > 1,
                condition=execution.condition,
                source=execution.source,
            )
            for kind, execution in stack.kinds.items()
        ),
        constants=tuple(_read_constants(stack)),
    )


def _read_constants(stack: Stack) -> list[ConstantRow]:
    rows = []
    for use in stack_uses():  # such as training or serving: a field with a table of constants
        for name, constant in getattr(stack, use).items():
            row = ConstantRow(
                name=name,
                value=constant.value,
                spread=constant.spread,
                fitted_on=constant.fitted_on,
                reason=constant.why,
            )
            rows.append(row)
    return rows
