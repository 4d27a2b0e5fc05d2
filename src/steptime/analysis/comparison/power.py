"""What the comparison of two folders could have found, and what would let it find more."""

from typing import Any, NamedTuple

import numpy as np
import polars as pl

from steptime.analysis.comparison.gate import MIN_RUNS, smallest_of_equal
from steptime.analysis.comparison.pairing import Pairing
from steptime.core.units import format_count, format_percent
from steptime.records.data import Data
from steptime.records.pair_keys import IS_PREDICTED, find_text
from steptime.records.row import Row, is_higher_better

GOAL = 0.1  # slowdown that advice aims at
MAX_CHANGE = float(np.log(2.0))  # a gate that would miss a step twice as slow judges nothing
ASSUMED_NOISE = 0.03  # from run to run, where single runs do not show it
MAX_RUNS = 20  # that advice asks for
POOLS = (3, 8, 24)  # networks


class Power(NamedTuple):
    """What a comparison of two folders could have found.

    Attributes:
        is_judged: whether some step that became twice as slow would have been found, by cause:
            False on other hardware.
        smallest_slowdown: the smallest slowdown that is found with 90 % power, as a share; the
            median of the pairs that are judged.
        unjudged_count: number of pairs that are not judged, if some are.
        remark: what cannot be shown, and what would show it; "" where `GOAL` is found.
        is_other_hardware: whether the second folder is of another CPU or GPU.
    """

    is_judged: bool
    smallest_slowdown: float | None
    unjudged_count: int
    remark: str
    is_other_hardware: bool = False


def find_power(pairing: Pairing, data: Data) -> Power:
    """Return the smallest change that the comparison of two folders could have found."""
    power = _find_power_of_pairs(pairing)
    other_hardware = find_other_hardware(data)
    if not other_hardware:
        return power
    return power._replace(is_judged=False, remark=other_hardware, is_other_hardware=True)


def _find_power_of_pairs(pairing: Pairing) -> Power:
    """Return the smallest slowdown that the comparison finds in the median of its pairs."""
    smallest = pairing.columns.smallest_worsening
    is_finite = np.isfinite(smallest)
    if not is_finite.any():
        return Power(
            is_judged=False,
            smallest_slowdown=None,
            unjudged_count=len(pairing),
            remark=_explain_unjudged(pairing),
        )
    # A pair counts as judged only if a change by a factor of 2 would be found: a time that doubles
    # (+100 %), or a rate that halves (50 % less).
    is_cost = not is_higher_better(pairing.quantity)
    limit = np.expm1(MAX_CHANGE) if is_cost else -np.expm1(-MAX_CHANGE)
    is_judged = is_finite & (smallest <= limit)
    if not is_judged.any():
        at_least = float(smallest[is_finite].min())
        advice = _describe_advice(pairing, is_finite, "a step twice as slow", at_least)
        return Power(
            is_judged=False,
            smallest_slowdown=at_least,
            unjudged_count=len(pairing),
            remark=f"nothing can be judged: {advice}",
        )
    typical = float(np.median(smallest[is_judged]))
    remark = ""
    if typical > GOAL and is_cost:
        remark = _describe_advice(pairing, is_judged, format_percent(GOAL), typical)
    return Power(
        is_judged=True,
        smallest_slowdown=typical,
        unjudged_count=int((~is_judged).sum()),
        remark=remark,
    )


def advise(noise: float, runs: int, pairs: int) -> list[str]:
    """Return ways to find a slowdown of `GOAL` at this noise, such as "rounds = 5"."""
    goal = float(np.log1p(GOAL))
    advice = []
    for run_count in range(max(runs, MIN_RUNS), MAX_RUNS + 1):
        # The fewest runs with which a slowdown of GOAL is found.
        if smallest_of_equal(noise, run_count, pairs) <= goal:
            advice.append(f"rounds = {run_count}")
            break
    for pool in POOLS:
        pool_runs = max(runs, MIN_RUNS)
        if pool > pairs and smallest_of_equal(noise, pool_runs, pool) <= goal:
            rounds = "" if pool_runs == runs else f"rounds = {pool_runs} and "
            advice.append(f"{rounds}pool over {pool} networks")
            break
    return advice


def find_other_hardware(data: Data) -> str:
    """Return in words which other CPU or GPU the second of two folders has; "" for none."""
    first = _list_hardware(data, folder_rank=0)  # by name of the platform
    second = _list_hardware(data, folder_rank=1)
    if not first or not second:
        return ""
    other_a = [_name_hardware(row) for name, row in first.items() if name not in second]
    other_b = [_name_hardware(row) for name, row in second.items() if name not in first]
    if not (other_a and other_b):
        # The same platforms, but perhaps with other CPUs.
        common = [
            (first[name], second[name])
            for name in first
            if name in second and _has_other_cpu(first[name], second[name])
        ]
        other_a = [_name_hardware(a) for a, _ in common]
        other_b = [_name_hardware(b) for _, b in common]
    if not other_a:
        return ""
    return (
        f"the folders are of different hardware: {', '.join(other_a)} in the first, "
        f"{', '.join(other_b)} in the second; measure both on one machine"
    )


def _list_hardware(data: Data, folder_rank: int) -> dict[str, Row]:
    """Return the platforms of a folder's measurements, sorted, with their CPUs in words."""
    takes_part = (pl.col("folder_rank") == folder_rank) & ~IS_PREDICTED
    rows = data.scan().filter(takes_part).select("platform", "env").unique().collect()
    cpus: dict[str, set[str]] = {}
    for platform, env in rows.sort("platform").iter_rows():
        cpu = find_text(env, "cpu_model")
        cpus.setdefault(platform, set()).update([cpu] if cpu is not None else [])
    return {
        platform: {"platform": platform, "cpu": ", ".join(sorted(names))}
        for platform, names in cpus.items()
    }


def _has_other_cpu(a: Row, b: Row) -> bool:
    """Whether the CPUs of both folders are known, and none is the same."""
    if not a["cpu"] or not b["cpu"]:
        return False
    return {*a["cpu"].split(", ")}.isdisjoint(b["cpu"].split(", "))


def _name_hardware(row: Row) -> str:
    return f"{row['platform']} ({row['cpu']})" if row["cpu"] else str(row["platform"])


def _explain_unjudged(pairing: Pairing) -> str:
    """Return why no pair has a verdict, and what would give it one."""
    if not len(pairing):
        return "nothing can be judged: no step is in both folders"
    if not pairing.columns.is_sampled.any():
        return (
            "nothing can be judged: the numbers have no samples, which show noise; "
            "import a column of samples or of repeats"
        )
    advice = " or ".join(advise(ASSUMED_NOISE, runs=1, pairs=len(pairing)))
    return (
        f"nothing can be judged: 1 run on a side cannot show {format_percent(GOAL)}; {advice} can "
        f"where runs differ by {format_percent(ASSUMED_NOISE)}"
    )


def _describe_advice(pairing: Pairing, is_counted: Any, goal: str, smallest: float) -> str:
    """Return a line such as "2 runs cannot show 10 %, only 34 %; rounds = 5, or pool ..."."""
    columns = pairing.columns
    runs = pairing.groups.columns.runs
    run_counts = np.minimum(runs[columns.a], runs[columns.b])[is_counted]
    noise = float(np.median(columns.noise[is_counted]))
    run_count = int(np.median(run_counts))
    advice = advise(noise, run_count, int(np.count_nonzero(is_counted)))
    advice_text = (
        ", or ".join(advice) or "less noise is needed, such as a machine without other work"
    )
    return (
        f"{format_count(run_count, 'run')} a side cannot show {goal} where runs differ by "
        f"{format_percent(noise)}, only {format_percent(smallest)} and more; {advice_text}"
    )
