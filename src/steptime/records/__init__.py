"""Records of measured, predicted and published steps, and folders of them as frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steptime.core.progress import print_note

if TYPE_CHECKING:
    import polars as pl


def frame(folders: Path | Sequence[Path], settings: Sequence[str] = ()) -> pl.DataFrame:
    """Return the records of folders as a frame: a row for each record, in their order.

    Columns are those of `frame_columns.SCHEMA`: samples are lists, hyperparameters (`params`) and
    options of methods (`method_options`) are JSON texts. None is unknown.

    Args:
        folders: a folder of records, or several.
        settings: hyperparameters that become columns of texts, behind the others.

    Raises:
        InputError: for what is no folder of records.
    """
    from steptime.records.folders import Folders
    from steptime.records.frames.frame_columns import add_settings

    paths = [folders] if isinstance(folders, Path) else folders
    data = Folders.load(paths, print_note)  # its files end with it
    return add_settings(data.scan(), settings).collect()
