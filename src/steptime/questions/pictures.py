"""Pictures of questions: their files are checked before anything is computed, then drawn.

The charts belong to `reports`, a room above this one, and are found by name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from steptime.core.progress import print_note
from steptime.core.registry import load
from steptime.core.signatures.kinds import File

_CHART_FILES_MODULE = "steptime.reports.files"


def check_picture(out: File | None) -> Path | None:
    """Return the path of a picture, None where none is asked for.

    Raises:
        InputError: for an unknown ending, and for a folder that does not exist.
    """
    if out is None:
        return None
    path = Path(out)
    # Reports lie above this package, which may not import them: its function is found by name.
    check_path = load(f"{_CHART_FILES_MODULE}:check_path")
    check_path(path)
    return path


def draw_heat_map(
    title: str,
    caption: Sequence[str],
    cells: Sequence[Mapping[str, Any]],
    axes: Mapping[str, str],
    value: str,
    out: Path,
) -> None:
    """Draw cells with `x`, `y`, `value` and maybe `panel` into a file, and say its path to people.

    Args:
        title: the text above the chart.
        caption: lines below the title.
        cells: rows with `x`, `y`, `value` and maybe `panel`.
        axes: the names of the axes `x`, `y` and maybe `panel`.
        value: the name of the value, which ends with its unit.
        out: the file.

    Raises:
        InputError: where the file cannot be written.
    """
    draw = load("steptime.reports.charts.heatmap:grid")
    _save(draw(title, caption, cells, value=value, **axes), out)


def draw_waterfall(
    changes: Sequence[tuple[str, float]],
    end: str,
    title: str,
    caption: Sequence[str],
    out: Path,
) -> None:
    """Draw times that change in named steps into a file, and say its path to people.

    Args:
        changes: the name of each change, and the seconds after it.
        end: the name of the last bar.
        title: the text above the chart.
        caption: lines below the title.
        out: the file.

    Raises:
        InputError: where the file cannot be written.
    """
    draw = load("steptime.reports.charts.waterfall:chart")
    _save(draw(changes, end, title, caption), out)


def _save(chart: object, out: Path) -> None:
    """Write a chart into a file, and say its path to people."""
    save = load(f"{_CHART_FILES_MODULE}:save")
    save(chart, out)
    print_note(f"picture: {out}")
