"""The table of op kinds: output shapes, FLOP, gradient as ops, an example and a source for each."""

from functools import lru_cache
from typing import Any

from steptime.core.errors import one_of
from steptime.core.graph import Attrs
from steptime.ops import (
    communication,
    convolution,
    elementwise,
    experts,
    general,
    linear,
    loss,
    norm,
    optimizer,
    pointwise,
    pooling,
    sequence,
    shaping,
)
from steptime.ops.table import OpKind, Products, Specs, Window

OPS: dict[str, OpKind] = {
    **linear.KINDS,
    **convolution.KINDS,
    **pooling.KINDS,
    **norm.KINDS,
    **elementwise.KINDS,
    **pointwise.KINDS,
    **general.KINDS,
    **shaping.KINDS,
    **sequence.KINDS,
    **experts.KINDS,
    **loss.KINDS,
    **optimizer.KINDS,
    **communication.KINDS,
}


def kind_row(kind: str) -> OpKind:
    """Return the row of `kind`; raises `InputError` for a kind that is not in the table."""
    one_of("op kind", kind, OPS)
    return OPS[kind]


@lru_cache(maxsize=1 << 18)
def _column(name: str, kind: str, specs: Specs, attrs: Attrs) -> Any:
    """Return what a column says of an op, None where its row leaves the column out."""
    rule = getattr(kind_row(kind), name)
    return rule(*specs, **dict(attrs)) if rule else None


def outputs_of(kind: str, specs: Specs, attrs: Attrs = ()) -> Specs:
    """Return the specs of an op's outputs; raises `ShapeError` where they do not fit."""
    outputs: Specs = _column("outputs", kind, specs, attrs)
    return outputs


def saved_of(kind: str, specs: Specs, attrs: Attrs = ()) -> Specs:
    """Return the specs of what the op keeps for its gradient besides inputs and outputs."""
    return _column("saved", kind, specs, attrs) or ()


def products_of(kind: str, specs: Specs, attrs: Attrs = ()) -> Products:
    """Return the matrix products `(batch, m, n, k)` of an op; none for kinds without."""
    return _column("products", kind, specs, attrs) or ()


def serial_of(kind: str, specs: Specs, attrs: Attrs = ()) -> int:
    """Return how many steps of the op wait for each other: the length of a recurrent layer."""
    return _column("serial", kind, specs, attrs) or 1


def window_of(kind: str, specs: Specs, attrs: Attrs = ()) -> Window | None:
    """Return height, width, strides and map of the window that an op moves, None without one."""
    window: Window | None = _column("window", kind, specs, attrs)
    return window


def row_of(kind: str, specs: Specs, attrs: Attrs = ()) -> int:
    """Return how many elements an op reduces along the last axis, 1 where it reduces none."""
    return _column("row", kind, specs, attrs) or 1


def exchanged_of(kind: str, specs: Specs, attrs: Attrs = ()) -> int | None:
    """Return the bytes that an op exchanges with other ranks, None for one that exchanges none."""
    exchanged: int | None = _column("exchanged", kind, specs, attrs)
    return exchanged


def scratch_of(kind: str, specs: Specs, attrs: Attrs = ()) -> int:
    """Return the bytes of tensors that are made and dropped inside the op."""
    return _column("scratch", kind, specs, attrs) or 0


def output_names(op: str, count: int) -> tuple[str, ...]:
    """Return the names of an op's `count` outputs: its own, then `op:1`, `op:2`, ..."""
    return tuple(op if i == 0 else f"{op}:{i}" for i in range(count))


@lru_cache(maxsize=1 << 16)
def cost_of(kind: str, specs: Specs, attrs: Attrs, written: Specs) -> tuple[int, int]:
    """Return (FLOP, bytes) of one op: every input read once, every output in `written` once."""
    row = kind_row(kind)
    values: dict[str, Any] = dict(attrs)
    read = row.read(*specs, **values) if row.read else sum(s.size_bytes for s in specs)
    return row.flop(*specs, **values), read + sum(s.size_bytes for s in written)
