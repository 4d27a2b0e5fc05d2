"""What became slower or faster from one folder to another, beyond noise and beyond a margin."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

import numpy as np

from steptime.analysis.pairs import Pairing
from steptime.analysis.row import Row, grouped
from steptime.analysis.statistics import WITHIN
from steptime.analysis.verdict import control_false_discovery
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
    judged = [row for row in found.pairs if row["p_value"] is not None]
    p_values = _p_values(judged)
    believed = control_false_discovery(p_values)
    verdicts = dict.fromkeys(("slower", "faster", "same", "unsure"), 0)
    changed: dict[str, list[Row]] = {"slower": [], "faster": []}
    words = []
    for row, p, known in zip(judged, p_values, believed, strict=True):
        beyond = abs(math.log(row["ratio"])) > math.log1p(margin)
        inside = row["ratio_low"] * (1 + margin) >= 1 and row["ratio_high"] <= 1 + margin
        word = "slower" if row["ratio"] > 1 else "faster"
        if not (known and beyond):
            word = "same" if inside else "unsure"
        else:
            changed[word].append({name: row.get(name) for name in TOLD} | {"p_value": p})
        words.append(word)
        verdicts[word] += 1
    failed = [_failed(row) for row in found.unpaired if row.get("lacks") == ["b"]]
    verdicts |= {
        "failed": len(failed),
        "vanished": sum(row["side"] == "a" for row in found.unpaired),
        "new": sum(row["side"] == "b" for row in found.unpaired),
    }
    return {
        "margin": margin,
        "regressions": [*failed, *sorted(changed["slower"], key=lambda row: -row["ratio"])],
        "improvements": sorted(changed["faster"], key=lambda row: row["ratio"]),
        "verdicts": verdicts,
        "groups": _groups(judged, words),
        "unlike": _unlike(found.pairs),
    }


def _failed(row: Row) -> Row:
    return {name: row.get(name) for name in TOLD} | {"reason": row["reason"]}


def _p_values(rows: Sequence[Row]) -> list[float]:
    """Return the probability of no difference, for single runs with the noise from run to run."""
    p_values = [float(row["p_value"]) for row in rows]
    single = [at for at, row in enumerate(rows) if row["interval"] == WITHIN]
    if len(single) < LEAST:
        return p_values
    logs = np.log([rows[at]["ratio"] for at in single])
    ordered = np.sort(logs)
    half = (len(logs) + 1) // 2
    widths = ordered[half:] - ordered[: len(logs) - half]
    spread = max(float(widths.min()) / HALF, 1e-9)
    for at, log in zip(single, logs, strict=True):
        p_values[at] = max(p_values[at], math.erfc(abs(log) / spread / math.sqrt(2)))
    return p_values


def _groups(rows: Sequence[Row], words: Sequence[str]) -> list[Row]:
    """Return how many changed and the mean ratio, by family for steps and by kind for ops."""
    by = [
        ("op", r["op_kind"] or r["scope"]) if r["scope"] else ("family", r["family"]) for r in rows
    ]
    found = grouped(range(len(rows)), lambda at: by[at])
    return [
        {
            "by": kind,
            "group": name,
            "pairs": len(places),
            "geometric_mean_ratio": geometric_mean(rows[at]["ratio"] for at in places),
            **{word: sum(words[at] == word for at in places) for word in ("slower", "faster")},
        }
        for (kind, name), places in found.items()
    ]


def _unlike(pairs: Sequence[Row]) -> list[str]:
    """Return in what the folders differ beside time, the most frequent first."""
    return [text for text, _ in Counter(t for row in pairs for t in row["differ"]).most_common()]


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
