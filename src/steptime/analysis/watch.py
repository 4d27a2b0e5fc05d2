"""What became slower or faster from one folder to another, beyond noise and beyond a margin."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.pairing import Pairing
from steptime.analysis.verdict import MARGIN, screen_words
from steptime.core.units import counted, percent
from steptime.records.ratios import farthest, geometric_mean
from steptime.records.row import Row, grouped
from steptime.records.sides import Columns

FAIL_ON: Mapping[str, tuple[str, ...]] = {
    "slower": ("regressions", "vanished"),
    "faster": ("improvements",),
    "changed": ("regressions", "improvements", "vanished"),
    "vanished": ("vanished",),
}
OF_GROUP = {
    "by": "if(scope = '', 'family', 'op')",
    "name": "if(scope = '', family, coalesce(nullif(op_kind, ''), scope))",
}
TOLD = ("name", "scope", "family", "op_kind", "platform", "ratio", "ratio_low", "ratio_high",
        "p_value", "interval")  # fmt: skip


def watch(found: Pairing) -> Row:
    """Return what changed by more than the margin, largest first, and how many did what.

    A regression is what is worse, whichever way that is for the quantity. A network that ran and
    now fails is one without a ratio; what the second folder lacks has `vanished`.
    """
    told = {n: column[found.columns["sampled"]] for n, column in found.columns.items()}
    places = np.flatnonzero(found.columns["sampled"])
    words = told["verdict"]
    changed = {}
    for word in ("slower", "faster"):
        mine = np.flatnonzero(words == word)
        mine = mine[farthest(told["ratio"][mine])]
        changed[word] = [_told(row) for row in found.rows(places[mine])]
    failed = [
        _told(row) | {"reason": row["reason"]}
        for row in found.unpaired_rows(np.flatnonzero(found.unpaired["is_lost"]))
    ]
    of_words = {word: int((words == word).sum()) for word in ("slower", "faster", "same", "unsure")}
    alone, is_a = ~found.unpaired["is_both"], found.unpaired["is_a"]
    gone = found.unpaired_rows(np.flatnonzero(alone & is_a))
    return {
        "margin": MARGIN if found.margin is None else found.margin,
        "quantity": found.sides.quantity,
        "regressions": [*failed, *changed["slower"]],
        "improvements": changed["faster"],
        "vanished": [_told(row) | {"reason": row["reason"]} for row in gone],
        "verdicts": of_words
        | {
            "failed": len(failed),
            "vanished": len(gone),
            "new": int((alone & ~is_a).sum()),
        },
        "groups": _groups(found, told, words),
        "unlike": [text for text, _ in found.differences().most_common()],
    }


def _told(row: Mapping[str, Any]) -> Row:
    return {name: row.get(name) for name in TOLD}


def _groups(found: Pairing, told: Columns, words: NDArray[Any]) -> list[Row]:
    """Return how many changed and the mean ratio, by family for steps and by kind for ops."""
    facts = found.sides.facts(told["b"], OF_GROUP)
    ids = told["b"].tolist()
    keys = [tuple(facts[one].values()) for one in ids]
    groups = grouped(np.argsort(told["b"], kind="stable").tolist(), keys.__getitem__)
    return [
        {
            "by": by,
            "group": name,
            "pairs": len(mine),
            "geometric_mean_ratio": geometric_mean(told["ratio"][mine]),
            **{word: int((words[mine] == word).sum()) for word in ("slower", "faster")},
        }
        for (by, name), mine in groups.items()
    ]


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return a line for each regression, the largest first, then the groups, then the summary."""
    quantity = found["quantity"]
    word_of = screen_words(found["quantity"])
    worse = word_of["slower"]
    what = "the time" if quantity == "step_s" else quantity
    said = [
        f"{_name(row)}: {row['reason']}"
        if row["ratio"] is None
        else f"{_name(row)}: {_by(row, worse, quantity)}"
        for row in found["regressions"]
    ]
    said += [
        f"{one['by']} {one['group']}: {one['slower']} of {counted(one['pairs'], 'pair')} {worse}, "
        f"{one['geometric_mean_ratio']:.3g} times {what} in the mean"
        for one in found["groups"]
        if one["slower"]
    ]
    if found["unlike"]:
        said.append(f"not like with like: {'; '.join(found['unlike'][:4])}")
    counts = ", ".join(
        f"{number} {word_of.get(word, word)}"
        for word, number in found["verdicts"].items()
        if number
    )
    return [*said, f"beyond {percent(found['margin'])} and noise: {counts or 'nothing to compare'}"]


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['name']} {row['scope']}".rstrip()


def _by(row: Mapping[str, Any], worse: str, quantity: str) -> str:
    """Return by how much it is worse: `20 % slower (18 % to 22 %)`, `worse, loss +9 % (...)`."""
    between = " to ".join(percent(row[f"ratio_{end}"] - 1) for end in ("low", "high"))
    if quantity.endswith("_s") and row["ratio"] > 1:
        return f"{percent(row['ratio'] - 1)} {worse} ({between})"
    return f"{worse}, {quantity} {percent(row['ratio'] - 1, '+')} ({between})"
