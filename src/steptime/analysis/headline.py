"""The numbers of all results together, and the same in sentences.

They stand below the table of results and at the top of a report.
"""

import msgspec
import numpy as np
import polars as pl

from steptime.core.answer import AnswerRow
from steptime.core.units import format_count, format_percent, format_seconds, format_si
from steptime.records.ratios import accuracy, farthest, relative_errors

LARGE_ERROR = 0.2  # of a prediction, that a reader wants explained
MIN_DISTURBED_SHARE = 0.5  # of samples, from which on a measurement counts as disturbed
FARTHEST_COUNT = 3  # predictions that are listed
IS_PUBLISHED = pl.col("origin").fill_null("") == "published"
IS_PUBLISHED_ALONE = IS_PUBLISHED & pl.col("predicted_s").is_null()  # no prediction here


class BestResult(AnswerRow, frozen=True, kw_only=True):
    """The result that comes nearest to the peak of its device.

    Attributes:
        name: name of the network, with the settings that tell it from others.
        model: name of the model.
        batch: batch of one replica.
        peak_fraction: share of the peak.
        flop_per_s: its speed: predicted FLOP over measured seconds.
        peak_flop_per_s: the peak.
    """

    name: str
    model: str | None
    batch: int | None
    peak_fraction: float
    flop_per_s: float
    peak_flop_per_s: float


class FarResult(AnswerRow, frozen=True, kw_only=True):
    """A result whose prediction is far off.

    Attributes:
        name: name of the network, with the settings that tell it from others.
        model: name of the model.
        batch: batch of one replica.
        ratio: measured / predicted time of a step.
    """

    name: str
    model: str | None
    batch: int | None
    ratio: float


class PredictionErrors(AnswerRow, frozen=True, kw_only=True):
    """The errors of all predictions with a measurement.

    Attributes:
        pairs: number of predictions with a measurement.
        median_error: median of |predicted / measured - 1|; None without pairs.
        geometric_mean_ratio: geometric mean of measured / predicted.
        within_factor_2: share of the pairs with a ratio from 0.5 to 2.
        worst: the three predictions with the ratios farthest from 1.
    """

    pairs: int
    median_error: float | None
    geometric_mean_ratio: float | None
    within_factor_2: float | None
    worst: list[FarResult]


class LargeErrors(AnswerRow, frozen=True, kw_only=True):
    """Predictions that are off by more than 20 %.

    Attributes:
        number: number of such predictions.
        disturbed: number of such predictions whose measurement was disturbed by other work; None if
            unknown.
    """

    number: int
    disturbed: int | None


class ResultsSummary(AnswerRow, frozen=True, kw_only=True):
    """Numbers of all results, in SI; None is unknown.

    A published result is one that others measured. Keys with `published` count those without a
    prediction here; all other keys leave these out.

    Attributes:
        published: number of published results without a prediction here.
        published_platforms: number of platforms of these results.
        published_fastest_s: the shortest step of these results.
        published_slowest_s: the longest step of these results.
        best: the result nearest to the peak of its device.
        networks: number of networks with a measurement or a prediction.
        measured: number of measured networks.
        measured_published: number of these measured networks whose measurement is published.
        platforms: number of platforms.
        measured_platforms: number of platforms with a measurement.
        fastest_s: the shortest measured step.
        slowest_s: the longest measured step.
        above_peak: number of results whose speed is above the peak of their device, published ones
            with a prediction included.
        published_above_peak: number of published results among those of `above_peak`.
        median_peak_fraction: median of `peak_fraction` of the rows.
        median_roof_fraction: median of `roof_fraction` of the rows.
        unsuccessful: number of results by status, the most frequent status first.
        prediction: the errors of predictions.
        far: the predictions that are far off.
    """

    published: int
    published_platforms: int
    published_fastest_s: float | None
    published_slowest_s: float | None
    best: BestResult | None
    networks: int
    measured: int
    measured_published: int
    platforms: int
    measured_platforms: int
    fastest_s: float | None
    slowest_s: float | None
    above_peak: int
    published_above_peak: int
    median_peak_fraction: float | None
    median_roof_fraction: float | None
    unsuccessful: dict[str, int]
    prediction: PredictionErrors
    far: LargeErrors


def summarise_results(results: pl.LazyFrame) -> ResultsSummary:
    """Count results and measure the errors of predictions.

    Args:
        results: a frame of results (`records.results`).
    """
    columns = (
        *("name", "model", "batch", "workload_key", "platform", "origin", "status"),
        *("measured_s", "predicted_s", "ratio", "flop_per_s", "peak_flop_per_s"),
        *("peak_fraction", "roof_fraction", "disturbed_share"),
    )
    frame = results.select(columns).collect()
    # Results of others count by themselves, unless there is a prediction of them here.
    local = frame.filter(~IS_PUBLISHED_ALONE)
    published = frame.filter(IS_PUBLISHED_ALONE).select(
        pl.len().alias("published"),
        pl.col("platform").drop_nulls().n_unique().alias("published_platforms"),
        pl.col("measured_s").min().alias("published_fastest_s"),
        pl.col("measured_s").max().alias("published_slowest_s"),
    )
    pairs = local.filter(pl.col("ratio") > 0)
    statuses = (
        frame.filter(pl.col("status") != "ok")
        .group_by("status")
        .len()
        .sort(["len", "status"], descending=[True, False])
    )
    numbers = {
        **published.row(0, named=True),
        **_count_local(local),
        "best": _find_best(local),
        "unsuccessful": dict(statuses.iter_rows()),
        "prediction": _measure_errors(pairs),
        "far": _count_large_errors(pairs),
    }
    return msgspec.convert(numbers, ResultsSummary)


def _count_local(local: pl.DataFrame) -> dict[str, float | None]:
    """Return the numbers of results that are measured or predicted here."""
    is_measured = pl.col("measured_s").is_not_null()
    is_above_peak = (pl.col("peak_fraction") > 1).fill_null(value=False)
    has_peak = pl.col("peak_fraction").is_not_null()
    network, platform = pl.col("workload_key"), pl.col("platform")
    counts = {
        "networks": network.n_unique(),
        "measured": network.filter(is_measured).n_unique(),
        "measured_published": network.filter(is_measured & IS_PUBLISHED).n_unique(),
        "platforms": platform.drop_nulls().n_unique(),
        "measured_platforms": platform.filter(is_measured).drop_nulls().n_unique(),
        "fastest_s": pl.col("measured_s").min(),
        "slowest_s": pl.col("measured_s").max(),
        "above_peak": is_above_peak.sum(),
        "published_above_peak": (is_above_peak & IS_PUBLISHED).sum(),
        "median_peak_fraction": pl.col("peak_fraction").median(),
        "median_roof_fraction": pl.col("roof_fraction").filter(has_peak).median(),
    }
    return local.select(**counts).row(0, named=True)


def _find_best(local: pl.DataFrame) -> BestResult | None:
    """Return the result nearest to its peak, the first of equal ones."""
    results = local.filter(pl.col("peak_fraction").is_not_null())
    if results.is_empty():
        return None
    best_index = int(np.argmax(results["peak_fraction"].to_numpy()))
    return msgspec.convert(results.row(best_index, named=True), BestResult)


def _measure_errors(pairs: pl.DataFrame) -> PredictionErrors:
    """Return the errors of the predictions of pairs, the first of equally far ones first."""
    ratios = pairs["ratio"].to_numpy()
    far_pairs = pairs[farthest(ratios, FARTHEST_COUNT)]
    worst = [msgspec.convert(row, FarResult) for row in far_pairs.iter_rows(named=True)]
    return PredictionErrors(**accuracy(ratios), worst=worst)


def _count_large_errors(pairs: pl.DataFrame) -> LargeErrors:
    """Count predictions that are far off, and those whose measurement other work disturbed."""
    is_large = relative_errors(pairs["ratio"].to_numpy()) > LARGE_ERROR
    disturbed_share = pairs["disturbed_share"].cast(pl.Float64()).to_numpy()[is_large]
    has_shares = bool(np.isfinite(disturbed_share).any())
    disturbed = int((disturbed_share > MIN_DISTURBED_SHARE).sum())
    return LargeErrors(number=len(disturbed_share), disturbed=disturbed if has_shares else None)


def describe_results(summary: ResultsSummary) -> list[str]:
    """Return the summary in sentences, the important ones first."""
    lines = [
        *_describe_peak(summary),
        *_describe_predictions(summary),
        *_describe_measured(summary),
        *_describe_published(summary),
    ]
    statuses = summary.unsuccessful
    if statuses:
        counts = ", ".join(f"{number} {status}" for status, number in statuses.items())
        lines.append(f"{sum(statuses.values())} did not succeed ({counts}); see below the table.")
    return lines


def _describe_peak(summary: ResultsSummary) -> list[str]:
    """Return the best share of the peak, and a remark on shares above 100 %.

    Only a measurement of one's own is a reason to calibrate the device again.
    """
    lines = []
    best = summary.best
    if best is not None and summary.median_peak_fraction is not None:
        peak = format_si(best.peak_flop_per_s, "FLOP/s", 3)
        lines.append(
            f"The best network reaches {format_percent(best.peak_fraction)} of the peak: "
            f"{best.name}, {format_si(best.flop_per_s, 'FLOP/s', 3)} of {peak}. "
            f"The median network reaches {format_percent(summary.median_peak_fraction)}."
        )
    published = summary.published_above_peak
    local = summary.above_peak - published
    if local:
        networks = format_count(local, "network")
        lines.append(f"{networks} above 100 %: the device's figures are too low; calibrate again.")
    if published:
        results = format_count(published, "published result")
        lines.append(f"{results} above 100 %: the type, batch or device is not what ran.")
    return lines


def _describe_predictions(summary: ResultsSummary) -> list[str]:
    """Return the errors of predictions, and whether other work disturbed the large ones."""
    lines = []
    prediction = summary.prediction
    if prediction.median_error is not None and prediction.within_factor_2 is not None:
        worst = prediction.worst[0]
        share = format_percent(prediction.within_factor_2)
        lines.append(
            f"Predictions have a median error of {format_percent(prediction.median_error)}; "
            f"{share} of the {prediction.pairs} lie within a factor of 2. "
            f"Farthest: {worst.name}, which takes {worst.ratio:.3g} times the predicted time."
        )
    far = summary.far
    if far.number and far.disturbed is not None:
        lines.append(
            f"{format_count(far.number, 'prediction')} off by more than "
            f"{format_percent(LARGE_ERROR)}; of these {far.disturbed or 'none'} measured "
            "while other work disturbed most samples."
        )
    return lines


def _describe_measured(summary: ResultsSummary) -> list[str]:
    """Return the number of measured networks, with their sources and times."""
    networks = format_count(summary.networks, "network")
    if not summary.measured:
        # A folder of published results alone has a sentence of its own.
        if summary.published and not summary.networks:
            return []
        return [f"{networks} here{_describe_platforms(summary.platforms)}, none of them measured."]
    published = summary.measured_published
    verb = "measured"
    if published == summary.measured:
        verb = "measured by others"
    elif published:
        verb = f"measured ({published} by others)"
    platforms = _describe_platforms(summary.measured_platforms)
    times = _describe_times(summary.fastest_s, summary.slowest_s)
    return [f"{summary.measured} of {networks} {verb}{platforms}{times}."]


def _describe_published(summary: ResultsSummary) -> list[str]:
    """Return the number of published results without a prediction here, and their times."""
    published = summary.published
    if not published:
        return []
    platforms = _describe_platforms(summary.published_platforms)
    times = _describe_times(summary.published_fastest_s, summary.published_slowest_s)
    return [f"{format_count(published, 'result')} published by others{platforms}{times}."]


def _describe_times(fastest_s: float | None, slowest_s: float | None) -> str:
    """Return the range of times: "; a step takes 1 ms to 2 ms"; "" if none is known."""
    ends = [format_seconds(end) for end in (fastest_s, slowest_s) if end]
    return f"; a step takes {' to '.join(dict.fromkeys(ends))}" if ends else ""


def _describe_platforms(platform_count: int) -> str:
    return f" on {platform_count} platforms" if platform_count > 1 else ""
