"""The frame of results: a row for each workload, platform, exchange and pair of methods.

Numbers are SI; one that is unknown is null. `ratio` is measured / predicted time of a step,
`flop_per_s` the predicted FLOP of a replica over the measured time, `peak_fraction` that over
the peak of the dtype, `roof_fraction` that over the lower of peak and intensity x bandwidth
(Williams, Waterman, Patterson 2009). A row without a measured time says why in `status`,
`cause` and `note`; `status` is null where nothing was attempted, but for a prediction that does not
fit. What others published stands as measured where nothing was measured; `origin` says so:
measured, published, or predicted where there is a prediction only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from steptime.records.groups.group_members import Grouping, Ids, hash_of
from steptime.records.groups.record_groups import RecordGroups
from steptime.records.pair_keys import IS_PREDICTED, METHOD, METHOD_NAME
from steptime.records.result_attempts import attempt_columns
from steptime.records.setting_columns import typed_settings
from steptime.records.short_names import name_rows
from steptime.records.statistics import BETWEEN, WITHIN

if TYPE_CHECKING:
    from steptime.records.folders import Folders

PREDICTED, MEASURED = "a", "b"  # levels
RESULT_CELL = (
    *(pl.col(name) for name in ("folder_rank", "workload_key", "platform")),
    pl.col("strategy").fill_null(""),
    *(pl.col(name) for name in ("overlap", "scope")),
)
ATTEMPT_COLUMNS = ("method", "gpu", "input", "staging", "loaders", "prefetch", "threads")
OUTCOME_COLUMNS = ("status", "cause", "note")
RECORD_COLUMNS = (
    *("folder_rank", "folder", "workload_key", "platform", "overlap", "model", "family"),
    *("replicas", "dtype", "phase", "optimizer", "params", "settings", "origin"),
    *("batch", "device_count", "method_version", "method_options"),
)
PREDICTION_COLUMNS = {
    "predicted_s": "step_s",
    "predicted_low_s": "stated_low",
    "predicted_high_s": "stated_high",
    "flop": "flop",
    "traffic_bytes": "traffic_bytes",
    "predicted_memory_bytes": "peak_bytes",
    "peak_flop_per_s": "peak_flop_per_s",
    "memory_bytes_per_s": "memory_bytes_per_s",
}
RESULT_COLUMNS = (
    *("model", "family", "batch", "replicas", "strategy", "overlap", "dtype", "phase"),
    *("optimizer", "platform", "workload_key", "method", *OUTCOME_COLUMNS, *ATTEMPT_COLUMNS[1:]),
    *("origin", "host", "predicted_by", "stack", "measured_s", "measured_low_s"),
    *("measured_high_s", "measured_min_s", "interval", "examples_per_s", "steady", "runs"),
    *("samples_n", "disturbed_share", "measured_memory_bytes", *PREDICTION_COLUMNS, "ratio"),
    *("ratio_low", "ratio_high", "intensity", "flop_per_s", "predicted_flop_per_s"),
    *("roof_flop_per_s", "peak_fraction", "roof_fraction", "folder"),
)
NO_GROUP = -1
NO_RECORD = -1
RECORD_PLACES = ("tried", "predicted_at")  # places of the records of a row
ALL_COLUMNS = ("name", *RESULT_COLUMNS, "label", *RECORD_PLACES)
MAKERS = (  # modules on which the frame hangs
    *("results", "result_attempts", "pair_keys", "setting_columns", "short_names", "row"),
    *("statistics", "groups/record_groups", "groups/group_columns", "groups/group_members"),
)
LABEL_COLUMNS = ("platform", "method", "predicted_by", "stack")  # that names do not tell


def group_predicted_and_measured(
    data: Folders,
    quantity: str = "step_s",
    takes_part: pl.Expr | None = None,
    is_by_host: bool = False,
) -> RecordGroups:
    """Return every prediction (`PREDICTED`) and measurement of workload, platform and strategy.

    Of a method and stack the last prediction counts. A published number stands for a measurement
    if there is none.

    Args:
        data: the records.
        quantity: the quantity that is compared.
        takes_part: whether a record takes part; by default all do.
        is_by_host: whether the measurements of each host are a level of their own; its name is
            `MEASURED` with the host behind.
    """
    takes_part = pl.lit(True) if takes_part is None else takes_part
    if "published" in data.origins:
        takes_part &= _stands_for_measurement(data)
    measured = pl.lit(MEASURED)
    if is_by_host:
        measured = pl.concat_str(measured, pl.col("host").fill_null(""))
    # Records of one group count as one number. Predictions are grouped by method and stack;
    # measurements only if all options of their methods are equal, so that no settings are mixed.
    level = pl.when(IS_PREDICTED).then(pl.lit(PREDICTED)).otherwise(measured)
    predicted_method = hash_of([METHOD_NAME, "stack"])
    measured_method = hash_of(METHOD)
    grouping = Grouping(
        quantity=quantity,
        level=level,
        cell=RESULT_CELL,
        takes_part=takes_part,
        method=[pl.when(IS_PREDICTED).then(predicted_method).otherwise(measured_method)],
        partner_key=_pair_stack(),  # a prediction and a measurement are compared if it is equal
    )
    return RecordGroups(data, grouping)


def _stands_for_measurement(data: Folders) -> pl.Expr:
    """Return whether a record is not published, or is published without a measurement beside."""
    cell = hash_of(RESULT_CELL)
    measured = data.scan().filter(pl.col("origin") == "measured")
    measured_cells = measured.select(cell.unique()).collect().to_series()
    is_published = pl.col("origin") == "published"
    is_original = pl.col("duplicate_of").is_null()
    has_outcome = pl.col("step_s").is_not_null() | (pl.col("status") != "ok")
    has_no_measurement = ~cell.is_in(measured_cells.implode())
    # Records of one's own always take part; published ones only where nothing was measured.
    return ~is_published | (is_original & has_outcome & has_no_measurement)


def _pair_stack() -> pl.Expr:
    """Return the stack that the two of a pair must share; the default one for an unknown name."""
    from steptime.hardware import catalog
    from steptime.records import stacks

    stack = pl.col("stack")
    # A measurement by an unknown stack is compared with the prediction of the default one.
    is_usable = IS_PREDICTED | stack.is_in([*stacks.stack_labels()]) | stack.is_null()
    return pl.when(is_usable).then(stack).otherwise(pl.lit(catalog.stack().label))


def make_results(data: Folders) -> pl.DataFrame:
    """Return the results of whole steps, with their names and columns of hyperparameters."""
    groups = group_predicted_and_measured(data, takes_part=pl.col("scope") == "")
    rows = _add_rates(_pair_columns(data, groups))
    # Names tell apart the rows of one folder (`within`).
    name_columns = rows.with_columns(pl.col("folder_rank").alias("within"))
    names = name_rows(name_columns, ("folder_rank", *LABEL_COLUMNS))
    rows_with_names = rows.with_columns(pl.Series("name", names, dtype=pl.String))
    labelled_rows = rows_with_names.with_columns(_make_label(rows_with_names).alias("label"))
    fixed_columns = {column.lower() for column in ALL_COLUMNS}
    setting_columns = {  # without those that have the name of a column of results
        name: column
        for name, column in data.setting_columns.items()
        if column.lower() not in fixed_columns
    }
    settings = typed_settings(rows["params"], setting_columns, data.setting_kinds)
    return pl.DataFrame([*settings, *labelled_rows.select(ALL_COLUMNS)])


def _pair_columns(data: Folders, groups: RecordGroups) -> pl.DataFrame:
    """Return the columns of the records of each row: of its attempts and of its prediction."""
    pairs = _pair_groups(groups)
    row_records = _take_rows(data, pairs["record"], _row_record_columns())
    predictions = _take_rows(data, pairs["prediction"], _prediction_columns())
    attempts = attempt_columns(data, groups.members, pairs["measured_group"])
    rows = row_records.hstack(predictions).hstack(attempts).with_columns(_number_columns(pairs))
    # In a row without a measurement, columns that describe how it was measured are null. So is the
    # status, but for a prediction that does not fit the device's memory.
    is_only_predicted = pl.col("is_only_predicted")
    fits_prediction = is_only_predicted & (pl.col("status") == "ok")
    return rows.with_columns(
        *(_null_if(is_only_predicted, name) for name in (*ATTEMPT_COLUMNS, "examples")),
        *(_null_if(fits_prediction, name) for name in OUTCOME_COLUMNS),
        pl.coalesce("stack", "predicted_stack").alias("stack"),
    )


def _null_if(condition: pl.Expr, name: str) -> pl.Expr:
    return pl.when(~condition).then(pl.col(name)).alias(name)


def _row_record_columns() -> list[pl.Expr]:
    names = (*RECORD_COLUMNS, *ATTEMPT_COLUMNS, *OUTCOME_COLUMNS, "examples", "stack", "strategy")
    return [pl.col(name) for name in names]


def _prediction_columns() -> list[pl.Expr]:
    return [
        pl.col("method").alias("predicted_by"),
        pl.col("place").alias("predicted_at"),
        pl.col("stack").alias("predicted_stack"),
        *(pl.col(column).alias(name) for name, column in PREDICTION_COLUMNS.items()),
    ]


def _take_rows(data: Folders, seqs: Ids, columns: list[pl.Expr]) -> pl.DataFrame:
    """Return columns of records by their `seq`, nulls for `NO_RECORD`."""
    records = data.take_records(seqs[seqs != NO_RECORD], columns)
    rows = pl.DataFrame({"seq": seqs})
    return rows.join(records, on="seq", how="left", maintain_order="left").drop("seq")


def _number_columns(pairs: Mapping[str, NDArray[Any]]) -> list[pl.Series]:
    """Return the numbers of the groups that were attempts, null where unknown."""
    names = ("measured_s", "low", "high", "steady", "run_count")
    numbers = [pl.Series(name, pairs[name]).fill_nan(None) for name in names]
    flags = [pl.Series(name, pairs[name]) for name in ("is_only_predicted", "is_pooled")]
    return [*numbers, *flags]


def _pair_groups(groups: RecordGroups) -> dict[str, NDArray[Any]]:
    """Return the records and groups of each row, in order: pairs, and what has no partner.

    `record` is the record that a row is of: the last good one of the attempts, else the prediction;
    `measured_group` is that of the attempts, `prediction` the record beside it; -1 where there is
    none.
    """
    columns = groups.columns
    predicted, measured = _pair_ids(groups)
    no_partner = len(groups)  # the id that `_pair_ids` gives for an absent group
    is_only_predicted = measured == no_partner
    row_group = np.where(is_only_predicted, predicted, measured)

    def measured_number(column: NDArray[Any]) -> NDArray[Any]:
        return np.where(is_only_predicted, np.nan, column[row_group])

    return {
        "is_only_predicted": is_only_predicted,
        "record": columns.best_seq[row_group],
        "measured_group": np.where(is_only_predicted, NO_GROUP, row_group),
        # The id `no_partner` selects the appended `NO_RECORD`.
        "prediction": np.r_[columns.best_seq, NO_RECORD][predicted],
        "is_pooled": columns.is_pooled[row_group] & ~is_only_predicted,
        "run_count": measured_number(columns.runs),
        "measured_s": measured_number(columns.value),
        "low": measured_number(columns.low),
        "high": measured_number(columns.high),
        "steady": measured_number(columns.estimate["steady"]),
    }


def _pair_ids(groups: RecordGroups) -> tuple[Ids, Ids]:
    """Return the predicted and the measured group of each row, in the order of first records.

    Rows are pairs, and groups without a partner, whose place is `len(groups)`.
    """
    no_partner = len(groups)
    ids = np.arange(len(groups))
    paired_predicted, paired_measured = groups.pairs(PREDICTED).values()
    unpaired = np.setdiff1d(ids, np.r_[paired_predicted, paired_measured])
    is_predicted = groups.columns.level[unpaired] == groups.level_index(PREDICTED)
    predicted = np.r_[paired_predicted, np.where(is_predicted, unpaired, no_partner)]
    measured = np.r_[paired_measured, np.where(is_predicted, no_partner, unpaired)]
    order = _order_pairs(groups.columns.cell, predicted, measured)
    return predicted[order], measured[order]


def _order_pairs(cell: Ids, predicted: Ids, measured: Ids) -> Ids:
    """Return the order of pairs: by the first group of their cell, then by measured partners.

    Args:
        cell: the cell (workload and platform) of each group.
        predicted: the predicted group of each pair; `len(cell)` without one.
        measured: the measured group of each pair, likewise.
    """
    first_group_of_cell = np.full(len(cell), len(cell))
    np.minimum.at(first_group_of_cell, cell, np.arange(len(cell)))
    pair_cell = cell[np.minimum(predicted, measured)]  # no partner is larger than any group
    return np.lexsort((predicted, measured, first_group_of_cell[pair_cell]))


def _add_rates(pairs: pl.DataFrame) -> pl.DataFrame:
    """Add the columns that follow from the times, FLOP and traffic of a row."""
    predicted_s = _null_if_zero("predicted_s")
    rows = pairs.with_columns(
        pl.when(pl.col("strategy") != "").then("strategy").alias("strategy"),
        pl.col("low").alias("measured_low_s"),
        pl.col("high").alias("measured_high_s"),
        _interval_kind().alias("interval"),
        _examples_per_s().alias("examples_per_s"),
        pl.col("steady").cast(pl.Boolean),
        _run_count().cast(pl.Int64).alias("runs"),
        (pl.col("measured_s") / predicted_s).alias("ratio"),
        (pl.col("low") / predicted_s).alias("ratio_low"),
        (pl.col("high") / predicted_s).alias("ratio_high"),
        (pl.col("flop") / predicted_s).alias("predicted_flop_per_s"),
    )
    return add_shares(rows)


def _interval_kind() -> pl.Expr:
    """Return whether the interval spans several runs, or only the samples within one run."""
    kind = pl.when(pl.col("run_count") > 1).then(pl.lit(BETWEEN)).otherwise(pl.lit(WITHIN))
    return pl.when(pl.col("is_pooled")).then(kind)


def _examples_per_s() -> pl.Expr:
    """Return the examples of a step over the mean of its samples, or over its stated time."""
    mean_s = pl.when(pl.col("is_pooled")).then("mean_s").otherwise(_null_if_zero("measured_s"))
    return pl.when(pl.col("batch").is_not_null()).then(pl.col("examples") / mean_s)


def _run_count() -> pl.Expr:
    """Return the number of runs: 0 without a measurement, null for a number without samples."""
    has_measurement = _null_if_zero("measured_s").is_not_null()
    return pl.when(has_measurement).then("run_count").otherwise(0)


def add_shares(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `intensity`, `roof_flop_per_s`, `flop_per_s`, `peak_fraction` and `roof_fraction`.

    Rows have `flop`, `traffic_bytes`, `measured_s`, `peak_flop_per_s` and `memory_bytes_per_s`.
    """
    flop_per_byte = pl.col("flop") / _null_if_zero("traffic_bytes")
    memory_flop_per_s = flop_per_byte * pl.col("memory_bytes_per_s")
    peak_flop_per_s = pl.col("peak_flop_per_s")
    has_roof = memory_flop_per_s.is_not_null() & peak_flop_per_s.is_not_null()
    roof_flop_per_s = pl.min_horizontal(peak_flop_per_s, memory_flop_per_s)
    flop_per_s = pl.col("flop") / _null_if_zero("measured_s")
    rows_with_rates = rows.with_columns(
        flop_per_byte.alias("intensity"),
        pl.when(has_roof).then(roof_flop_per_s).alias("roof_flop_per_s"),
        flop_per_s.alias("flop_per_s"),
    )
    return rows_with_rates.with_columns(
        (pl.col("flop_per_s") / _null_if_zero("peak_flop_per_s")).alias("peak_fraction"),
        (pl.col("flop_per_s") / _null_if_zero("roof_flop_per_s")).alias("roof_fraction"),
    )


def _null_if_zero(name: str) -> pl.Expr:
    """Return a column, null where it is 0."""
    return pl.when(pl.col(name) != 0).then(pl.col(name))


def _make_label(rows: pl.DataFrame) -> pl.Expr:
    """Return the name and what tells rows apart beside it; a method may say its stack."""
    has_other_name = pl.col("stack").ne_missing(pl.col("method"))
    stack = pl.when(has_other_name).then(pl.col("stack"))
    varied_columns = [name for name in LABEL_COLUMNS if rows[name].drop_nulls().n_unique() > 1]
    parts = [stack if name == "stack" else pl.col(name) for name in varied_columns]
    return pl.concat_str("name", *parts, separator=", ", ignore_nulls=True)
