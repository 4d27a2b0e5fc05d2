"""The table of op kinds: output shapes, FLOP, gradient as ops, an example and a source for each."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from steptime.core.errors import check_choice
from steptime.core.graph import Attr, Attrs
from steptime.network.ops import (
    communication,
    elementwise,
    embedding,
    experts,
    general,
    images,
    linear,
    loss,
    norm,
    opaque,
    optimizers,
    sequence,
    shaping,
    state,
)
from steptime.network.ops.gradient_op import expand_kind
from steptime.network.ops.table import OpKind, Products, ShapeError, Specs, Window

Value = TypeVar("Value")
_MODULES = (
    linear,
    images,
    norm,
    elementwise,
    general,
    shaping,
    embedding,
    sequence,
    experts,
    state,
    loss,
    optimizers,
    communication,
    opaque,
)
OPS: dict[str, OpKind] = {}
for _module in _MODULES:
    for _kind, _row in _module.KINDS.items():
        OPS |= expand_kind(_kind, _row)


def resolve_alias(
    kind: str, shapes: Sequence[tuple[int, ...]], attrs: Mapping[str, Attr]
) -> tuple[str, Mapping[str, Attr]]:
    """Return the kind and attributes of an op; `upsample2d` is a `resize2d` to the nearest.

    Of an image of 4 x 5, `upsample2d` by (2, 3) is `resize2d` to (8, 15).
    """
    # the one kind that has another name in older files
    if kind != "upsample2d":
        return kind, attrs
    height, width = shapes[0][2:4]
    scale = attrs.get("scale")
    if not isinstance(scale, tuple):
        raise ShapeError(f"upsample2d by {scale}, not by two numbers")
    height_factor, width_factor = scale
    size = (height * height_factor, width * width_factor)
    return "resize2d", {"size": size, "mode": "nearest"}


def kind_row(kind: str) -> OpKind:
    """Return the row of `kind`; raises `InputError` for a kind that is not in the table."""
    check_choice("op kind", kind, OPS)
    return OPS[kind]


@lru_cache(maxsize=1 << 18)
def _evaluate_column(name: str, kind: str, specs: Specs, attrs: Attrs) -> Any:
    """Return the value of a column of `OpKind` for an op, None if its row has no such rule."""
    rule = getattr(kind_row(kind), name)
    return rule(*specs, **dict(attrs)) if rule else None


def _make_column_reader(column: str, default: Value) -> Callable[..., Value]:
    """Return the function that reads a column of `OpKind` for an op, with its default."""

    def read_column(kind: str, specs: Specs, attrs: Attrs = ()) -> Value:
        value: Value | None = _evaluate_column(column, kind, specs, attrs)
        return default if value is None else value

    return read_column


outputs_of = _make_column_reader("outputs", Specs())  # raises `ShapeError` where shapes do not fit
saved_of = _make_column_reader("saved", Specs())
products_of = _make_column_reader("products", Products())
serial_of = _make_column_reader("serial", 1)
row_of = _make_column_reader("row", 1)
scratch_of = _make_column_reader("scratch", 0)
window_of: Callable[..., Window | None] = _make_column_reader("window", None)
exchanged_of: Callable[..., int | None] = _make_column_reader("exchanged", None)


def output_names(op: str, count: int) -> tuple[str, ...]:
    """Return the names of an op's `count` outputs: its own, then `op:1`, `op:2`, ..."""
    return (op, *[f"{op}:{i}" for i in range(1, count)]) if count else ()


@lru_cache(maxsize=1 << 16)
def cost_of(kind: str, specs: Specs, attrs: Attrs, output_specs: Specs) -> tuple[int, int]:
    """Return (FLOP, bytes) of one op: every input read once, every output written once."""
    row = kind_row(kind)
    settings: Mapping[str, Any] = dict(attrs)
    if row.read:  # an op that reads only a part of some input
        read_bytes = row.read(*specs, **settings)
    else:
        read_bytes = sum(spec.size_bytes for spec in specs)
    output_bytes = sum(spec.size_bytes for spec in output_specs)
    return row.flop(*specs, **settings), read_bytes + output_bytes
