"""How steps changed over many folders: change points of each network, and how many share one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np

from steptime.analysis.analyses import Analysis, Setting
from steptime.analysis.change_points import (
    LevelChange,
    SeriesGroup,
    change_points,
    find_levels,
    find_series_group,
    smallest_change,
)
from steptime.analysis.history_answer import HistoryChange, HistoryEvent, HistoryRow
from steptime.analysis.history_cells import ENVIRONMENT_FACTS, describe_folders, list_cells
from steptime.analysis.history_words import describe_history
from steptime.core.tables.table import Column, Table, describe_hidden_rows
from steptime.core.values import parse_share
from steptime.records.data import Data
from steptime.records.row import Row, group_by
from steptime.records.statistics import MISS, two_sided_t

COLUMNS = (
    Column("name", "network"),
    Column("platform", is_spare=True),
    Column("folder"),
    Column("taken_at", "date", is_spare=True),
    Column("step_s", "step"),
    Column("first_ratio", "ratio to first"),
    Column("changed_fraction", "changed"),
)
SIGMAS = 1.96  # of the difference of two levels, beyond which the newest is another one
MAX_PRINTED_ROWS = 40
NORMAL_FREEDOM = 1000  # of a single run, whose interval is a bootstrap's


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
    folder_rows = describe_folders(data)
    folders = sorted(folder_rows, key=lambda name: _order_by_date(folder_rows[name], name))
    folder_order = {name: position for position, name in enumerate(folders)}
    cells = sorted(list_cells(data), key=lambda cell: folder_order[cell["folder"]])
    all_series = _list_series(cells, min_change)
    rows: list[HistoryRow] = []
    changes: list[HistoryChange] = []
    for series in all_series:
        is_full = data.max_rows is not None and len(rows) >= data.max_rows
        if is_full and not series.changes:
            continue  # a series with a change has its rows in any case
        series_rows = _make_series_rows(series, folder_rows)
        rows += series_rows
        changes += _make_change_rows(series, series_rows)
    return Table(
        COLUMNS,
        [row.to_dict() for row in rows],
        max_rows=MAX_PRINTED_ROWS,
        footnotes=describe_hidden_rows(len(cells) - len(rows)),
        summary=_summarise(folders, folder_rows, all_series, changes, min_change),
        structs=rows,
    )


def _list_series(cells: Sequence[Row], min_change: float) -> list[_Series]:
    """Return the networks with their changes, in the order of their names.

    Args:
        cells: the steps of all networks, in the order of the folders.
        min_change: the logarithm of the smallest change that counts.
    """
    cells_by_network = [*group_by(cells, itemgetter("series")).values()]
    # Whether a change is chance depends on how far all networks differ without one.
    series_group = find_series_group(
        [_list_step_logs(network_cells) for network_cells in cells_by_network]
    )
    all_series = [
        _judge_series(network_cells, min_change, series_group) for network_cells in cells_by_network
    ]
    return sorted(all_series, key=lambda series: series.cells[0]["order"])


def _order_by_date(folder: Row, name: str) -> tuple[bool, float, str]:
    """Return the sort key of a folder: its first record's instant, those without a date last."""
    instant_s = folder["instant_s"]
    return instant_s is None, instant_s or 0.0, name


def _list_step_logs(cells: Sequence[Row]) -> list[float]:
    """Return the logarithm of the step in each folder."""
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
    # Only networks of the newest folder can be slower or faster now.
    present = [series for series in all_series if series.cells[-1]["folder"] == folders[-1]]
    vanished = {
        series.cells[-1]["name"]
        for series in all_series
        if series.cells[-1]["folder"] != folders[-1]
    }
    smallest_slowdown = _median_slowdown(all_series)
    events = _list_events(changes, len(all_series), folder_rows)
    return {
        "folders": folders,
        "networks": len(all_series),
        "margin_fraction": math.expm1(min_change),
        "changes": [change.to_dict() for change in changes],
        "slower": sorted(series.cells[0]["name"] for series in present if series.is_slower),
        "faster": sorted(series.cells[0]["name"] for series in present if series.is_faster),
        "vanished": sorted(vanished),
        "events": [event.to_dict() for event in events],
        "is_judged": smallest_slowdown is not None,
        "smallest_slowdown": smallest_slowdown,
    }


def _median_slowdown(all_series: Sequence[_Series]) -> float | None:
    """Return the smallest slowdown that is found, of the middle network; None if none is judged.

    A network whose smallest slowdown is more than twice the time is not judged.
    """
    slowdowns = [series.smallest_slowdown for series in all_series]
    useful = [slowdown for slowdown in slowdowns if slowdown is not None and slowdown <= 1]
    return float(np.median(useful)) if useful else None


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
        all_sizes = [change.changed_fraction or 0.0 for change in folder_changes]
        sizes_by_verdict = {
            "slower": [size for size in all_sizes if size > 0],
            "faster": [size for size in all_sizes if size < 0],
        }
        events += [
            HistoryEvent(
                before=before,
                after=after,
                verdict=verdict,
                changed=len(sizes),
                networks=networks,
                changed_fraction=float(np.median(sizes)),
                differ=_list_differences(folder_rows[before], folder_rows[after]),
            )
            for verdict, sizes in sizes_by_verdict.items()
            if sizes
        ]
    return sorted(events, key=lambda event: -event.changed)


def _list_differences(before: Row, after: Row) -> list[str]:
    """Return the facts in which two environments differ, such as `threads 1 -> 2`."""
    return [
        f"{fact} {before[fact]} -> {after[fact]}"
        for fact in ENVIRONMENT_FACTS
        if before[fact] != after[fact]
    ]


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
