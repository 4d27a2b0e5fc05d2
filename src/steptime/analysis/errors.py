"""How far predictions are from measurements, by method, platform and family of networks."""

from steptime.analysis.analyses import Analysis
from steptime.core.table import Table, columns
from steptime.core.units import counted, percent
from steptime.records.data import Data

WORST = ("name", "model", "batch", "ratio")
GEOMETRIC_MEAN = "exp(avg(ln(ratio)))"
OF_RATIOS = (  # how far predictions are off by ratios; `{}` ends the names of shares
    f"count(*) AS pairs, median(abs(1 / ratio - 1)) AS median_error{{0}}, {GEOMETRIC_MEAN} AS "
    "geometric_mean_ratio, avg(CAST(ratio BETWEEN 0.5 AND 2 AS INT)) AS within_factor_2{0}"
)
ERRORS = f"""
    SELECT predicted_by, platform, family, {OF_RATIOS.format("_share")},
        arg_max(name, abs(ln(ratio))) AS farthest, arg_max(ratio, abs(ln(ratio))) AS farthest_ratio
    FROM results WHERE ratio > 0 GROUP BY ALL
    ORDER BY predicted_by, platform, pairs DESC, family
"""  # noqa: S608  # the formula is a constant of ours


def error_table(data: Data) -> Table:
    """Return the errors of the predictions by method, platform and family; most pairs first."""
    rows = data.rows(ERRORS)
    return Table(
        columns(
            *("predicted_by=predicted by", "?platform", "family", "pairs"),
            *("median_error_share=median error", "geometric_mean_ratio=measured / predicted"),
            *("within_factor_2_share=within a factor of 2", "?farthest"),
            "?farthest_ratio=its ratio",
        ),
        rows,
    )


def _says(table: Table) -> list[str]:
    if not table.rows:
        hint = "steptime predict --in DIR predicts every step in a folder"
        return [f"nothing here is both measured and predicted; {hint}"]
    worst = max(table.rows, key=lambda row: float(row["median_error_share"]))
    what = f"{worst['predicted_by']} for {worst['family']} on {worst['platform']}"
    error = f"The largest median error is {percent(worst['median_error_share'])}"
    return [f"{error}, of {what} ({counted(worst['pairs'], 'pair')})."]


ANALYSIS = Analysis(
    """Print how far predictions are from measurements, by family.

    The error of a pair is |predicted / measured - 1|. The ratio is the
    geometric mean of measured / predicted.
    """,
    error_table,
    _says,
    section="How far predictions are from measurements",
)
