"""From the samples of a step to numbers with a 95 % interval.

Samples inside a process are one level, fresh processes (runs) another. With several runs the
interval is over runs; the interval of a single run, which is marked as one, leaves out how
processes differ. The procedure, its measured coverage and its limits are on the page
`docs/statistics.md`.
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
    starts = range(0, max(len(cells), 1), CHUNK_CELLS)  # at least one chunk, which may be empty
    chunks = [_estimates(cells[start : start + CHUNK_CELLS]) for start in starts]
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in ESTIMATE}


def estimate_samples(
    samples: Sequence[Sequence[float] | Floats], runs: Sequence[Sequence[int] | NDArray[Any]]
) -> dict[str, Floats]:
    """Return the `estimates` of cells, NaN for a cell without samples.

    An op may rest for a step: a cell with a sample that is not above 0 has no estimate, either.

    Args:
        samples: the samples of each cell [s].
        runs: the run of each sample.
    """
    times_s = [np.asarray(cell_samples, float) for cell_samples in samples]
    # Estimates use logarithms: cells without samples, or with one of 0, have none.
    cells_with_estimate = np.flatnonzero(_find_shortest(times_s) > 0).tolist()
    runs_of_cells = [_split_runs(times_s[cell], runs[cell]) for cell in cells_with_estimate]
    columns = {name: np.full(len(samples), np.nan) for name in ESTIMATE}
    for name, numbers in estimates(runs_of_cells).items():
        columns[name][cells_with_estimate] = numbers
    return columns


def _find_shortest(times_s: Sequence[Floats]) -> Floats:
    """Return the shortest sample of each cell [s]; 0 for a cell without samples."""
    shortest_s = np.zeros(len(times_s))
    for cells, cell_times_s in by_length(times_s):
        if cell_times_s.size:
            shortest_s[cells] = cell_times_s.min(axis=1)
    return shortest_s


def _split_runs(times_s: Floats, runs: Sequence[int] | NDArray[Any]) -> Sequence[Any]:
    """Return the samples of a cell by run; most cells have a single run, which needs no split."""
    is_single_run = min(runs) == max(runs)
    return [times_s] if is_single_run else by_run(times_s, runs)


def spreads(samples: Sequence[Sequence[float]]) -> dict[str, Floats]:
    """Return the ends, mean, percentiles and speeds [1/s] of lists of samples [s].

    A speed is one over the mean; its `uncertainty` is the standard error of the speeds of samples,
    `jitter` their median absolute deviation as that of a normal distribution.
    """
    columns = {name: np.full(len(samples), np.nan) for name in SPREAD}
    times_s = [np.asarray(list_samples, float) for list_samples in samples]
    for list_numbers, list_times_s in by_length(times_s):
        for name, column in _spreads_of_lists(list_times_s).items():
            columns[name][list_numbers] = column
    return columns


def _spreads_of_lists(times_s: Floats) -> dict[str, Floats]:
    """Return the `spreads` of samples of one length [lists, samples]."""
    # Rows are lists, columns samples. `jitter` is the median absolute deviation as that of normal
    # noise, `uncertainty` the standard error of the mean speed.
    p5_s, p95_s = np.quantile(times_s, (0.05, 0.95), axis=1)
    sample_count = times_s.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        speeds_per_s = 1 / times_s
        deviations_per_s = np.abs(speeds_per_s - middles(speeds_per_s)[:, np.newaxis])
        return {
            "min": times_s.min(axis=1),
            "max": times_s.max(axis=1),
            "mean": times_s.mean(axis=1),
            "p5": p5_s,
            "p95": p95_s,
            "speed": 1 / times_s.mean(axis=1),
            "uncertainty": speeds_per_s.std(axis=1) / math.sqrt(sample_count),
            "jitter": NORMAL_MAD * middles(deviations_per_s),
        }


def run_logs(
    samples: Sequence[Sequence[float] | Floats], runs: Sequence[Sequence[int] | NDArray[Any]]
) -> Floats:
    """Return the logarithm of the median of each run [cells, runs], NaN behind the last run.

    Warm-up is left out, as in `estimates`. A cell with a sample that is not above 0 has no runs.
    """
    runs_of_cells = [
        _split_positive_runs(np.asarray(cell_samples, float), run_numbers)
        for cell_samples, run_numbers in zip(samples, runs, strict=True)
    ]
    max_runs = max(map(len, runs_of_cells), default=0)
    median_logs = np.full((len(runs_of_cells), max_runs), np.nan)
    cells_with_runs = [cell for cell, cell_runs in enumerate(runs_of_cells) if cell_runs]
    for start in range(0, len(cells_with_runs), CHUNK_CELLS):
        chunk = np.array(cells_with_runs[start : start + CHUNK_CELLS])
        steady = _find_steady([runs_of_cells[cell] for cell in chunk.tolist()])
        places = steady.places
        log_units = np.log(steady.unit_s[places.cell_of_run])  # logs are relative to the unit
        cells = chunk[places.cell_of_run]
        median_logs[cells, places.run_numbers] = steady.median_logs + log_units
    return median_logs


def _split_positive_runs(times_s: Floats, runs: Sequence[int] | NDArray[Any]) -> Sequence[Any]:
    """Return the samples of a cell by run; none if a sample is not above 0."""
    has_times = len(times_s) > 0 and bool((times_s > 0).all())
    return by_run(times_s, runs) if has_times else []


class _RunPlaces(NamedTuple):
    """The places of the runs of cells, which stand one behind the other in one list.

    Attributes:
        run_counts: number of runs of each cell.
        first_runs: the place of each cell's first run.
        cell_of_run: the cell of each run.
        run_numbers: the number of each run in its cell.
    """

    run_counts: NDArray[np.int64]
    first_runs: NDArray[np.int64]
    cell_of_run: NDArray[np.int64]
    run_numbers: NDArray[np.int64]

    def list_runs(self, cell: int) -> slice:
        """Return the places of the runs of a cell."""
        first_run = self.first_runs[cell]
        return slice(first_run, first_run + self.run_counts[cell])


def _place_runs(run_counts: NDArray[np.int64]) -> _RunPlaces:
    """Return the places of runs by the number of runs of each cell."""
    first_runs = run_counts.cumsum() - run_counts
    cell_of_run = np.repeat(np.arange(len(run_counts)), run_counts)
    run_numbers = np.arange(len(cell_of_run)) - first_runs[cell_of_run]
    return _RunPlaces(run_counts, first_runs, cell_of_run, run_numbers)


class _SteadyRuns(NamedTuple):
    """The runs of cells without their warm-up, one entry a run.

    Attributes:
        places: the cells of the runs.
        unit_s: a typical time of each cell.
        logs: logarithms of the samples over `unit_s`.
        median_logs: medians of `logs`.
        warm_up: where the warm-up ends.
    """

    places: _RunPlaces
    unit_s: Floats
    logs: list[Floats]
    median_logs: Floats
    warm_up: WarmUp


def _find_steady(runs_of_cells: Sequence[Sequence[Sequence[float] | Floats]]) -> _SteadyRuns:
    """Return the runs of cells without their warm-up."""
    run_counts = np.fromiter(map(len, runs_of_cells), np.int64, len(runs_of_cells))
    times_s = [
        np.asarray(run, dtype=np.float64) for cell_runs in runs_of_cells for run in cell_runs
    ]
    if not run_counts.all() or not all(map(len, times_s)):
        raise InputError("a run without samples has no step time")
    places = _place_runs(run_counts)
    unit_s = _typical_times(times_s, places)
    # Logarithms of times over the typical time of their cell are near 0, where floats are the most
    # precise.
    logs = _relative_logs(times_s, unit_s[places.cell_of_run])
    warm_up = find_warm_up(logs, run_counts)
    steady_logs = [
        run_logs[warm_up_samples:]
        for run_logs, warm_up_samples in zip(logs, warm_up.sample_counts, strict=True)
    ]
    return _SteadyRuns(places, unit_s, steady_logs, _find_medians(steady_logs), warm_up)


def _find_medians(runs: Sequence[Floats]) -> Floats:
    """Return the median of each run."""
    medians = np.empty(len(runs))
    for run_numbers, rows in by_length(runs):
        medians[run_numbers] = middles(rows)
    return medians


def _relative_logs(times_s: Sequence[Floats], units_s: Floats) -> list[Floats]:
    """Return the logarithms of the times of each run over its unit; runs of one length at once."""
    logs = [np.empty(0)] * len(times_s)
    for runs, run_times_s in by_length(times_s):
        run_units_s = units_s[runs, np.newaxis]
        for run, run_logs in zip(runs, np.log(run_times_s / run_units_s), strict=True):
            logs[run] = run_logs
    return logs


def _typical_times(times_s: Sequence[Floats], places: _RunPlaces) -> Floats:
    """Return the median of the medians of the runs of each cell [s].

    Raises:
        InputError: for a sample that is no positive number.
    """
    if not len(places.run_counts):
        return np.empty(0)
    medians_s = np.empty(len(times_s))
    for runs, run_times_s in by_length(times_s):
        _check_times(run_times_s, places.run_numbers[runs])
        medians_s[runs] = middles(run_times_s)
    typical_s = medians_s[places.first_runs]  # most cells have a single run, whose median is theirs
    for cell in np.flatnonzero(places.run_counts > 1).tolist():
        typical_s[cell] = middles(medians_s[places.list_runs(cell)])
    return typical_s


def _check_times(times_s: Floats, run_numbers: NDArray[np.int64]) -> None:
    """Raise `InputError` if a sample of these runs [runs, samples] is no positive number."""
    is_wrong = ~((times_s > 0) & np.isfinite(times_s))
    if is_wrong.any():
        run = run_numbers[is_wrong.any(axis=1)][0]
        wrong_s = times_s[is_wrong][0]
        raise InputError(f"run {run}: a step time is a positive number, not {wrong_s}")


def _estimates(runs_of_cells: Sequence[Sequence[Sequence[float] | Floats]]) -> dict[str, Floats]:
    """Return the `estimates` of the cells of a chunk."""
    steady = _find_steady(runs_of_cells)
    logs = _estimate_single_runs(steady)
    _replace_several_runs(logs, steady)
    log_drift = steady.warm_up.drift  # 0 where a steady state was found, else it widens both ends
    return {
        "value": steady.unit_s * np.exp(logs.centre),
        "low": steady.unit_s * np.exp(np.minimum(logs.low, logs.centre) - log_drift),
        "high": steady.unit_s * np.exp(np.maximum(logs.high, logs.centre) + log_drift),
        "error": logs.error,
        "drift": log_drift,
        "steady": steady.warm_up.steady,
    }


class _LogIntervals(NamedTuple):
    """The logarithms of the cells' times over their units, with their intervals.

    Attributes:
        centre: the logarithm of the time of each cell.
        low: the low end of its interval, NaN where there is none; `high` likewise.
        high: the high end.
        error: the standard error over runs, NaN for a single run.
    """

    centre: Floats
    low: Floats
    high: Floats
    error: Floats


def _estimate_single_runs(steady: _SteadyRuns) -> _LogIntervals:
    """Return the median of the first run of each cell, with its bootstrapped interval."""
    low_log_of_run = np.full(len(steady.median_logs), np.nan)
    high_log_of_run = np.full(len(steady.median_logs), np.nan)
    for runs, log_rows in by_length(steady.logs):
        has_several_samples = log_rows.shape[1] > 1
        if has_several_samples:
            low_log_of_run[runs], high_log_of_run[runs] = _bootstrap_medians(log_rows)
    first_runs = steady.places.first_runs
    return _LogIntervals(
        centre=steady.median_logs[first_runs],
        low=low_log_of_run[first_runs],
        high=high_log_of_run[first_runs],
        error=np.full(len(first_runs), np.nan),
    )


def _replace_several_runs(logs: _LogIntervals, steady: _SteadyRuns) -> None:
    """Set, for cells of several runs, the mean of the runs' medians, its error and t-interval."""
    run_counts = steady.places.run_counts
    cells_of_several = np.flatnonzero(run_counts > 1)
    for cell in cells_of_several.tolist():
        median_logs = steady.median_logs[steady.places.list_runs(cell)]
        ordered = np.sort(median_logs)  # runs in any order have the same mean, to the last digit
        logs.centre[cell] = ordered.mean()
        logs.error[cell] = ordered.std(ddof=1) / math.sqrt(len(ordered))
    for run_count in np.unique(run_counts[cells_of_several]):
        cells = cells_of_several[run_counts[cells_of_several] == run_count]
        has_interval = run_count >= MIN_RUNS
        t = two_sided_t(MISS, int(run_count) - 1) if has_interval else math.nan
        half_width = t * logs.error[cells]
        logs.low[cells] = logs.centre[cells] - half_width
        logs.high[cells] = logs.centre[cells] + half_width


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
    _, distinct_number, counts = np.unique(column, return_inverse=True, return_counts=True)
    last_ranks = counts.cumsum()
    mean_ranks = last_ranks - (counts - 1) / 2
    return np.asarray(mean_ranks[distinct_number])


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
    has_correlation = n >= MIN_CORRELATED_SAMPLES
    correlation = _correlate_neighbours(rows) if has_correlation else np.zeros(len(rows))
    independent_samples = n * (1 - correlation) / (1 + correlation)
    # The median of m resampled values is the sorted sample at a rank that follows Beta(h, h) with
    # h = (m + 1) / 2 (`half`), so that no resample is made.
    half = (np.maximum(MIN_INDEPENDENT_SAMPLES, independent_samples) + 1) / 2
    low_rank = (n * betaincinv(half, half, MISS / 2)).astype(np.int64)
    high_rank = n - 1 - low_rank
    sorted_samples = np.sort(rows)
    row_numbers = np.arange(len(rows))
    return sorted_samples[row_numbers, low_rank], sorted_samples[row_numbers, high_rank]


def _correlate_neighbours(rows: Floats) -> Floats:
    """Return the correlation of the ranks of neighbouring samples of each row, 0 to 0.9."""
    n = rows.shape[1]
    ranks = rows.argsort(kind="stable").argsort(kind="stable")  # from 0, of each sample in its row
    centred_ranks = ranks - (n - 1) / 2
    neighbour_products = (centred_ranks[:, 1:] * centred_ranks[:, :-1]).sum(axis=1)
    rank_squares = max(float((centred_ranks[0] ** 2).sum()), 1)  # equal for all rows
    biased = neighbour_products / rank_squares  # by -1/n, in samples that are independent
    return np.asarray(np.clip(biased + 1 / n, 0.0, MAX_CORRELATION))
