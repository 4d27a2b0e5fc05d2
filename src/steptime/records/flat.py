"""Lines of records as flat rows, by DuckDB alone: the facts of `analysis.row` in SQL.

What needs Python (the bootstrap of an interval, where warm-up ends) are functions that DuckDB calls
for the rows that a statement asks them of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from steptime.core.units import QUANTITIES
from steptime.records.record import PROFILER
from steptime.records.row import COLUMNS, ESTIMATE, PARAM_PREFIX, Row, by_run

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ESTIMATED = f"STRUCT({', '.join(f'{name} DOUBLE' for name in ESTIMATE)})"
SQL_TYPES = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "VARCHAR"}
Kinds = dict[str, list[str]]  # by name, as first seen: the names of the types that its values have

LINE = {  # of a record: the type of each of its keys
    **dict.fromkeys(("origin", "platform", "scope", "status", "cause", "note"), "VARCHAR"),
    **dict.fromkeys(("taken_at", "workload_key"), "VARCHAR"),
    "method": "STRUCT(name VARCHAR, version VARCHAR, options JSON)",
    "workload": "STRUCT(model VARCHAR, params MAP(VARCHAR, JSON), batch_per_replica BIGINT, "
    "dtype VARCHAR, phase VARCHAR, optimizer VARCHAR, plan JSON, file VARCHAR)",
    "quantities": "MAP(VARCHAR, STRUCT(value VARCHAR, low DOUBLE, high DOUBLE, samples DOUBLE[], "
    "columns STRUCT(run BIGINT[], disturbed BOOLEAN[])))",
    "env": "JSON",
}
_NAMED = ", ".join(f"'{name}'" for name in COLUMNS)
_PARSED = """
    SELECT *, row_number() OVER () AS line, method.options AS o, workload AS w,
        quantities['step_s'] AS step, map_entries(quantities) AS q,
        coalesce(CAST(workload.plan->>'data' AS BIGINT), 1) AS replicas,
        nullif(quantities['step_s'].samples, []) AS samples,
        coalesce(nullif(quantities['step_s'].columns.run, []),
            [0 for _ in quantities['step_s'].samples]) AS run
    FROM {lines}
"""
_SPEEDS = """
    SELECT *, replicas * w.batch_per_replica AS examples, list_avg(samples) AS mean,
        list_transform(samples, lambda s: replicas * w.batch_per_replica / s) AS speeds,
        CASE WHEN env->>'batch_source' = 'unknown' THEN NULL ELSE w.batch_per_replica END AS batch,
        CASE WHEN origin = 'measured' THEN coalesce(o->>'input', 'device') ELSE o->>'input' END
            AS input,
        origin = 'measured' AS own
    FROM parsed
"""
TEXT = """CASE json_type({v}) WHEN 'BOOLEAN' THEN if({v} = 'true', 'yes', 'no')
    WHEN 'DOUBLE' THEN if(regexp_matches(CAST({v} AS VARCHAR), '[.e]'),
        CAST(CAST({v} AS DOUBLE) AS VARCHAR), CAST({v} AS VARCHAR)) ELSE {v}->>'$' END"""


def rate(value: str) -> str:
    """Return the SQL of a text as a rate, None where it is none that a device may have."""
    number = f"TRY_CAST({value} AS DOUBLE)"
    return f"CASE WHEN {number} BETWEEN 1 AND 1e30 THEN {number} END"


_COMPILED = "if(coalesce(o->>'compile', 'false') IN ('false', '0', '', 'null'), '', '-compile')"
_FLAT = f"""
    SELECT line, origin, method.name || {_COMPILED} AS method,
        method.version AS method_version, status,
        nullif(cause, '') AS cause, nullif(note, '') AS note,
        coalesce(nullif(w.file, ''), w.model || if(cardinality(w.params) = 0, '', ':' ||
            list_aggregate([e.key || '=' || {TEXT.format(v="e.value")}
                for e in map_entries(w.params)], 'string_agg', ','))) AS model,
        w.model AS family, batch, if(batch IS NULL, NULL, examples) AS global_batch,
        examples, replicas,
        w.dtype AS dtype, w.phase AS phase, w.optimizer AS optimizer, platform,
        coalesce(scope, '') AS scope, env->>'op_kind' AS op_kind, workload_key,
        step.low AS stated_low, step.high AS stated_high,
        CASE WHEN samples IS NULL THEN NULL WHEN len(list_distinct(run)) > 1 THEN 'between-runs'
            ELSE 'within-run' END AS step_s_interval,
        list_min(samples) AS step_s_min, list_max(samples) AS step_s_max, mean AS step_s_mean,
        list_aggregate(samples, 'quantile_cont', 0.05) AS step_s_p5,
        list_aggregate(samples, 'quantile_cont', 0.95) AS step_s_p95,
        len(samples) AS samples_n, if(samples IS NULL, NULL,
            len(list_filter(coalesce(step.columns.disturbed, []), lambda d: d))) AS
            samples_disturbed,
        len(step.columns.disturbed) AS marks_n,
        if(samples IS NULL, NULL, len(list_distinct(run))) AS runs,
        CASE WHEN samples IS NOT NULL THEN examples / mean WHEN batch IS NOT NULL
            THEN examples / nullif(CAST(step.value AS DOUBLE), 0) END AS speed_per_s,
        list_aggregate(speeds, 'stddev_pop') / sqrt(len(samples)) AS speed_uncertainty_per_s,
        1.4826 * list_median(list_transform(speeds, lambda s: abs(s - middle))) AS
            speed_jitter_per_s,
        if(len(quantities['input_s'].samples) = len(samples),
            list_sum(quantities['input_s'].samples) / list_sum(samples), NULL) AS infeed,
        TRY_CAST(env->>'round' AS BIGINT) AS round, nullif(taken_at, '') AS taken_at,
        env->>'host' AS host, TRY_CAST(o->>'threads' AS BIGINT) AS threads,
        canonical(CAST(o AS VARCHAR)) AS method_options, CAST(env AS VARCHAR) AS env,
        nullif(o->>'gpu', '') AS gpu, if(json_type(o, '$.devices') = 'NULL', NULL,
            coalesce(TRY_CAST(o->>'devices' AS BIGINT), replicas)) AS devices,
        if(own, replace(method.name, '{PROFILER}', '') || {_COMPILED}, env->>'stack') AS stack,
        nullif(o->>'strategy', '') AS strategy, input,
        if(own, if(input = 'dataset', coalesce(o->>'staging', 'shared'), NULL), o->>'staging') AS
            staging,
        TRY_CAST(if(own, if(input = 'dataset', coalesce(o->>'loaders', '0'), NULL), o->>'loaders')
            AS BIGINT) AS loaders,
        TRY_CAST(if(own, if(input = 'dataset' AND coalesce(o->>'loaders', '0') <> '0',
            coalesce(o->>'prefetch', '2'), NULL), o->>'prefetch') AS BIGINT) AS prefetch,
        coalesce(TRY_CAST(o->>'overlap' AS BOOLEAN), true) AS overlap,
        coalesce(nullif(env->>'date', ''), nullif(taken_at[:10], '')) AS date,
        env->>'batch_source' AS batch_source, env->>'source_file' AS source_file,
        nullif(env->>'duplicate_of', '') AS duplicate_of,
        {rate("o->>'peak_flop_per_s'")} AS peak_flop_per_s,
        {rate("o->>'memory_bytes_per_s'")} AS memory_bytes_per_s,
        CAST(w.plan AS VARCHAR) AS plan, samples, if(samples IS NULL, NULL, run) AS run,
        CAST(w.params AS MAP(VARCHAR, VARCHAR)) AS params,
        map_from_entries([{{'key': e.key, 'value': if(len(e.value.samples) > 0,
            list_median(e.value.samples), CAST(e.value.value AS DOUBLE))}}
            for e in q if e.key IN ({_NAMED})]) AS numbers,
        map_from_entries([{{'key': e.key, 'value': if(len(e.value.samples) > 0,
            CAST(list_median(e.value.samples) AS VARCHAR), e.value.value)}}
            for e in q if e.key NOT IN ({_NAMED})]) AS others,
        map_from_entries([{{'key': e.key, 'value': {{'samples': e.value.samples, 'run':
            coalesce(nullif(e.value.columns.run, []), [0 for _ in e.value.samples])}}}}
            for e in q if e.key <> 'step_s' AND len(e.value.samples) > 0]) AS sampled
    FROM (SELECT *, list_median(speeds) AS middle FROM speeds)
    WHERE origin IS NOT NULL
"""


def select(path: str, longest: int) -> str:
    """Return the statement that makes flat rows of a file of checked records, line by line.

    `{}` has a number, and is no row. No line may be longer than `longest` bytes.
    """
    types = ", ".join(f"'{name}': '{kind}'" for name, kind in LINE.items())
    lines = (
        f"read_json({text(path)}, format = 'newline_delimited', "
        f"maximum_object_size = {longest}, columns = {{{types}}})"
    )
    return f"WITH parsed AS ({_PARSED.format(lines=lines)}), speeds AS ({_SPEEDS}) {_FLAT}"


def fetched(cursor: DuckDBPyConnection) -> list[Row]:
    """Return the rows of an answer, each with the names of its columns."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def listed(cursor: DuckDBPyConnection) -> dict[str, list[Any]]:
    """Return the columns of an answer."""
    import numpy as np

    return {
        name: np.ma.asarray(column).tolist()  # None where masked
        for name, column in cursor.fetchnumpy().items()
    }


def keep(connection: DuckDBPyConnection, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Make a table of two columns: whole numbers, then texts."""
    import numpy as np

    (keys, of), (texts, held) = columns.items()
    connection.register("made", {keys: np.array(of, np.int64), texts: np.array(held, object)})
    connection.execute(
        f"CREATE OR REPLACE TABLE {table} AS SELECT {keys}, {texts}::VARCHAR AS {texts} FROM made"
    )
    connection.unregister("made")


def text(value: str) -> str:
    """Return a text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def name(value: str) -> str:
    """Return the name of a column as SQL writes it."""
    return '"' + value.replace('"', '""') + '"'


def struct(columns: Mapping[str, str]) -> str:
    """Return the SQL of a struct of columns, each of SQL."""
    return f"struct_pack({', '.join(f'{name(one)} := {sql}' for one, sql in columns.items())})"


def json_object(row: Mapping[str, str]) -> str:
    """Return the SQL of an object as Python writes it, of the SQL of the JSON of its values."""
    keys = (f"{', ' if at else '{'}{json.dumps(one)}: " for at, one in enumerate(row))
    told = (f"{text(key)}, {value}" for key, value in zip(keys, row.values(), strict=True))
    return f"concat({', '.join(told)}, '}}')"


def quoted(value: str) -> str:
    """Return the SQL of the JSON of a text, or of a list of them."""
    return f"coalesce(to_json({value})::VARCHAR, 'null')"


def number(value: str) -> str:
    """Return the SQL of the JSON of a float, null where it is not finite."""
    return f"if(isfinite({value}), ({value})::VARCHAR, 'null')"


def whole(value: str) -> str:
    """Return the SQL of the JSON of a float that is written without `.0`, null for NaN."""
    is_whole = f"{value} = trunc({value}) AND abs({value}) < 1e18"
    return f"if({is_whole}, {value}::BIGINT::VARCHAR, {number(value)})"


def add_functions(connection: DuckDBPyConnection) -> None:
    """Teach a database what only Python can say of a row."""
    from duckdb.func import FunctionNullHandling

    connection.create_function("canonical", canonical, ["VARCHAR"], "VARCHAR")
    connection.create_function(
        "estimated",
        _estimated,
        ["DOUBLE[]", "BIGINT[]"],
        ESTIMATED,
        null_handling=FunctionNullHandling.SPECIAL,
    )


@lru_cache(4096)
def canonical(told: str) -> str:
    """Return JSON as it is compared and shown: its keys sorted."""
    return json.dumps(json.loads(told), sort_keys=True)


def _estimated(samples: list[float] | None, run: list[int]) -> Row | None:
    from steptime.records.statistics import estimate

    if not samples or min(samples) <= 0:  # an op may rest for a step
        return None
    return estimate(by_run(samples, run))


def kinds(connection: DuckDBPyConnection, rows: str, column: str) -> Kinds:
    """Return the names in a column of maps, as first seen, with the types of their values."""
    found = connection.execute(f"""
        SELECT key, kind, min(place) AS first FROM (
            SELECT e.key AS key, place, CASE WHEN json_type(e.value) IN ('UBIGINT', 'BIGINT')
                AND TRY_CAST(e.value AS BIGINT) IS NOT NULL THEN 'int'
                WHEN json_type(e.value) = 'BOOLEAN' THEN 'bool'
                WHEN json_type(e.value) IN ('UBIGINT', 'BIGINT', 'DOUBLE') THEN 'float'
                ELSE 'str' END AS kind
            FROM (SELECT unnest(entries) AS e,
                place * 1000 + generate_subscripts(entries, 1) AS place FROM (
                SELECT map_entries({column}) AS entries, min(line) AS place
                FROM ({rows}) GROUP BY ALL)) WHERE coalesce(json_type(e.value), 'NULL') <> 'NULL')
        GROUP BY ALL ORDER BY first
    """).fetchall()
    names: Kinds = {}
    for key, kind, _ in found:
        names.setdefault(key, []).append(kind)
    return names


def merged(every: Sequence[Kinds]) -> Kinds:
    """Return the names of all, as first seen, each with all types that its values have."""
    names: Kinds = {}
    for one in every:
        for key, found in one.items():
            names[key] = [*names.get(key, ()), *found]
    return names


def quantity_columns(others: Kinds) -> dict[str, str]:
    """Return the column of each quantity that is not one of every table."""
    return _columns(others, (*COLUMNS, "folder"), "quantity_")


def param_columns(params: Kinds, others: Kinds) -> dict[str, str]:
    """Return the column of each hyperparameter."""
    return _columns(params, (*COLUMNS, "folder", *quantity_columns(others).values()), PARAM_PREFIX)


def _columns(names: Iterable[str], taken: Iterable[str], prefix: str) -> dict[str, str]:
    """Return a column for each name; SQL knows no case, and no name that is empty."""
    used = {one.lower() for one in taken}
    columns: dict[str, str] = {}
    for one in names:
        column = one
        while not column or column.lower() in used:
            column = prefix + column
        used.add(column.lower())
        columns[one] = column
    return columns


_MADE = {  # columns of `records` that are not of flat rows, nor of a quantity
    **{
        f"step_s_{end}": f"if(samples IS NULL, stated_{end}, if(estimate.{end} IS NULL, NULL, "
        f"{best}(estimate.{end}, numbers['step_s'])))"
        for end, best in (("low", "least"), ("high", "greatest"))
    },
    "steady": "CAST(estimate.steady AS BOOLEAN)",
    "env": "canonical(env)",
}


def columns_of(params: Kinds, others: Kinds) -> dict[str, str]:
    """Return the expression of each column of the table `records` over flat rows."""
    told = {
        one: _MADE.get(one) or (f"numbers[{text(one)}]" if one in QUANTITIES else one)
        for one in COLUMNS
    }
    for held, kinds, named in (
        ("others", others, quantity_columns(others)),
        ("params", params, param_columns(params, others)),
    ):
        told |= {column: typed(f"{held}[{text(one)}]", kinds[one]) for one, column in named.items()}
    return told


def typed(value: str, found: Sequence[str]) -> str:
    """Return the expression of a JSON text in the type of a column whose values have these."""
    kinds = set(found)
    if kinds == {"int", "float"}:
        return f"CAST({value} AS DOUBLE)"
    if len(kinds) == 1 and kinds != {"str"}:
        return f"CAST({value} AS {SQL_TYPES[{'int': int, 'float': float, 'bool': bool}[found[0]]]})"
    return TEXT.format(v=value)
