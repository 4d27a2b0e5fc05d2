"""Is B better than A? The ratio of their numbers, its interval, and one of four words.

"faster" is the better one of any quantity, "slower" the worse; people read `screen_words`.
Many comparisons are read together, so the false discovery rate is held over all of them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.records.ratios import farness
from steptime.records.row import ESTIMATE, more_is_better
from steptime.records.statistics import MISS
from steptime.records.warmup import Floats

MARGIN = 0.02  # of the ratio, that counts as no difference
LEAST = 8  # pairs of single runs, from which their noise from run to run is estimated
HALF = 2 * 0.6745  # deviations that hold half of a normal distribution
SIDE = (*ESTIMATE, "runs")
Side = Mapping[str, Floats]  # the columns of `SIDE`, NaN where unknown


def screen_words(quantity: str) -> dict[str, str]:
    """Return how "faster" and "slower" are said of a quantity: accuracy gets better or worse."""
    if quantity.endswith("_s"):
        return {"faster": "faster", "slower": "slower"}
    return {"faster": "better", "slower": "worse"}


def compared(
    a: Side,
    b: Side,
    ratio: Floats | None = None,
    quantity: str = "step_s",
    margin: float | None = None,
) -> dict[str, NDArray[Any]]:
    """Return of many A and B the ratio B / A of a quantity, `low`, `high`, `p_value`, `verdict`.

    "same" means that the whole interval lies between 1 / (1 + `MARGIN`) and 1 + `MARGIN`; "faster"
    and "slower" that it leaves out 1, and that the false discovery rate over all allows it. With a
    `margin` that is the margin, what is below it is no change, and a single run, which does not
    show how runs differ, is held against the spread of all such ratios (its densest half). Several
    runs on both sides: Welch's interval over the logarithms of the medians of the runs. A single
    run on a side: the interval is recovered from those of the sides (MOVER, Donner and Zou 2012).
    With `ratio`, those of plain medians, the intervals are widened to hold them. Where a side has
    no interval there is none, and the verdict is "unsure"; without a value it is None.
    """
    from scipy.special import ndtr, stdtr, stdtrit

    with np.errstate(invalid="ignore", divide="ignore"):
        (la, a_down, a_up), (lb, b_down, b_up) = (
            (np.log(one["value"]), *(_reach(one, end) for end in ("low", "high"))) for one in (a, b)
        )
        centre, drift = lb - la, a["drift"] + b["drift"]
        down, up = np.hypot(b_down, a_up), np.hypot(b_up, a_down)
        error, freedom = _welch(a, b)
        p_value = 2 * ndtr(
            -np.abs(centre) * 1.96 / np.maximum(np.where(centre > 0, down, up), 1e-12)
        )
        several = np.isfinite(error)
        reach = -stdtrit(freedom, MISS / 2) * error
        sure = np.where(centre == 0, 1.0, 0.0)  # of runs without any noise
        of_runs = np.where(error > 0, 2 * stdtr(freedom, -np.abs(centre) / error), sure)
        low = np.exp(centre - np.where(several, reach, down) - drift)
        high = np.exp(centre + np.where(several, reach, up) + drift)
        p_value = np.where(several, of_runs, np.where(np.isfinite(low + high), p_value, np.nan))
        shown = np.exp(centre) if ratio is None else ratio
        low, high = np.minimum(low, shown), np.maximum(high, shown)
    if margin is not None:
        p_value = _against_each_other(shown, p_value, ~several)
    return {
        "ratio": shown,
        "low": low,
        "high": high,
        "p_value": p_value,
        "verdict": verdicts(shown, low, high, p_value, quantity, margin),
    }


def verdicts(
    ratio: Floats,
    low: Floats,
    high: Floats,
    p_value: Floats,
    quantity: str = "step_s",
    margin: float | None = None,
) -> NDArray[Any]:
    """Return the words on comparisons that are read together; None without a ratio."""
    words = np.full(len(ratio), "unsure", object)
    beyond = farness(ratio) > math.log1p(margin or 0.0)
    believed = beyond & control_false_discovery(np.nan_to_num(p_value, nan=1.0))
    less, more = ("slower", "faster") if more_is_better(quantity) else ("faster", "slower")
    words[(high < 1) & believed] = less
    words[(low > 1) & believed] = more
    alike = 1 + (MARGIN if margin is None else margin)
    words[(low >= 1 / alike) & (high <= alike)] = "same"
    words[np.isnan(ratio)] = None
    return words


def _against_each_other(ratio: Floats, p_value: Floats, single: NDArray[np.bool_]) -> Floats:
    """Return the probabilities of no difference, of single runs with the noise from run to run."""
    found = p_value.copy()
    at = np.flatnonzero(single & np.isfinite(p_value))
    if len(at) < LEAST:
        return found
    logs = np.log(ratio[at])
    ordered = np.sort(logs)
    half = (len(logs) + 1) // 2
    widths = ordered[half:] - ordered[: len(logs) - half]
    spread = max(float(widths.min()) / HALF, 1e-9)
    from scipy.special import erfc

    found[at] = np.maximum(found[at], erfc(np.abs(logs) / spread / math.sqrt(2)))
    return found


def control_false_discovery(p_values: Sequence[float] | Floats) -> NDArray[np.bool_]:
    """Return which of many differences to believe: at most a share `MISS` of those is false.

    Source: Benjamini and Hochberg 1995.
    """
    p = np.asarray(p_values, float)
    ordered = np.sort(p)
    held = ordered[ordered <= MISS * np.arange(1, len(p) + 1) / max(len(p), 1)]
    return np.asarray(p <= (held[-1] if len(held) else -1.0))


def _reach(side: Side, end: str) -> Floats:
    """Return how far an end of an interval is from its value, as logarithms, without the drift."""
    return np.asarray(np.abs(np.log(side[end] / side["value"])) - side["drift"])


def _welch(a: Side, b: Side) -> tuple[Floats, Floats]:
    """Return standard error and degrees of freedom, rounded down (Welch 1947); NaN without runs."""
    error = np.hypot(a["error"], b["error"])
    spread = a["error"] ** 4 / (a["runs"] - 1) + b["error"] ** 4 / (b["runs"] - 1)
    least = np.minimum(a["runs"], b["runs"]) - 1
    freedom = np.where(spread > 0, np.maximum(least, np.floor(error**4 / spread)), least)
    return error, freedom
