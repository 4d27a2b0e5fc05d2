"""The sentences at the top of a report: the answer before the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from steptime.analysis.pairs import errors
from steptime.core.units import counted, seconds, si

Row = dict[str, Any]


def numbers(rows: Sequence[Row], published: int = 0) -> Row:
    """Give what the sentences say as numbers, in SI; None is unknown.

    `rows` are of `results`; `published` counts the records of others beside them.
    """
    measured = [row for row in rows if row["measured_s"] is not None]
    failed = [row for row in rows if row["status"] not in (None, "ok")]
    fractions = [row for row in rows if row["peak_fraction"] is not None]
    best = max(fractions, key=lambda row: float(row["peak_fraction"]), default=None)
    return {
        "networks": len({row["workload_key"] for row in rows}),
        "measured": len({row["workload_key"] for row in measured}),
        "platforms": len({row["platform"] for row in rows}),
        "published": published,
        "unsuccessful": dict(Counter(row["status"] for row in failed)),
        "fastest_s": min((row["measured_s"] for row in measured), default=None),
        "slowest_s": max((row["measured_s"] for row in measured), default=None),
        "best": None if best is None else _short(best),
        "above_peak": sum(row["peak_fraction"] > 1 for row in fractions),
        "median_peak_fraction": _middle(row["peak_fraction"] for row in fractions),
        "median_roof_fraction": _middle(row["roof_fraction"] for row in fractions),
        "prediction": errors(rows),
    }


def _short(row: Row) -> Row:
    names = ("name", "model", "batch", "peak_fraction", "flop_per_s", "peak_flop_per_s")
    return {name: row[name] for name in names}


def _middle(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def sentences(found: Row) -> list[str]:
    """Give the numbers as sentences, most important first."""
    return [
        *_limit(found),
        *_prediction(found["prediction"]),
        *_measured(found),
        *_unsuccessful(found["unsuccessful"]),
        *_published(found["published"]),
    ]


def _limit(found: Row) -> list[str]:
    best = found["best"]
    if best is None:
        return []
    middle, above = found["median_peak_fraction"], found["above_peak"]
    doubt = (
        f"{counted(above, 'network')} above 100%: the device's figures are too low; probe again."
    )
    return [
        (
            f"The best network reaches {best['peak_fraction']:.0%} of the peak: {best['name']}, "
            f"{si(best['flop_per_s'], 'FLOP/s', 3)} of {si(best['peak_flop_per_s'], 'FLOP/s', 3)}. "
            f"The median network reaches {middle:.0%}."
        ),
        *([doubt] if above else []),
    ]


def _prediction(found: Row) -> list[str]:
    if not found["pairs"]:
        return []
    worst = found["worst"][0]
    return [
        (
            f"Predictions have a median error of {found['median_error']:.0%}; "
            f"{found['within_factor_2']:.0%} of the {found['pairs']} lie within a factor of 2. "
            f"Farthest: {worst['name']}, which takes {worst['ratio']:.3g} times the predicted time."
        )
    ]


def _measured(found: Row) -> list[str]:
    if not found["networks"] and found["published"]:
        return []
    on = f" on {found['platforms']} platforms" if found["platforms"] > 1 else ""
    if not found["measured"]:
        return [f"{counted(found['networks'], 'network')} here{on}, none of them measured."]
    return [
        (
            f"{found['measured']} of {counted(found['networks'], 'network')} measured{on}; "
            f"a step takes {seconds(found['fastest_s'])} to {seconds(found['slowest_s'])}."
        )
    ]


def _unsuccessful(statuses: dict[str, int]) -> list[str]:
    if not statuses:
        return []
    which = ", ".join(f"{number} {status}" for status, number in statuses.items())
    return [f"{sum(statuses.values())} did not succeed ({which}); see below the table."]


def _published(number: int) -> list[str]:
    if not number:
        return []
    return [f"{counted(number, 'published record')}: `steptime table` and the plots show them."]
