"""The table `results`: a row for each workload, platform, exchange, measuring, predicting method.

Numbers are SI; one that is unknown is None. `ratio` is measured / predicted time of a step,
`flop_per_s` the predicted FLOP of a replica over the measured time, `peak_fraction` that over
the peak of the dtype, `roof_fraction` that over the lower of peak and intensity x bandwidth
(Williams, Waterman, Patterson 2009). A row without a measured time says why in `status`,
`cause` and `note`; `status` is None where nothing was tried, but for a prediction that does not
fit. What others published stands as measured where nothing was measured; `origin` says so:
measured, published, or predicted where there is a prediction only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from steptime.records import flat

if TYPE_CHECKING:
    import numpy as np

    from steptime.records.folders import Folders
    from steptime.records.sides import Sides

CELL = "hash(folder_rank, workload_key, platform, coalesce(strategy, ''), overlap, scope)"
PREDICTED, MEASURED = "a", "b"
ALONE = ("method", "gpu", "input", "staging", "loaders", "prefetch", "threads")  # of what was tried
WHY = ("status", "cause", "note")
OF_RECORD = (
    *("folder_rank", "folder", "workload_key", "platform", "overlap", "model", "family"),
    *("replicas", "dtype", "phase", "optimizer", "params", "settings", "origin"),
    *("batch", "device_count", "method_version", "method_options"),
)
OF_PREDICTION = {
    "predicted_s": "step_s",
    "predicted_low_s": "stated_low",
    "predicted_high_s": "stated_high",
    "flop": "flop",
    "traffic_bytes": "traffic_bytes",
    "predicted_memory_bytes": "peak_bytes",
    "peak_flop_per_s": "peak_flop_per_s",
    "memory_bytes_per_s": "memory_bytes_per_s",
}
TRIES = """
    SELECT group_, list(place ORDER BY place) AS tried,
        list(host ORDER BY place) FILTER (host <> '') AS hosts,
        coalesce(min(step_s_min) FILTER (good),
            if(count(*) FILTER (good) > 1, min(step_s) FILTER (good), NULL)) AS measured_min_s,
        coalesce(sum(if(runs = samples_n, step_s, step_s_mean) * samples_n) FILTER (good)
            / sum(samples_n) FILTER (good),
            median(step_s) FILTER (good)) AS mean,
        coalesce(sum(samples_n) FILTER (good),
            if(count(*) FILTER (good) > 1, count(*) FILTER (good), 0))::BIGINT AS samples_n,
        sum(samples_disturbed) FILTER (good) / sum(marks_n) FILTER (good) AS disturbed_share,
        max(peak_bytes) FILTER (status = 'ok') AS measured_memory_bytes
    FROM (SELECT group_, flat.*, status = 'ok' AND step_s IS NOT NULL AS good
        FROM {members} JOIN flat USING (seq)) GROUP BY group_
"""  # of each group: what all its records tell together
PAIRS = f"""
    SELECT id, {", ".join(f"h.{one}" for one in OF_RECORD)}, coalesce(h.strategy, '') AS exchange,
        {", ".join(f"if(is_alone, NULL, h.{one}) AS {one}" for one in ALONE)},
        {", ".join(f"if(is_alone AND h.status = 'ok', NULL, h.{one}) AS {one}" for one in WHY)},
        if(is_alone, NULL, h.examples) AS examples, p.method AS predicted_by,
        p.place AS predicted_at, coalesce(h.stack, p.stack) AS stack,
        {", ".join(f"p.{made} AS {one}" for one, made in OF_PREDICTION.items())},
        is_pooled,
        {", ".join(f"nullif({one}, 'nan') AS {one}" for one in ("measured_s", "low", "high"))},
        nullif(is_steady, 'nan')::BOOLEAN AS steady, coalesce(nullif(n, 'nan'), 0)::BIGINT AS runs,
        tries.* EXCLUDE (group_, hosts), array_to_string(list_filter(hosts, lambda h, i:
            list_position(hosts, h) = i), ', ') AS host
    FROM sides JOIN flat AS h ON h.seq = head LEFT JOIN flat AS p ON p.seq = beside
        LEFT JOIN ({TRIES}) AS tries USING (group_)
"""  # ours
INTENSITY = "flop / nullif(traffic_bytes, 0)"
COLUMNS = {  # of `results`, over `pairs`
    **dict.fromkeys(("model", "family", "batch", "replicas")),
    "strategy": "nullif(exchange, '')",
    **dict.fromkeys(("overlap", "dtype", "phase", "optimizer", "platform", "workload_key")),
    **dict.fromkeys(("method", *WHY, *ALONE[1:], "origin", "host", "predicted_by", "stack")),
    "measured_s": None,
    "measured_low_s": "low",
    "measured_high_s": "high",
    "measured_min_s": None,
    "interval": "CASE WHEN is_pooled THEN if(runs > 1, 'between-runs', 'within-run') END",
    "examples_per_s": "if(batch IS NULL, NULL, "
    "examples / if(is_pooled, mean, nullif(measured_s, 0)))",
    **dict.fromkeys(("steady", "runs")),
    "samples_n": "coalesce(samples_n, 0)",
    **dict.fromkeys(("disturbed_share", "measured_memory_bytes", *OF_PREDICTION)),
    "ratio": "measured_s / nullif(predicted_s, 0)",
    "ratio_low": "low / nullif(predicted_s, 0)",
    "ratio_high": "high / nullif(predicted_s, 0)",
    "intensity": INTENSITY,
    "flop_per_s": "flop / nullif(measured_s, 0)",
    "predicted_flop_per_s": "flop / nullif(predicted_s, 0)",
    "roof_flop_per_s": "if(intensity * memory_bytes_per_s * peak_flop_per_s IS NULL, NULL, "
    "least(peak_flop_per_s, intensity * memory_bytes_per_s))",
    "peak_fraction": "flop / nullif(measured_s, 0) / nullif(peak_flop_per_s, 0)",
    "roof_fraction": "flop / nullif(measured_s, 0) / nullif(roof_flop_per_s, 0)",
    "folder": None,
}
PLACES = {"tried": None, "predicted_at": None}  # of the records of a row
BESIDES = ("platform", "method", "predicted_by", "stack")  # that names do not tell
SQL = f"{CELL} {PAIRS} {COLUMNS}"  # what results hang on


def predicted_and_measured(data: Folders, quantity: str = "step_s", where: str = "true") -> Sides:
    """Return every prediction (`PREDICTED`) and measurement of workload, platform and strategy.

    Of a method and stack the last prediction counts. What others published stands for a measurement
    where there is none. `where` says in SQL which records take part.
    """
    from steptime.hardware import catalog
    from steptime.records import stacks
    from steptime.records.sides import Sides

    if "published" in data.origins:
        where += (
            " AND (origin <> 'published' OR (duplicate_of IS NULL AND (step_s IS NOT NULL OR "
            f"status <> 'ok') AND {CELL} NOT IN (SELECT {CELL} FROM flat WHERE origin = "
            "'measured')))"
        )
    known = ", ".join(map(flat.text, stacks.stack_labels()))
    kin = (
        f"if(origin = 'predicted' OR stack IN ({known}) OR stack IS NULL, stack, "
        f"{flat.text(catalog.stack().label)})"
    )
    level = f"if(origin = 'predicted', '{PREDICTED}', '{MEASURED}')"
    way = f"if(origin = 'predicted', hash({flat.NAME}, stack), hash({flat.METHOD}))"
    return Sides(data, quantity, level, CELL, where, kin=kin, way=way)


def add(data: Folders) -> None:
    """Add the table `results`, with columns of hyperparameters."""
    sides = predicted_and_measured(data, where="scope = ''")
    data.lend("sides", _rows(sides))
    data.rows(f"CREATE TEMP TABLE pairs AS {PAIRS.format(members=sides.members)}")
    data.lend("names", dict(zip(("id", "name"), _names(data), strict=True)))
    counts = data.one(f"SELECT {', '.join(f'count(DISTINCT {one})' for one in BESIDES)} FROM pairs")
    telling = [one for one, count in zip(BESIDES, counts, strict=True) if count > 1]
    own = {*COLUMNS, *PLACES, "name", "label"}
    given = {c: data.expression(c) for c in data.hyperparameters if c.lower() not in own}
    # A measurement's method says its stack.
    parts = ["nullif(stack, method)" if one == "stack" else one for one in telling]
    label = f"concat_ws(', ', {', '.join(['name', *parts])})"
    every = {**given, "name": None, **COLUMNS, "label": label, **PLACES}
    shown = ", ".join(f"{made or one} AS {flat.name(one)}" for one, made in every.items())
    data.rows(
        f"CREATE TABLE results AS SELECT {shown} FROM pairs JOIN names USING (id) ORDER BY id"
    )
    data.rows(f"DROP TABLE pairs; DROP TABLE {sides.members}")


def _rows(sides: Sides) -> dict[str, np.ndarray]:
    """Return which records and groups are a row, in their order: pairs, and what has no partner.

    `head` is the record that a row is of: the last good one that was tried, else the prediction.
    """
    import numpy as np

    of = sides.groups
    number = len(sides.groups["cell"])
    a, b = sides.pairs(PREDICTED).values()
    alone = np.setdiff1d(np.arange(number), np.r_[a, b])
    is_a = of["level"][alone] == sides.place(PREDICTED)
    predicted = np.r_[a, np.where(is_a, alone, number)]  # `number`: there is none
    tried = np.r_[b, np.where(is_a, number, alone)]
    cell = of["cell"][np.minimum(predicted, tried)]
    first = np.full(number, number)
    np.minimum.at(first, of["cell"], np.arange(number))
    order = np.lexsort((predicted, tried, first[cell]))
    predicted, tried = predicted[order], tried[order]
    is_alone = tried == number
    head = np.where(is_alone, predicted, tried)
    numbers = {"measured_s": "value", "low": "low", "high": "high", "is_steady": "e_steady"}
    return {
        "id": np.arange(len(order)),
        "is_alone": is_alone,
        "head": of["best"][head],
        "group_": np.where(is_alone, -1, of["group_"][head]),
        "beside": np.r_[of["best"], -1][predicted],
        "is_pooled": of["pooled"][head] & ~is_alone,
        "n": np.where(is_alone, np.nan, of["runs"][head]),
        **{one: np.where(is_alone, np.nan, of[name][head]) for one, name in numbers.items()},
    }


def _names(data: Folders) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of pairs and their names, the shortest that tell them apart."""
    import numpy as np

    from steptime.records import names

    rows = "SELECT *, id AS place, folder_rank AS within, exchange AS strategy FROM pairs"

    def wide(ids: Sequence[int]) -> str:
        data.lend("heads", {"id": np.array(ids)})
        return f"SELECT id, {', '.join(names.TOLD)} FROM ({rows}) SEMI JOIN heads USING (id)"

    return names.named(data, names.hashed(rows, ("folder_rank", *BESIDES)), wide)
