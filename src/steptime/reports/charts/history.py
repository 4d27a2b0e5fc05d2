"""Steps over folders: a line a network, normalised to its first, changes marked."""

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
    folder_numbers = {name: number for number, name in enumerate(folders, start=1)}
    points = [
        style.point(dict(row), ("name", "first_ratio"), TOOLTIP)
        | {
            "panel": row["family"],
            "at": folder_numbers[row["folder"]],
            "line": f"{row['name']} {row['platform']}",
            "change": row["changed_fraction"],  # None, without a large dot, where it is noise
            "became": _name_change(row["changed_fraction"]),
        }
        for row in table.rows
    ]
    folder_count = len(folders)
    if folder_count < 2:
        raise EmptyPlotError("history: steps over time are those of two folders or more")
    title = f"folder, by date: {folders[0]} to {folders[-1]}"
    folder_axis = {"title": style.wrap_text(title, PANEL), "tickMinStep": 1}
    folder_scale = {"domain": [1, folder_count], "nice": False}
    x = style.encode_number("at") | {"axis": folder_axis, "scale": folder_scale}
    ratio_axis = {"title": "time / that of the first", "tickCount": 6, "format": ".3~f"}
    y = style.encode_number("first_ratio") | {"axis": ratio_axis, "scale": {"zero": False}}
    points.sort(key=lambda point: WORDS.index(point["became"]))  # changes are drawn on top
    colour = style.encode_categories("became", points)["color"]
    line: style.Spec = {"x": x, "y": y, "detail": style.encode_name("line")}
    dot: style.Spec = {"x": x, "y": y, "color": colour, "tooltip": style.tooltip(TOOLTIP)}
    layers = [
        style.layer("line", line, strokeWidth=1, opacity=0.4),
        style.layer("point", dot, size=12, filled=True, opacity=0.5),
        style.layer("point", dot, needed_fields=("change",), size=60, filled=True),
    ]
    rows, view = style.facet_panels(
        points, "panel", {"layer": layers}, columns=2, width=PANEL, height=190
    )
    counts = f"{table.summary['networks']} networks, {folder_count} folders"
    noise = f"{format_percent(table.summary['margin_fraction'])} and noise"
    caption = [
        f"{counts}; large dots: changes beyond {noise}.",
        table.source,
    ]
    return style.finish("Steps over time", caption, rows, **view)


def _name_change(changed: float | None) -> str:
    """Return the word for a change of a step's time, None being no change."""
    unchanged, slower, faster = WORDS
    if changed is None:
        return unchanged
    return slower if changed > 0 else faster
