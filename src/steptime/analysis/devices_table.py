"""The seed's table: speed, its uncertainty and jitter by device, number of devices and staging.

A row is a record. Published numbers stand as they were published; those of measured records follow
from their samples by the same formulas (`records.rows`).
"""

import json

from steptime.analysis.analyses import Analysis
from steptime.core.table import Column, Table, describe_hidden_rows
from steptime.core.units import counted
from steptime.records.data import Data
from steptime.records.row import Row

MAIN = (
    *("mean_speed", "Mean_Time_Per_Step", "speed_uncertainty", "Speed_Jitter"),
    *("gpu_type", "num_gpu", "staged_from", "batch", "strategy"),
    *("dtype", "phase", "optimizer", "input", "loaders", "status", "mean_speed_corrected"),
)
COLUMNS = (
    *MAIN,
    *("global_batch", "replicas", "accuracy", "model", "platform", "cause"),
    *("origin", "method", "batch_source", "date", "source_file", "duplicate_of"),
    *("prefetch", "threads", "host"),
)
BEHIND = ("model", "cause")  # for people; csv and json have all
IF_DIFFERENT = ("phase", "optimizer", "method", "input", "loaders", "prefetch", "threads", "host")
TOLD_BY_PLACE = ("strategy", "batch", "num_gpu", "replicas", "staged_from")  # in plots
SHOWN_OPTIONS = ("gpu", "devices", "staging", "strategy", "runs")  # elsewhere, or not at all
ORDER = (
    *("model", "gpu_type", "platform", "num_gpu", "strategy", "batch"),
    *("staged_from", "dtype", "phase", "optimizer", "input", "loaders", "prefetch"),
)
STAGED = {"local": "$LOCAL", "shared": "$SCRATCH"}  # our word: the seed's
NUMBERS = {  # that others published, or that follow from samples
    "mean_speed": "speed_per_s",
    "speed_uncertainty": "speed_uncertainty_per_s",
    "Speed_Jitter": "speed_jitter_per_s",
}
MADE = {  # columns that are not of flat rows
    **{
        name: f"if(samples_n > 0, {own}, CAST(others['published_{own}'] AS DOUBLE))"
        for name, own in NUMBERS.items()
    },
    "Mean_Time_Per_Step": "if(samples_n > 0, step_s_mean, step_s)",
    "mean_speed_corrected": "speed_per_s",
    "global_batch": "if(step_s IS NOT NULL, global_batch, NULL)",
    "accuracy": "accuracy",
    "gpu_type": "coalesce(gpu, platform)",
    "num_gpu": "devices",
    "staged_from": "CASE coalesce(staging, if(input = 'dataset', 'shared', NULL)) "
    + " ".join(f"WHEN '{ours}' THEN '{theirs}'" for ours, theirs in STAGED.items())
    + " END",
}
ROWS = f"""
    SELECT {", ".join(f"{MADE.get(name, name)} AS {name}" for name in COLUMNS)},
        place, method_options, estimate, family, params
    FROM flat WHERE origin <> 'predicted' AND scope = ''
        AND (status <> 'ok' OR step_s IS NOT NULL)
"""  # ours
SORTED = f"ORDER BY {', '.join(f'{name} NULLS FIRST' for name in ORDER)}, place"


def device_table(data: Data) -> Table:
    """Return a row for each measured or published record of a whole step; failed ones too.

    Speeds are in examples/s, times in seconds; None is unknown. `mean_speed` is what was logged,
    `mean_speed_corrected` is the batch of all `replicas` over the mean time of a step, which
    differs where a program divided by the batch of one replica only. `num_gpu` counts the devices
    that the job had, `replicas` those that worked. Rows stand by model, device and number of
    devices, strategy, batch and staging; of equal ones the first recorded comes first. People see
    one of `IF_DIFFERENT` only where it tells rows apart, and the first rows of very many.
    """
    values = (f"count(DISTINCT coalesce({n}::VARCHAR, '')) > 1 AS {n}" for n in IF_DIFFERENT)
    total, *apart = data.one(f"SELECT count(*), {', '.join(values)} FROM ({ROWS})")
    limit = "" if data.most is None else f"LIMIT {data.most}"  # DuckDB fails on some small limits
    asked = f"SELECT {', '.join(COLUMNS)} FROM ({ROWS}) {SORTED} {limit}"
    rows = data.rows(asked)  # ours
    differ = [name for name, one in zip(IF_DIFFERENT, apart, strict=True) if one]
    always = (name for name in MAIN if name not in IF_DIFFERENT)
    shown = tuple(map(Column, (*always, *BEHIND, *differ)))
    return Table(
        shown,
        rows,
        footnotes=describe_hidden_rows(total - len(rows)),
        has_units=False,
        csv_columns=tuple(map(Column, COLUMNS)),
        summary={"rows": total} if total > len(rows) else {},
    )


def device_bars(data: Data, most: int = 60) -> list[Row]:
    """Return the speed of each step that was measured or published, with its error, for bars.

    `speed` [examples/s] counts all replicas. `low` and `high` are the 95 % interval of a
    measurement; of a published number one sigma to each side, as published (`interval` says which).
    `settings` has all that may tell this step from others of its network. What only has the content
    of another file is left out. Of more than `most` models those come first that ran in several
    places; `models` says how many there are.
    """
    bars = (
        f"FROM ({ROWS}) WHERE status = 'ok' AND duplicate_of IS NULL AND mean_speed_corrected > 0"
    )
    at = "hash(num_gpu, gpu_type, staged_from)"
    chosen = data.rows(
        f"SELECT model, count(*) OVER () AS models {bars} GROUP BY model "
        f"ORDER BY min({at}) = max({at}), min(place) LIMIT ?",
        most,
    )
    found = data.rows(
        f"SELECT * EXCLUDE (place) {bars} AND model IN ? ORDER BY place",
        [one["model"] for one in chosen],
    )
    return [
        row | _bar(row) | {"settings": _settings(row), "models": chosen[0]["models"]}
        for row in found
    ]


def _settings(row: Row) -> Row:
    """Return the settings of a step in the order in which they are told; what repeats is none."""
    options = json.loads(row["method_options"])
    return {
        **{name: row[name] for name in ("phase", "optimizer", "dtype", "method")},
        **{name: row[name] for name in TOLD_BY_PLACE},
        **{k: v for k, v in options.items() if k not in SHOWN_OPTIONS},
    }


def _bar(row: Row) -> Row:
    speed, low, high = row["mean_speed_corrected"], None, None
    found = row["estimate"]
    if found and found["value"]:
        steady, low, high = (
            end and row["global_batch"] / end for end in map(found.get, ("value", "high", "low"))
        )
        return {"speed": steady, "low": low, "high": high, "interval": "95 %"}
    sigma = row["speed_uncertainty"]
    if sigma is not None:
        sigma *= speed / (row["mean_speed"] or speed)  # of the batch that the speed counts
        low, high = speed - sigma, speed + sigma
    return {"speed": speed, "low": low, "high": high, "interval": "1 sigma"}


ANALYSIS = Analysis(
    """Print speeds by device, number of devices and staging.

    A row is a measured or published step.
    """,
    device_table,
    lambda table: [counted(table.summary.get("rows", len(table.rows)), "row")],
)
