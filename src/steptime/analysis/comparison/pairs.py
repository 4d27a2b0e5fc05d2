"""Records side by side: measured and predicted, two folders, the levels of any column."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import polars as pl

from steptime.analysis.comparison.pairing import Pairing
from steptime.core.errors import InputError, check_choice, unknown
from steptime.records.data import Data
from steptime.records.groups.group_members import ALL_RECORDS, Grouping, hash_of
from steptime.records.groups.record_groups import RecordGroups
from steptime.records.pair_keys import (
    IS_PREDICTED,
    LEVEL_OPTIONS,
    PLATFORM_COLUMNS,
    cell_columns,
    check_quantity,
    find_level,
    has_quantity,
)
from steptime.records.results import (
    MEASURED,
    PREDICTED,
    RESULT_CELL,
    group_predicted_and_measured,
)

REFERENCE = "reference_s"  # of the machine, timed beside each run (`measure.reference`)
CONTENT_SETTING = "sha256"  # the setting of a network that is the hash of its file


def predicted_and_measured(data: Data, quantity: str = "step_s") -> Pairing:
    """Return every measurement (B) beside every prediction (A) of workload, platform and strategy.

    A published number stands for a measurement if there is none. A row of a whole step also has
    `flop_per_s`, `peak_fraction` and `roof_fraction` as results have them.

    Raises:
        InputError: for a quantity that no record holds.
    """
    check_quantity(data, quantity)
    takes_part = ALL_RECORDS
    if "published" in data.origins:
        cell = hash_of(RESULT_CELL)
        predicted = data.scan().filter(IS_PREDICTED).select(cell.unique()).collect().to_series()
        # Published results without a prediction would only make the groups larger.
        takes_part = (pl.col("origin") != "published") | cell.is_in(predicted.implode())
    groups = group_predicted_and_measured(data, quantity, takes_part)
    words = {PREDICTED: "predicted", MEASURED: "measured"}
    return Pairing(groups, PREDICTED, words, mismatch="not {} for this stack")


def two_folders(
    data: Data,
    quantity: str = "step_s",
    margin: float | None = None,
    any_content: bool = False,
) -> Pairing:
    """Return the records of the second folder beside those of the first, on the same platforms.

    Args:
        data: the records.
        quantity: the quantity that is compared.
        margin: a difference below this share counts as none.
        any_content: pairs a network of a file or of code with other versions of the file.

    Raises:
        InputError: for a quantity that no record holds.
    """
    check_quantity(data, quantity)
    free = (CONTENT_SETTING,) if any_content else ()  # settings in which partners may differ
    grouping = Grouping(
        quantity=quantity,
        # The rank of a folder is its place among those that were named: 0 is the first.
        level=pl.col("folder_rank").cast(pl.String),
        cell=cell_columns(data, "folder", free),
    )
    words = {"0": "in the first folder", "1": "in the second folder"}
    # Groups do not depend on the quantity, so that the reference of a group has the same number.
    reference = None
    if quantity == "step_s" and has_quantity(data, REFERENCE):
        reference = RecordGroups(data, replace(grouping, quantity=REFERENCE))
    return Pairing(
        RecordGroups(data, grouping),
        "0",
        words,
        free_columns=free,
        margin=margin,
        reference=reference,
    )


def by_column(
    data: Data,
    column: str,
    quantity: str = "step_s",
    *,
    against: str | None = None,
    any_dtype: bool = False,
    takes_part: pl.Expr = ALL_RECORDS,
) -> Pairing:
    """Return every level of a column beside the first one (the least number), or `against`.

    Measured stands beside measured, predicted beside predicted. All else is equal, except where a
    side has a single candidate.

    Args:
        data: the records.
        column: `folder`, a column of the records, an option, a hyperparameter, or a key of the
            environment.
        quantity: the quantity that is compared.
        against: the level that the others are compared with.
        any_dtype: pairs a network in one type with itself in another.
        takes_part: whether a record takes part.

    Raises:
        InputError: for a column, a level or a quantity that no record has, and for a single level.
    """
    check_quantity(data, quantity)
    free = (column, "dtype") if any_dtype else (column,)  # in which partners may differ
    groups = group_by_level(data, column, quantity, free, takes_part)
    if len(groups.levels) == 1:
        raise InputError(f"--by {column}: all records have one {column}, '{groups.levels[0]}'")
    if against not in (None, *groups.levels):
        raise unknown(column, str(against), groups.levels, "--against")
    prefix = "on" if column in PLATFORM_COLUMNS else f"with {column}"
    words = {level: f"{prefix} {level}" for level in groups.levels}
    return Pairing(groups, against or groups.levels[0], words, column, free)


def group_by_level(
    data: Data, column: str, quantity: str, free: Collection[str], takes_part: pl.Expr = ALL_RECORDS
) -> RecordGroups:
    """Return the groups of a quantity by the levels of a column.

    Args:
        data: the records.
        column: the column whose levels are compared.
        quantity: the quantity that is compared.
        free: settings in which the two of a pair may differ.
        takes_part: whether a record takes part.

    Raises:
        InputError: for a column of which no record says anything.
    """
    grouping = Grouping(
        quantity=quantity,
        level=find_level(data, column),
        cell=cell_columns(data, column, free),
        takes_part=takes_part,
        # Records of two levels make a pair though options that follow from the level differ.
        level_options=LEVEL_OPTIONS.get(column, (column,)),
    )
    return RecordGroups(data, grouping)


def two_platforms(
    data: Data, a: str, b: str, quantity: str = "step_s", *, any_dtype: bool = False
) -> Pairing:
    """Return platform `b` beside platform `a`, as `by_column` does.

    Raises:
        InputError: for a platform or a quantity that no record has.
    """
    platforms = data.scan().select(pl.col("platform").unique().sort()).collect()["platform"]
    for platform in (a, b):
        check_choice("platform", platform, platforms.to_list())
    if a == b:
        raise InputError(f"a platform is compared with another, not '{a}' with itself")
    takes_part = pl.col("platform").is_in([a, b])
    return by_column(
        data, "platform", quantity, against=a, any_dtype=any_dtype, takes_part=takes_part
    )
