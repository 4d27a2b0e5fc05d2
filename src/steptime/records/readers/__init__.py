"""Other people's results as records of origin "published".

A reader has `SOURCE`, where such results are from, `recognises(source) -> bool`, which looks at the
name and the first characters, and `read(source) -> Reading`: a module, or a mapping of `data`.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.toml_files import DATA
from steptime.records.readers.sources import Reading, RecordSource, Unread, sources_at
from steptime.records.record import Record

MAPPINGS = DATA / "mappings"  # of tables that are known by their columns
READERS = {
    "psc-log": "steptime.records.readers.psc_log",
    "torch-trace": "steptime.records.readers.torch_trace",  # may hold any word that others look for
    "paradnn-json": "steptime.records.readers.paradnn_json",
    **{path.stem: f"mappings/{path.name}" for path in sorted(MAPPINGS.glob("*.toml"))},
}

NO_FORMAT = "no known format"


@dataclass
class Import:
    """What became of everything at some paths.

    `formats` counts the files that each reader took. `duplicates` gives for a file the one that has
    the same content: of equal files the one that lies deepest, by name, is taken for the original.
    `notes` are remarks of readers, each with its file.
    """

    files: int = 0
    records: list[Record] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    duplicates: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_path(*paths: Path, mapping: Any = None, steps: int | None = None) -> Import:
    """Return the records of all files at `paths`.

    Args:
        *paths: files, folders and archives.
        mapping: the reader of CSV files.
        steps: number of steps in each trace that does not mark them.
    """
    readers: dict[str, Any] = {"csv": mapping} if mapping else {}
    readers |= {name: reader_of(name) for name in READERS}
    if steps is not None:
        from steptime.records.readers.torch_trace import TraceReader

        readers["torch-trace"] = TraceReader(steps)
    done = Import()
    for source in (one for path in dict.fromkeys(paths) for one in sources_at(path)):
        done.files += 1
        if isinstance(source, Unread):
            done.unread.append(source)
            continue
        name = next((name for name, one in readers.items() if one.recognises(source)), None)
        if name is None:
            done.unread.append(Unread(source.name, None, f"{NO_FORMAT}: {_seen(source)}"))
            continue
        _take(done, name, readers[name], source)
    _mark_duplicates(done)
    return done


@cache
def reader_of(name: str) -> Any:
    """Return the reader of a format."""
    if not READERS[name].endswith(".toml"):
        return importlib.import_module(READERS[name])
    from steptime.records.readers.mapping import shipped

    return shipped(READERS[name])


def source_key(record: Record) -> tuple[Any, ...]:
    """Return what is equal for records of one content and entry, wherever the file lies."""
    return tuple(record.env.get(name) for name in ("source_sha256", "source_entry", "mapping"))


def _mark_duplicates(done: Import) -> None:
    files: dict[tuple[Any, ...], list[str]] = {}
    for record in done.records:
        files.setdefault(source_key(record), []).append(record.env["source_file"])
    for names in files.values():
        original = min(names, key=lambda name: (-name.count("/"), name))
        done.duplicates |= {name: original for name in names if name != original}
    done.records = [
        replace(one, env={**one.env, "duplicate_of": done.duplicates.get(one.env["source_file"])})
        for one in done.records
    ]


def _take(done: Import, name: str, reader: Any, source: RecordSource) -> None:
    try:
        found: Reading = reader.read(source)
    except InputError as error:
        found = Reading(unread=(Unread(source.name, None, str(error)),))
    about = {
        "source": reader.SOURCE,
        "source_file": source.name,
        "source_archive": source.archive,
        "source_sha256": source.sha256,
    }
    for one in found.records:
        held = one.quantities.values()
        if all(math.isfinite(n) for of in held for n in (*of.samples, of.value or 0.0)):
            done.records.append(replace(one, env={**about, **one.env}))
        else:
            entry = one.env.get("source_entry")
            done.unread.append(Unread(source.name, entry, "a number is too large"))
    done.unread += found.unread
    done.notes += [f"{source.name}: {remark}" for remark in found.notes]
    done.formats[name] += 1


def _seen(source: RecordSource) -> str:
    if not source.content:
        return "an empty file"
    if not source.content.strip(b"\0"):
        return "nothing but zeros, as an archive of no files"
    if b"\0" in source.content[:1000]:
        return "binary data"
    first = source.head.lstrip().partition("\n")[0].strip()
    is_table = source.name.lower().endswith(".csv")
    hint = (apart_by(first) or "--map FILE.toml says what columns mean") if is_table else ""
    return f"begins with {shorten(first)}{hint and f'; {hint}'}"


def apart_by(line: str) -> str:
    """Return a hint where the cells of a line are apart by no comma, else ""."""
    other = next((mark for mark in (";", "\t", "|") if mark in line), "")
    return f"its cells are apart by {other!r}, not by ','" if other and "," not in line else ""
