"""Read networks from files of other tools: a table of formats, one reader each."""

import json
import mmap
import os
import stat
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any, TypeVar

from steptime.core import registry
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.graph_json import KEY
from steptime.hardware.item_files import user_folder
from steptime.network.families.family import Family

READ_ERRORS = (  # what values of another form than is read end in
    *(TypeError, ValueError, LookupError, ArithmeticError, AttributeError),
    *(MemoryError, RecursionError),
)
T = TypeVar("T")
LARGEST_FILE_BYTES = 4_000_000  # of a file that is read whole
MAX_JSON_VALUES = (
    4_000_000  # of a JSON text, commas and brackets: they take far more memory than it
)


@dataclass(frozen=True)
class Source:
    """A file that may hold a network: its path, and its bytes, mapped where it may be large."""

    path: str
    content: bytes | mmap.mmap

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return Path(self.path).name

    @cached_property
    def text(self) -> str:
        """The file's text; raises `InputError` for what is not UTF-8."""
        try:
            return self.content[:].decode()
        except UnicodeDecodeError:
            raise InputError(f"model {shorten(self.path)}: not a text file in UTF-8") from None

    @cached_property
    def table(self) -> object:
        """The values of a JSON file; raises `InputError` for one that is not JSON."""
        return parse_json_file(self.text, f"model {shorten(self.path)}:")

    @cached_property
    def _made(self) -> dict[object, tuple[object, Any]]:
        return {}

    def memoise(self, what: object, make: Callable[[], T], key: object = None) -> T:
        """Return what a reader makes of the file, made once: of several keys the last is kept."""
        if what not in self._made or self._made[what][0] != key:
            self._made[what] = key, make()
        made: T = self._made[what][1]
        return made


Read = Callable[[Source, bool], Family]


@dataclass(frozen=True)
class Format:
    """One kind of file that holds a network, told by the `ending` of its name.

    `read`, `module:function`, makes a `Source` a `Family`; its second argument,
    `allow_unknown`, lets what is unknown pass its input on. Kinds with one ending, JSON, are told
    apart by `recognises`, given the file's values. `identity`, a function too, returns the bytes of
    a `Source` that say the network, where these are not all of them: weights are left out. A file
    that is not `mapped` is read whole, and not large.
    """

    ending: str
    read: str
    recognises: Callable[[dict[str, Any]], bool] = lambda _: True
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
        identity="steptime.formats.keras.read:config_of",
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
FOLDER_FILES = ("adapter_config.json", "config.json")  # of a folder: the first that it has
ENDINGS = tuple(dict.fromkeys(row.ending for row in FORMATS))


def file_in_folder(path: str) -> str:
    """Return the file that says the network of a folder of Hugging Face, else the path itself."""
    for name in FOLDER_FILES:
        file = str(Path(path) / name)
        if os.path.isfile(file):  # noqa: PTH113  # False, whatever is wrong with the name
            return file
    return path


def is_network_file(name: str) -> bool:
    """Whether a file of this name may hold a network."""
    return name.lower().endswith(ENDINGS)


def read_content(path: str, what: str = "model") -> bytes:
    """Return a file's bytes; raises `InputError` for one that cannot be read or is too large."""
    return bytes(_opened(path, what, False))


def _opened(path: str, what: str, mapped: bool) -> bytes | mmap.mmap:
    try:
        if stat.S_ISFIFO(Path(path).stat().st_mode):  # reading one waits for a writer
            raise InputError(f"{what} {shorten(path)}: is a pipe, not a file")
        with Path(path).open("rb") as file:
            if mapped:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            content = file.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"{what} {shorten(path)}: no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)[:100] or type(error).__name__
        raise InputError(f"{what} {shorten(path)}: cannot be read: {reason}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise InputError(f"{what} {shorten(path)}: larger than {LARGEST_FILE_BYTES} bytes")
    return content


def open_source(path: str) -> Source:
    """Return a file that may hold a network; raises `InputError` for one that cannot be read."""
    mapped = any(row.mapped for row in FORMATS if path.lower().endswith(row.ending))
    return Source(path, _opened(path, "model", mapped))


def describe_error(error: Exception) -> str:
    """Return what an error says, in one line of bounded length."""
    return shorten(str(error).partition("\n")[0] or type(error).__name__)[1:-1]


def parse_json(text: str) -> Any:
    """Return the values of a JSON text; raises `ValueError`, also for a key given twice."""
    values = sum(map(text.count, ",[{"))
    if values > MAX_JSON_VALUES:
        raise ValueError(f"{values} values, above {MAX_JSON_VALUES}")

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table: dict[str, object] = {}
        for key, value in pairs:
            if key in table:
                raise ValueError(f"key {shorten(key)} is given twice")
            table[key] = value
        return table

    return json.loads(text, object_pairs_hook=once)


def parse_json_file(content: str | bytes, place: str) -> Any:
    """Return the values of a file of JSON; raises `InputError`, which begins with `place`."""
    try:
        return parse_json(content if isinstance(content, str) else content.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is no JSON: {describe_error(error)}") from None


def find_format(source: Source) -> Format | None:
    """Return the kind of network that a file holds, None for JSON that is not one of a network.

    Raises `InputError` for a file whose name ends otherwise than those of networks.
    """
    rows = [row for row in FORMATS if source.path.lower().endswith(row.ending)]
    if not rows:
        raise unknown("end of a network's file name", Path(source.path).suffix, ENDINGS)
    if rows[0].ending != ".json":
        return rows[0]
    table = source.table
    if not isinstance(table, dict):
        return None
    return next((row for row in rows if row.recognises(table)), None)


_SOURCES: dict[tuple[str, str], Source] = {}  # by path and hash; what is made of one lies with it
_MOST_SOURCES = 64


def remember_source(source: Source, row: Format) -> str:
    """Return 16 hexadecimal digits that stand for what says a network; `network` then has it."""
    from hashlib import sha256  # which loads OpenSSL

    says = registry.load(row.identity)(source) if row.identity else source.content
    digest = sha256(says).hexdigest()[:16]
    while len(_SOURCES) >= _MOST_SOURCES:
        _SOURCES.pop(next(iter(_SOURCES)), None)
    _SOURCES[source.path, digest] = source
    return digest


def find_network_file(file: str, sha256: str) -> str:
    """Return where a file of this hash lies: a bare name, or code, may be a kept network."""
    code = registry.load("steptime.formats.code:code_of")(file) if sha256 else None
    if not sha256 or (code is None and Path(file).name != file):
        return file
    first = code.default_path if code else Path(file)
    kept, name = user_folder("networks"), first.name
    for path in map(str, (first, kept / name, *sorted(kept.glob(f"*/{escape(name)}")))):
        if Path(path).is_file():
            source = open_source(path)
            row = find_format(source)
            if row and remember_source(source, row) == sha256:
                return path
    return file


def read_network(path: str, sha256: str, allow_unknown: bool) -> Family:
    """Return the network of a file; raises `InputError` where it has another hash by now."""
    source = _SOURCES.get((path, sha256))
    if source is None:
        place = find_network_file(path, sha256)
        source = _SOURCES.get((place, sha256)) or open_source(place)
        row = find_format(source)
        is_read = (place, sha256) in _SOURCES
        if row is None or (not is_read and remember_source(source, row) != sha256):
            raise InputError(f"model {shorten(place)}: the file has changed since it was read")
        _SOURCES[path, sha256] = source  # code, or the bare name of a file that is kept
    row = find_format(source)
    if row is None:
        raise InputError(f"model {shorten(path)}: the file has changed since it was read")
    read: Read = registry.load(row.read)
    return source.memoise((read, allow_unknown), lambda: read(source, allow_unknown))


def read_table(path: str, label: str) -> object:
    """Read a file of JSON, if its name ends so, else of TOML.

    Args:
        path: the file.
        label: the kind of file, for messages.

    Raises:
        InputError: for a file that is absent, too large, or neither.
    """
    form = "JSON" if path.lower().endswith(".json") else "TOML"
    try:
        decoded = read_content(path, label).decode()
        return parse_json(decoded) if form == "JSON" else tomllib.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{label} {shorten(path)}: is no {form}: {describe_error(error)}"
        ) from None
