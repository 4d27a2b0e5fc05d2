"""Caches of frames as Parquet files, each with a note that says what it was made of.

The JSON lines are the truth: a cache can be thrown away at any time. Its note has a stamp of the
file and the version that made it, and a cache without a note that fits is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from steptime import __version__
from steptime.core.files import replace_on_success, stamp_of
from steptime.records.row import Kinds

MAKERS = (
    *("frames/frame_builder.py", "frames/frame_columns.py", "frames/frame_lists.py"),
    *("statistics.py", "warmup.py"),
)
_MAKER_CODE = b"".join((Path(__file__).parent / name).read_bytes() for name in MAKERS)
FORMAT = f"{__version__} {hashlib.sha256(_MAKER_CODE).hexdigest()}"
IN_USE_S = 600.0  # that a command may go on reading a file that another has replaced


class FrameFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a frame of records that are not among its rows.

    Attributes:
        setting_kinds: the types of the values of each hyperparameter.
        quantity_kinds: the types of the values of each quantity that not every record has.
        warnings: lines about records that were left out.
        starts: where each file of the folder begins, and the end of the last one.
    """

    setting_kinds: Kinds = {}
    quantity_kinds: Kinds = {}
    warnings: list[str] = []
    starts: list[int] = []


class CacheNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a note.

    Attributes:
        format: version and code that made the cache.
        stamp: the stamp of the Parquet file.
        facts: the facts of its frame.
    """

    format: str
    stamp: list[int]
    facts: FrameFacts


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A note as it is written: `mark` is the hash of its text."""

    mark: str
    note: str


def find_or_make(
    folder: Path, name: str, make: Callable[[Path], FrameFacts]
) -> tuple[Path, FrameFacts]:
    """Return a Parquet file of a folder of caches, and its facts; make it if there is none.

    Older caches of its kind are removed, unless a command may still read them.

    Args:
        folder: the folder of caches.
        name: the kind of cache, `-` and what it hangs on.
        make: writes the file and returns its facts.
    """
    path, note_path = folder / f"{name}.parquet", folder / f"{name}.json"
    facts = _read_note(note_path, path)
    if facts is not None:
        return path, facts  # a cache that fits
    with _lock(folder):
        facts = _read_note(note_path, path)  # another process may have made it
        if facts is None:
            with replace_on_success(path) as temporary_path:
                facts = make(temporary_path)
            _write_note(note_path, path, facts)
            _remove_old(folder, name, path, note_path)
    return path, facts


def _write_note(note_path: Path, parquet: Path, facts: FrameFacts) -> None:
    note = CacheNote(format=FORMAT, stamp=stamp_of(parquet), facts=facts)
    text = msgspec.json.encode(note).decode()
    with replace_on_success(note_path) as temporary_path:
        temporary_path.write_bytes(msgspec.json.encode(_Envelope(mark=hash_text(text), note=text)))


def _read_note(note_path: Path, parquet: Path) -> FrameFacts | None:
    """Return the facts of a Parquet file that is as it was made, None for any other file."""
    with suppress(OSError, ValueError):
        envelope = msgspec.json.decode(note_path.read_bytes(), type=_Envelope)
        if envelope.mark != hash_text(envelope.note):  # torn or changed
            return None
        note = msgspec.json.decode(envelope.note, type=CacheNote)
        if (note.format, note.stamp) == (FORMAT, stamp_of(parquet)):
            return note.facts
    return None


def _remove_old(folder: Path, name: str, *new_paths: Path) -> None:
    """Remove other caches of this kind that no command can still read."""
    kind = name.partition("-")[0]
    newest_s = new_paths[0].stat().st_mtime
    for path in {*folder.glob(f"{kind}-*")} - {*new_paths}:
        if path.stat().st_mtime < newest_s - IN_USE_S:  # nobody reads for so long
            path.unlink()


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Wait for other processes that fill this cache; where there are no locks, go ahead."""
    with (folder / "lock").open("w") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
            for path in folder.glob(".*"):  # of a command that was killed
                path.unlink()
        yield


def hash_text(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()
