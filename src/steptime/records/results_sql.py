"""The table `results`: a row for each workload, platform, exchange, measuring, predicting method.

Numbers are SI; one that is unknown is None. `ratio` is measured / predicted time of a step,
`flop_per_s` the predicted FLOP of a replica over the measured time, `peak_fraction` that over
the peak of the dtype, `roof_fraction` that over the lower of peak and intensity x bandwidth
(Williams, Waterman, Patterson 2009). A row without a measured time says why in `status`,
`cause` and `note`; `status` is None where nothing was tried, but for a prediction that does not
fit. What others published stands as measured where nothing was measured (`tried`); `origin` says
so: measured, published, or predicted where there is a prediction only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from steptime.core.progress import tell
from steptime.records import flat, names
from steptime.records.row import ESTIMATE

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LAST = ("method", "status", "cause", "note", "gpu", "input", "staging", "loaders", "prefetch",
        "threads")  # fmt: skip
WHY = ("status", "cause", "note")
OF_CELL = (
    *("folder_rank", "folder", "workload_key", "platform", "exchange", "overlap"),  # say which
    *("model", "family", "replicas", "dtype", "phase", "optimizer", "params", "settings"),
)
PREDICTED = {
    "predicted_s": "step_s",
    "predicted_low_s": "stated_low",
    "predicted_high_s": "stated_high",
    "flop": "flop",
    "traffic_bytes": "traffic_bytes",
    "predicted_memory_bytes": "peak_memory_bytes",
    "peak_flop_per_s": "peak_flop_per_s",
    "memory_bytes_per_s": "memory_bytes_per_s",
}
_SAID = ("batch", "devices", "method_version", "method_options")
_TOLD = ", ".join(f"coalesce(t.{one}, p.{one}) AS {one}" for one in OF_CELL)
_LAST = ", ".join(
    f"if(t.t IS NULL, p.{one}, t.{one}) AS {one}" if one in WHY else f"t.{one}" for one in LAST
)
_BOTH = ", ".join(f"if(t.t IS NULL, p.{one}, t.{one}) AS {one}" for one in _SAID)

VIEWS = {
    "whole": f"""
        SELECT *, coalesce(strategy, '') AS exchange, step_s IS NOT NULL AS stepped,
            hash(folder_rank, workload_key, platform, coalesce(strategy, ''), overlap) AS cell,
            status = 'ok' AND step_s IS NOT NULL AS good,
            place + if(status = 'ok' AND step_s IS NOT NULL, {1 << 61}, 0) AS rank
        FROM flat WHERE scope = ''
    """,
    "tried": """
        FROM whole WHERE origin = 'measured' UNION ALL
        SELECT * FROM whole ANTI JOIN (FROM whole WHERE origin = 'measured') USING (cell)
        WHERE origin = 'published' AND duplicate_of IS NULL AND (stepped OR status <> 'ok')
    """,
    "grouped": """
        SELECT cell, min(place) AS t, max(place) AS last, max(rank) AS best,
            list(place ORDER BY place) AS tried, any_value(stack) AS stack,
            list(host ORDER BY place) FILTER (host <> '') AS hosts,
            count(samples_n) FILTER (good) AS sampled,
            any_value(estimate) FILTER (good AND samples IS NOT NULL) AS one,
            max(step_s) FILTER (good AND samples_n > 0) AS only_s,
            min(step_s_min) FILTER (good) AS measured_min_s,
            sum(step_s_mean * samples_n) FILTER (good) / sum(samples_n) FILTER (good) AS mean,
            coalesce(sum(runs) FILTER (good), 0)::BIGINT AS runs,
            coalesce(sum(samples_n) FILTER (good), 0)::BIGINT AS samples_n,
            sum(samples_disturbed) FILTER (good) / sum(marks_n) FILTER (good) AS disturbed_share,
            max(peak_memory_bytes) FILTER (status = 'ok') AS measured_memory_bytes
        FROM tried GROUP BY cell, hash(tried.method, tried.method_version, tried.method_options)
    """,
    "tries": f"""
        SELECT g.* EXCLUDE (last, best), if(b.good, b.step_s, NULL) AS stated_s,
            {", ".join(f"l.{one}" for one in (*OF_CELL, *_SAID, "origin", "examples"))},
            {", ".join(f"b.{one}" for one in LAST)}
        FROM grouped AS g JOIN tried AS l ON l.cell = g.cell AND l.place = g.last
            JOIN tried AS b ON b.cell = g.cell AND b.rank = g.best
    """,
    "pooled": """
        SELECT cell, t, flatten(list(samples ORDER BY place)) AS every,
            flatten(list([(hash(place, r) >> 1)::BIGINT for r in run] ORDER BY place)) AS every_run,
            list_median(every) AS middle_s
        FROM (SELECT folder_rank, cell, t, unnest(tried) AS place FROM tries WHERE sampled > 1)
            JOIN (SELECT folder_rank, place, samples, run FROM whole WHERE good AND samples_n > 0)
            USING (folder_rank, place)
        GROUP BY ALL
    """,
    "predictions": f"""
        SELECT l.cell, l.method AS predicted_by, l.stack, p, place AS predicted_at,
            {", ".join(f"l.{one}" for one in (*OF_CELL, *_SAID))},
            {", ".join(f"l.{made} AS {one}" for one, made in PREDICTED.items())},
            {", ".join(f"if(l.status = 'ok', NULL, l.{one}) AS {one}" for one in WHY)}
        FROM whole AS l JOIN (SELECT cell, min(place) AS p, max(place) AS place FROM whole
            WHERE origin = 'predicted' GROUP BY cell, hash(method, whole.stack)) USING (cell, place)
    """,
    "pairs": f"""
        SELECT t.t, p, {_TOLD}, {_BOTH}, {_LAST},
            coalesce(t.stack, p.stack) AS stack,
            coalesce(origin, 'predicted') AS origin, predicted_by, first, tried, predicted_at,
            sampled, if(sampled > 1, shared, one) AS estimate,
            array_to_string(list_filter(hosts, lambda h, i: list_position(hosts, h) = i), ', ')
                AS host,
            if(sampled > 1, middle_s, if(sampled = 1, only_s, stated_s))
                AS measured_s, measured_min_s, examples, mean, runs, samples_n,
            disturbed_share, measured_memory_bytes, {", ".join(PREDICTED)},
            flop / nullif(traffic_bytes, 0) AS intensity
        FROM tries AS t FULL OUTER JOIN predictions AS p ON t.cell = p.cell
            AND (p.stack IS NULL OR t.stack IS NULL
                OR p.stack = if(t.stack IN $STACKS, t.stack, $STACK))
        JOIN (SELECT cell, min(place) AS first FROM whole GROUP BY cell) AS f
            ON f.cell = coalesce(t.cell, p.cell)
        LEFT JOIN pooled_estimates ON pooled_estimates.cell = t.cell AND pooled_estimates.t = t.t
    """,
}
"""Views over `flat`, each over those before it."""
HELD = ("tries", "pooled", "pairs")

COLUMNS = {  # of `results`, over `pairs`
    **dict.fromkeys(("model", "family", "batch", "replicas")),
    "strategy": "nullif(exchange, '')",
    **dict.fromkeys(("overlap", "dtype", "phase", "optimizer", "platform", "workload_key", *LAST)),
    **dict.fromkeys(("origin", "host", "predicted_by", "stack", "measured_s")),
    "measured_low_s": "low",
    "measured_high_s": "high",
    "measured_min_s": None,
    "interval": "CASE WHEN sampled > 0 THEN if(runs > 1, 'between-runs', 'within-run') END",
    "examples_per_s": "examples / if(sampled > 0, mean, nullif(measured_s, 0))",
    "steady": "CAST(estimate.steady AS BOOLEAN)",
    "runs": "coalesce(runs, 0)",
    "samples_n": "coalesce(samples_n, 0)",
    **dict.fromkeys(("disturbed_share", "measured_memory_bytes", *PREDICTED)),
    "ratio": "measured_s / nullif(predicted_s, 0)",
    "ratio_low": "low / nullif(predicted_s, 0)",
    "ratio_high": "high / nullif(predicted_s, 0)",
    "intensity": None,
    "flop_per_s": "flop / nullif(measured_s, 0)",
    "predicted_flop_per_s": "flop / nullif(predicted_s, 0)",
    "roof_flop_per_s": "if(intensity * memory_bytes_per_s * peak_flop_per_s IS NULL, NULL, "
    "least(peak_flop_per_s, intensity * memory_bytes_per_s))",
    "peak_fraction": "flop / nullif(measured_s, 0) / nullif(peak_flop_per_s, 0)",
    "roof_fraction": "flop / nullif(measured_s, 0) / nullif(roof_flop_per_s, 0)",
    "folder": None,
}
PLACES = {"tried": None, "predicted_at": None}  # of the records of a row
ORDER = "ORDER BY folder_rank, first, t, p"
BESIDES = ("platform", "method", "predicted_by")  # that names do not tell
ID = "(hash(folder_rank, t, p) >> 1)::BIGINT"
AT_ONCE = 50_000  # cells whose samples are in memory
SQL = f"{VIEWS} {COLUMNS}"  # what results hang on


def add(connection: DuckDBPyConnection, params: Mapping[str, str]) -> None:
    """Add the table `results` with columns of hyperparameters, of SQL over `flat`.

    The larger of the views are tables while it is made: they are asked several times.
    """
    from steptime.hardware import catalog
    from steptime.records import stacks

    known = f"({', '.join(map(flat.text, stacks.known()))})"
    usual = flat.text(catalog.stack().label)
    for at, (view, sql) in enumerate(VIEWS.items()):
        tell("results, steps", at, len(VIEWS) + 1)
        if view == "pairs":
            _add_estimates(connection)
        made = sql.replace("$STACKS", known).replace("$STACK", usual)
        kind = "TEMP TABLE" if view in HELD else "VIEW"
        connection.execute(f"CREATE {kind} {view} AS {made}")
    tell("results, steps", len(VIEWS), len(VIEWS) + 1)
    _add_names(connection)
    own = {*COLUMNS, *PLACES, "name", "label"}
    given = {column: made for column, made in params.items() if column.lower() not in own}
    shown: dict[str, str | None] = {**given, "name": None, **COLUMNS, "label": None, **PLACES}
    told = ", ".join(f"{made or one} AS {flat.name(one)}" for one, made in shown.items())
    connection.execute(
        f"CREATE TABLE results AS SELECT {told} FROM (SELECT *, "
        "if(estimate.low IS NULL, NULL, least(estimate.low, measured_s)) AS low, "
        "if(estimate.high IS NULL, NULL, greatest(estimate.high, measured_s)) AS high "
        f"FROM named) {ORDER}"
    )
    connection.execute("DROP VIEW named; DROP TABLE names; DROP TABLE pooled_estimates")
    for view in reversed(VIEWS):
        connection.execute(f"DROP {'TABLE' if view in HELD else 'VIEW'} {view}")


def _add_estimates(connection: DuckDBPyConnection) -> None:
    """Make the table `pooled_estimates`: what samples of several records say together."""
    connection.execute(
        f"CREATE TEMP TABLE pooled_estimates (cell UBIGINT, t BIGINT, shared {flat.ESTIMATED}, "
        "middle_s DOUBLE)"
    )
    ((number,),) = connection.execute("SELECT count(*) FROM pooled").fetchall()
    if not number:
        return
    from steptime.records.statistics import of_samples

    struct = ", ".join(f"{name} := nullif({name}, 'nan')" for name in ESTIMATE)
    for start in range(0, number, AT_ONCE):
        held = connection.execute(
            f"FROM pooled WHERE rowid BETWEEN {start} AND {start + AT_ONCE - 1}"
        ).fetchnumpy()
        told = of_samples(*(list(held.pop(name)) for name in ("every", "every_run")))
        connection.register("found", held | told)
        connection.execute(
            "INSERT INTO pooled_estimates SELECT cell, t, "
            f"if(value = 'nan', NULL, struct_pack({struct})), middle_s FROM found"
        )
        connection.unregister("found")


def _add_names(connection: DuckDBPyConnection) -> None:
    """Add the view `named`: pairs with their name and label, the shortest that tell them apart."""
    import numpy as np

    rows = (
        f"SELECT *, {ID} AS id, row_number() OVER ({ORDER}) AS place, folder_rank AS within, "
        "exchange AS strategy FROM pairs"
    )

    def wide(ids: Sequence[int]) -> str:
        connection.register("heads", {"id": np.array(ids)})
        return f"SELECT id, {', '.join(names.TOLD)} FROM ({rows}) SEMI JOIN heads USING (id)"

    names.add_names(connection, "names", names.hashed(rows, ("folder_rank", *BESIDES)), wide)
    distinct = ", ".join(f"count(DISTINCT {one})" for one in BESIDES)
    (counts,) = connection.execute(f"SELECT {distinct} FROM pairs").fetchall()
    telling = [one for one, count in zip(BESIDES, counts, strict=True) if count > 1]
    label = f"concat_ws(', ', {', '.join(['name', *telling])})"
    connection.execute(
        f"CREATE TEMP VIEW named AS SELECT * EXCLUDE (id), {label} AS label "
        f"FROM (SELECT *, {ID} AS id FROM pairs) JOIN names USING (id)"
    )
