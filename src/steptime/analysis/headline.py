"""What was measured beside what was predicted: the table of results, and the answer in sentences.

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

OF_BEST = ("name", "model", "batch", "peak_fraction", "flop_per_s", "peak_flop_per_s")
OF_DATA = ("folder", "label", "interval_95", *results_sql.PLACES)  # for other readers
FAR = 0.2  # error of a prediction that a reader wants explained
SETTINGS = ("platform", "gpu", "host", "dtype", "phase", "optimizer", "method", "predicted_by")


def results_table(data: Data) -> Table:
    """Return the table of `results`; of settings people see those in which rows differ.

    Where only people read it, it holds the rows that they see; `beside` has `numbers` of all.
    """
    (total,) = data.one("SELECT count(*) FROM results")
    is_cut = data.most is not None and total > data.most
    told = data.of_results(WHOLE, "LIMIT ?", data.most) if is_cut else data.results
    rows = [{k: v for k, v in row.items() if k not in OF_DATA} for row in told]
    differ = [name for name in SETTINGS if len({row[name] for row in rows} - {None}) > 1]
    has_repeats = any(row["origin"] == "published" and row["runs"] for row in rows)
    shown = (
        Column("name", "network"),
        *(Column(name, name.replace("_", " "), is_spare=True) for name in differ),
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
        shown,
        rows,
        footnotes=describe_hidden_rows(total - len(told)) if is_cut else [],
        csv_columns=tuple(map(Column, rows[0] if rows else ("name",))),
        chart_rows=[numbers(data)],
    )


def numbers(data: Data) -> Row:
    """Return what the sentences say as numbers, in SI; None is unknown.

    What was only published is counted apart.
    """
    (published,), (ours,) = data.rows(_PUBLISHED), data.rows(_OF_OURS)
    off = data.arrays(_PAIRS)
    disturbed_share = off["disturbed_share"][relative_errors(off["ratio"]) > FAR]
    known = np.isfinite(disturbed_share)
    statuses = data.rows(
        "SELECT status, count(*) AS n FROM results WHERE status <> 'ok' GROUP BY 1 ORDER BY n DESC"
    )
    return {
        **published,
        **ours,
        "unsuccessful": {row["status"]: row["n"] for row in statuses},
        "prediction": {**accuracy(off["ratio"]), "worst": data.rows(_WORST)},
        "far": {
            "number": len(disturbed_share),
            "disturbed": int((disturbed_share > 0.5).sum()) if known.any() else None,
        },
    }


_THEIRS = "coalesce(origin = 'published' AND predicted_s IS NULL, false)"
_PAIRED = f"NOT {_THEIRS} AND ratio > 0"
_PUBLISHED = f"""
    SELECT count(*) AS published, count(DISTINCT platform) AS published_platforms,
        min(measured_s) AS published_fastest_s, max(measured_s) AS published_slowest_s
    FROM results WHERE {_THEIRS}
"""  # noqa: S608  # ours
_OF_OURS = f"""
    SELECT arg_max({flat.struct({name: name for name in OF_BEST})}, peak_fraction) AS best,
        count(DISTINCT workload_key) AS networks,
        count(DISTINCT workload_key) FILTER (measured_s IS NOT NULL) AS measured,
        count(DISTINCT platform) AS platforms,
        count(DISTINCT platform) FILTER (measured_s IS NOT NULL) AS measured_platforms,
        min(measured_s) AS fastest_s, max(measured_s) AS slowest_s,
        count(*) FILTER (peak_fraction > 1) AS above_peak,
        median(peak_fraction) AS median_peak_fraction, median(roof_fraction)
            FILTER (peak_fraction IS NOT NULL) AS median_roof_fraction
    FROM results WHERE NOT {_THEIRS}
"""  # noqa: S608  # ours
_PAIRS = f"SELECT ratio, disturbed_share FROM results WHERE {_PAIRED}"  # noqa: S608  # ours
_WORST = f"""
    SELECT name, model, batch, ratio FROM results WHERE {_PAIRED}
    ORDER BY {FARNESS} DESC LIMIT 3
"""  # noqa: S608  # ours


def sentences(found: Row) -> list[str]:
    """Return the numbers as sentences, most important first."""
    said = []
    if best := found["best"]:
        peak = si(best["peak_flop_per_s"], "FLOP/s", 3)
        said.append(
            f"The best network reaches {percent(best['peak_fraction'])} of the peak: "
            f"{best['name']}, {si(best['flop_per_s'], 'FLOP/s', 3)} of {peak}. "
            f"The median network reaches {percent(found['median_peak_fraction'])}."
        )
    if found["above_peak"]:
        above = counted(found["above_peak"], "network")
        said.append(f"{above} above 100 %: the device's figures are too low; calibrate again.")
    predicted = found["prediction"]
    if predicted["pairs"]:
        worst = predicted["worst"][0]
        share = percent(predicted["within_factor_2"])
        said.append(
            f"Predictions have a median error of {percent(predicted['median_error'])}; "
            f"{share} of the {predicted['pairs']} lie within a factor of 2. "
            f"Farthest: {worst['name']}, which takes {worst['ratio']:.3g} times the predicted time."
        )
    far = found["far"]
    if far["number"] and far["disturbed"] is not None:
        said.append(
            f"{counted(far['number'], 'prediction')} off by more than {percent(FAR)}; of these "
            f"{far['disturbed'] or 'none'} measured while other work disturbed most samples."
        )
    networks = counted(found["networks"], "network")
    if found["measured"]:
        on = _on(found["measured_platforms"])
        times = f"{seconds(found['fastest_s'])} to {seconds(found['slowest_s'])}"
        said.append(f"{found['measured']} of {networks} measured{on}; a step takes {times}.")
    elif found["networks"] or not found["published"]:
        on = _on(found["platforms"])
        said.append(f"{networks} here{on}, none of them measured.")
    if published := found["published"]:
        times = ""
        if found["published_slowest_s"]:
            ends = (found[f"published_{end}_s"] for end in ("fastest", "slowest"))
            times = f"; a step takes {' to '.join(map(seconds, ends))}"
        on = _on(found["published_platforms"])
        said.append(f"{counted(published, 'result')} published by others{on}{times}.")
    if statuses := found["unsuccessful"]:
        which = ", ".join(f"{number} {status}" for status, number in statuses.items())
        said.append(f"{sum(statuses.values())} did not succeed ({which}); see below the table.")
    return said


def _on(platforms: int) -> str:
    return f" on {platforms} platforms" if platforms > 1 else ""


ANALYSIS = Analysis(
    """Print what was measured beside what was predicted.

    A row is a network on a platform by one way of measuring and one method of
    prediction. Times are medians; the speed is the predicted FLOP over the
    measured time.
    """,
    results_table,
    lambda table: sentences(dict(table.chart_rows[0])),
)
