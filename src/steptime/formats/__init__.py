"""Read networks from files of other tools: a table of formats, one reader each."""

import json
import mmap
import os
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from steptime.core import registry
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.graph_json import KEY
from steptime.core.json_types import JsonObject, JsonValue
from steptime.hardware.item_files import user_folder
from steptime.network.families.family import Family

READ_ERRORS = (  # errors of a reader that meets values of another form than it expects
    *(TypeError, ValueError, LookupError, ArithmeticError, AttributeError),
    *(MemoryError, RecursionError),
)
T = TypeVar("T")
LARGEST_FILE_BYTES = 4_000_000  # of a file that is read into memory at once
MAX_JSON_VALUES = 4_000_000  # counted by commas and brackets; Python takes some 100 bytes for each
MAX_REASON_LENGTH = 100  # characters of an error of the system in a message


class _Memo(NamedTuple):
    """A memoised result.

    Attributes:
        key: the arguments that it was computed for.
        result: what the function returned.
    """

    key: object
    result: object


@dataclass(frozen=True)
class Source:
    """A file that may hold a network.

    Attributes:
        path: the path.
        content: the bytes, mapped into memory where the file may be large.
    """

    path: str
    content: bytes | mmap.mmap

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return Path(self.path).name

    @cached_property
    def text(self) -> str:
        """The file's text; raises `InputError` if it is not UTF-8."""
        try:
            return self.content[:].decode()
        except UnicodeDecodeError:
            raise InputError(f"model {shorten(self.path)}: not a text file in UTF-8") from None

    @cached_property
    def table(self) -> object:
        """The values of a JSON file; raises `InputError` if it is not JSON."""
        return parse_json_file(self.text, f"model {shorten(self.path)}:")

    @cached_property
    def _memos(self) -> dict[object, _Memo]:
        return {}

    def memoise(self, name: object, compute: Callable[[], T], key: object = None) -> T:
        """Return `compute()`, memoised with the file.

        Args:
            name: the name of the result; a file keeps one result of each name.
            compute: computes the result.
            key: the arguments of the computation; with another key the result is computed again.
        """
        memo = self._memos.get(name)
        if memo is None or memo.key != key:
            memo = _Memo(key, compute())
            self._memos[name] = memo
        result: T = memo.result  # type: ignore[assignment]  # of this name and key
        return result


Read = Callable[[Source, bool], Family]


@dataclass(frozen=True)
class Format:
    """One kind of file that holds a network.

    Attributes:
        ending: the end of its file names.
        read: the reader, `module:function`, which makes a `Source` a `Family`. Its second argument,
            `allow_unknown`, lets layers of unknown type pass their input on.
        recognises: whether the values of a JSON file are of this kind.
        identity: a function, `module:function`, that returns the bytes of a `Source` which decide
            the network, without the weights; "" if all bytes decide it.
        mapped: whether the file is mapped into memory, because it may be large.
    """

    ending: str
    read: str
    recognises: Callable[[JsonObject], bool] = lambda _: True
    identity: str = ""
    mapped: bool = False


FORMATS = (
    Format(".json", "steptime.formats.graph_file:read", lambda table: KEY in table),
    Format(
        ".json",
        "steptime.formats.huggingface.reading:read",
        lambda table: "model_type" in table and not isinstance(table.get("layers"), dict),
    ),
    Format(".json", "steptime.formats.diffusers.read:read", lambda table: "_class_name" in table),
    Format(
        ".json",
        "steptime.formats.huggingface.adapters:read",
        lambda table: "peft_type" in table,
    ),
    Format(
        ".json",
        "steptime.paleo.files.read:read",
        lambda table: "layers" in table and not {"family", "model"} & table.keys(),
    ),
    Format(
        ".json",
        "steptime.formats.keras.read:read",
        lambda table: "class_name" in table and isinstance(table.get("config"), dict | list),
    ),
    Format(
        ".keras",
        "steptime.formats.keras.read:read",
        identity="steptime.formats.keras.read:identity",
        mapped=True,
    ),
    Format(".prototxt", "steptime.formats.caffe.read:read"),
    Format(
        ".onnx",
        "steptime.formats.onnx.read:read",
        identity="steptime.formats.onnx.model:identity",
        mapped=True,
    ),
    Format(
        ".pt2",
        "steptime.formats.pytorch.read:read",
        identity="steptime.formats.pytorch.read:identity",
        mapped=True,
    ),
    Format(
        ".gguf",
        "steptime.formats.gguf.model:read",
        identity="steptime.formats.gguf.header:identity",
        mapped=True,
    ),
)
FOLDER_FILES = ("adapter_config.json", "config.json")  # of a Hugging Face folder, by precedence
ENDINGS = tuple(dict.fromkeys(file_format.ending for file_format in FORMATS))


def file_in_folder(path: str) -> str:
    """Return the file that describes the network of a Hugging Face folder, else the path itself."""
    for name in FOLDER_FILES:
        file = str(Path(path) / name)
        if os.path.isfile(file):  # noqa: PTH113  # False, whatever is wrong with the name
            return file
    return path


def is_network_file(name: str) -> bool:
    """Whether a file of this name may hold a network."""
    return name.lower().endswith(ENDINGS)


def read_content(path: str, label: str = "model") -> bytes:
    """Read all bytes of a file.

    Args:
        path: the file.
        label: the kind of file, for messages.

    Raises:
        InputError: for a file that cannot be read or is too large.
    """
    with _open_file(path, label) as file:
        content = file.read(LARGEST_FILE_BYTES + 1)
    if len(content) > LARGEST_FILE_BYTES:
        raise InputError(f"{label} {shorten(path)}: larger than {LARGEST_FILE_BYTES} bytes")
    return content


def _map_content(path: str, label: str) -> mmap.mmap:
    """Map a file into memory, whatever its size; raises `InputError`."""
    with _open_file(path, label) as file:
        return mmap.mmap(file.fileno(), length=0, access=mmap.ACCESS_READ)


@contextmanager
def _open_file(path: str, label: str) -> Iterator[BinaryIO]:
    """Open a file; all errors of the system, also while it is read, become an `InputError`."""
    try:
        if stat.S_ISFIFO(Path(path).stat().st_mode):  # reading one waits for a writer
            raise InputError(f"{label} {shorten(path)}: is a pipe, not a file")
        with Path(path).open("rb") as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"{label} {shorten(path)}: no such file") from None
    except (OSError, ValueError) as error:
        system_reason = getattr(error, "strerror", None)
        reason = system_reason or str(error)[:MAX_REASON_LENGTH] or type(error).__name__
        raise InputError(f"{label} {shorten(path)}: cannot be read: {reason}") from None


def open_source(path: str) -> Source:
    """Open a file that may hold a network; raises `InputError` if it cannot be read."""
    is_mapped = any(
        file_format.mapped for file_format in FORMATS if path.lower().endswith(file_format.ending)
    )
    return Source(path, _map_content(path, "model") if is_mapped else read_content(path))


def describe_error(error: Exception) -> str:
    """Describe an error by the first line of its text, or its type, in bounded length."""
    return shorten(str(error).partition("\n")[0] or type(error).__name__)[1:-1]


def parse_json(text: str) -> JsonValue:
    """Parse a JSON text.

    Raises:
        ValueError: for a text that is no JSON, that repeats a key, or that has too many values.
    """
    value_count = sum(text.count(sign) for sign in ",[{")
    if value_count > MAX_JSON_VALUES:
        raise ValueError(f"{value_count} values, above {MAX_JSON_VALUES}")
    return json.loads(text, object_pairs_hook=_make_object)


def _make_object(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Make a JSON object of its pairs; raises `ValueError` for a repeated key."""
    table: JsonObject = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"key {shorten(key)} is given twice")
        table[key] = value
    return table


def parse_json_file(content: str | bytes, place: str) -> JsonValue:
    """Parse the content of a JSON file.

    Args:
        content: the text, or its bytes in UTF-8.
        place: the file, with which the message begins.

    Raises:
        InputError: for a content that is no JSON.
    """
    try:
        return parse_json(content if isinstance(content, str) else content.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is no JSON: {describe_error(error)}") from None


def find_format(source: Source) -> Format | None:
    """Find the format of a network's file, None for JSON that holds no network.

    Raises:
        InputError: for a file name with another ending than those of networks.
    """
    formats = [
        file_format for file_format in FORMATS if source.path.lower().endswith(file_format.ending)
    ]
    if not formats:
        raise unknown("end of a network's file name", Path(source.path).suffix, ENDINGS)
    if formats[0].ending != ".json":  # which several formats have: the content tells which
        return formats[0]
    table = source.table
    if not isinstance(table, dict):
        return None
    return next((file_format for file_format in formats if file_format.recognises(table)), None)


MAX_SOURCES = 64  # files that are kept open with their memoised networks
HASH_DIGITS = 16  # hexadecimal digits of a hash: no two networks share 64 bits
_SOURCES: dict[tuple[str, str], Source] = {}  # by path and hash, the oldest first


def remember_source(source: Source, file_format: Format) -> str:
    """Keep a file for `read_network`, and return a hash of the bytes that decide its network.

    The hash has 16 hexadecimal digits. The oldest file is dropped when there are too many.
    """
    from hashlib import sha256  # which loads OpenSSL

    if file_format.identity:  # what decides the network alone, without the weights
        identity = registry.load(file_format.identity)(source)
    else:
        identity = source.content
    digest = sha256(identity).hexdigest()[:HASH_DIGITS]
    while len(_SOURCES) >= MAX_SOURCES:
        _SOURCES.pop(next(iter(_SOURCES)), None)  # the oldest one
    _SOURCES[source.path, digest] = source
    return digest


def find_network_file(file: str, sha256: str) -> str:
    """Find the file of a network that was stored as code, or as a name without its folder.

    Args:
        file: a path, a file name, or code such as `model.py:Net`.
        sha256: the hash that the file must have; "" for a network that is no file.

    Returns:
        The path of a file with this hash, `file` itself if there is none.
    """
    if not sha256:  # of a named network, which is no file
        return file
    code = registry.load("steptime.formats.code:parse_code")(file)
    is_bare_name = Path(file).name == file
    if code is None and not is_bare_name:
        return file
    path = code.default_path if code else Path(file)
    cache = user_folder("networks")  # with a folder for each file of code
    candidates = (path, cache / path.name, *sorted(cache.glob(f"*/{escape(path.name)}")))
    for candidate in map(str, candidates):
        if Path(candidate).is_file():
            source = open_source(candidate)
            file_format = find_format(source)
            if file_format and remember_source(source, file_format) == sha256:
                return candidate
    return file


def read_network(path: str, sha256: str, allow_unknown: bool) -> Family:
    """Read the network of a file.

    Args:
        path: the file, or a text that `find_network_file` understands.
        sha256: the hash that the file had when the network was named.
        allow_unknown: let layers of unknown type pass their input on.

    Raises:
        InputError: if the file cannot be read, or has another hash by now.
    """
    source = _SOURCES.get((path, sha256))
    if source is None:
        source = _reopen_source(path, sha256)
    file_format = find_format(source)
    if file_format is None:
        raise _changed_file_error(path)
    read: Read = registry.load(file_format.read)
    return source.memoise((read, allow_unknown), lambda: read(source, allow_unknown))


def _reopen_source(path: str, sha256: str) -> Source:
    """Open the file of a network, check that it still has the hash, and keep it."""
    current_path = find_network_file(path, sha256)
    source = _SOURCES.get((current_path, sha256))
    if source is None:
        source = open_source(current_path)
        file_format = find_format(source)
        if file_format is None or remember_source(source, file_format) != sha256:
            raise _changed_file_error(current_path)
    _SOURCES[path, sha256] = source  # `path` may be code, or a name without its folder
    return source


def _changed_file_error(path: str) -> InputError:
    return InputError(f"model {shorten(path)}: the file has changed since it was read")


def read_table(path: str, label: str) -> object:
    """Read a file of JSON, if its name ends so, else of TOML.

    Args:
        path: the file.
        label: the kind of file, for messages.

    Raises:
        InputError: for a file that is absent, too large, or neither.
    """
    syntax = "JSON" if path.lower().endswith(".json") else "TOML"
    try:
        text = read_content(path, label).decode()
        return parse_json(text) if syntax == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = describe_error(error)
        raise InputError(f"{label} {shorten(path)}: is no {syntax}: {reason}") from None
