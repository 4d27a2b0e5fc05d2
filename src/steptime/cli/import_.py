"""The command `import`: other people's results as records."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from steptime.core.errors import InputError
from steptime.core.progress import note
from steptime.core.question import File, argument, option, optional, question
from steptime.core.table import Answer
from steptime.core.units import counted
from steptime.records import store
from steptime.records.readers import NO_FORMAT, Import, read_path, source_key

SHOWN_UNREAD = 8
LONGEST_REASON = 300  # characters


@question(long="reading")
def import_(
    paths: Annotated[list[Path], argument("PATH", "Files, folders, .tar or .tar.gz archives.")],
    out: Path = option("-o --out DIR", "Folder of records."),
    mapping: File = optional(
        "--mapping --map FILE", "A .toml file: what the columns of CSV files mean."
    ),
) -> Answer:
    """Read other people's results into a folder of records.

    The format is found by what is in a file. What is not read is listed with the reason.
    """
    from steptime.records.readers.mapping import read_mapping

    found = read_path(*paths, mapping=read_mapping(mapping) if mapping else None)
    if not found.records:
        raise InputError(f"{', '.join(map(str, paths))}: {_nothing(found)}")
    with store.exclusive(out, store.OF_IMPORT, waits=True):  # another may be of the same source
        known = {source_key(one) for one in store.load(out, note, required=False)}
        new = [one for one in found.records if source_key(one) not in known]
        with store.open_writer(out) as writer:
            writer.append_all(new)
    alike = found.duplicates.items()
    document = {
        "out": str(out),
        "files": found.files,
        "records": len(new),
        "already_there": len(found.records) - len(new),
        "formats": dict(found.formats),
        "unread": [asdict(one) for one in found.unread],
        "duplicates": [{"file": file, "duplicate_of": original} for file, original in alike],
    }
    return Answer(document, notes=_notes(found, len(new), out))


def _nothing(found: Import) -> str:
    known_first = sorted(found.unread, key=lambda one: one.reason.startswith(NO_FORMAT))
    first = known_first[0] if known_first else None
    empty = "no row or entry is in it" if found.files else "an empty folder"
    seen = f"{first.file}: {first.reason}" if first else empty
    more = f", and {len(found.unread) - 1} more" if len(found.unread) > 1 else ""
    return f"nothing here became a record ({seen}{more})"


def _notes(found: Import, new: int, out: Path) -> list[str]:
    formats = ", ".join(f"{count} {name}" for name, count in found.formats.items())
    files = counted(found.files, "file")
    notes = [f"{counted(new, 'record')} of {files} ({formats}) written to {out}"]
    if already := len(found.records) - new:
        notes.append(f"{counted(already, 'record')} there already, not written again")
    if alike := len(found.duplicates):
        notes.append(f"{counted(alike, 'file')} with the content of another (duplicate_of)")
    for one in found.unread[:SHOWN_UNREAD]:
        place = one.file if one.line is None else f"{one.file}, {one.line}"
        notes.append(f"not read: {place}: {one.reason[:LONGEST_REASON]}")
    if (more := len(found.unread) - SHOWN_UNREAD) > 0:
        notes.append(f"not read: {more} more, all in --json")
    return notes
