"""Verdicts on steps whose records hold the machine's reference, too (`measure.reference`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.comparison.run_noise import count_runs
from steptime.analysis.comparison.verdict import judge_folders
from steptime.core.units import format_count, format_percent
from steptime.records.warmup import Floats

CHANGED = ("faster", "slower")


def add_reference_verdicts(
    judged: Mapping[str, NDArray[Any]],
    steps: tuple[Floats, Floats],
    references: tuple[Floats, Floats],
    drift: Floats,
    margin: float,
) -> dict[str, NDArray[Any]]:
    """Return the verdicts on steps, "unsure" where the machine may have changed in their place.

    A step that changed must have changed in multiples of the reference, too. The reference alone is
    no proof, since it and the step share only a part of what slows them; both together raise no
    more false alarms than the step alone.

    Args:
        judged: the columns of `judge_folders`.
        steps: logarithms of the medians of the runs [pairs, runs] of both folders, NaN behind the
            last run.
        references: the same of the reference beside each run.
        drift: what both sides still changed by at the end of their runs, as a logarithm.
        margin: share below which a change counts as none.

    Returns:
        The columns of `judged`, and `reference_ratio`: second / first of the reference of the pairs
        whose verdict is taken back, else NaN.
    """
    ratio = np.full(len(drift), np.nan)
    columns = {**judged, "reference_ratio": ratio}
    # Each run needs its reference: a folder may hold records with it and without.
    is_referenced = np.ones(len(drift), bool)
    for step_logs, reference_logs in zip(steps, references, strict=True):
        run_count = count_runs(step_logs)
        is_referenced &= (run_count > 1) & (run_count == count_runs(reference_logs))
    if not is_referenced.any():
        return columns
    changes = np.nanmean(references[1][is_referenced], axis=1)
    changes -= np.nanmean(references[0][is_referenced], axis=1)
    multiples = [
        side[is_referenced, : other.shape[1]] - other[is_referenced, : side.shape[1]]
        for side, other in zip(steps, references, strict=True)
    ]
    multiple_change = np.nanmean(multiples[1], axis=1) - np.nanmean(multiples[0], axis=1)
    multiple_words = judge_folders(
        multiples[0],
        multiples[1],
        np.exp(multiple_change),
        drift[is_referenced],
        np.ones(len(changes), bool),
        "step_s",
        margin,
    )["verdict"]
    words = judged["verdict"].copy()
    step_words = words[is_referenced]
    is_withdrawn = np.isin(step_words, CHANGED) & (step_words != multiple_words)
    step_words[is_withdrawn] = "unsure"
    words[is_referenced] = step_words
    ratio[is_referenced] = np.where(is_withdrawn, np.exp(changes), np.nan)
    return {**columns, "verdict": words}


def describe_withdrawals(reference_ratio: Floats) -> list[str]:
    """Return `unsure: 2 steps changed as the machine's reference did (+25 % to +31 %): ...`.

    Args:
        reference_ratio: as in the answer of `add_reference_verdicts`; NaN where a verdict stands.
    """
    changes = reference_ratio[np.isfinite(reference_ratio)] - 1
    if not len(changes):
        return []
    low, high = (format_percent(float(end), "+") for end in (changes.min(), changes.max()))
    interval = low if low == high else f"{low} to {high}"
    steps = format_count(len(changes), "step")
    change = f"{steps} changed as the machine's reference did ({interval})"
    return [f"unsure: {change}; measure both folders under the same load"]
