"""Speed-ups: the levels of a column against one of them, network by network, and what they tell.

A speed-up is above 1 where a level is better: a shorter time, fewer bytes, or a higher rate. All of
them are columns; rows are made of those that are shown.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.speedup_words import says
from steptime.analysis.sql_pairing import held
from steptime.analysis.ups import (
    OUTCOMES,
    Ups,
    distribution,
    medians,
    speedups,
    worst_of,
)
from steptime.core.errors import check_choice, unknown
from steptime.core.table import Column, Table, describe_hidden_rows
from steptime.records import flat
from steptime.records.data import Data
from steptime.records.levels import APART, cell_of, in_order, level_of, value_of
from steptime.records.row import HOW, Row, said
from steptime.records.sides import Ids, Sides, known
from steptime.records.statistics import rank_correlation

EXTREMES, SHOWN = 5, 12
BARS, MOST_POINTS = 24, 3000  # of a picture; beyond, points are thinned out
OF_END = ("name", "level", "speedup", "verdict")
ORIGINS = ("measured", "published", "predicted")


def speedup_table(
    data: Data,
    by: str,
    against: str | None,
    quantity: str,
    x: str | None,
    color: str | None,
    any_dtype: bool,
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
    first = against or worst_of(sides)
    ups = speedups(data, sides, first, by) if first else None
    summary: Row = {"by_column": by, "against": first, "quantity": quantity}
    if not ups:
        return Table((Column("name", "network"),), [], summary=summary | {"pairs": 0})
    x = _chosen(x, "--x", [*ups.features]) or next(iter(ups.varying), None)
    color = _chosen(color, "--color", [*ups.features]) or _strongest(ups, x)
    order = np.argsort(ups.up, kind="stable")
    shown_ = _ends_first(order)[: data.most]
    n = min(EXTREMES, len(order))
    low, high, rows = (
        held(some, partial(_rows, ups)) for some in (order[:n], order[::-1][:n], shown_)
    )
    summary |= {"pairs": len(ups), "origin": origin, "any_dtype": any_dtype, "x": x, "color": color}
    summary |= distribution(ups) | {
        "by": medians(ups, x),
        "extremes": {
            name: [{key: row[key] for key in (*OF_END, f"against_{quantity}", quantity)}
                   for row in ends]
            for name, ends in (("lowest", low), ("highest", high))
        },
        "levels": [
            {"level": one, **distribution(mine), "by": medians(mine, x)}
            for one in ups.levels
            for mine in [ups.only(ups.place == ups.sides.place(one))]
        ],
        "failed": _failed(data, level, ups.sides.levels),
    }  # fmt: skip
    several = [Column("level")] if len(ups.levels) > 1 else []
    differ = [Column("differ", "a | b", is_spare=True)] if any(_differ(ups, shown_)) else []
    verdict = [Column("verdict")] if any(word is not None for word in ups.verdict[shown_]) else []
    own = "its own" if several else ups.levels[0]
    told = (Column(f"against_{quantity}", first), Column(quantity, own))
    return Table(
        (
            Column("name", "network"),
            *several,
            *differ,
            *told,
            Column("speedup", "speed-up"),
            *verdict,
        ),
        rows,
        f"Speed-ups against {first}, lowest and highest first",
        footnotes=describe_hidden_rows(len(ups) - len(rows)),
        max_rows=SHOWN,
        summary=summary,
        chart_rows=_drawn(ups, x, color),
    )


def _origin(data: Data, by: str, quantity: str, level: str) -> tuple[str, list[str], bool]:
    """Return the first origin that has several levels, these, and whether no type is in all."""
    value = value_of(data, quantity)
    found = data.rows(
        f"SELECT origin, level_, list(DISTINCT dtype) AS dtypes FROM (SELECT *, {level} AS level_ "
        f"FROM flat WHERE scope = '' AND status = 'ok' AND {value} > 0) WHERE level_ IS NOT NULL "
        "GROUP BY ALL ORDER BY min(seq)"
    )
    told: tuple[str, list[str], bool] = ("", [], False)
    for origin in ORIGINS:
        rows = [row for row in found if row["origin"] == origin]
        if len(rows) > max(1, len(told[1])):
            apart = not set.intersection(*(set(row["dtypes"]) for row in rows))
            return origin, in_order([row["level_"] for row in rows]), apart
    return told


def _differ(ups: Ups, which: Ids) -> list[str]:
    """Return in words how the two of pairs ran otherwise; "" where they did not."""
    of, ways = ups.pairing.ways(ups.a[which], ups.b[which])
    return [", ".join(ways[at]["differ"]) for at in of.tolist()]


def _rows(ups: Ups, which: Ids) -> list[Row]:
    """Return pairs as rows: both sides, name, verdict, outcome, and what differs inside them."""
    of = ups.sides.groups
    columns_ = _points(ups, which)
    hosts = ups.sides.facts(np.r_[ups.a[which], ups.b[which]], {"host": "nullif(host, '')"})
    for side, ids in (("", ups.b[which]), ("against_", ups.a[which])):
        columns_ |= {f"{side}{end}": known(of[end][ids]) for end in ("low", "high")}
        columns_[f"{side}host"] = [hosts[one]["host"] for one in ids.tolist()]
    columns_ |= {f"against_{n}": ups.cells(n, ups.a[which]) for n in HOW if n in ups.features}
    columns_ |= {n: ups.cells(n, ups.b[which]) for n in ups.features}
    columns_ |= {"against": [ups.against] * len(which), "differ": _differ(ups, which)}
    for side, ids in (("against_", ups.a[which]), ("", ups.b[which])):
        columns_[f"{side}{ups.sides.quantity}"] = known(of["value"][ids])
    columns_["outcome"] = [OUTCOMES[one] for one in ups.outcome[which]]
    return _as_rows(columns_)


def _points(ups: Ups, which: Ids) -> dict[str, list[Any]]:
    """Return the name, level, speed-up and verdict of pairs."""
    b = ups.b[which]
    told = sorted((one for one in ups.varying if one != "family"), key=lambda one: one == "batch")
    families = ups.cells("family", b)
    values = [ups.cells(name, b) for name in told]
    named = [[*zip(told, cells, strict=True)] for cells in zip(*values, strict=True)]
    named = named or [[] for _ in which]
    return {
        "name": [
            f"{family} {', '.join(said(n, one) for n, one in cells if one is not None)}".strip()
            for family, cells in zip(families, named, strict=True)
        ],
        "level": ups.sides.level_of(b).tolist(),
        "speedup": ups.up[which].tolist(),
        "verdict": ups.verdict[which].tolist(),
    }


def _as_rows(columns_: Mapping[str, Sequence[Any]]) -> list[Row]:
    return [dict(zip(columns_, row, strict=True)) for row in zip(*columns_.values(), strict=True)]


def _drawn(ups: Ups, x: str | None, color: str | None) -> list[Row]:
    """Return the points of a picture, and the bars of the histogram of each level.

    Of very many pairs some are points, evenly: as they are spread, not from the ends.
    """
    order = np.argsort(ups.up, kind="stable")
    which = order[:: -(-len(order) // MOST_POINTS)]
    columns_ = _points(ups, which)
    for axis, name in (("x", x), ("color", color)):
        columns_[axis] = ups.cells(name, ups.b[which]) if name else [None] * len(which)
    logs = np.log(ups.up)
    wide = max(float(np.ptp([*logs, 0.0])), 0.1) / BARS
    edges = wide * np.arange(math.floor(logs.min() / wide), math.floor(logs.max() / wide) + 2)
    bars = []
    for level in ups.levels:
        counts = np.histogram(logs[ups.place == ups.sides.place(level)], edges)[0]
        bars += [
            {
                "level": level,
                "low": math.exp(edges[at]),
                "high": math.exp(edges[at + 1]),
                "networks": int(counts[at]),
            }
            for at in np.flatnonzero(counts)
        ]
    return [*_as_rows(columns_), *bars]


def _ends_first(order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return places in order, the lowest, the highest, the second lowest, ... first."""
    found = np.empty_like(order)
    half = (len(order) + 1) // 2
    found[::2], found[1::2] = order[:half], order[half:][::-1]
    return found


def _strongest(ups: Ups, x: str | None) -> str | None:
    """Return the number, other than `x`, that goes most with speed-ups."""
    found: dict[str, float] = {name: 0.0 for name in ups.varying if name != x}
    for name in found:
        held = ups.of(name)
        if held.dtype.kind == "f" and np.isfinite(held).all() and np.ptp(ups.up) > 0:
            found[name] = abs(rank_correlation(held, ups.up))
    return max(found, key=lambda name: found[name], default=None)


def _failed(data: Data, level: str, known: Sequence[str]) -> Row:
    """Return how many networks of each level have no value because they failed."""
    found = data.rows(
        f"SELECT {level} AS level, count(DISTINCT workload_key) AS n FROM flat "
        "WHERE scope = '' AND status <> 'ok' GROUP BY 1 ORDER BY 1"
    )
    return {row["level"]: row["n"] for row in found if row["level"] in known}


def _chosen(name: str | None, option: str, known: Sequence[str]) -> str | None:
    return None if name is None else check_choice("hyperparameter", name, known, option)


ANALYSIS = Analysis(
    """Compare platforms, stacks or predictions, network by network.

    Every level of a column stands against one of them. A speed-up above 1
    means that the level is better than the other: the distribution, its
    geometric mean, and medians by a hyperparameter.
    """,
    speedup_table,
    says,
    section="Speed-ups",
    chart="steptime.reports.charts.speedup:chart",
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
        Setting("quantity", "step_s, published_speed_per_s, peak_bytes, ...", "step_s"),
        Setting("x", "The hyperparameter along which medians are taken.", metavar="HYPERPARAMETER"),
        Setting("color", "The hyperparameter that colours the picture.", metavar="HYPERPARAMETER"),
        Setting("any_dtype", "Pair types with other types, even if some are equal.", False, bool),
    ),
    folders=64,
)
