"""How steps changed over many folders: change points of each network, and how many share one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.change_points import (
    MIN_VALUES,
    LevelChange,
    SeriesGroup,
    change_points,
    find_levels,
    find_series_group,
    smallest_change,
)
from steptime.analysis.history_answer import HistoryChange, HistoryEvent, HistoryRow
from steptime.core.tables.table import Column, Table, describe_hidden_rows
from steptime.core.units import first_of, format_count, format_percent
from steptime.core.values import parse_share
from steptime.records.data import Data
from steptime.records.groups.group_members import ANY_METHOD, Grouping
from steptime.records.groups.record_groups import Cells, RecordGroups
from steptime.records.pair_keys import IS_PREDICTED, find_text
from steptime.records.row import Row, group_by
from steptime.records.statistics import MISS, two_sided_t

SIGMAS = 1.96  # of the difference of two levels, beyond which the newest is another one
MAX_PRINTED_ROWS = 40
NORMAL_FREEDOM = 1000  # of a single run, whose interval is a bootstrap's
ENVIRONMENT_FACTS = ("host", "framework", "steptime", "python", "os", "kernel", "threads")
SERIES = (
    *(pl.col(name) for name in ("workload_key", "platform", "method")),
    pl.col("strategy").fill_null(""),
    pl.col("threads"),
)
BATCH_WORDS = pl.concat_str(pl.lit(", batch "), pl.col("batch").cast(pl.String)).fill_null("")
STEP_CELLS: Cells = {
    "name": pl.concat_str("model", BATCH_WORDS),
    **{name: name for name in ("family", "platform", "method", "folder")},
}
IS_GOOD_STEP = ~IS_PREDICTED & (pl.col("status") == "ok") & (pl.col("scope") == "")


class _Series(NamedTuple):
    """A network over the folders.

    Attributes:
        cells: its row in each folder that has it, by date.
        changes: where its level changed, as indices of `cells`.
        is_slower: whether the newest level is slower than the best one before.
        is_faster: whether the newest level is faster than the first.
        smallest_slowdown: the smallest slowdown of the newest folders that is found with 90 %
            power, as a share; None where nothing can be judged.
    """

    cells: Sequence[Row]
    changes: Sequence[LevelChange]
    is_slower: bool
    is_faster: bool
    smallest_slowdown: float | None


def history_table(data: Data, margin: str) -> Table:
    """Return a row for each network and folder, folders by date; the summary has what changed."""
    min_change = math.log1p(parse_share(margin, "--margin"))
    folder_rows = _describe_folders(data)
    folders = sorted(folder_rows, key=lambda name: _order_by_date(folder_rows[name], name))
    folder_order = {name: position for position, name in enumerate(folders)}
    cells = sorted(_list_cells(data), key=lambda cell: folder_order[cell["folder"]])
    cells_by_network = [*group_by(cells, itemgetter("series")).values()]
    series_group = find_series_group(
        [_list_step_logs(network_cells) for network_cells in cells_by_network]
    )
    all_series = [
        _judge_series(network_cells, min_change, series_group) for network_cells in cells_by_network
    ]
    all_series.sort(key=lambda series: series.cells[0]["order"])
    rows: list[HistoryRow] = []
    changes: list[HistoryChange] = []
    for series in all_series:
        is_full = data.max_rows is not None and len(rows) >= data.max_rows
        if is_full and not series.changes:
            continue  # a series with a change has its rows in any case
        series_rows = _make_series_rows(series, folder_rows)
        rows += series_rows
        changes += _make_change_rows(series, series_rows)
    table_columns = (
        Column("name", "network"),
        Column("platform", is_spare=True),
        Column("folder"),
        Column("taken_at", "date", is_spare=True),
        Column("step_s", "step"),
        Column("first_ratio", "ratio to first"),
        Column("changed_fraction", "changed"),
    )
    return Table(
        table_columns,
        [row.to_dict() for row in rows],
        max_rows=MAX_PRINTED_ROWS,
        footnotes=describe_hidden_rows(len(cells) - len(rows)),
        summary=_summarise(folders, folder_rows, all_series, changes, min_change),
        structs=rows,
    )


def _order_by_date(folder: Row, name: str) -> tuple[bool, float, str]:
    """Return the sort key of a folder: its first record's instant, those without a date last."""
    instant_s = folder["instant_s"]
    return instant_s is None, instant_s or 0.0, name


def _list_step_logs(cells: Sequence[Row]) -> list[float]:
    return [math.log(row["step_s"]) for row in cells]


def _judge_series(cells: Sequence[Row], min_change: float, series_group: SeriesGroup) -> _Series:
    """Return the changes of a network, and whether its newest level is worse than the best."""
    logs = _list_step_logs(cells)
    errors, error_freedom = _estimate_errors(cells)
    changes: list[LevelChange] = []
    if len(cells) > 1:
        changes = change_points(logs, errors, error_freedom, min_change, series_group)
    level_starts = [change.level_start for change in changes]
    levels = find_levels(logs, errors, error_freedom, level_starts)
    *earlier, newest = levels

    def exceeds_noise(size: float, error: float) -> bool:
        return size > max(min_change, SIGMAS * math.hypot(error, newest.error))

    # Slower: than any earlier level, so also than the best. Faster: than the oldest level.
    is_slower = any(exceeds_noise(newest.mean - level.mean, level.error) for level in earlier)
    oldest = levels[0]
    is_faster = bool(earlier) and exceeds_noise(oldest.mean - newest.mean, oldest.error)
    smallest = smallest_change(logs, errors, error_freedom, level_starts, min_change, series_group)
    return _Series(
        cells,
        changes,
        is_slower=is_slower,
        is_faster=is_faster,
        smallest_slowdown=None if smallest is None else math.expm1(smallest),
    )


def _make_series_rows(series: _Series, folder_rows: Mapping[str, Row]) -> list[HistoryRow]:
    """Return the rows of a network, one a folder."""
    change_sizes = {change.level_start: math.expm1(change.size) for change in series.changes}
    first_s = series.cells[0]["step_s"]
    return [
        HistoryRow(
            name=cell["name"],
            family=cell["family"],
            platform=cell["platform"],
            folder=cell["folder"],
            taken_at=folder_rows[cell["folder"]]["taken_at"],
            step_s=cell["step_s"],
            step_s_low=cell["low"],
            step_s_high=cell["high"],
            first_ratio=cell["step_s"] / first_s,
            changed_fraction=change_sizes.get(number),
        )
        for number, cell in enumerate(series.cells)
    ]


def _make_change_rows(series: _Series, rows: Sequence[HistoryRow]) -> Iterator[HistoryChange]:
    """Yield the rows of the folders where a network changed, with the folders on both sides."""
    for change in series.changes:
        yield HistoryChange(
            **rows[change.level_start].to_dict(),
            low_fraction=math.expm1(change.low),
            high_fraction=math.expm1(change.high),
            before=rows[change.level_start - 1].folder,
            after=rows[change.level_start].folder,
        )


def _summarise(
    folders: Sequence[str],
    folder_rows: Mapping[str, Row],
    all_series: Sequence[_Series],
    changes: Sequence[HistoryChange],
    min_change: float,
) -> Row:
    """Return the summary of all networks together."""
    slowdowns = [series.smallest_slowdown for series in all_series]
    # A smallest slowdown of more than twice the time judges nothing.
    useful_slowdowns = [
        slowdown for slowdown in slowdowns if slowdown is not None and slowdown <= 1
    ]
    # Only networks of the newest folder can be slower or faster now.
    present = []
    vanished = set()
    for series in all_series:
        newest = series.cells[-1]
        if newest["folder"] == folders[-1]:
            present.append(series)
        else:
            vanished.add(newest["name"])
    return {
        "folders": folders,
        "networks": len(all_series),
        "margin_fraction": math.expm1(min_change),
        "changes": [change.to_dict() for change in changes],
        "slower": sorted(series.cells[0]["name"] for series in present if series.is_slower),
        "faster": sorted(series.cells[0]["name"] for series in present if series.is_faster),
        "vanished": sorted(vanished),
        "events": [
            event.to_dict() for event in _list_events(changes, len(all_series), folder_rows)
        ],
        "is_judged": bool(useful_slowdowns),
        "smallest_slowdown": float(np.median(useful_slowdowns)) if useful_slowdowns else None,
    }


def _describe_folders(data: Data) -> dict[str, Row]:
    """Return for each folder its earliest date, and the environments of its measurements."""
    records = data.scan().filter(~IS_PREDICTED).select("folder", "taken_at", "env")
    dates = records.select("folder", "taken_at").unique(maintain_order=True).collect()
    environments = records.select("folder", "env").unique(maintain_order=True).collect()
    rows: dict[str, Row] = {}
    for folder, taken_at in dates.iter_rows():
        row = rows.setdefault(folder, {"instant_s": None, "taken_at": None})
        instant_s = _find_instant(taken_at)
        # A date that cannot be read orders nothing.
        if instant_s is None:
            continue
        is_earliest = row["instant_s"] is None or instant_s < row["instant_s"]
        if is_earliest:
            row |= {"instant_s": instant_s, "taken_at": taken_at}
    # A fact has the values of all records of a folder; None if no record states it.
    for (folder,), texts in environments.group_by("folder", maintain_order=True):
        for fact in ENVIRONMENT_FACTS:
            stated_values = {find_text(text, fact) for text in texts["env"]} - {None}
            fact_text = ", ".join(sorted(filter(None, stated_values)))
            rows[folder][fact] = fact_text if stated_values else None
    return rows


def _find_instant(taken_at: str | None) -> float | None:
    """Return the seconds of a date since 1970; one without a time zone is of UTC."""
    try:
        date = datetime.fromisoformat(taken_at or "")
    except ValueError:
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _list_cells(data: Data) -> list[Row]:
    """Return the step of each network in each folder, its samples pooled; a `cell` is a series."""
    grouping = Grouping(
        quantity="step_s",
        level=pl.col("folder"),
        cell=SERIES,
        takes_part=IS_GOOD_STEP,
        method=ANY_METHOD,  # a series goes on when it is measured in another way
        # Nothing is paired here.
        partner_key=pl.lit(None, pl.String),
    )
    groups = RecordGroups(data, grouping)
    ids = np.flatnonzero(groups.columns.value > 0)
    # A group is a network in a folder (its level); the groups of one cell are a series.
    group_column_by_key = {
        "step_s": "value",
        "series": "cell",
        "low": "low",
        "high": "high",
        "runs": "runs",
    }
    cells = []
    for position, row in enumerate(groups.rows(ids, STEP_CELLS, group_column_by_key)):
        # The table sorts networks by these values; equal ones stay in their order.
        sort_key = (*map(row.get, STEP_CELLS), position)
        cells.append(row | {"order": sort_key})
    return cells


def _estimate_errors(cells: Sequence[Row]) -> tuple[list[float], int]:
    """Return the standard error of each folder's logarithm, and their degrees of freedom."""
    errors = []
    error_freedom = 0
    for row in cells:
        run_count = max(int(row["runs"] or 1), 1)
        half_width = 0.0
        if row["low"] and row["high"]:
            half_width = math.log(row["high"] / row["low"]) / 2
        # A single run has an interval within the run, with many degrees of freedom.
        freedom = run_count - 1 if run_count > 1 else NORMAL_FREEDOM
        errors.append(half_width / two_sided_t(MISS, freedom))
        error_freedom += run_count - 1
    return errors, error_freedom


def _list_events(
    changes: Sequence[HistoryChange], networks: int, folder_rows: Mapping[str, Row]
) -> list[HistoryEvent]:
    """Return the changes between two folders, how many networks share each, and what differs."""
    events = []
    by_folders = group_by(changes, attrgetter("before", "after"))
    for (before, after), folder_changes in by_folders.items():
        facts_before = folder_rows[before]
        facts_after = folder_rows[after]
        differences = [
            f"{fact} {facts_before[fact]} -> {facts_after[fact]}"
            for fact in ENVIRONMENT_FACTS
            if facts_before[fact] != facts_after[fact]
        ]
        all_sizes = [change.changed_fraction or 0.0 for change in folder_changes]
        sizes_by_verdict = {
            "slower": [size for size in all_sizes if size > 0],
            "faster": [size for size in all_sizes if size < 0],
        }
        for verdict, sizes in sizes_by_verdict.items():
            if not sizes:
                continue
            events.append(
                HistoryEvent(
                    before=before,
                    after=after,
                    verdict=verdict,
                    changed=len(sizes),
                    networks=networks,
                    changed_fraction=float(np.median(sizes)),
                    differ=list(differences),
                )
            )
    return sorted(events, key=lambda event: -event.changed)


def describe_history(table: Table) -> list[str]:
    """Return each change with how many networks share it and what else changed there."""
    summary: Any = table.summary
    folders = summary["folders"]
    lines = [_describe_event(event) for event in summary["events"]]
    if summary["slower"]:
        lines.append(f"slower now than before: {first_of(summary['slower'], 4, '; ')}")
    if summary["vanished"]:
        vanished = first_of(summary["vanished"], 4, "; ")
        lines.append(f"not in the newest folder, {folders[-1]}: {vanished}")
    networks = format_count(summary["networks"], "network")
    extent = f"{networks} over {format_count(len(folders), 'folder')} by date"
    if len(folders) < 2:
        return [f"nothing to say of changes: {extent}, and a history takes two or more"]
    power = _describe_power(summary)
    if lines:
        return [*lines, power, f"{extent}: {folders[0]} to {folders[-1]}"]
    margin = format_percent(summary["margin_fraction"])
    return [f"no change beyond noise and {margin}; {extent}", power]


def _describe_event(event: Mapping[str, Any]) -> str:
    """Return a common change: "3 of 4 networks became 12 % slower between a and b: torch 2 | 3"."""
    causes = f": {', '.join(event['differ'])}" if event["differ"] else ""
    return (
        f"{event['changed']} of {format_count(event['networks'], 'network')} became "
        f"{format_percent(abs(event['changed_fraction']))} {event['verdict']} "
        f"between {event['before']} and {event['after']}{causes}"
    )


def _describe_power(summary: Mapping[str, Any]) -> str:
    """Return the smallest slowdown that would have been found, or why nothing can be judged."""
    count = len(summary["folders"])
    smallest = summary["smallest_slowdown"]
    if smallest is None:  # neither repeats nor folders enough to estimate the noise
        return (
            f"nothing can be judged: {format_count(count, 'folder')} of single runs cannot show "
            f"10 %; rounds = 5, or {MIN_VALUES} folders"
        )
    slowdown = format_percent(smallest)
    line = f"a slowdown of {slowdown} in the newest folders would be found 90 times in 100"
    if count < MIN_VALUES:
        line += f"; {MIN_VALUES} folders would show how much folders differ"
    return line


ANALYSIS = Analysis(
    """Print when steps changed, over many folders.

    Folders are ordered by the date of their records. Of each network the change
    points are found, and how many networks share one. `--fail-on slower` fails
    while the newest level of a network is slower than the best one before.
    """,
    history_table,
    describe_history,
    row_struct=HistoryRow,
    chart="steptime.reports.charts.history:chart",
    settings=(Setting("margin", "Smaller changes count as none.", default="3%", metavar="SHARE"),),
    folders=10_000,
    fails={
        "slower": ("slower", "vanished"),
        "changed": ("slower", "faster", "vanished"),
        "vanished": ("vanished",),
    },
)
