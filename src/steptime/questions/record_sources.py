"""Records of what a command names: folders, files of records, and files that `import` reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steptime.core.errors import InputError
from steptime.core.units import first_of
from steptime.records import store
from steptime.records.data import Data
from steptime.records.record_files import is_record_file

if TYPE_CHECKING:
    from steptime.records.readers.mapping import TableMapping
    from steptime.records.record import Record

MAX_PRINTED_REASONS = 3  # why entries of a file are no records


def load_records(
    paths: Sequence[Path], mapping: Path | None, warn: Callable[[str], None], model: str = ""
) -> Data:
    """Return the records of folders and files.

    Args:
        paths: folders of records, .jsonl files of records, and files that `import` reads.
        mapping: what the columns of tables mean.
        warn: gets remarks on lines and entries that are no records.
        model: how the names of models begin; "" for all.

    Raises:
        InputError: for a path without records, and for a mapping that no path needs.
    """
    imported_paths = [path for path in paths if _is_imported(path, mapping is not None)]
    if mapping and not imported_paths:
        raise InputError("--map: says what columns of tables mean, and no table is given")
    if not imported_paths:
        return Data.load(paths, warn, model)
    # Refuse a path without records before the work of an import begins.
    for path in paths:
        if path not in imported_paths:
            Data.load([path], warn)
    table_mapping = _read_mapping(mapping)
    names = [path.name for path in paths]
    # `Data` takes records, or a path of records that it reads itself.
    sources: list[tuple[str, Path | list[Record]]] = []
    for path in paths:
        is_name_unique = names.count(path.name) == 1
        label = path.name if is_name_unique else str(path)
        if path in imported_paths:
            sources.append((label, _import_records(path, table_mapping, warn)))
        else:
            sources.append((label, path))
    return Data(*sources, warn=warn, model=model)


def _is_imported(path: Path, has_mapping: bool) -> bool:
    """Return whether a path is a file that has to be imported first.

    With a mapping, a .jsonl file is a table unless its first line is a record.
    """
    if not path.is_file():
        return False
    if not is_record_file(path):
        return True
    # JSON lines of other programs are read with a mapping; ours begin with a record.
    return has_mapping and not begins_with_record(path)


def begins_with_record(path: Path) -> bool:
    """Return whether the first line of a file is a record."""
    from steptime.records.reading import read_line
    from steptime.records.record_files import UTF_8_MARK, open_record_file

    with store.readable(path), open_record_file(path) as file:
        first_line = file.readline().removeprefix(UTF_8_MARK)
    try:
        read_line(first_line)
    except ValueError:
        return False
    return True


def _read_mapping(path: Path | None) -> TableMapping | None:
    from steptime.records.readers.mapping import read_mapping

    return None if path is None else read_mapping(path)


def _import_records(
    path: Path, mapping: TableMapping | None, warn: Callable[[str], None]
) -> list[Record]:
    """Return the records of a file that is no file of records, as `import` makes them.

    Raises:
        InputError: if nothing in it becomes a record.
    """
    from steptime.records.readers import read_path

    content = read_path(path, mapping=mapping)
    reasons = []
    for entry in content.unread:
        place = "" if entry.line is None else f"line {entry.line}: "
        reasons.append(f"{place}{entry.reason}")
    causes = first_of(list(dict.fromkeys(reasons)), MAX_PRINTED_REASONS)
    is_format_unknown = not content.formats  # no reader took the file
    if not content.records and is_format_unknown:
        raise InputError(f"{path}: is a file, not a folder of records ({causes})")
    if not content.records:
        cause = causes or "no row is in it"
        raise InputError(f"{path}: steptime import makes no record of it ({cause})")
    for remark in content.notes:
        warn(remark)
    if reasons:
        warn(f"{path}: not read: {causes}")
    return content.records
