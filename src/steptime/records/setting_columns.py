"""Hyperparameters as columns of the types that their values have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from steptime.records.frames.frame_columns import COUNT, NUMBER, STRING

TYPES: Mapping[str, pl.DataType] = {"bool": pl.Boolean(), "int": COUNT, "float": NUMBER}


def typed_settings(
    params: pl.Series, columns: Mapping[str, str], kinds: Mapping[str, Sequence[str]]
) -> list[pl.Series]:
    """Return the hyperparameters of rows, a column each, null where a network has none.

    Args:
        params: the column `params` of the rows, JSON texts.
        columns: the column of each hyperparameter by its name.
        kinds: the names of the types that the values of each hyperparameter have.
    """
    # Texts repeat from row to row: each distinct one is parsed once, then rows are looked up.
    texts = params.unique(maintain_order=True)
    settings = msgspec.json.decode(f"[{','.join(texts)}]")
    typed = [
        _typed_column(column, [setting.get(name) for setting in settings], kinds[name])
        for name, column in columns.items()
    ]
    numbers = pl.Series(range(len(texts)), dtype=COUNT)
    # The cast is for a frame without rows, where `replace_strict` keeps the type of the texts.
    text_numbers = params.replace_strict(texts, numbers).cast(COUNT)
    return [column.gather(text_numbers) for column in typed]


def _typed_column(name: str, values: Sequence[Any], kinds: Sequence[str]) -> pl.Series:
    """Return a column of numbers or truth values, or of texts where types are mixed."""
    distinct = {*kinds}
    if distinct == {"int", "float"}:
        numbers = [None if value is None else float(value) for value in values]
        return pl.Series(name, numbers, dtype=NUMBER)
    if len(distinct) == 1 and distinct != {"str"}:
        kind = TYPES[kinds[0]]
        if kind == NUMBER:  # JSON may write 2 for 2.0
            values = [None if value is None else float(value) for value in values]
        return pl.Series(name, values, dtype=kind)
    return pl.Series(name, [_to_text(value) for value in values], dtype=STRING)


def _to_text(value: Any) -> str | None:
    """Return a value as text: a truth value as "yes" or "no"."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if value is None or isinstance(value, str) else json.dumps(value)
