"""Other people's results as records of origin "published".

A reader has `SOURCE`, where such results are from, `recognises(source) -> bool`, which looks at the
name and the content, and `read(source) -> Reading`: a module, or a mapping of `data/mappings`.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from steptime.core.copying import replace
from steptime.core.errors import InputError, shorten
from steptime.core.tables.table_files import ENDINGS_TEXT, is_table_name
from steptime.core.toml_files import DATA
from steptime.records.readers.sources import Reading, RecordSource, Unread, list_sources
from steptime.records.record import Record

MAPPING = "mapping"
READERS = {
    "psc-log": "steptime.records.readers.psc_log",
    "torch-trace": "steptime.records.readers.torch_trace",  # may hold any word that others look for
    "paradnn-json": "steptime.records.readers.paradnn_json",
    **dict.fromkeys(sorted(path.stem for path in (DATA / "mappings").glob("*.toml")), MAPPING),
}

NO_FORMAT = "no known format"
_BINARY_FORMS = {  # first bytes, and what to do with such a file
    b"PK\x03\x04": "a zip archive or a workbook of Excel: save as CSV, or unpack it",
    b"\xd0\xcf\x11\xe0": "a workbook of Excel: save as CSV",
    b"PAR1": "a Parquet file: save as CSV",
}


@dataclass
class Import:
    """The content of everything at some paths.

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


def read_path(
    *paths: Path,
    mapping: Any = None,
    command_keys: Mapping[str, str] | None = None,
    steps: int | None = None,
) -> Import:
    """Return the records of all files at `paths`.

    Args:
        *paths: files, folders and archives.
        mapping: the mapping by which tables are read, before all other readers.
        command_keys: keys that complete the mappings of the house: model, batch, device, ...
        steps: number of steps in each trace that does not mark them.
    """
    readers = _list_readers(mapping, command_keys, steps)
    content = Import()
    distinct_paths = dict.fromkeys(paths)
    for source in chain.from_iterable(map(list_sources, distinct_paths)):
        content.files += 1
        if isinstance(source, Unread):
            content.unread.append(source)
            continue
        # The first reader that recognises a file reads it.
        for name, reader in readers.items():
            if reader.recognises(source):
                _read_source(content, name, reader, source)
                break
        else:
            reason = f"{NO_FORMAT}: {describe_source(source, mapping)}"
            content.unread.append(Unread(source.name, line=None, reason=reason))
    _mark_duplicates(content)
    return content


def _list_readers(
    mapping: Any, command_keys: Mapping[str, str] | None, steps: int | None
) -> Mapping[str, Any]:
    """Return the readers by the names of their formats, a mapping of the user first."""
    readers = {}
    if mapping:
        is_from_file = bool(mapping.sha256)  # otherwise it is a shipped mapping, by its own name
        readers["csv" if is_from_file else mapping.name] = mapping
    readers |= {name: reader_of(name, command_keys) for name in READERS if name not in readers}
    if steps is not None:
        from steptime.records.readers.torch_trace import TraceReader

        readers["torch-trace"] = TraceReader(steps)
    return readers


def is_mapped(name: str) -> bool:
    """Return whether files of a format are read by a mapping."""
    return READERS.get(name, MAPPING) == MAPPING


def reader_of(name: str, command_keys: Mapping[str, str] | None = None) -> Any:
    """Return the reader of a format; `command_keys` complete a mapping."""
    if READERS[name] != MAPPING:
        return importlib.import_module(READERS[name])
    # The other formats are tables whose mapping of columns is a file; keys that a command names
    # are added to it, else one reader serves all calls.
    if not command_keys:
        return _shipped_reader(name)
    from steptime.records.readers.mapping import read_shipped_mapping

    return read_shipped_mapping(name, command_keys)


@cache
def _shipped_reader(name: str) -> Any:
    from steptime.records.readers.mapping import read_shipped_mapping

    return read_shipped_mapping(name)


def source_key(record: Record) -> tuple[Any, ...]:
    """Return a key that is equal for records of one content and entry, wherever the file lies."""
    return tuple(record.env.get(name) for name in ("source_sha256", "source_entry", "mapping"))


def _mark_duplicates(content: Import) -> None:
    """Name for each file of equal content the original, in its records, too."""
    # Copies of a file are equal in the hash of the file and in each entry.
    files_by_content: dict[tuple[Any, ...], list[str]] = {}
    for record in content.records:
        files_by_content.setdefault(source_key(record), []).append(record.env["source_file"])
    for files in files_by_content.values():
        # The file in the deepest folder counts as the original.
        original = min(files, key=lambda file: (-file.count("/"), file))
        content.duplicates |= {file: original for file in files if file != original}
    marked_records = []
    for record in content.records:
        duplicate_of = content.duplicates.get(record.env["source_file"])
        env = {**record.env, "duplicate_of": duplicate_of}
        marked_records.append(replace(record, env=env))
    content.records = marked_records


def _read_source(content: Import, name: str, reader: Any, source: RecordSource) -> None:
    """Add the records and the unread entries of a source to the content."""
    try:
        reading: Reading = reader.read(source)
    except InputError as error:
        reason = str(error).removeprefix(f"{source.name}: ")
        reading = Reading(unread=(Unread(source.name, line=None, reason=reason),))
    about = {
        "source": reader.SOURCE,
        "source_file": source.name,
        "source_archive": source.archive,
        "source_sha256": source.sha256,
    }
    for record in reading.records:
        if _has_finite_numbers(record):
            content.records.append(replace(record, env={**about, **record.env}))
        else:
            entry = record.env.get("source_entry")
            content.unread.append(Unread(source.name, entry, "a number is too large"))
    content.unread += reading.unread
    content.notes += [f"{source.name}: {remark}" for remark in reading.notes]
    content.formats[name] += 1


def _has_finite_numbers(record: Record) -> bool:
    return all(
        math.isfinite(amount)
        for quantity in record.quantities.values()
        for amount in (*quantity.samples, quantity.value or 0.0)
    )


def describe_source(source: RecordSource, mapping: Any = None) -> str:
    """Return why no reader takes a file: "begins with 'hello'", with the nearest remedy."""
    if not source.content:
        return "an empty file"
    if not source.content.strip(b"\0"):
        return "nothing but zeros, as an archive of no files"
    for mark, remedy in _BINARY_FORMS.items():
        if source.content.startswith(mark):
            return remedy
    first = source.head.lstrip().partition("\n")[0].strip()
    if "\0" in source.head[:1000]:
        return "binary data"
    hint = _table_hint(source, mapping)
    hint_text = f"; {hint}" if hint else ""
    return f"begins with {shorten(first)}{hint_text}"


def _table_hint(source: RecordSource, mapping: Any) -> str:
    """Return the remedy for a table that no mapping takes."""
    if mapping and mapping.keys.columns:
        lacking = {*mapping.keys.columns} - source.columns_under(mapping.keys.layout)
        return f"it lacks columns of the mapping: {', '.join(sorted(lacking))}"
    if mapping and not is_table_name(source.name):
        return f"a table ends in {ENDINGS_TEXT}, also with .gz"
    is_unmapped_table = source.name.lower().endswith(".csv") and not mapping
    return "--map FILE.toml says what columns mean" if is_unmapped_table else ""
