"""The table of results: what was measured beside what was predicted, a row a step."""

import msgspec
import polars as pl

from steptime.analysis.analyses import Analysis
from steptime.analysis.frame_rows import map_rows, read_rows
from steptime.analysis.headline import ResultsSummary, describe_results, summarise_results
from steptime.analysis.result_row import RESULT_FIELDS, ResultRow
from steptime.core.tables.table import Column, Table, describe_hidden_rows
from steptime.records.data import Data
from steptime.records.results import RECORD_PLACES
from steptime.records.row import Row

INTERNAL_COLUMNS = ("folder", "label", *RECORD_PLACES)  # for reports and pictures alone
SETTINGS = ("platform", "gpu", "host", "dtype", "phase", "optimizer", "method", "predicted_by")


def make_results_table(data: Data) -> Table:
    """Return the table of results; people see those settings in which rows differ.

    If only people read it, it holds only the rows that they see.
    """
    results = data.scan_results().drop(*INTERNAL_COLUMNS, strict=False)
    total = data.count_results()
    count = total if data.max_rows is None else min(total, data.max_rows)
    hyperparameters = [
        name for name in results.collect_schema().names() if name not in RESULT_FIELDS
    ]

    def make_struct(row: Row) -> ResultRow:
        settings = {name: row[name] for name in hyperparameters if row[name] is not None}
        fields = {name: row[name] for name in RESULT_FIELDS}
        return ResultRow(hyperparameters=settings, **fields)

    rows = read_rows(results, count)
    return Table(
        _list_columns(results.head(count)),
        rows,
        footnotes=describe_hidden_rows(total - count),
        # The first field is the name; hyperparameters stand behind it.
        csv_columns=tuple(map(Column, ("name", *hyperparameters, *RESULT_FIELDS[1:]))),
        summary=summarise_results(data.scan_results()).to_dict(),
        structs=map_rows(make_struct, rows),
    )


def _list_columns(results: pl.LazyFrame) -> list[Column]:
    """Return the columns that people see: settings only where rows differ in them."""
    # A column of runs is only for publications: one's own repeats are visible as samples.
    is_repeated = (pl.col("origin") == "published") & (pl.col("runs") > 0)
    facts = results.select(
        *(pl.col(name).drop_nulls().n_unique() > 1 for name in SETTINGS),
        is_repeated.any().alias("has_repeats"),
    )
    # A single row, by column name: whether a setting has several values, or none without results.
    no_values = dict.fromkeys((*SETTINGS, "has_repeats"), False)
    (values,) = facts.collect().to_dicts() or [no_values]
    return [
        Column("name", "network"),
        *(Column(name, name.replace("_", " "), is_spare=True) for name in SETTINGS if values[name]),
        Column("status"),
        Column("measured_s", "measured step"),
        *([Column("runs", is_spare=True)] if values["has_repeats"] else []),
        Column("predicted_s", "predicted step"),
        Column("ratio", "measured / predicted"),
        Column("flop_per_s", "speed", is_spare=True),
        Column("peak_fraction", "of peak", is_spare=True),
        Column("measured_memory_bytes", "peak memory", is_spare=True),
    ]


def _describe_table(table: Table) -> list[str]:
    """Return the sentences on a table of results."""
    return describe_results(msgspec.convert(table.summary, ResultsSummary))


ANALYSIS = Analysis(
    """Print what was measured beside what was predicted.

    A row is a network on a platform by one way of measuring and one method of
    prediction. Times are medians; the speed is the predicted FLOP over the
    measured time.
    """,
    make_results_table,
    _describe_table,
    row_struct=ResultRow,
    summary_struct=ResultsSummary,
)
