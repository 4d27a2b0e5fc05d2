"""Speed-ups: the levels of a column against one of them, network by network, and what they tell.

A speed-up is above 1 where a level is better: a shorter time, fewer bytes, or a higher rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.cells import Cells
from steptime.analysis.data import Data
from steptime.analysis.decision_tree import leaves
from steptime.analysis.row import HOW, Row, grouped, said
from steptime.analysis.saturation import saturation
from steptime.analysis.statistics import SEED
from steptime.analysis.verdict import MARGIN, compared
from steptime.core.errors import unknown
from steptime.core.table import Table, columns
from steptime.core.units import counted, percent, rate, shown

LARGE = 5.0  # speed-ups above it are asked whether a side is in saturation
DRAWS, MOST_DRAWN = 2000, 20_000  # of the bootstrap, and pairs; beyond, its interval is the normal
EXTREMES, SHOWN = 5, 12
RATES = ("step_s", "speed_per_s", "published_speed_per_s")  # that say how many examples a second


def speedup_table(
    data: Data,
    by: str = "platform",
    against: str | None = None,
    quantity: str = "step_s",
    x: str | None = None,
    color: str | None = None,
    any_dtype: bool = False,
) -> Table:
    """Return a row for each network that `against` and another level of the column `by` both have.

    `against` is by default the level that is worst in the mean. Rows stand from both ends to the
    middle. `summary` has the distribution of all, and `levels` that of each. Types are told
    apart, unless the levels have none in common. Raises `InputError` for a column, level, quantity
    or hyperparameter that is not there.
    """
    cells = Cells(data, by, quantity, any_dtype=any_dtype)
    if against is not None and against not in cells.levels:
        raise unknown(by, against, cells.levels, "--against")
    first = against or cells.slowest()
    rows = cells.pairs(first) if first else []
    summary: Row = {"by_column": by, "against": first, "quantity": quantity, "pairs": len(rows)}
    if not rows:
        return Table(columns("name=network"), [], summary=summary)
    varying = [name for name in cells.features if len({row[name] for row in rows}) > 1]
    x = _chosen(x, "--x", cells.features) or next(iter(varying), None)
    ups = np.array([row["value"] / row["against_value"] for row in rows])
    for row, up in zip(rows, (ups if cells.more_is_better else 1 / ups).tolist(), strict=True):
        row["speedup"], row["against"] = up, first
    color = _chosen(color, "--color", cells.features) or _strongest(rows, varying, x)
    saturated: list[Row] = []
    ids: set[str] = set()
    if quantity in RATES:
        saturated, ids = _saturations(cells, str(first), rows, varying)
    _complete(rows, cells, varying, ids)
    others = grouped(rows, itemgetter("level"))
    summary |= {"origin": cells.origin, "any_dtype": cells.any_dtype, "x": x, "color": color}
    summary |= _distribution(rows)
    summary |= {
        "by": _medians(rows, x),
        "extremes": {
            name: _ends(rows, sign, quantity) for name, sign in (("lowest", 1), ("highest", -1))
        },
        "saturation": saturated,
        "tree": _tree(rows, varying, len(others)),
        "levels": [
            {"level": level, **_distribution(held), "by": _medians(held, x)}
            for level, held in others.items()
        ],
        "failed": cells.failed(),
    }
    rows = [{key: one for key, one in row.items() if key != "pair_"} for row in _ends_first(rows)]
    several = ["level"] if len(others) > 1 else []
    differ = ["?differ=a | b"] if any(row["differ"] for row in rows) else []
    verdict = ["verdict"] if any(row["verdict"] for row in rows) else []
    sides = (
        f"against_{quantity}={first}",
        f"{quantity}={'its own' if several else rows[0]['level']}",
    )
    return Table(
        columns("name=network", *several, *differ, *sides, "speedup=speed-up", *verdict),
        rows,
        f"Speed-ups against {first}, lowest and highest first",
        most=SHOWN,
        summary=summary,
    )


def _complete(rows: Sequence[Row], cells: Cells, varying: Sequence[str], ids: set[str]) -> None:
    """Give each row its name, verdict, outcome, and what differs inside the pair."""
    a, b = (
        tuple(
            np.array([row[side + end] for row in rows], float) for end in ("value", "low", "high")
        )
        for side in ("against_", "")
    )
    named = sorted((n for n in varying if n != "family"), key=lambda n: n == "batch")  # last
    n = len(rows)
    single = {"error": np.full(n, np.nan), "drift": np.zeros(n), "runs": np.ones(n)}
    left, right = ({"value": one[0], "low": one[1], "high": one[2], **single} for one in (a, b))
    words = compared(left, right)["verdict"]
    words[np.isnan(a[1] + b[1])] = None
    for row, word in zip(rows, words, strict=True):
        up, row["verdict"] = row["speedup"], word
        told = [said(n, row[n]) for n in named if row[n] is not None]
        differ = [
            n for n in ("host", *HOW) if n != cells.by and row.get(f"against_{n}") != row.get(n)
        ]
        row["name"] = " ".join([str(row["family"] or ""), ", ".join(told)]).strip()
        row["differ"] = ", ".join(
            f"{n} {shown(n, row.get(f'against_{n}'))} | {shown(n, row[n])}" for n in differ
        )
        row[f"against_{cells.quantity}"], row[cells.quantity] = (
            row.pop("against_value"),
            row.pop("value"),
        )
        row["saturated"] = [
            level
            for level, key in ((row["against"], "against_id"), (row["level"], "id"))
            if row.pop(key) in ids
        ]
        even = abs(math.log(up)) <= math.log(1 + MARGIN) if word is None else word == "same"
        row["outcome"] = (
            "same" if even else "unsure" if word == "unsure" else "won" if up > 1 else "lost"
        )


def _ends_first(rows: list[Row]) -> list[Row]:
    """Return the rows, the lowest, the highest, the second lowest, ... first."""
    ordered = sorted(rows, key=itemgetter("speedup"))
    return [ordered[at // 2 if at % 2 == 0 else -1 - at // 2] for at in range(len(ordered))]


def _distribution(rows: Sequence[Row]) -> Row:
    """Return how speed-ups are spread, and their geometric mean with its 95 % interval."""
    logs = np.log([row["speedup"] for row in rows])
    outcomes = [row["outcome"] for row in rows]
    mean, n = logs.mean(), len(rows)
    if n > MOST_DRAWN:
        reach = 1.96 * logs.std() / math.sqrt(n)
        ends = [mean - reach, mean + reach]
    else:
        rng = np.random.default_rng(SEED)
        ends = np.quantile(
            [logs[rng.integers(n, size=n)].mean() for _ in range(DRAWS)], (0.025, 0.975)
        )
    names = ("min", "p5", "p25", "median", "p75", "p95", "max")
    spread = np.exp(np.quantile(logs, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)))
    return {
        "pairs": n,
        **dict(zip(names, spread.tolist(), strict=True)),
        "median": float(np.median([row["speedup"] for row in rows])),
        "geometric_mean": math.exp(mean),
        "low": math.exp(ends[0]) if n > 1 else None,
        "high": math.exp(ends[1]) if n > 1 else None,
        "wins_share": outcomes.count("won") / n,
        "same_share": outcomes.count("same") / n,
        "unsure_share": outcomes.count("unsure") / n,
    }


def _medians(rows: Sequence[Row], x: str | None) -> Row:
    """Return pairs, median and share of wins by value of a hyperparameter, in its order."""
    of = grouped((row for row in rows if x and row[x] is not None), lambda row: row[x or ""])
    return {
        str(value): {
            "pairs": len(of[value]),
            "median": float(np.median([row["speedup"] for row in of[value]])),
            "wins_share": sum(row["outcome"] == "won" for row in of[value]) / len(of[value]),
        }
        for value in sorted(of)
    }


def _ends(rows: Sequence[Row], sign: int, quantity: str) -> list[Row]:
    keys = ("name", "level", f"against_{quantity}", quantity, "speedup", "verdict", "saturated")
    ordered = sorted(rows, key=lambda row: sign * row["speedup"])
    return [{key: row[key] for key in keys} for row in ordered[:EXTREMES]]


def _chosen(name: str | None, option: str, known: Sequence[str]) -> str | None:
    if name is not None and name not in known:
        raise unknown("hyperparameter", name, known, option)
    return name


def _strongest(rows: Sequence[Row], varying: Sequence[str], x: str | None) -> str | None:
    """Return the number, other than `x`, that goes most with speed-ups."""
    from scipy.stats import spearmanr

    ups = [row["speedup"] for row in rows]
    found: dict[str, float] = {name: 0.0 for name in varying if name != x}
    for name in found:
        values = [row[name] for row in rows]
        if all(isinstance(one, int | float) for one in values) and np.ptp(ups) > 0:
            found[name] = abs(float(spearmanr(values, ups).statistic))
    return max(found, key=lambda name: found[name], default=None)


def _saturations(
    cells: Cells, first: str, rows: Sequence[Row], varying: Sequence[str]
) -> tuple[list[Row], set[str]]:
    """Return of each level whose speed saturates where, and in how many speed-ups; and the ids."""
    held = cells.speeds()
    ups = [row["speedup"] for row in rows]
    large = LARGE if max(ups) > LARGE else float(np.quantile(ups, 0.75))
    examples = held["batch_"] * held["replicas_"]
    speed = examples / held["value_"] if cells.quantity == "step_s" else held["value_"]
    found: list[Row] = []
    ids: set[str] = set()
    for level in cells.levels:
        mine = held["level_"] == level
        features = {name: held[name][mine] for name in varying}
        for kind, per_s, flop in (
            ("examples_per_s", speed[mine], (held["flop_"] / held["batch_"])[mine]),
            ("steps_per_s", (speed / examples)[mine], held["flop_"][mine]),
        ):
            told = saturation(per_s, flop, features)
            if told is None:
                continue
            there = set(held["id_"][mine][told[1]].tolist())
            side = "against_id" if level == first else "id"
            above = [
                row for row in rows if row["speedup"] > large and level in (first, row["level"])
            ]
            found.append({
                "level": level, "rate": kind, **told[0], "above": large,
                "speedups_above": len(above),
                "saturated_above": sum(row[side] in there for row in above),
            })  # fmt: skip
            ids |= there
            break
    return found, ids


def _tree(rows: Sequence[Row], varying: Sequence[str], levels: int) -> list[Row]:
    """Return where each wins: of networks that all levels have, and where one clearly wins."""
    of = [held for held in grouped(rows, itemgetter("pair_")).values() if len(held) >= levels]
    best = [max(held, key=itemgetter("speedup")) for held in of]
    clear = [row for row in best if row["outcome"] in ("won", "lost")]
    names = [row["level"] if row["outcome"] == "won" else row["against"] for row in clear]
    features = {name: [row[name] for row in clear] for name in varying}
    return [vars(leaf) | {"rows": sum(leaf.wins.values())} for leaf in leaves(features, names)]


def _says(table: Table) -> list[str]:
    found = table.summary
    by, first = found["by_column"], found["against"]
    if not found["pairs"]:
        return [f"nothing to compare: no network has its {found['quantity']} at two levels of {by}"]
    words = [_of_level(row, first) for row in found["levels"]]
    for row in found["saturation"]:
        if row["level"] == first and row["saturated_above"] and len(words) == 1:
            of = f"{row['saturated_above']} of the {row['speedups_above']}"
            above = f"speed-ups above {row['above']:.3g} are against a side in saturation"
            words = [f"{words[0].removesuffix('.')}; {of} {above}."]  # summaries take the first
    if found["any_dtype"]:
        words.append(
            "Types differ between the sides: a network is paired with itself in another type."
        )
    if failed := {level: n for level, n in found["failed"].items() if n}:
        left = ", ".join(f"{n:,} on {level}" for level, n in failed.items())
        words.append(f"Left out, because they failed: {left}; they are seldom the easy ones.")
    capped = [_of_saturation(row, first) for row in found["saturation"]]
    return [*words, *_of_x(found), *capped, *_of_tree(found)]


def _of_level(row: Row, first: str) -> str:
    """Return the sentence on a level: how much faster, how surely, and how often it wins."""
    who = f"{row['level']} against {first}, {counted(row['pairs'], 'network')}"
    mean = f"{row['geometric_mean']:.3g}x in the geometric mean"
    if row["low"] is not None:
        mean += f" ({row['low']:.3g} to {row['high']:.3g})"
    even = row["low"] is None or (row["low"] <= 1 + MARGIN and row["high"] >= 1 / (1 + MARGIN))
    if even and row["same_share"] + row["unsure_share"] > 0.95:
        return f"{who}: the same within noise; {mean}."
    rest = [f"{row[f'{n}_share']:.0%} {n}" for n in ("same", "unsure") if row[f"{n}_share"]]
    wins = ", ".join([f"it wins {row['wins_share']:.0%}", *rest])
    spread = f"{row['min']:.3g} to {row['max']:.3g}, median {row['median']:.3g}"
    return f"{who}: {mean}; {spread}; {wins}."


def _of_x(found: Mapping[str, Any]) -> list[str]:
    """Return the sentence on how the median goes with the hyperparameter `x`, for one level."""
    medians = list(found["by"].items())
    if len(medians) < 2 or len(found["levels"]) > 1:
        return []
    told = ", ".join(f"{row['median']:.3g} at {value}" for value, row in (medians[0], medians[-1]))
    return [f"By {found['x']} the median speed-up is {told}."]


def _of_saturation(row: Row, first: str) -> str:
    what = row["rate"].removesuffix("_per_s")
    level = f"{rate(row['low_per_s'])} to {rate(row['high_per_s'])} {what}/s"
    said = (
        f"{row['level']} is saturated: {row['networks']} of its {row['of']} networks run at "
        f"{level}, although their FLOP differ {row['flop_span']:,.0f}-fold; the device is at "
        f"{percent(row['best_flop_share'])} of its best FLOP/s there."
    )
    if not row["speedups_above"]:
        return said
    many, of = row["saturated_above"], row["speedups_above"]
    side = "the other side" if row["level"] == first else row["level"]
    means = "without it they would be larger"
    if row["level"] == first:
        means = "these measure the input pipeline or another cost that no network changes"
        means += ", not the devices"
    return (
        f"{said} Of the {of} speed-ups above {row['above']:.3g}, {many} have {side} in "
        f"saturation" + (f": {means}." if many else ".")
    )


def _of_tree(found: Mapping[str, Any]) -> list[str]:
    """Return where each wins, in words."""
    tree = found["tree"]
    said = []
    for leaf in tree:
        where = f" where {leaf['where']}" if leaf["where"] else ""
        if leaf["winner"]:
            said.append(
                f"{leaf['winner']} wins{where} ({leaf['wins'][leaf['winner']]} of {leaf['rows']})"
            )
        elif leaf["rows"]:
            name, most = max(leaf["wins"].items(), key=itemgetter(1))
            said.append(f"none clearly{where} ({name} {most} of {leaf['rows']})")
    if len(tree) == 1 and said:
        every = max(tree[0]["wins"].values()) == tree[0]["rows"]
        said[0] += ", everywhere" if every else "; no hyperparameter tells where"
    return ["; ".join(said) + "."] if said else []


ANALYSIS = Analysis(
    """Compare platforms, stacks or predictions, network by network.

    Every level of a column stands against one of them. A speed-up above 1
    means that the level is better than the other: the distribution, its
    geometric mean, where each wins, and speeds that no longer depend on
    the network.
    """,
    speedup_table,
    _says,
    section="Speed-ups",
    chart="steptime.plots.speedup:chart",
    settings=(
        Setting(
            "by",
            "platform, gpu, threads, dtype, method, folder, an option, ...",
            "platform",
            metavar="COLUMN",
        ),
        Setting(
            "against", "The level that the others face; by default the slowest.", metavar="VALUE"
        ),
        Setting("quantity", "step_s, published_speed_per_s, peak_memory_bytes, ...", "step_s"),
        Setting("x", "The hyperparameter along which medians are taken.", metavar="HYPERPARAMETER"),
        Setting("color", "The hyperparameter that colours the picture.", metavar="HYPERPARAMETER"),
        Setting("any_dtype", "Pair types with other types, even if some are equal.", False, bool),
    ),
    folders=64,
)
