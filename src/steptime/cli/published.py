"""The command that reads other people's results."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli import options, output
from steptime.core.errors import InputError
from steptime.core.units import counted

if TYPE_CHECKING:
    from steptime.core.record import Record
    from steptime.readers import Import

SHOWN_UNREAD = 8
LONGEST_REASON = 300  # characters


def import_(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A file, a folder, or an archive (.tar, .tar.gz)."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Folder of records.")],
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--mapping", metavar="FILE", help="A .toml file: what the columns of CSV files mean."
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Read other people's results into a folder of records.

    The format is found by what is in a file. What is not read is listed with the reason.
    """
    from steptime import store
    from steptime.readers import read_path, source_key
    from steptime.readers.csv_mapping import read_mapping

    found = read_path(path, read_mapping(mapping) if mapping else None)
    if not found.records:
        raise InputError(f"{path}: {_nothing(found)}")
    known = {source_key(one) for one in store.load(out, output.note, required=False)}
    new: list[Record] = [one for one in found.records if source_key(one) not in known]
    if new:
        with store.open_writer(out) as writer:
            writer.append_all(new)
    document = {
        "out": str(out),
        "files": found.files,
        "records": len(new),
        "already_there": len(found.records) - len(new),
        "formats": dict(found.formats),
        "unread": [asdict(one) for one in found.unread],
        "duplicates": [
            {"file": file, "duplicate_of": original} for file, original in found.duplicates.items()
        ],
    }
    if json:
        output.emit_json(document)
    else:
        _show(found, len(new), out)


def _nothing(found: Import) -> str:
    from steptime.readers import NO_FORMAT

    known_first = sorted(found.unread, key=lambda one: one.reason.startswith(NO_FORMAT))
    first = known_first[0] if known_first else None
    empty = "no row or entry is in it" if found.files else "an empty folder"
    seen = f"{first.file}: {first.reason}" if first else empty
    more = f", and {len(found.unread) - 1} more" if len(found.unread) > 1 else ""
    return f"nothing here became a record ({seen}{more})"


def _show(found: Import, new: int, out: Path) -> None:
    formats = ", ".join(f"{count} {name}" for name, count in found.formats.items())
    files = counted(found.files, "file")
    output.note(f"{counted(new, 'record')} of {files} ({formats}) written to {out}")
    already = len(found.records) - new
    if already:
        verbs = ("was", "is") if already == 1 else ("were", "are")
        there = f"{counted(already, 'record')} {verbs[0]} there already"
        output.note(f"{there}, and {verbs[1]} not written again")
    if found.duplicates:
        verb = "has" if len(found.duplicates) == 1 else "have"
        files = counted(len(found.duplicates), "file")
        output.note(f"{files} {verb} the content of another (duplicate_of)")
    for one in found.unread[:SHOWN_UNREAD]:
        place = one.file if one.line is None else f"{one.file}, {one.line}"
        output.note(f"not read: {place}: {one.reason[:LONGEST_REASON]}")
    if len(found.unread) > SHOWN_UNREAD:
        output.note(f"not read: {len(found.unread) - SHOWN_UNREAD} more, all in --json")
