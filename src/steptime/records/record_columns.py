"""The columns of records that users name, as expressions over the frame of records.

They are the columns that every table has, further quantities, and hyperparameters with the types
of their values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from steptime.records.column_names import name_quantities
from steptime.records.frames.frame_columns import other_number
from steptime.records.row import COLUMNS
from steptime.records.setting_columns import typed_settings

if TYPE_CHECKING:
    from steptime.records.folders import Folders


def step_end(name: str) -> pl.Expr:
    """Return the `low` or `high` end of the interval of a step; None where unknown.

    The median of samples is inside of its own interval.
    """
    estimate = pl.col("estimate").struct.field(name)  # computed from the samples
    outermost = pl.min_horizontal if name == "low" else pl.max_horizontal
    # An interval always includes the median of its samples, `step_s`.
    with_median = outermost(estimate, pl.col("step_s"))
    of_samples = pl.when(estimate.is_not_null()).then(with_median)
    stated = pl.col(f"stated_{name}")  # as the record's author wrote it, without samples
    return pl.when(pl.col("samples").is_null()).then(stated).otherwise(of_samples)


DERIVED_COLUMNS = {
    "step_s_low": step_end("low"),
    "step_s_high": step_end("high"),
    "steady": pl.col("estimate").struct.field("steady").cast(pl.Boolean()),
}


def record_columns(data: Folders) -> dict[str, pl.Expr]:
    """Return an expression for each column of records by its name.

    Names are told apart without their case; a quantity with the name of a column stands as
    `quantity_NAME`, such a hyperparameter as `param_NAME`.
    """
    columns = {name: DERIVED_COLUMNS.get(name, pl.col(name)) for name in COLUMNS}
    quantities = name_quantities(data.quantity_kinds)
    columns |= {column: other_number(quantity) for quantity, column in quantities.items()}
    columns |= _setting_expressions(data)
    columns["folder"] = pl.col("folder")
    return {name: column.alias(name) for name, column in columns.items()}


def record_column_names(data: Folders) -> list[str]:
    """Return the names of `record_columns`, which cost less than their values."""
    quantities = name_quantities(data.quantity_kinds).values()
    return [*dict.fromkeys((*COLUMNS, *quantities, *data.setting_columns.values(), "folder"))]


def _setting_expressions(data: Folders) -> dict[str, pl.Expr]:
    """Return the value of each hyperparameter, looked up by the text of all of them."""
    if not data.setting_columns:
        return {}
    texts = data.scan().select(pl.col("params").unique(maintain_order=True)).collect().to_series()
    typed = typed_settings(texts, data.setting_columns, data.setting_kinds)
    return {column.name: pl.col("params").replace_strict(texts, column) for column in typed}
