"""The steps of networks in many folders, and what the folders say of their environment."""

from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
import polars as pl

from steptime.records.data import Data
from steptime.records.groups.group_members import ANY_METHOD, Grouping
from steptime.records.groups.record_groups import Cells, RecordGroups
from steptime.records.pair_keys import IS_PREDICTED, find_text
from steptime.records.row import Row

ENVIRONMENT_FACTS = ("host", "framework", "steptime", "python", "os", "kernel", "threads")


SERIES = (
    *(pl.col(name) for name in ("workload_key", "platform", "method")),
    pl.col("strategy").fill_null(""),
    pl.col("threads"),
)


BATCH_WORDS = pl.concat_str(pl.lit(", batch "), pl.col("batch").cast(pl.String)).fill_null("")


STEP_CELLS: Cells = {
    "name": pl.concat_str("model", BATCH_WORDS),
    **{name: name for name in ("family", "platform", "method", "folder")},
}


IS_GOOD_STEP = ~IS_PREDICTED & (pl.col("status") == "ok") & (pl.col("scope") == "")


def describe_folders(data: Data) -> dict[str, Row]:
    """Return for each folder its earliest date, and the environments of its measurements."""
    records = data.scan().filter(~IS_PREDICTED).select("folder", "taken_at", "env")
    dates = records.select("folder", "taken_at").unique(maintain_order=True).collect()
    environments = records.select("folder", "env").unique(maintain_order=True).collect()
    rows: dict[str, Row] = {}
    for folder, taken_at in dates.iter_rows():
        row = rows.setdefault(folder, {"instant_s": None, "taken_at": None})
        instant_s = _find_instant(taken_at)
        # A date that cannot be read orders nothing.
        if instant_s is None:
            continue
        is_earliest = row["instant_s"] is None or instant_s < row["instant_s"]
        if is_earliest:
            row |= {"instant_s": instant_s, "taken_at": taken_at}
    for (folder,), texts in environments.group_by("folder", maintain_order=True):
        rows[folder] |= {fact: _join_values(texts["env"], fact) for fact in ENVIRONMENT_FACTS}
    return rows


def _join_values(environments: Iterable[str], fact: str) -> str | None:
    """Return the values of a fact in all records of a folder; None if no record states it."""
    stated_values = {find_text(text, fact) for text in environments} - {None}
    return ", ".join(sorted(filter(None, stated_values))) if stated_values else None


def _find_instant(taken_at: str | None) -> float | None:
    """Return the seconds of a date since 1970; one without a time zone is of UTC."""
    try:
        date = datetime.fromisoformat(taken_at or "")
    except ValueError:
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def list_cells(data: Data) -> list[Row]:
    """Return the step of each network in each folder, its samples pooled; a `cell` is a series."""
    grouping = Grouping(
        quantity="step_s",
        level=pl.col("folder"),
        cell=SERIES,
        takes_part=IS_GOOD_STEP,
        method=ANY_METHOD,  # a series goes on when it is measured in another way
        # Nothing is paired here.
        partner_key=pl.lit(None, pl.String),
    )
    groups = RecordGroups(data, grouping)
    ids = np.flatnonzero(groups.columns.value > 0)
    # A group is a network in a folder (its level); the groups of one cell are a series.
    group_column_by_key = {
        "step_s": "value",
        "series": "cell",
        "low": "low",
        "high": "high",
        "runs": "runs",
    }
    cells = []
    for position, row in enumerate(groups.rows(ids, STEP_CELLS, group_column_by_key)):
        # The table sorts networks by these values; equal ones stay in their order.
        sort_key = (*map(row.get, STEP_CELLS), position)
        cells.append(row | {"order": sort_key})
    return cells
