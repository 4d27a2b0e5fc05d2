"""How steps changed over many folders: change points of each network, and how many share one."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.outliers import EFFICIENCY
from steptime.core.table import Column, Table, describe_hidden_rows
from steptime.core.units import counted, first_of, percent
from steptime.core.values import parse_share
from steptime.records.data import Data
from steptime.records.row import Row, grouped
from steptime.records.sides import Sides
from steptime.records.statistics import MISS, two_sided_p, two_sided_t

FALSE_ALARMS = 0.02  # of a series without a change: 5 % holds where the noise is not normal, too
LEAST = 8  # folders, from whose neighbours noise is estimated
FACTS = ("host", "framework", "steptime", "python", "os", "kernel", "threads")
SERIES = "hash(workload_key, platform, method, coalesce(strategy, ''), threads)"
OF_STEP = {
    "name": "model || coalesce(', batch ' || batch, '')",
    **{name: name for name in ("family", "platform", "method", "folder")},
}
WHERE = "origin <> 'predicted' AND status = 'ok' AND scope = ''"
FOLDERS = f"""
    SELECT folder, min(taken_at) AS at, {
    ", ".join(
        f"string_agg(DISTINCT env ->> '{fact}', ', ' ORDER BY env ->> '{fact}') AS {fact}"
        for fact in FACTS
    )
}
    FROM records WHERE origin <> 'predicted' GROUP BY folder
"""  # noqa: S608  # names of this file


class LevelChange(NamedTuple):
    """A change of level before the item `at`: logarithms of its size and ends (95 %)."""

    at: int
    size: float
    low: float
    high: float


def change_points(
    logs: Sequence[float], errors: Sequence[float], freedom: int, margin: float = 0.0
) -> list[LevelChange]:
    """Return where the level of a series changes by more than `margin`, by binary segmentation.

    The best split in two is believed where a t-test says so, Bonferroni over the places of a split;
    then both parts are asked. Noise is what scatters about both levels, or between neighbours, or
    the `errors` within the items where these are larger; `freedom` is that of the errors together.
    All are logarithms.
    """
    values, own = np.asarray(logs), np.asarray(errors)
    near = (1.4826 * float(np.median(np.abs(np.diff(values))))) ** 2 / 2 if len(values) > 1 else 0.0

    def split(start: int, stop: int) -> Iterator[int]:
        part = values[start:stop]
        n = stop - start
        degrees = n - 2 + freedom * n // max(len(values), 1)
        if n < 2 or degrees < 1:
            return
        at = np.arange(1, n)
        before = np.cumsum(part)[:-1] / at
        after = (part.sum() - np.cumsum(part)[:-1]) / (n - at)
        gain = (before - after) ** 2 * at * (n - at) / n
        best = int(np.argmax(gain))
        left = max(0.0, float(((part - part.mean()) ** 2).sum() - gain[best]))
        scatter = left / (n - 2) if n > 2 else 0.0
        if n >= LEAST and near < scatter:  # several changes: neighbours scatter less than halves
            scatter, degrees = near, round(EFFICIENCY * n)
        noise = math.sqrt(max(scatter, float((own[start:stop] ** 2).mean()), 1e-18))
        p = two_sided_p(math.sqrt(gain[best]) / noise, degrees)
        if p * (n - 1) <= FALSE_ALARMS and abs(after[best] - before[best]) > margin:
            middle = start + best + 1
            yield from split(start, middle)
            yield middle
            yield from split(middle, stop)

    ends = [0, *split(0, len(values)), len(values)]
    parts = [values[a:b] for a, b in pairwise(ends)]
    scatter = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    degrees = max(1, len(values) - len(parts) + freedom)
    noise = max(scatter / max(1, len(values) - len(parts)), float((own**2).mean()))
    found = []
    for at, a, b in zip(ends[1:-1], parts, parts[1:], strict=False):
        size = float(b.mean() - a.mean())
        reach = two_sided_t(MISS, degrees) * math.sqrt(noise * (1 / len(a) + 1 / len(b)))
        found.append(LevelChange(at, size, size - reach, size + reach))
    return found


def history_table(data: Data, margin: str) -> Table:
    """Return a row for each network and folder, folders by date; the summary has what changed."""
    at_least = math.log1p(parse_share(margin, "--margin"))
    told = {row["folder"]: row for row in data.rows(FOLDERS)}
    folders = sorted(told, key=lambda name: (told[name]["at"] is None, told[name]["at"], name))
    place = {name: at for at, name in enumerate(folders)}
    cells = _cells(data)
    series = grouped(sorted(cells, key=lambda row: place[row["folder"]]), itemgetter("cell"))
    rows: list[Row] = []
    changes: list[Row] = []
    for held in sorted(series.values(), key=lambda held: held[0]["order"]):
        logs = [math.log(row["step_s"]) for row in held]
        found = change_points(logs, *_errors(held), at_least) if len(held) > 1 else ()
        if not found and data.most is not None and len(rows) >= data.most:
            continue
        at = {change.at: change for change in found}
        for index, row in enumerate(held):
            one = {name: row[name] for name in ("name", "family", "platform", "folder")}
            one |= {"taken_at": told[row["folder"]]["at"], "step_s": row["step_s"]}
            one |= {f"step_s_{end}": row[end] for end in ("low", "high")}
            one["first_ratio"] = math.exp(logs[index] - logs[0])
            one["changed_fraction"] = math.expm1(at[index].size) if index in at else None
            rows.append(one)
            if index in at:
                of = at[index]
                ends = {f"{n}_fraction": math.expm1(getattr(of, n)) for n in ("low", "high")}
                before = held[index - 1]["folder"]
                changes.append({**one, **ends, "before": before, "after": row["folder"]})
    gone = sorted(
        {held[-1]["name"] for held in series.values() if held[-1]["folder"] != folders[-1]}
    )
    summary = {
        "folders": folders,
        "networks": len(series),
        "margin_fraction": math.expm1(at_least),
        "changes": changes,
        "slower": [one["name"] for one in changes if one["changed_fraction"] > 0],
        "vanished": gone,
        "events": _events(changes, len(series), told),
    }
    shown = (
        Column("name", "network"),
        Column("platform", is_spare=True),
        Column("folder"),
        Column("taken_at", "date", is_spare=True),
        Column("step_s", "step"),
        Column("first_ratio", "of the first"),
        Column("changed_fraction", "changed"),
    )
    return Table(
        shown,
        rows,
        max_rows=40,
        footnotes=describe_hidden_rows(len(cells) - len(rows)),
        summary=summary,
    )


def _cells(data: Data) -> list[Row]:
    """Return what each folder says of each network, its samples pooled; a `cell` is a series."""
    sides = Sides(data, "step_s", "folder", SERIES, WHERE, kin="NULL", way="''")
    of = sides.groups
    ids = np.flatnonzero(of["value"] > 0)
    names = {"step_s": "value", **{name: name for name in ("cell", "low", "high", "runs")}}
    rows = sides.rows(ids, OF_STEP, names)
    return [row | {"order": (*map(row.get, OF_STEP), at)} for at, row in enumerate(rows)]


def _errors(held: Sequence[Row]) -> tuple[list[float], int]:
    """Return the standard error of each folder's logarithm, and their degrees of freedom."""
    runs = [max(int(row["runs"] or 1), 1) for row in held]
    halves = [
        math.log(row["high"] / row["low"]) / 2 if row["low"] and row["high"] else 0.0
        for row in held
    ]
    errors = [
        half / two_sided_t(MISS, number - 1 if number > 1 else 1000)
        for half, number in zip(halves, runs, strict=True)
    ]
    return errors, sum(runs) - len(runs)


def _events(changes: Sequence[Row], networks: int, told: dict[str, Row]) -> list[Row]:
    """Return what changed between which folders, of how many networks, and what differs there."""
    found = []
    for (before, after), held in grouped(changes, itemgetter("before", "after")).items():
        for word, sign in (("slower", 1), ("faster", -1)):
            sizes = [row["changed_fraction"] for row in held if row["changed_fraction"] * sign > 0]
            if sizes:
                a, b = told[before], told[after]
                found.append({
                    "before": before, "after": after, "what": word, "changed": len(sizes),
                    "networks": networks, "changed_fraction": float(np.median(sizes)),
                    "differ": [f"{n} {a[n]} -> {b[n]}" for n in FACTS if a[n] != b[n]],
                })  # fmt: skip
    return sorted(found, key=lambda row: -row["changed"])


def sentences(table: Table) -> list[str]:
    """Return each change with how many networks share it and what else changed there."""
    found: Any = table.summary
    folders = found["folders"]
    said = [
        f"{one['changed']} of {counted(one['networks'], 'network')} became "
        f"{percent(abs(one['changed_fraction']))} {one['what']} between {one['before']} and "
        f"{one['after']}" + (f": {', '.join(one['differ'])}" if one["differ"] else "")
        for one in found["events"]
    ]
    if gone := found["vanished"]:
        said.append(f"not in the newest folder, {folders[-1]}: {first_of(gone, 4, '; ')}")
    over = f"{counted(found['networks'], 'network')} over {counted(len(folders), 'folder')} by date"
    none = f"no change beyond noise and {percent(found['margin_fraction'])}; {over}"
    if len(folders) == 1:
        none = f"nothing to say of changes: {over}, and a history takes two or more"
    ends = f"{over}: {folders[0]} to {folders[-1]}" if folders else over
    return [*said, ends] if said else [none]


ANALYSIS = Analysis(
    """Print when steps changed, over many folders.

    Folders are ordered by the date of their records. Of each network the change
    points are found, and how many networks share one.
    """,
    history_table,
    sentences,
    chart="steptime.reports.charts.history:chart",
    settings=(Setting("margin", "Smaller changes count as none.", "3%", str, "SHARE"),),
    folders=10_000,
    fails={
        "slower": ("slower", "vanished"),
        "changed": ("changes", "vanished"),
        "vanished": ("vanished",),
    },
)
