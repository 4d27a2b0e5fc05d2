"""What became slower or faster from one folder to another, beyond noise and beyond a margin."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.pairing import Pairing
from steptime.analysis.row import Row
from steptime.analysis.sides import Columns
from steptime.analysis.verdict import control_false_discovery
from steptime.analysis.warmup import Floats
from steptime.core.units import counted, percent

FAIL_ON: Mapping[str, tuple[str, ...]] = {
    "slower": ("regressions",),
    "faster": ("improvements",),
    "changed": ("regressions", "improvements"),
}
LEAST = 8  # pairs of single runs, from which their noise from run to run is estimated
TOLD = ("name", "scope", "family", "op_kind", "platform", "ratio", "ratio_low", "ratio_high",
        "p_value", "interval")  # fmt: skip
HALF = 2 * 0.6745  # deviations that hold half of a normal distribution


def watch(found: Pairing, margin: float) -> Row:
    """Return what changed by more than `margin`, largest first, and how many did what.

    A change is believed where the false discovery rate over all pairs allows it. A single run does
    not show how runs differ, so single runs are held against the spread of all their ratios, too
    (its densest half). A network that ran and now fails is a regression without a ratio.
    """
    told = {n: column[found.columns["sampled"]] for n, column in found.columns.items()}
    told["p_value"] = _p_values(told)
    places = np.flatnonzero(found.columns["sampled"])
    ratio, up, down = told["ratio"], 1 + margin, 1 / (1 + margin)
    beyond = np.abs(np.log(ratio)) > math.log1p(margin)
    believed = beyond & control_false_discovery(np.nan_to_num(told["p_value"], nan=1.0))
    inside = (told["low"] >= down) & (told["high"] <= up)
    words = np.where(inside, "same", "unsure").astype(object)
    words[believed] = np.where(ratio[believed] > 1, "slower", "faster")
    changed = {}
    for word, sign in (("slower", -1), ("faster", 1)):
        mine = np.flatnonzero(words == word)
        mine = mine[np.argsort(sign * ratio[mine], kind="stable")]
        rows = found.rows(places[mine])
        changed[word] = [
            {name: row.get(name) for name in TOLD} | {"p_value": float(p)}
            for row, p in zip(rows, told["p_value"][mine], strict=True)
        ]
    failed = [
        {name: row.get(name) for name in TOLD} | {"reason": row["reason"]}
        for row in found.unpaired_rows(np.flatnonzero(found.unpaired["is_lost"]))
    ]
    of_words = {word: int((words == word).sum()) for word in ("slower", "faster", "same", "unsure")}
    alone, is_a = ~found.unpaired["is_both"], found.unpaired["is_a"]
    return {
        "margin": margin,
        "regressions": [*failed, *changed["slower"]],
        "improvements": changed["faster"],
        "verdicts": of_words
        | {
            "failed": len(failed),
            "vanished": int((alone & is_a).sum()),
            "new": int((alone & ~is_a).sum()),
        },
        "groups": _groups(found, told, words),
        "unlike": [text for text, _ in found.differences().most_common()],
    }


def _p_values(told: Mapping[str, Floats]) -> Floats:
    """Return the probability of no difference, for single runs with the noise from run to run."""
    p_values, single = told["p_value"].copy(), np.flatnonzero(told["single"])
    single = single[np.isfinite(p_values[single])]
    if len(single) < LEAST:
        return p_values
    logs = np.log(told["ratio"][single])
    ordered = np.sort(logs)
    half = (len(logs) + 1) // 2
    widths = ordered[half:] - ordered[: len(logs) - half]
    spread = max(float(widths.min()) / HALF, 1e-9)
    from scipy.special import erfc

    p_values[single] = np.maximum(p_values[single], erfc(np.abs(logs) / spread / math.sqrt(2)))
    return p_values


def _groups(found: Pairing, told: Columns, words: NDArray[Any]) -> list[Row]:
    """Return how many changed and the mean ratio, by family for steps and by kind for ops."""
    by = {
        "by": "if(scope = '', 'family', 'op')",
        "name": "if(scope = '', family, coalesce(nullif(op_kind, ''), scope))",
    }
    facts = found.sides.facts(told["b"], by)
    changed = {word: words == word for word in ("slower", "faster")}
    found.sides.data.lend("changes", {"id": told["b"], "ratio": told["ratio"], **changed})
    counts = ", ".join(f"count(*) FILTER ({word}) AS {word}" for word in changed)
    return found.sides.data.rows(
        'SELECT "by", name AS "group", count(*) AS pairs, exp(avg(ln(ratio))) AS '
        f"geometric_mean_ratio, {counts} FROM changes JOIN {facts} USING (id) "
        "GROUP BY ALL ORDER BY min(id)"
    )


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return a line for each regression, the largest first, then the groups, then the summary."""
    said = [
        f"{_name(row)}: {row['reason']}"
        if row["ratio"] is None
        else f"{_name(row)}: {percent(row['ratio'] - 1)} slower ({_between(row)})"
        for row in found["regressions"]
    ]
    said += [
        f"{one['by']} {one['group']}: {one['slower']} of {counted(one['pairs'], 'pair')} slower, "
        f"{one['geometric_mean_ratio']:.3g} times the time in the mean"
        for one in found["groups"]
        if one["slower"]
    ]
    if found["unlike"]:
        said.append(f"not like with like: {'; '.join(found['unlike'][:4])}")
    counts = ", ".join(f"{number} {word}" for word, number in found["verdicts"].items() if number)
    return [*said, f"beyond {percent(found['margin'])} and noise: {counts or 'nothing to compare'}"]


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['name']} {row['scope']}".rstrip()


def _between(row: Mapping[str, Any]) -> str:
    return f"{percent(row['ratio_low'] - 1)} to {percent(row['ratio_high'] - 1)}"
