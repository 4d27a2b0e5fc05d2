"""Networks from files of other tools: each reader turns a file's text into a `Family`."""

import hashlib
import json
import stat
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from steptime.core import registry
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.graph_json import KEY
from steptime.models.family import Family

GRAPH_FILE = "steptime.importers.graph_file:read"  # told by the key of `core.graph_json`
READERS = {  # end of the file's name: a reader
    ".json": "steptime.importers.paleo.read:read",
    ".prototxt": "steptime.importers.caffe.read:read",
}
LARGEST_FILE_BYTES = 4_000_000

Reader = Callable[[str, str, bool], Family]


def is_network_file(name: str) -> bool:
    """Whether a file of this name may hold a network."""
    return name.lower().endswith(tuple(READERS))


def read_content(path: str, what: str = "model") -> bytes:
    """Return a file's bytes; raises `InputError` for one that cannot be read or is too large."""
    try:
        if stat.S_ISFIFO(Path(path).stat().st_mode):  # reading one waits for a writer
            raise InputError(f"{what} {shorten(path)}: is a pipe, not a file")
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{what} {shorten(path)}: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputError(f"{what} {shorten(path)}: cannot be read: {reason}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise InputError(f"{what} {shorten(path)}: larger than {LARGEST_FILE_BYTES} bytes")
    return content


def json_of(text: str) -> object:
    """Return the values of a JSON text; raises `ValueError` for none and for a key given twice."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table: dict[str, object] = {}
        for key, value in pairs:
            if key in table:
                raise ValueError(f"key {shorten(key)} is given twice")
            table[key] = value
        return table

    result: object = json.loads(text, object_pairs_hook=once)
    return result


_REMEMBERED: dict[tuple[str, str], bytes] = {}


def remembered(path: str, content: bytes) -> str:
    """Return 16 hexadecimal digits that stand for a file's content, kept for `network`."""
    sha256 = hashlib.sha256(content).hexdigest()[:16]
    _REMEMBERED[path, sha256] = content
    return sha256


@lru_cache(maxsize=64)
def network(path: str, sha256: str, allow_unknown: bool) -> Family:
    """Return the network of a file whose content has the hash `sha256`.

    With `allow_unknown` a layer of unknown type passes its input on and is named in the result.
    Raises `InputError` for what is not a network, and where the file has changed.
    """
    if (path, sha256) not in _REMEMBERED and remembered(path, read_content(path)) != sha256:
        raise InputError(f"model {shorten(path)}: the file has changed since it was read")
    content = _REMEMBERED.pop((path, sha256))
    text = _text(content, path)
    return _reader(path, text)(text, Path(path).name, allow_unknown)


def _text(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InputError(f"model {shorten(path)}: not a text file in UTF-8") from None


def is_graph(table: object) -> bool:
    """Whether the values of a JSON file are a native graph."""
    return isinstance(table, dict) and KEY in table


def _reader(path: str, text: str) -> Reader:
    for ending, target in READERS.items():
        if path.lower().endswith(ending):
            native = ending == ".json" and f'"{KEY}"' in text and is_graph(json_of(text))
            reader: Reader = registry.load(GRAPH_FILE if native else target)
            return reader
    raise unknown("end of a network's file name", Path(path).suffix, READERS)
