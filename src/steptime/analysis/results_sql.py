"""The table `results`: a row for each workload, platform, exchange, measuring, predicting method.

Numbers are SI; one that is unknown is None. `ratio` is measured / predicted time of a step,
`flop_per_s` the predicted FLOP of a replica over the measured time, `peak_fraction` that over
the peak of the dtype, `roof_fraction` that over the lower of peak and intensity x bandwidth
(Williams, Waterman, Patterson 2009). A row without a measured time says why in `status`,
`cause` and `note`; `status` is None where nothing was tried, but for a prediction that does not
fit. What others published stands as measured where nothing was measured (`tried`); `origin` says
so: measured, published, or predicted where there is a prediction only.

Names are made where a statement asks for them: which settings tell networks apart is known only
once all networks are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from steptime import catalog, stacks
from steptime.analysis import cache, flat
from steptime.analysis.row import HOW, UNTOLD, WAYS, Row, grouped, said, telling_of
from steptime.core.workload import Plan

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LAST = ("method", "status", "cause", "note", "gpu", "input", "staging", "loaders", "prefetch",
        "threads")  # fmt: skip
WHY = ("status", "cause", "note")
OF_CELL = (
    *("folder_rank", "folder", "workload_key", "platform", "exchange", "overlap"),  # say which
    *("model", "family", "replicas", "dtype", "phase", "optimizer", "params", "plan"),
)
PREDICTED = {
    "predicted_s": "numbers['step_s']",
    "predicted_low_s": "stated_low",
    "predicted_high_s": "stated_high",
    "flop": "numbers['flop']",
    "traffic_bytes": "numbers['traffic_bytes']",
    "predicted_memory_bytes": "numbers['peak_memory_bytes']",
    "peak_flop_per_s": "peak_flop_per_s",
    "memory_bytes_per_s": "memory_bytes_per_s",
}
_ALIKE = ", ".join(f"any_value({one}) AS {one}" for one in OF_CELL)
_SAID = ("batch", "devices", "method_version", "method_options")
_TOLD = ", ".join(f"coalesce(t.{one}, p.{one}) AS {one}" for one in OF_CELL)
_LAST = ", ".join(
    f"if(t.t IS NULL, p.{one}, t.{one}) AS {one}" if one in WHY else f"t.{one}" for one in LAST
)
_BOTH = ", ".join(f"if(t.t IS NULL, p.{one}, t.{one}) AS {one}" for one in _SAID)

VIEWS = {
    "whole": f"""
        SELECT *, coalesce(strategy, '') AS exchange, map_contains(numbers, 'step_s') AS stepped,
            hash(folder_rank, workload_key, platform, coalesce(strategy, ''), overlap) AS cell,
            status = 'ok' AND map_contains(numbers, 'step_s') AS good,
            place + if(status = 'ok' AND map_contains(numbers, 'step_s'), {1 << 61}, 0) AS rank
        FROM flat WHERE scope = ''
    """,
    "tried": """
        FROM whole WHERE origin = 'measured' UNION ALL
        SELECT * FROM whole ANTI JOIN (FROM whole WHERE origin = 'measured') USING (cell)
        WHERE origin = 'published' AND duplicate_of IS NULL AND (stepped OR status <> 'ok')
    """,
    "tries": f"""
        SELECT cell, min(place) AS t, list(place ORDER BY place) AS tried, {_ALIKE},
            {", ".join(f"arg_max_null({one}, place) AS {one}" for one in (*_SAID, "origin"))},
            {", ".join(f"arg_max_null({one}, rank) AS {one}" for one in LAST)},
            any_value(stack) AS stack, list(host ORDER BY place) FILTER (host <> '') AS hosts,
            count(samples_n) FILTER (good) AS sampled,
            any_value(estimate) FILTER (good AND samples IS NOT NULL) AS one,
            max(numbers['step_s']) FILTER (good AND samples_n > 0) AS only_s,
            arg_max_null(if(good, numbers['step_s'], NULL), rank) AS stated_s,
            arg_max_null(examples, place) AS examples,
            min(step_s_min) FILTER (good) AS measured_min_s,
            sum(step_s_mean * samples_n) FILTER (good) / sum(samples_n) FILTER (good) AS mean,
            coalesce(sum(runs) FILTER (good), 0)::BIGINT AS runs,
            coalesce(sum(samples_n) FILTER (good), 0)::BIGINT AS samples_n,
            sum(samples_disturbed) FILTER (good) / sum(marks_n) FILTER (good) AS disturbed_share,
            max(numbers['peak_memory_bytes']) FILTER (status = 'ok') AS measured_memory_bytes
        FROM tried GROUP BY cell, hash(tried.method, tried.method_version, tried.method_options)
    """,
    "pooled": """
        SELECT cell, t, flatten(list(samples ORDER BY place)) AS every,
            flatten(list([(hash(place, r) >> 1)::BIGINT for r in run] ORDER BY place)) AS every_run
        FROM (SELECT folder_rank, cell, t, unnest(tried) AS place FROM tries WHERE sampled > 1)
            JOIN (SELECT folder_rank, place, samples, run FROM whole WHERE good AND samples_n > 0)
            USING (folder_rank, place)
        GROUP BY ALL
    """,
    "predictions": f"""
        SELECT cell, any_value(method) AS predicted_by, any_value(stack) AS stack, min(place) AS p,
            max(place) AS predicted_at, {_ALIKE},
            {", ".join(f"arg_max_null({one}, place) AS {one}" for one in _SAID)},
            {", ".join(f"arg_max_null({made}, place) AS {one}" for one, made in PREDICTED.items())},
            {", ".join(f"arg_max_null(if(status = 'ok', NULL, {w}), place) AS {w}" for w in WHY)}
        FROM whole WHERE origin = 'predicted' GROUP BY cell, hash(method, whole.stack)
    """,
    "pairs": f"""
        SELECT t.t, p, {_TOLD}, {_BOTH}, {_LAST},
            coalesce(t.stack, p.stack) AS stack,
            coalesce(origin, 'predicted') AS origin, predicted_by, first, tried, predicted_at,
            one, sampled, every, every_run,
            array_to_string(list_filter(hosts, lambda h, i: list_position(hosts, h) = i), ', ')
                AS host,
            if(sampled > 1, list_median(every), if(sampled = 1, only_s, stated_s))
                AS measured_s, measured_min_s, examples, mean, runs, samples_n,
            disturbed_share, measured_memory_bytes, {", ".join(PREDICTED)},
            flop / nullif(traffic_bytes, 0) AS intensity
        FROM tries AS t FULL OUTER JOIN predictions AS p ON t.cell = p.cell
            AND (p.stack IS NULL OR t.stack IS NULL
                OR p.stack = if(t.stack IN $STACKS, t.stack, '{catalog.stack().label}'))
        JOIN (SELECT cell, min(place) AS first FROM whole GROUP BY cell) AS f
            ON f.cell = coalesce(t.cell, p.cell)
        LEFT JOIN pooled ON pooled.cell = t.cell AND pooled.t = t.t
    """,
}
"""Views over `flat`, each over those before it."""

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
    "roof_fraction": "flop / nullif(measured_s, 0) / nullif(least(if(intensity IS NULL OR "
    "memory_bytes_per_s IS NULL, NULL, peak_flop_per_s), intensity * memory_bytes_per_s), 0)",
    "folder": None,
}
PLACES = {"tried": None, "predicted_at": None}  # of the records of a row
ORDER = "ORDER BY folder_rank, first, t, p"
BESIDES = ("platform", "method", "predicted_by")  # that names do not tell


def add(connection: DuckDBPyConnection, params: Mapping[str, str]) -> None:
    """Add the view `results`, its names still unknown, with columns of hyperparameters."""
    for view, sql in VIEWS.items():
        known = f"({', '.join(map(flat.text, stacks.known()))})"
        connection.execute(f"CREATE VIEW {view} AS {sql.replace('$STACKS', known)}")
    _view(connection, params, "NULL::VARCHAR", "NULL::VARCHAR")


def _view(
    connection: DuckDBPyConnection,
    params: Mapping[str, str],
    name: str,
    label: str,
    rows: str = "pairs",
    order: str = ORDER,
) -> None:
    own = {*COLUMNS, *PLACES, "name", "label"}
    given = {column: made for column, made in params.items() if column.lower() not in own}
    shown = {**given, "name": name, **COLUMNS, "label": label, **PLACES}
    told = ", ".join(f"{made or one} AS {flat.name(one)}" for one, made in shown.items())
    connection.execute(
        f"CREATE OR REPLACE VIEW results AS SELECT {told} FROM (SELECT *, "
        "if(estimate.low IS NULL, NULL, least(estimate.low, measured_s)) AS low, "
        "if(estimate.high IS NULL, NULL, greatest(estimate.high, measured_s)) AS high FROM ("
        "SELECT *, if(sampled > 1, estimated(every, every_run), one) AS estimate "
        f"FROM (SELECT * FROM {rows} {order})))"
    )


def store(connection: DuckDBPyConnection, path: Path, scratch: Path, size: int) -> None:
    """Write the rows with their names, without intervals, as Parquet: what needs all records."""
    cache.watched(connection, "CREATE TEMP TABLE held AS FROM tries", "networks", size)
    connection.execute("CREATE OR REPLACE VIEW tries AS FROM held")
    pairs = scratch / "pairs.parquet"
    cache.watched(connection, f"COPY pairs TO {flat.text(str(pairs))}", "results", size)
    connection.execute(
        f"CREATE OR REPLACE VIEW pairs AS FROM read_parquet({flat.text(str(pairs))})"
    )
    connection.execute("DROP VIEW tries; DROP TABLE held")
    rows, name, label = _named(connection)
    cache.watched(
        connection,
        f"COPY (SELECT *, {name} AS name, {label} AS label FROM {rows} {ORDER}) TO "
        f"{flat.text(str(path))} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 20480)",
        "names of results",
        size,
    )


def read(connection: DuckDBPyConnection, params: Mapping[str, str], path: Path) -> None:
    """Let the view `results` read what `store` has written."""
    _view(connection, params, "name", "label", f"read_parquet({flat.text(str(path))})", "")


def add_names(connection: DuckDBPyConnection, params: Mapping[str, str]) -> None:
    """Name the rows of `results`: the shortest that tell them apart (`row.labels`)."""
    rows, name, label = _named(connection)
    _view(connection, params, name, label, rows)


def _named(connection: DuckDBPyConnection) -> tuple[str, str, str]:
    """Return the pairs that know their names, and the expressions of name and label."""
    connection.execute(
        f"CREATE TEMP TABLE networks AS SELECT folder_rank, family, {_SETTINGS} AS settings, "
        "min(least(t, p)) AS place FROM pairs GROUP BY ALL"
    )
    families = connection.execute("""
        SELECT folder_rank, family, list(key ORDER BY first) FROM (
            SELECT folder_rank, family, e.key AS key, min((place, at_)) AS first FROM (
                SELECT folder_rank, family, place, unnest(settings) AS e,
                    generate_subscripts(settings, 1) AS at_ FROM networks)
            GROUP BY ALL) GROUP BY ALL
    """).fetchall()
    cases = [
        f"WHEN folder_rank = {rank} AND family = {flat.text(family)} THEN "
        f"{_words(_telling(connection, rank, family, names))}"
        for rank, family, names in families
    ]
    connection.execute("DROP TABLE networks")
    words = f"CASE {' '.join(cases)} ELSE '' END" if cases else "''"
    base = (
        f"trim(family || ' ' || concat_ws(', ', nullif({words}, ''), 'batch ' || batch)) || "
        "if(exchange = '', '', ', ' || exchange) || if(overlap, '', ', no overlap')"
    )
    connection.execute(f"CREATE VIEW named AS SELECT *, {base} AS base FROM pairs")
    connection.execute("CREATE TABLE suffixes (of_rank INT, of_t BIGINT, of_p BIGINT, suffix TEXT)")
    suffixes = _suffixes(connection)
    for start in range(0, len(suffixes), 1000):
        part = suffixes[start : start + 1000]
        told = ", ".join(f"({rank}, {t}, {p}, {flat.text(end)})" for rank, t, p, end in part)
        connection.execute(f"INSERT INTO suffixes VALUES {told}")
    rows, name = "named", "base"
    if suffixes:
        rows, name = "whole_named", "base || coalesce(suffix, '')"
        connection.execute(
            "CREATE VIEW whole_named AS FROM named LEFT JOIN suffixes ON folder_rank = of_rank AND "
            "coalesce(t, -1) = of_t AND coalesce(p, -1) = of_p"
        )
    distinct = ", ".join(f"count(DISTINCT {one})" for one in BESIDES)
    (counts,) = connection.execute(f"SELECT {distinct} FROM pairs").fetchall()
    telling = [one for one, count in zip(BESIDES, counts, strict=True) if count > 1]
    return rows, name, f"concat_ws(', ', {', '.join([name, *telling])})"


_STEP = ("dtype", "phase", "optimizer")
_JSON = "CAST(to_json({0}) AS VARCHAR)"
_SETTINGS = f"""list_concat(map_entries(params),
    [{", ".join(f"{{'key': '{n}', 'value': {_JSON.format(n)}}}" for n in _STEP)}],
    [{{'key': if(e.key = 'data', 'replicas', e.key || if(e.key IN {WAYS}, '-parallel', '')),
        'value': CAST(e.value AS VARCHAR)}}
        for e in map_entries(CAST(CAST(plan AS JSON) AS MAP(VARCHAR, JSON)))])"""


def _telling(connection: DuckDBPyConnection, rank: int, family: str, names: list[str]) -> list[str]:
    """Return the settings of a family that tell more of its networks apart than those before."""
    hashes, before = [], "0"
    for number, one in enumerate(names):
        hashes.append(f"hash({before}, told[{flat.text(one)}]) AS h{number}")
        before = f"h{number}"
    counted = ", ".join(f"count(DISTINCT h{number})" for number in range(len(names)))
    (found,) = connection.execute(
        f"SELECT {counted} FROM (SELECT {', '.join(hashes)} FROM (SELECT map_from_entries(settings)"
        " AS told FROM networks WHERE folder_rank = ? AND family = ?))",
        [rank, family],
    ).fetchall()
    return [one for one, now, last in zip(names, found, (1, *found), strict=False) if now > last]


def _words(telling: list[str]) -> str:
    """Return the expression of the settings in few words, as `row.said` has them."""
    words = []
    for one in telling:
        key = "data" if one == "replicas" else one.removesuffix("-parallel")
        value = f"params[{flat.text(one)}]"
        if one in _STEP:
            value = _JSON.format(one)
        elif key in vars(Plan()):
            value = f"CAST(CAST(plan AS JSON)->{flat.text(key)} AS VARCHAR)"
        words.append(
            f"CASE WHEN json_type({value}) = 'VARCHAR' AND {value}->>'$' <> family AND "
            f"regexp_full_match({value}->>'$', '[A-Za-z_][A-Za-z0-9_]*') THEN {value}->>'$' "
            f"ELSE {flat.text(one + ' ')} || {flat.TEXT.format(v=value)} END"
        )
    return f"concat_ws(', ', {', '.join(words)})" if words else "''"


def _suffixes(connection: DuckDBPyConnection) -> list[tuple[int, int, int, str]]:
    """Return what is added to names that several rows have: how each of them ran."""
    key = ", ".join(("folder_rank", "base", *BESIDES))
    cursor = connection.execute(
        f"SELECT folder_rank, base, {', '.join(BESIDES)}, coalesce(t, -1) AS t, "
        f"coalesce(p, -1) AS p, {', '.join(HOW)}, method_options, method_version AS version, host "
        f"FROM named QUALIFY count(*) OVER (PARTITION BY {key}) > 1 "
        "ORDER BY folder_rank, first, t, p"
    )
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    found = []
    for held in grouped(rows, itemgetter("folder_rank", "base", *BESIDES)).values():
        ways = [_how(row) for row in held]
        telling = telling_of(ways)
        for row, how in zip(held, ways, strict=True):
            words = [said(name, how[name]) for name in telling if how.get(name) is not None]
            suffix = "".join(f", {word}" for word in words)
            found.append((row["folder_rank"], row["t"], row["p"], suffix))
    return [one for one in found if one[-1]]


def _how(row: Row) -> Row:
    options = json.loads(row["method_options"])
    others = {name: value for name, value in options.items() if name not in UNTOLD}
    return {name: row[name] for name in HOW} | others | {n: row[n] for n in ("version", "host")}
