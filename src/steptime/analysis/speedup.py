"""Speed-ups: the levels of a column against one of them, network by network, and what they tell.

A speed-up is above 1 where a level is better: a shorter time, fewer bytes, or a higher rate. All of
them are columns; rows are made of those that are shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis import flat
from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.data import Data
from steptime.analysis.decision_tree import leaves
from steptime.analysis.row import HOW, MORE_IS_BETTER, Row, said
from steptime.analysis.saturation import saturation
from steptime.analysis.sides import APART, Sides, cell_of, level_of, value_of
from steptime.analysis.statistics import SEED
from steptime.analysis.verdict import MARGIN, compared
from steptime.analysis.warmup import Floats
from steptime.core.errors import unknown
from steptime.core.table import Table, columns
from steptime.core.units import counted, percent, rate, shown

LARGE = 5.0  # speed-ups above it are asked whether a side is in saturation
DRAWS, MOST_DRAWN = 2000, 20_000  # of the bootstrap, and pairs; beyond, its interval is the normal
EXTREMES, SHOWN = 5, 12
BARS, MOST_POINTS = 24, 3000  # of a picture; beyond, points are thinned out
OF_END = ("name", "level", "speedup", "verdict", "saturated")
RATES = ("step_s", "speed_per_s", "published_speed_per_s")  # that say how many examples a second
ORIGINS = ("measured", "published", "predicted")
OF_NETWORK = ("family", "replicas", "dtype", "phase", "optimizer", "strategy")


@dataclass(frozen=True)
class Ups:
    """Speed-ups as columns: ids `a` and `b` of the groups of a pair, its speed-up and verdict.

    `features` are those of all groups, None or NaN where unknown, which tell networks apart.
    """

    sides: Sides
    against: str
    a: NDArray[np.int64]
    b: NDArray[np.int64]
    up: Floats
    verdict: NDArray[Any]
    features: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(self.up)

    @cached_property
    def level(self) -> NDArray[Any]:
        """The level of each pair."""
        return np.asarray(self.sides.groups["level_"][self.b])

    @cached_property
    def levels(self) -> list[str]:
        """The levels that stand against the first."""
        known = set(self.level.tolist())
        return [level for level in _in_order(self.sides.levels) if level in known]

    @cached_property
    def outcome(self) -> NDArray[Any]:
        """How each pair ended: won, lost, same or unsure."""
        found = np.where(self.up > 1, "won", "lost").astype(object)
        near = np.abs(np.log(self.up)) <= math.log(1 + MARGIN)
        untold = np.array([word is None for word in self.verdict], bool)
        found[self.verdict == "unsure"] = "unsure"
        found[(untold & near) | (self.verdict == "same")] = "same"
        return found

    @cached_property
    def varying(self) -> list[str]:
        """The features in which pairs differ."""
        return [name for name in self.features if len(_values(self.of(name))) > 1]

    def of(self, name: str) -> NDArray[Any]:
        """Return a feature of each pair."""
        return np.asarray(self.features[name][self.b])

    def only(self, mine: NDArray[np.bool_]) -> Ups:
        """Return some of the pairs."""
        told = {name: getattr(self, name)[mine] for name in ("a", "b", "up", "verdict")}
        return replace(self, **told)


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
    middle. `summary` has the distribution of all, and `levels` that of each; `beside` the points
    and bars of a picture. Types are told apart, unless the levels have none in common. Raises
    `InputError` for a column, level, quantity or hyperparameter that is not there.
    """
    level = level_of(data, by)
    origin, known, apart = _origin(data, by, quantity, level)
    any_dtype |= apart and by != "dtype"
    if against is not None and against not in known:
        raise unknown(by, against, known, "--against")
    free = (by, "dtype") if any_dtype else (by,)
    where = f"origin = {flat.text(origin)} AND scope = '' AND status = 'ok'"
    sides = Sides(data, quantity, level, cell_of(data, by, free), where, APART.get(by, (by,)))
    worst_is_least = quantity.endswith(MORE_IS_BETTER)
    first = against or _worst(sides, worst_is_least)
    ups = _ups(data, sides, first, by, worst_is_least) if first else None
    summary: Row = {"by_column": by, "against": first, "quantity": quantity}
    if not ups:
        return Table(columns("name=network"), [], summary=summary | {"pairs": 0})
    x = _chosen(x, "--x", [*ups.features]) or next(iter(ups.varying), None)
    color = _chosen(color, "--color", [*ups.features]) or _strongest(ups, x)
    saturated, there = _saturations(data, ups) if quantity in RATES else ([], np.zeros(0, bool))
    order = np.argsort(ups.up, kind="stable")
    shown_ = _ends_first(order)[: data.most]
    rows = _rows(ups, shown_, by, there)
    low, high = (_rows(ups, at, by, there) for at in (order[:EXTREMES], order[::-1][:EXTREMES]))
    summary |= {"pairs": len(ups), "origin": origin, "any_dtype": any_dtype, "x": x, "color": color}
    summary |= _distribution(ups) | {
        "by": _medians(ups, x),
        "extremes": {
            name: [{key: row[key] for key in (*OF_END, f"against_{quantity}", quantity)}
                   for row in held]
            for name, held in (("lowest", low), ("highest", high))
        },
        "saturation": saturated,
        "tree": _tree(ups),
        "levels": [
            {"level": one, **_distribution(mine), "by": _medians(mine, x)}
            for one in ups.levels
            for mine in [ups.only(ups.level == one)]
        ],
        "failed": _failed(data, level, ups.sides.levels),
    }  # fmt: skip
    several = ["level"] if len(ups.levels) > 1 else []
    differ = ["?differ=a | b"] if any(row["differ"] for row in rows) else []
    verdict = ["verdict"] if any(row["verdict"] for row in rows) else []
    own = "its own" if several else rows[0]["level"]
    told = (f"against_{quantity}={first}", f"{quantity}={own}")
    return Table(
        columns("name=network", *several, *differ, *told, "speedup=speed-up", *verdict),
        rows,
        f"Speed-ups against {first}, lowest and highest first",
        most=SHOWN,
        summary=summary,
        beside=_drawn(ups, x, color, there),
    )


def _origin(data: Data, by: str, quantity: str, level: str) -> tuple[str, list[str], bool]:
    """Return the first origin that has several levels, these, and whether no type is in all."""
    value = value_of(data, quantity)
    found = data.rows(
        f"SELECT origin, level_, list(DISTINCT dtype) AS dtypes FROM (SELECT *, {level} AS level_ "
        f"FROM flat WHERE scope = '' AND status = 'ok' AND {value} > 0) WHERE level_ IS NOT NULL "
        "GROUP BY ALL"
    )
    told: tuple[str, list[str], bool] = ("", [], False)
    for origin in ORIGINS:
        rows = [row for row in found if row["origin"] == origin]
        if len(rows) > max(1, len(told[1])):
            apart = not set.intersection(*(set(row["dtypes"]) for row in rows))
            return origin, _in_order([row["level_"] for row in rows]), apart
    return told


def _worst(sides: Sides, is_least: bool) -> str | None:
    """Return the level that is worst in the geometric mean of the cells it shares."""
    if len(sides.levels) < 2:
        return None
    value, cell, level = (sides.groups[name] for name in ("value", "cell", "level_"))
    known = value > 0
    logs, cell = np.log(value[known]), cell[known].astype(np.int64)
    usual = np.bincount(cell, logs) / np.maximum(np.bincount(cell), 1)
    off = logs - usual[cell]
    means = {one: float(off[level[known] == one].mean()) for one in _in_order(sides.levels)}
    return min(means, key=lambda one: means[one] * (1 if is_least else -1))


def _ups(data: Data, sides: Sides, first: str, by: str, more_is_better: bool) -> Ups | None:
    ids, value = sides.pairs(first), sides.groups["value"]
    whole = (value[ids["a"]] > 0) & (value[ids["b"]] > 0)
    a, b = ids["a"][whole], ids["b"][whole]
    if not len(a):
        return None
    told = dict.fromkeys(["batch", *data.hyperparameters, *OF_NETWORK, *HOW])
    features = sides.columns([name for name in told if name not in (by, "dtype")])
    words = np.full(len(a), None, object)
    sampled = np.isfinite(value[a]) & sides.groups["pooled"][a] & sides.groups["pooled"][b]
    words[sampled] = compared(sides.estimate(a[sampled]), sides.estimate(b[sampled]))["verdict"]
    up = value[b] / value[a] if more_is_better else value[a] / value[b]
    return Ups(sides, first, a, b, up, words, features)


def _rows(ups: Ups, which: NDArray[np.int64], by: str, there: NDArray[np.bool_]) -> list[Row]:
    """Return pairs as rows: both sides, name, verdict, outcome, and what differs inside them."""
    of, names = ups.sides.groups, [n for n in ups.varying if n != "family"]
    named = sorted(names, key=lambda name: name == "batch")  # last
    found = []
    for at in which.tolist():
        a, b = int(ups.a[at]), int(ups.b[at])
        own = {name: _plain(column[b]) for name, column in ups.features.items()}
        other = {name: _plain(ups.features[name][a]) for name in HOW if name in ups.features}
        hosts = [", ".join(of["hosts"][one] or ()) or None for one in (a, b)]
        row: Row = {
            "level": ups.level[at],
            **{name: _known(of[name][b]) for name in ("low", "high")},
            "host": hosts[1],
            **{f"against_{name}": _known(of[name][a]) for name in ("low", "high")},
            "against_host": hosts[0],
            **{f"against_{name}": value for name, value in other.items()},
            **own,
            "speedup": float(ups.up[at]),
            "against": ups.against,
            "verdict": ups.verdict[at],
        }
        told = [said(name, own[name]) for name in named if own[name] is not None]
        row["name"] = " ".join([str(own.get("family") or ""), ", ".join(told)]).strip()
        differ = [n for n in ("host", *HOW) if n != by and row.get(f"against_{n}") != row.get(n)]
        row["differ"] = ", ".join(
            f"{n} {shown(n, row.get(f'against_{n}'))} | {shown(n, row.get(n))}" for n in differ
        )
        row[f"against_{ups.sides.quantity}"] = float(of["value"][a])
        row[ups.sides.quantity] = float(of["value"][b])
        sides = ((ups.against, a), (row["level"], b))
        row["saturated"] = [level for level, one in sides if len(there) and there[one]]
        found.append(row | {"outcome": ups.outcome[at]})
    return found


def _drawn(ups: Ups, x: str | None, color: str | None, there: NDArray[np.bool_]) -> list[Row]:
    """Return the points of a picture, and the bars of the histogram of each level.

    Of very many pairs some are points, evenly: as they are spread, not from the ends. What is in
    saturation stands on what is not.
    """
    order = np.argsort(ups.up, kind="stable")
    step = -(-len(order) // MOST_POINTS)
    points = [
        {name: row[name] for name in OF_END}
        | {"x": row[x] if x else None, "color": row[color] if color else None}
        for row in _rows(ups, order[::step], "", there)
    ]
    logs, bars = np.log(ups.up), []
    wide = max(float(np.ptp([*logs, 0.0])), 0.1) / BARS
    edges = wide * np.arange(math.floor(logs.min() / wide), math.floor(logs.max() / wide) + 2)
    capped = there[ups.a] | there[ups.b] if len(there) else np.zeros(len(ups), bool)
    for level in ups.levels:
        below = np.zeros(len(edges) - 1, int)
        for state in (False, True):
            counts = np.histogram(logs[(ups.level == level) & (capped == state)], edges)[0]
            bars += [
                {"level": level, "low": math.exp(edges[at]), "high": math.exp(edges[at + 1])}
                | {"bottom": int(below[at]), "top": int(below[at] + counts[at])}
                | {"saturated": state}
                for at in np.flatnonzero(counts)
            ]
            below += counts
    return [*points, *bars]


def _ends_first(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return places in order, the lowest, the highest, the second lowest, ... first."""
    found = np.empty_like(order)
    half = (len(order) + 1) // 2
    found[::2], found[1::2] = order[:half], order[half:][::-1]
    return found


def _distribution(ups: Ups) -> Row:
    """Return how speed-ups are spread, and their geometric mean with its 95 % interval."""
    logs, n = np.log(np.sort(ups.up)), len(ups)
    mean = logs.mean()
    if n > MOST_DRAWN:
        reach = 1.96 * logs.std() / math.sqrt(n)
        ends = np.array([mean - reach, mean + reach])
    else:
        rng = np.random.default_rng(SEED)
        draws = [logs[rng.integers(n, size=n)].mean() for _ in range(DRAWS)]
        ends = np.quantile(draws, (0.025, 0.975))
    names = ("min", "p5", "p25", "median", "p75", "p95", "max")
    spread = np.exp(np.quantile(logs, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)))
    return {
        "pairs": n,
        **dict(zip(names, spread.tolist(), strict=True)),
        "median": float(np.median(ups.up)),
        "geometric_mean": math.exp(mean),
        "low": math.exp(ends[0]) if n > 1 else None,
        "high": math.exp(ends[1]) if n > 1 else None,
        "wins_share": float((ups.outcome == "won").mean()),
        "same_share": float((ups.outcome == "same").mean()),
        "unsure_share": float((ups.outcome == "unsure").mean()),
    }


def _medians(ups: Ups, x: str | None) -> Row:
    """Return pairs, median and share of wins by value of a hyperparameter, in its order."""
    held = ups.of(x) if x else np.empty(0)
    found = {}
    for value in sorted(_values(held)):
        mine = held == value
        found[str(_plain(value))] = {
            "pairs": int(mine.sum()),
            "median": float(np.median(ups.up[mine])),
            "wins_share": float((ups.outcome[mine] == "won").mean()),
        }
    return found


def _strongest(ups: Ups, x: str | None) -> str | None:
    """Return the number, other than `x`, that goes most with speed-ups."""
    from scipy.stats import spearmanr

    found: dict[str, float] = {name: 0.0 for name in ups.varying if name != x}
    for name in found:
        held = ups.of(name)
        if held.dtype.kind == "f" and np.isfinite(held).all() and np.ptp(ups.up) > 0:
            found[name] = abs(float(spearmanr(held, ups.up).statistic))
    return max(found, key=lambda name: found[name], default=None)


def _saturations(data: Data, ups: Ups) -> tuple[list[Row], NDArray[np.bool_]]:
    """Return of each level whose speed saturates where, in how many speed-ups; and which groups."""
    of = ups.sides.groups
    counted_ = ups.sides.columns(["flop_", "examples_", "replicas"])
    large = LARGE if ups.up.max() > LARGE else float(np.quantile(ups.up, 0.75))
    examples = counted_["examples_"]
    speed = examples / of["value"] if ups.sides.quantity == "step_s" else of["value"]
    flop, batch = counted_["flop_"], examples / counted_["replicas"]
    found: list[Row] = []
    there = np.zeros(len(speed), bool)
    for level in _in_order(ups.sides.levels):
        mine = np.flatnonzero((of["level_"] == level) & (of["value"] > 0))
        features = {name: ups.features[name][mine] for name in ups.varying}
        side = ups.a if level == ups.against else ups.b
        above = (ups.up > large) & ((level == ups.against) | (ups.level == level))
        for kind, per_s, work in (
            ("examples_per_s", speed[mine], (flop / batch)[mine]),
            ("steps_per_s", (speed / examples)[mine], flop[mine]),
        ):
            told = saturation(per_s, work, features)
            if told is None:
                continue
            there[mine[told[1]]] = True
            found.append({
                "level": level, "rate": kind, **told[0], "above": large,
                "speedups_above": int(above.sum()),
                "saturated_above": int(there[side[above]].sum()),
            })  # fmt: skip
            break
    return found, there


def _tree(ups: Ups) -> list[Row]:
    """Return where each wins: of networks that all levels have, and where one clearly wins."""
    cell = ups.sides.groups["cell"][ups.b].astype(np.int64)
    order = np.lexsort((-ups.up, cell))
    starts = np.flatnonzero(np.r_[True, np.diff(cell[order]) > 0])
    many = np.diff(np.r_[starts, len(order)]) >= len(ups.levels)
    best = order[starts[many]]
    clear = best[np.isin(ups.outcome[best], ("won", "lost"))]
    clear = clear[:: -(-len(clear) // MOST_DRAWN) or 1]
    of = {name: list(map(_plain, ups.of(name)[clear].tolist())) for name in ups.features}
    told = list(map(str, zip(*of.values(), strict=True)))
    place = sorted(range(len(clear)), key=told.__getitem__)  # in whatever order they were recorded
    clear = clear[place]
    won = ups.outcome[clear] == "won"
    names = np.where(won, ups.level[clear], ups.against).tolist()
    features = {name: [of[name][at] for at in place] for name in ups.varying}
    return [vars(leaf) | {"rows": sum(leaf.wins.values())} for leaf in leaves(features, names)]


def _failed(data: Data, level: str, known: Sequence[str]) -> Row:
    """Return how many networks of each level have no value because they failed."""
    found = data.rows(
        f"SELECT {level} AS level, count(DISTINCT workload_key) AS n FROM flat "
        "WHERE scope = '' AND status <> 'ok' GROUP BY 1 ORDER BY 1"
    )
    return {row["level"]: row["n"] for row in found if row["level"] in known}


def _in_order(levels: Sequence[str]) -> list[str]:
    """Return levels in order: numbers by size, then words."""

    def place(level: str) -> tuple[bool, float, str]:
        try:
            return False, float(level), level
        except ValueError:
            return True, 0.0, level

    return sorted(levels, key=place)


def _values(column: NDArray[Any]) -> set[Any]:
    return {one for one in column.tolist() if one is not None and one == one}  # noqa: PLR0124


def _plain(value: Any) -> Any:
    """Return a cell as it stands in a row: whole numbers as such, None where unknown."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else int(value) if value.is_integer() else float(value)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _chosen(name: str | None, option: str, known: Sequence[str]) -> str | None:
    if name is not None and name not in known:
        raise unknown("hyperparameter", name, known, option)
    return name


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
