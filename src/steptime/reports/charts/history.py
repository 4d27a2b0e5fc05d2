"""Steps over folders: a line a network, normalised to its first, changes marked."""

from collections.abc import Sequence

from steptime.core.tables.table import Column, Table
from steptime.core.units import format_percent
from steptime.reports.charts import EmptyPlotError, style

TOOLTIP = (
    Column("name", "network"),
    Column("folder"),
    Column("taken_at", "date"),
    Column("step_s", "step"),
    Column("changed_fraction", "changed"),
)
WORDS = ("as before", "slower", "faster")
PANEL = 300  # pixels


def chart(table: Table) -> style.Spec:
    """Return the time of each network over that in its first folder, a panel a family.

    Raises:
        EmptyPlotError: for less than two folders.
    """
    folders = table.summary["folders"]
    if len(folders) < 2:
        raise EmptyPlotError("history: steps over time are those of two folders or more")
    folder_numbers = {folder: number for number, folder in enumerate(folders, start=1)}
    points = [_make_point(dict(row), folder_numbers[row["folder"]]) for row in table.rows]
    points.sort(key=lambda point: WORDS.index(point["became"]))  # changes are drawn on top
    panel = {"layer": _draw_layers(points, folders)}
    rows, view = style.facet_panels(points, "panel", panel, columns=2, width=PANEL, height=190)
    counts = f"{table.summary['networks']} networks, {len(folders)} folders"
    noise = f"{format_percent(table.summary['margin_fraction'])} and noise"
    caption = [f"{counts}; large dots: changes beyond {noise}.", table.source]
    return style.finish("Steps over time", caption, rows, **view)


def _make_point(row: style.Row, folder_number: int) -> style.Row:
    """Return the point of a network in one folder."""
    return style.point(row, ("name", "first_ratio"), TOOLTIP) | {
        "panel": row["family"],
        "at": folder_number,
        "line": f"{row['name']} {row['platform']}",
        "change": row["changed_fraction"],  # None, without a large dot, where it is noise
        "became": _name_change(row["changed_fraction"]),
    }


def _draw_layers(points: Sequence[style.Row], folders: Sequence[str]) -> list[style.Spec]:
    """Return a line a network, with small dots for all folders and large ones for changes."""
    position = {"x": _encode_folder(folders), "y": _encode_ratio()}
    line: style.Spec = {**position, "detail": style.encode_name("line")}
    colour = style.encode_categories("became", points)["color"]
    dot: style.Spec = {**position, "color": colour, "tooltip": style.tooltip(TOOLTIP)}
    return [
        style.layer("line", line, strokeWidth=1, opacity=0.4),
        style.layer("point", dot, size=12, filled=True, opacity=0.5),
        style.layer("point", dot, needed_fields=("change",), size=60, filled=True),
    ]


def _encode_folder(folders: Sequence[str]) -> style.Spec:
    """Return the axis of the numbers of folders; its title names the first and the last."""
    title = f"folder, by date: {folders[0]} to {folders[-1]}"
    axis = {"title": style.wrap_text(title, PANEL), "tickMinStep": 1}
    scale = {"domain": [1, len(folders)], "nice": False}
    return style.encode_number("at") | {"axis": axis, "scale": scale}


def _encode_ratio() -> style.Spec:
    """Return the axis of a step's time over that in the first folder; it need not show 0."""
    axis = {"title": "time / that of the first", "tickCount": 6, "format": ".3~f"}
    return style.encode_number("first_ratio") | {"axis": axis, "scale": {"zero": False}}


def _name_change(changed: float | None) -> str:
    """Return the word for a change of a step's time, None being no change."""
    unchanged, slower, faster = WORDS
    if changed is None:
        return unchanged
    return slower if changed > 0 else faster
