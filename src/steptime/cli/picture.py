"""The option of a command that draws, and how its file is checked before anything runs."""

from pathlib import Path
from typing import Any

from steptime.core.question import optional


def picture(what: str) -> Any:
    """Return the option that names the file of a picture, None where it is left out."""
    return optional("--out -o FILE", f"{what}: .png, .svg, .pdf or .html.", parser=picture_path)


def drawn(chart: Any, out: Path) -> str:
    """Return the line that says where a chart is drawn to, once it is."""
    from steptime.reports.charts.files import save

    save(chart, out)
    return f"picture: {out}"


def picture_path(text: str, where: str) -> Path:  # as parsers are called
    """Return the path of a picture; raises `InputError` where none can be written."""
    from steptime.reports.charts.files import check_path

    check_path(Path(text))
    return Path(text)
