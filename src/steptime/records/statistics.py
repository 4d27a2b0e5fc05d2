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
    columns = {name: np.full(len(samples), np.nan) for name in ESTIMATE}
    times = [np.asarray(cell_samples, float) for cell_samples in samples]
    shortest_s = np.zeros(len(samples))
    for places, rows in by_length(times):
        shortest_s[places] = rows.min(axis=1, initial=math.inf) if rows.size else 0
    positive = np.flatnonzero(shortest_s > 0).tolist()
    cells = [
        [times[cell]] if min(runs[cell]) == max(runs[cell]) else by_run(times[cell], runs[cell])
        for cell in positive
    ]
    for name, numbers in estimates(cells).items():
        columns[name][positive] = numbers
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
    cells = []
    for cell_samples, cell_runs in zip(samples, runs, strict=True):
        times = np.asarray(cell_samples, float)
        has_times = len(times) > 0 and bool((times > 0).all())
        cells.append(by_run(times, cell_runs) if has_times else [])
    filled = [index for index, cell in enumerate(cells) if cell]
    logs = np.full((len(cells), max(map(len, cells), default=0)), np.nan)
    for start in range(0, len(filled), CHUNK_CELLS):
        chunk = filled[start : start + CHUNK_CELLS]
        steady = _find_steady([cells[index] for index in chunk])
        log_units = np.log(steady.unit_s[steady.cells])
        for cell, run, log in zip(
            steady.cells.tolist(), steady.runs.tolist(), steady.medians + log_units, strict=True
        ):
            logs[chunk[cell], run] = log
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
    sizes = np.fromiter(map(len, cells), np.int64, len(cells))
    times = [np.asarray(run, dtype=np.float64) for cell in cells for run in cell]
    if not sizes.all() or not all(map(len, times)):
        raise InputError("a run without samples has no step time")
    cell_of_run = np.repeat(np.arange(len(cells)), sizes)
    first = sizes.cumsum() - sizes
    number = np.arange(len(times)) - first[cell_of_run]
    medians = np.empty(len(times))
    for places, rows in by_length(times):
        is_wrong = ~((rows > 0) & np.isfinite(rows))
        if is_wrong.any():
            run = number[places[is_wrong.any(axis=1)][0]]
            wrong_s = rows[is_wrong][0]
            raise InputError(f"run {run}: a step time is a positive number, not {wrong_s}")
        medians[places] = middles(rows)
    unit_s = medians[first] if len(cells) else np.empty(0)
    for cell in np.flatnonzero(sizes > 1):
        unit_s[cell] = middles(medians[first[cell] : first[cell] + sizes[cell]])
    logs = list(times)
    for places, rows in by_length(times):
        units = unit_s[cell_of_run[places], np.newaxis]
        for place, log in zip(places, np.log(rows / units), strict=True):
            logs[place] = log
    warm = find_warm_up(logs, sizes)
    logs = [log[count:] for log, count in zip(logs, warm.samples, strict=True)]
    for places, rows in by_length(logs):
        medians[places] = middles(rows)
    return _SteadyRuns(sizes, cell_of_run, number, unit_s, logs, medians, warm)


def _estimates(cells: Sequence[Sequence[Sequence[float] | Floats]]) -> dict[str, Floats]:
    steady = _find_steady(cells)
    sizes, medians, warm = steady.sizes, steady.medians, steady.warm
    first = sizes.cumsum() - sizes
    low, high = np.full(len(medians), np.nan), np.full(len(medians), np.nan)
    for places, rows in by_length(steady.logs):
        if rows.shape[1] > 1:
            low[places], high[places] = _bootstrapped(rows)
    centre, low, high = medians[first], low[first], high[first]
    error = np.full(len(cells), np.nan)
    several = np.flatnonzero(sizes > 1)
    for cell in several:
        ordered = np.sort(medians[first[cell] : first[cell] + sizes[cell]])  # any order of runs
        centre[cell] = ordered.mean()
        error[cell] = ordered.std(ddof=1) / math.sqrt(len(ordered))
    for size in np.unique(sizes[several]):
        group = several[sizes[several] == size]
        t = two_sided_t(MISS, int(size) - 1) if size >= MIN_RUNS else math.nan
        half_width = t * error[group]
        low[group] = centre[group] - half_width
        high[group] = centre[group] + half_width
    return {
        "value": steady.unit_s * np.exp(centre),
        "low": steady.unit_s * np.exp(np.minimum(low, centre) - warm.drift),
        "high": steady.unit_s * np.exp(np.maximum(high, centre) + warm.drift),
        "error": error,
        "drift": warm.drift,
        "steady": warm.steady,
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
    ranks = []
    for column in (a, b):
        _, of, count = np.unique(column, return_inverse=True, return_counts=True)
        ranks.append((count.cumsum() - (count - 1) / 2)[of])
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _bootstrapped(rows: Floats) -> tuple[Floats, Floats]:
    """Return the ends of the bootstrap interval of the median of each row.

    Of m resampled values the median is the sorted value at a rank that follows a Beta(h, h)
    distribution, h = (m + 1) / 2 (an order statistic of uniform numbers), so no resample is made:
    the ends are the values at the quantiles of that distribution. m is the number of independent
    samples that the run is worth, n (1 - r) / (1 + r), where r is the correlation of the ranks of
    neighbours, its bias of -1/n mended, between 0 and 0.9.
    """
    from scipy.special import betaincinv

    n = rows.shape[1]
    r = np.zeros(len(rows))
    if n >= MIN_CORRELATED_SAMPLES:
        ranks = rows.argsort(kind="stable").argsort(kind="stable") - (n - 1) / 2
        follows = (ranks[:, 1:] * ranks[:, :-1]).sum(axis=1) / max(float((ranks[0] ** 2).sum()), 1)
        r = np.clip(follows + 1 / n, 0.0, 0.9)
    half = (np.maximum(3.0, n * (1 - r) / (1 + r)) + 1) / 2
    below = (n * betaincinv(half, half, MISS / 2)).astype(np.int64)
    ordered = np.sort(rows)
    row_numbers = np.arange(len(rows))
    return ordered[row_numbers, below], ordered[row_numbers, n - 1 - below]
