"""The table of op kinds: output shapes, FLOP, gradient as ops, an example and a source for each."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from steptime.core.errors import check_choice
from steptime.core.graph import Attr, Attrs
from steptime.network.ops import (
    communication,
    elementwise,
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
from steptime.network.ops.table import OpKind, Products, Specs, Window, rows_of

Found = TypeVar("Found")
_MODULES = (
    linear,
    images,
    norm,
    elementwise,
    general,
    shaping,
    sequence,
    state,
    loss,
    optimizers,
    communication,
    opaque,
)
OPS: dict[str, OpKind] = {
    name: made
    for one in _MODULES
    for kind, row in one.KINDS.items()
    for name, made in rows_of(kind, row).items()
}


def _larger(x: tuple[int, ...], scale: tuple[int, int]) -> dict[str, Attr]:
    return {"size": (x[2] * scale[0], x[3] * scale[1]), "mode": "nearest"}


_OLD: dict[str, tuple[str, Callable[..., dict[str, Attr]]]] = {"upsample2d": ("resize2d", _larger)}


def renamed(
    kind: str, shapes: Sequence[tuple[int, ...]], attrs: Mapping[str, Attr]
) -> tuple[str, Mapping[str, Attr]]:
    """Return the kind and attributes of an op whose kind may be one of before, now part of another.

    Of an image of 4 x 5, `upsample2d` by (2, 3) is `resize2d` to (8, 15), the nearest.
    """
    if kind not in _OLD:
        return kind, attrs
    now, how = _OLD[kind]
    return now, how(*shapes, **attrs)


def kind_row(kind: str) -> OpKind:
    """Return the row of `kind`; raises `InputError` for a kind that is not in the table."""
    check_choice("op kind", kind, OPS)
    return OPS[kind]


@lru_cache(maxsize=1 << 18)
def _column(name: str, kind: str, specs: Specs, attrs: Attrs) -> Any:
    """Return what a column says of an op, None where its row leaves the column out."""
    rule = getattr(kind_row(kind), name)
    return rule(*specs, **dict(attrs)) if rule else None


def _reader(column: str, without: Found) -> Callable[..., Found]:
    """Return what reads a column of `OpKind` for an op, `without` where its kind has none."""

    def of(kind: str, specs: Specs, attrs: Attrs = ()) -> Found:
        found = _column(column, kind, specs, attrs)
        return without if found is None else found

    return of


outputs_of = _reader("outputs", Specs())  # raises `ShapeError` where shapes do not fit
saved_of = _reader("saved", Specs())
products_of = _reader("products", Products())
serial_of = _reader("serial", 1)
row_of = _reader("row", 1)
scratch_of = _reader("scratch", 0)
window_of: Callable[..., Window | None] = _reader("window", None)
exchanged_of: Callable[..., int | None] = _reader("exchanged", None)


def output_names(op: str, count: int) -> tuple[str, ...]:
    """Return the names of an op's `count` outputs: its own, then `op:1`, `op:2`, ..."""
    return (op, *[f"{op}:{i}" for i in range(1, count)]) if count else ()


@lru_cache(maxsize=1 << 16)
def cost_of(kind: str, specs: Specs, attrs: Attrs, written: Specs) -> tuple[int, int]:
    """Return (FLOP, bytes) of one op: every input read once, every output in `written` once."""
    row = kind_row(kind)
    values: dict[str, Any] = dict(attrs)
    read = row.read(*specs, **values) if row.read else sum(s.size_bytes for s in specs)
    return row.flop(*specs, **values), read + sum(s.size_bytes for s in written)
