"""The table of results, measured beside predicted, and the answer in sentences.

The sentences stand at the top of a report, too.
"""

import numpy as np

from steptime.analysis.analyses import Analysis
from steptime.core.table import Column, Table, describe_hidden_rows
from steptime.core.units import counted, percent, seconds, si
from steptime.records import flat, results_sql
from steptime.records.data import WHOLE, Data
from steptime.records.ratios import FARNESS, accuracy, relative_errors
from steptime.records.row import Row

BEST_COLUMNS = ("name", "model", "batch", "peak_fraction", "flop_per_s", "peak_flop_per_s")
HIDDEN_COLUMNS = ("folder", "label", "interval_95", *results_sql.PLACES)  # for other readers
LARGE_ERROR = 0.2  # of a prediction, that a reader wants explained
MOSTLY = 0.5  # share of samples from which on a measurement counts as disturbed
SETTINGS = ("platform", "gpu", "host", "dtype", "phase", "optimizer", "method", "predicted_by")


def make_results_table(data: Data) -> Table:
    """Return the table of `results`; people see those settings in which rows differ.

    If only people read it, it holds only the rows that they see; `chart_rows` has `count_results`.
    """
    (total,) = data.one("SELECT count(*) FROM results")
    is_cut = data.most is not None and total > data.most
    results = data.of_results(WHOLE, "LIMIT ?", data.most) if is_cut else data.results
    rows = [
        {name: value for name, value in row.items() if name not in HIDDEN_COLUMNS}
        for row in results
    ]
    telling = [name for name in SETTINGS if len({row[name] for row in rows} - {None}) > 1]
    has_repeats = any(row["origin"] == "published" and row["runs"] for row in rows)
    shown_columns = (
        Column("name", "network"),
        *(Column(name, name.replace("_", " "), is_spare=True) for name in telling),
        Column("status"),
        Column("measured_s", "measured step"),
        *([Column("runs", is_spare=True)] if has_repeats else []),
        Column("predicted_s", "predicted step"),
        Column("ratio", "measured / predicted"),
        Column("flop_per_s", "speed", is_spare=True),
        Column("peak_fraction", "of peak", is_spare=True),
        Column("measured_memory_bytes", "peak memory", is_spare=True),
    )
    return Table(
        shown_columns,
        rows,
        footnotes=describe_hidden_rows(total - len(results)) if is_cut else [],
        csv_columns=tuple(map(Column, rows[0] if rows else ("name",))),
        chart_rows=[count_results(data)],
    )


def count_results(data: Data) -> Row:
    """Return the numbers of the sentences, in SI; None is unknown.

    Results of others without a prediction here are counted apart (`published`).
    """
    (published,) = data.rows(_PUBLISHED)
    (local,) = data.rows(_LOCAL)
    pairs = data.arrays(_PAIRS)
    is_large = relative_errors(pairs["ratio"]) > LARGE_ERROR
    disturbed_share = pairs["disturbed_share"][is_large]
    is_known = np.isfinite(disturbed_share).any()
    statuses = data.rows(
        "SELECT status, count(*) AS n FROM results WHERE status <> 'ok' GROUP BY 1 ORDER BY n DESC"
    )
    return {
        **published,
        **local,
        "unsuccessful": {row["status"]: row["n"] for row in statuses},
        "prediction": {**accuracy(pairs["ratio"]), "worst": data.rows(_WORST)},
        "far": {
            "number": len(disturbed_share),
            "disturbed": int((disturbed_share > MOSTLY).sum()) if is_known else None,
        },
    }


_IS_PUBLISHED_ALONE = "coalesce(origin = 'published' AND predicted_s IS NULL, false)"
_IS_PAIR = f"NOT {_IS_PUBLISHED_ALONE} AND ratio > 0"
_PUBLISHED = f"""
    SELECT count(*) AS published, count(DISTINCT platform) AS published_platforms,
        min(measured_s) AS published_fastest_s, max(measured_s) AS published_slowest_s
    FROM results WHERE {_IS_PUBLISHED_ALONE}
"""  # noqa: S608  # texts of this module
_LOCAL = f"""
    SELECT arg_max({flat.struct({name: name for name in BEST_COLUMNS})}, peak_fraction) AS best,
        count(DISTINCT workload_key) AS networks,
        count(DISTINCT workload_key) FILTER (measured_s IS NOT NULL) AS measured,
        count(DISTINCT workload_key)
            FILTER (measured_s IS NOT NULL AND origin = 'published') AS measured_by_others,
        count(DISTINCT platform) AS platforms,
        count(DISTINCT platform) FILTER (measured_s IS NOT NULL) AS measured_platforms,
        min(measured_s) AS fastest_s, max(measured_s) AS slowest_s,
        count(*) FILTER (peak_fraction > 1) AS above_peak,
        count(*) FILTER (peak_fraction > 1 AND origin = 'published') AS published_above_peak,
        median(peak_fraction) AS median_peak_fraction, median(roof_fraction)
            FILTER (peak_fraction IS NOT NULL) AS median_roof_fraction
    FROM results WHERE NOT {_IS_PUBLISHED_ALONE}
"""  # noqa: S608  # texts of this module
_PAIRS = f"SELECT ratio, disturbed_share FROM results WHERE {_IS_PAIR}"  # noqa: S608  # texts of this module
_WORST = f"""
    SELECT name, model, batch, ratio FROM results WHERE {_IS_PAIR}
    ORDER BY {FARNESS} DESC LIMIT 3
"""  # noqa: S608  # texts of this module


def describe_numbers(numbers: Row) -> list[str]:
    """Return the numbers of `count_results` as sentences, the important ones first."""
    lines = [
        *_describe_peak(numbers),
        *_describe_predictions(numbers),
        *_describe_measured(numbers),
        *_describe_published(numbers),
    ]
    statuses = numbers["unsuccessful"]
    if statuses:
        counts = ", ".join(f"{number} {status}" for status, number in statuses.items())
        lines.append(f"{sum(statuses.values())} did not succeed ({counts}); see below the table.")
    return lines


def _describe_peak(numbers: Row) -> list[str]:
    """Return the best share of the peak, and a remark on shares above 100 %.

    Only a measurement of one's own is a reason to calibrate the device again.
    """
    lines = []
    best = numbers["best"]
    if best:
        peak = si(best["peak_flop_per_s"], "FLOP/s", 3)
        lines.append(
            f"The best network reaches {percent(best['peak_fraction'])} of the peak: "
            f"{best['name']}, {si(best['flop_per_s'], 'FLOP/s', 3)} of {peak}. "
            f"The median network reaches {percent(numbers['median_peak_fraction'])}."
        )
    published = numbers["published_above_peak"]
    local = numbers["above_peak"] - published
    if local:
        networks = counted(local, "network")
        lines.append(f"{networks} above 100 %: the device's figures are too low; calibrate again.")
    if published:
        results = counted(published, "published result")
        lines.append(f"{results} above 100 %: the type, batch or device is not what ran.")
    return lines


def _describe_predictions(numbers: Row) -> list[str]:
    """Return the errors of predictions, and whether other work disturbed the large ones."""
    lines = []
    prediction = numbers["prediction"]
    if prediction["pairs"]:
        worst = prediction["worst"][0]
        share = percent(prediction["within_factor_2"])
        lines.append(
            f"Predictions have a median error of {percent(prediction['median_error'])}; "
            f"{share} of the {prediction['pairs']} lie within a factor of 2. "
            f"Farthest: {worst['name']}, which takes {worst['ratio']:.3g} times the predicted time."
        )
    far = numbers["far"]
    if far["number"] and far["disturbed"] is not None:
        lines.append(
            f"{counted(far['number'], 'prediction')} off by more than {percent(LARGE_ERROR)}; "
            f"of these {far['disturbed'] or 'none'} measured while other work disturbed most "
            "samples."
        )
    return lines


def _describe_measured(numbers: Row) -> list[str]:
    """Return how many networks are measured, by whom, and their times."""
    networks = counted(numbers["networks"], "network")
    if not numbers["measured"]:
        if numbers["published"] and not numbers["networks"]:
            return []
        return [f"{networks} here{_on(numbers['platforms'])}, none of them measured."]
    by_others = numbers["measured_by_others"]
    verb = "measured"
    if by_others == numbers["measured"]:
        verb = "measured by others"
    elif by_others:
        verb = f"measured ({by_others} by others)"
    platforms = _on(numbers["measured_platforms"])
    times = _describe_times(numbers["fastest_s"], numbers["slowest_s"])
    return [f"{numbers['measured']} of {networks} {verb}{platforms}{times}."]


def _describe_published(numbers: Row) -> list[str]:
    """Return how many results others published without a prediction here, and their times."""
    published = numbers["published"]
    if not published:
        return []
    platforms = _on(numbers["published_platforms"])
    times = _describe_times(numbers["published_fastest_s"], numbers["published_slowest_s"])
    return [f"{counted(published, 'result')} published by others{platforms}{times}."]


def _describe_times(fastest_s: float | None, slowest_s: float | None) -> str:
    """Return the range of times: "; a step takes 1 ms to 2 ms"; "" if none is known."""
    ends = [seconds(end) for end in (fastest_s, slowest_s) if end]
    return f"; a step takes {' to '.join(dict.fromkeys(ends))}" if ends else ""


def _on(platform_count: int) -> str:
    return f" on {platform_count} platforms" if platform_count > 1 else ""


ANALYSIS = Analysis(
    """Print what was measured beside what was predicted.

    A row is a network on a platform by one way of measuring and one method of
    prediction. Times are medians; the speed is the predicted FLOP over the
    measured time.
    """,
    make_results_table,
    lambda table: describe_numbers(dict(table.chart_rows[0])),
)
