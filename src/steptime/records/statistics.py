"""From the samples of a step to numbers with a 95 % interval.

Samples inside a process are one level, fresh processes (runs) another. With several runs the
interval is over runs; the interval of a single run, which is marked as one, leaves out how
processes differ. The procedure, its measured coverage and its limits are on the page
`docs/measuring.md`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steptime.core.errors import InputError
from steptime.records.row import ESTIMATE, SPREAD, by_run
from steptime.records.warmup import Floats, WarmUp, by_length, find_warm_up, middles

MISS = 0.05  # the share of intervals that may miss the truth
SEED = 20151115
NORMAL_MAD = 1.4826  # standard deviation of a normal distribution over its median deviation
MIN_CORRELATED_SAMPLES = 8  # of a run whose autocorrelation can be estimated
MAX_CORRELATION = 0.9  # of neighbours: a higher one is not told from a drift
MIN_INDEPENDENT_SAMPLES = 3.0  # that a run is worth at the least
MIN_RUNS = 3  # for an interval: with one degree of freedom, t is 12.7
CHUNK_CELLS = 50_000  # more would take more memory, and no less time

WITHIN, BETWEEN = "within-run", "between-runs"


def estimate(runs: Sequence[Sequence[float]]) -> dict[str, float | None]:
    """Return the `estimates` of a single cell; None is unknown."""
    numbers = {name: float(column[0]) for name, column in estimates([runs]).items()}
    return {name: None if math.isnan(number) else number for name, number in numbers.items()}


def estimates(cells: Sequence[Sequence[Sequence[float] | Floats]]) -> dict[str, Floats]:
    """Return the step time [s] of each cell of runs [samples of s] with its 95 % interval.

    Several runs: the geometric mean of the medians of the runs, and a t-interval over their
    logarithms, whose standard error is `error`; no interval of two runs, where t is 12.7. One run:
    its median, and a bootstrap interval; none for a single sample. Warm-up is left out
    (`find_warm_up`); where no steady state is found (`steady` is 0) the interval is widened by the
    `drift` that is left. NaN is unknown. Raises `InputError` for no samples, or a time that is not
    positive.
    """
    starts = range(0, max(len(cells), 1), CHUNK_CELLS)
    parts = [_estimates(cells[start : start + CHUNK_CELLS]) for start in starts]
    return {name: np.concatenate([part[name] for part in parts]) for name in ESTIMATE}


def of_samples(
    samples: Sequence[Sequence[float] | Floats], runs: Sequence[Sequence[int] | NDArray[Any]]
) -> dict[str, Floats]:
    """Return the `estimates` of cells, NaN for a cell without samples.

    An op may rest for a step: a cell with a sample that is not above 0 has no estimate, either.

    Args:
        samples: the samples of each cell [s].
        runs: the run of each sample.
    """
    times_s = [np.asarray(cell_samples, float) for cell_samples in samples]
    shortest_s = np.zeros(len(samples))
    for places, rows in by_length(times_s):
        if rows.size:
            shortest_s[places] = rows.min(axis=1)
    estimated = np.flatnonzero(shortest_s > 0).tolist()
    cells = []
    for cell in estimated:
        is_single_run = min(runs[cell]) == max(runs[cell])
        cells.append([times_s[cell]] if is_single_run else by_run(times_s[cell], runs[cell]))
    columns = {name: np.full(len(samples), np.nan) for name in ESTIMATE}
    for name, numbers in estimates(cells).items():
        columns[name][estimated] = numbers
    return columns


def spreads(samples: Sequence[Sequence[float]]) -> dict[str, Floats]:
    """Return the ends, mean, percentiles and speeds [1/s] of lists of samples [s].

    A speed is one over the mean; its `uncertainty` is the standard error of the speeds of samples,
    `jitter` their median absolute deviation as that of a normal distribution.
    """
    columns = {name: np.full(len(samples), np.nan) for name in SPREAD}
    for places, rows in by_length([np.asarray(times, float) for times in samples]):
        for name, column in _spreads_of_rows(rows).items():
            columns[name][places] = column
    return columns


def _spreads_of_rows(rows: Floats) -> dict[str, Floats]:
    """Return the `spreads` of samples of one length [cells, samples]."""
    low, high = np.quantile(rows, (0.05, 0.95), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        speeds = 1 / rows
        deviations = np.abs(speeds - middles(speeds)[:, np.newaxis])
        return {
            "min": rows.min(axis=1),
            "max": rows.max(axis=1),
            "mean": rows.mean(axis=1),
            "p5": low,
            "p95": high,
            "speed": 1 / rows.mean(axis=1),
            "uncertainty": speeds.std(axis=1) / math.sqrt(rows.shape[1]),
            "jitter": NORMAL_MAD * middles(deviations),
        }


def run_logs(
    samples: Sequence[Sequence[float] | Floats], runs: Sequence[Sequence[int] | NDArray[Any]]
) -> Floats:
    """Return the logarithm of the median of each run [cells, runs], NaN behind the last run.

    Warm-up is left out, as in `estimates`. A cell with a sample that is not above 0 has no runs.
    """
    cells: list[Sequence[Any]] = []
    for cell_samples, cell_runs in zip(samples, runs, strict=True):
        times_s = np.asarray(cell_samples, float)
        has_times = len(times_s) > 0 and bool((times_s > 0).all())
        cells.append(by_run(times_s, cell_runs) if has_times else [])
    max_runs = max(map(len, cells), default=0)
    logs = np.full((len(cells), max_runs), np.nan)
    with_runs = [cell for cell, cell_runs in enumerate(cells) if cell_runs]
    for start in range(0, len(with_runs), CHUNK_CELLS):
        chunk = np.array(with_runs[start : start + CHUNK_CELLS])
        steady = _find_steady([cells[cell] for cell in chunk.tolist()])
        logs[chunk[steady.cells], steady.runs] = steady.medians + np.log(
            steady.unit_s[steady.cells]
        )
    return logs


class _SteadyRuns(NamedTuple):
    """The runs of cells without their warm-up, one entry a run.

    Attributes:
        sizes: number of runs of each cell.
        cells: the cell of each run.
        runs: the number of the run in its cell.
        unit_s: a typical time of each cell.
        logs: logarithms of the samples over `unit_s`.
        medians: medians of `logs`.
        warm: where the warm-up ends.
    """

    sizes: NDArray[np.int64]
    cells: NDArray[np.int64]
    runs: NDArray[np.int64]
    unit_s: Floats
    logs: list[Floats]
    medians: Floats
    warm: WarmUp


def _find_steady(cells: Sequence[Sequence[Sequence[float] | Floats]]) -> _SteadyRuns:
    """Return the runs of cells without their warm-up."""
    run_counts = np.fromiter(map(len, cells), np.int64, len(cells))
    times_s = [np.asarray(run, dtype=np.float64) for cell in cells for run in cell]
    if not run_counts.all() or not all(map(len, times_s)):
        raise InputError("a run without samples has no step time")
    first_runs = run_counts.cumsum() - run_counts  # the place of each cell's first run
    cell_of_run = np.repeat(np.arange(len(cells)), run_counts)
    run_numbers = np.arange(len(times_s)) - first_runs[cell_of_run]

    medians_s = np.empty(len(times_s))
    for places, rows in by_length(times_s):
        _check_times(rows, run_numbers[places])
        medians_s[places] = middles(rows)
    unit_s = medians_s[first_runs] if len(cells) else np.empty(0)
    for cell in np.flatnonzero(run_counts > 1):
        first_run = first_runs[cell]
        unit_s[cell] = middles(medians_s[first_run : first_run + run_counts[cell]])

    logs = list(times_s)
    for places, rows in by_length(times_s):
        units_s = unit_s[cell_of_run[places], np.newaxis]
        for place, log in zip(places, np.log(rows / units_s), strict=True):
            logs[place] = log
    warm_up = find_warm_up(logs, run_counts)
    steady_logs = [log[count:] for log, count in zip(logs, warm_up.samples, strict=True)]
    median_logs = np.empty(len(steady_logs))
    for places, rows in by_length(steady_logs):
        median_logs[places] = middles(rows)
    return _SteadyRuns(
        sizes=run_counts,
        cells=cell_of_run,
        runs=run_numbers,
        unit_s=unit_s,
        logs=steady_logs,
        medians=median_logs,
        warm=warm_up,
    )


def _check_times(rows: Floats, run_numbers: NDArray[np.int64]) -> None:
    """Raise `InputError` if a sample of these runs [runs, samples] is no positive number."""
    is_wrong = ~((rows > 0) & np.isfinite(rows))
    if is_wrong.any():
        run = run_numbers[is_wrong.any(axis=1)][0]
        wrong_s = rows[is_wrong][0]
        raise InputError(f"run {run}: a step time is a positive number, not {wrong_s}")


def _estimates(cells: Sequence[Sequence[Sequence[float] | Floats]]) -> dict[str, Floats]:
    steady = _find_steady(cells)
    run_counts = steady.sizes
    first_runs = run_counts.cumsum() - run_counts

    # A single run: its median with the bootstrapped interval.
    run_low = np.full(len(steady.medians), np.nan)
    run_high = np.full(len(steady.medians), np.nan)
    for places, rows in by_length(steady.logs):
        if rows.shape[1] > 1:
            run_low[places], run_high[places] = _bootstrap_medians(rows)
    centre = steady.medians[first_runs]
    low = run_low[first_runs]
    high = run_high[first_runs]

    # Several runs: the mean of their medians with a t-interval.
    error = np.full(len(cells), np.nan)
    several = np.flatnonzero(run_counts > 1)
    for cell in several:
        first_run = first_runs[cell]
        medians = steady.medians[first_run : first_run + run_counts[cell]]
        ordered = np.sort(medians)  # runs in any order have the same mean, to the last digit
        centre[cell] = ordered.mean()
        error[cell] = ordered.std(ddof=1) / math.sqrt(len(ordered))
    for run_count in np.unique(run_counts[several]):
        group = several[run_counts[several] == run_count]
        has_interval = run_count >= MIN_RUNS
        t = two_sided_t(MISS, int(run_count) - 1) if has_interval else math.nan
        half_width = t * error[group]
        low[group] = centre[group] - half_width
        high[group] = centre[group] + half_width
    drift = steady.warm.drift
    return {
        "value": steady.unit_s * np.exp(centre),
        "low": steady.unit_s * np.exp(np.minimum(low, centre) - drift),
        "high": steady.unit_s * np.exp(np.maximum(high, centre) + drift),
        "error": error,
        "drift": drift,
        "steady": steady.warm.steady,
    }


def two_sided_p(t: float, freedom: int) -> float:
    """Return the probability that |T| of Student's distribution is at least |t|."""
    from scipy.special import stdtr  # what scipy.stats.t calls, loaded in a third of the time

    return float(2 * stdtr(freedom, -abs(t)))


def two_sided_t(p: float, freedom: float) -> float:
    """Return the t that |T| reaches with probability `p`: 2.776 for 0.05 and 4 degrees."""
    from scipy.special import stdtrit

    return float(-stdtrit(freedom, p / 2))


def rank_correlation(a: Floats, b: Floats) -> float:
    """Return Spearman's correlation of two columns, NaN where one of them never varies."""
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(_mean_ranks(a), _mean_ranks(b))[0, 1])


def _mean_ranks(column: Floats) -> Floats:
    """Return the rank of each value, from 1; equal values share the mean of their ranks."""
    _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
    last_ranks = counts.cumsum()
    mean_ranks = last_ranks - (counts - 1) / 2
    return np.asarray(mean_ranks[place])


def _bootstrap_medians(rows: Floats) -> tuple[Floats, Floats]:
    """Return the ends of the bootstrap interval of the median of each row.

    Of m resampled values the median is the sorted value at a rank that follows a Beta(h, h)
    distribution, h = (m + 1) / 2 (an order statistic of uniform numbers), so no resample is made:
    the ends are the values at the quantiles of that distribution. m is the number of independent
    samples that the run is worth, n (1 - r) / (1 + r), where r is the correlation of the ranks of
    neighbours, its bias of -1/n mended, between 0 and 0.9.
    """
    from scipy.special import betaincinv

    n = rows.shape[1]
    correlation = np.zeros(len(rows))
    if n >= MIN_CORRELATED_SAMPLES:
        centred_ranks = rows.argsort(kind="stable").argsort(kind="stable") - (n - 1) / 2
        neighbour_products = (centred_ranks[:, 1:] * centred_ranks[:, :-1]).sum(axis=1)
        rank_squares = max(float((centred_ranks[0] ** 2).sum()), 1)  # equal for all rows
        biased = neighbour_products / rank_squares
        correlation = np.clip(biased + 1 / n, 0.0, MAX_CORRELATION)
    independent_samples = n * (1 - correlation) / (1 + correlation)
    half = (np.maximum(MIN_INDEPENDENT_SAMPLES, independent_samples) + 1) / 2
    low_rank = (n * betaincinv(half, half, MISS / 2)).astype(np.int64)
    high_rank = n - 1 - low_rank
    ordered = np.sort(rows)
    row_numbers = np.arange(len(rows))
    return ordered[row_numbers, low_rank], ordered[row_numbers, high_rank]
