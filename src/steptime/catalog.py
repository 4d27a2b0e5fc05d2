"""The devices and links that are known: shipped as data, or written by the user.

A user's device lies in `user_devices_dir()` as NAME.toml and is found by its name like a shipped
one; a link in `user_links_dir()`. A name belongs to one device only: a user's file that carries the
name or the short name of a shipped device is refused, so that no prediction changes silently.

What others write for a device (a driver, a scheduler, a log, a person: `Tesla T4`, `k80`,
`NVIDIA_H100_80GB_HBM3`, `RTX 4090`, `a100 80gb`) is read in one place, `meant`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.hardware import GB, Device, Link, device_from_table, link_from_table
from steptime.core.stack import Stack, stack_from_table

LOCAL = "local"
DEFAULT_STACK = "torch-eager"
_DATA = Path(__file__).parent / "data"
_DEVICES = _DATA / "devices"
_LINKS = _DATA / "links"
_STACKS = _DATA / "stacks"
_ALIASES = "aliases.toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,99}")
_NOT_HASHED = (  # prose, and figures that no method of prediction reads
    *("source", "note", "products", "unverified", "only_by_name", "details"),
    *("multiprocessors", "cores", "l2_bytes", "process_nm"),
)
_BRANDS = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct", "google"})
_VARIANT = re.compile(r"sxm|pcie|rtx|gtx|\d+gb")  # a word may leave these out
_MOST_VARIANTS = 6  # in a message


def device(name: str | Path) -> Device:
    """Return the device of a name, a short name, `local`, or a path that ends in .toml.

    A name may be spelled as others spell it (`meant`). Only the file of that device is read. Raises
    `InputError` for an unknown or ambiguous name and for a file that is not a device.
    """
    text = str(name)
    key = text.lower()
    if key.endswith(".toml"):
        return _read_device(Path(text))
    if key == LOCAL:
        return _read_device(_local_file())
    path = _shipped_device(key)
    if user := _user_files(user_devices_dir()).get(key):
        if path:
            raise InputError(f"{_shown(user)}: a shipped device has this name; rename the file")
        path = user
    if path is None:
        path = _DEVICES / f"{_one_meant(text)}.toml"
    return _read_named(path)


def _one_meant(text: str) -> str:
    """Return the one shipped device that a person means; raises `InputError` otherwise."""
    names = meant(text)
    if len(names) == 1:
        return names[0]
    asked = _model_tokens(text)
    near = names or [name for name, own in _tokens_of_shipped().items() if asked and asked <= own]
    if 0 < len(near) <= _MOST_VARIANTS:
        what = f"{'ambiguous' if names else 'unknown'} device {shorten(text)}"
        raise InputError(f"{what}; did you mean {' or '.join(map(repr, near))}?")
    raise unknown("device", text, [*device_names(), *aliases(), LOCAL])


def meant(word: str) -> list[str]:
    """Return the names of the shipped devices that a word may stand for, sorted.

    Case, spaces, punctuation and the maker's name do not matter. A name, a short name and a
    driver's product name stand for one device; a word that leaves out a variant (`a100 80gb`) for
    every variant of it, but for the one of a short name (`A100`) where that is among them. Devices
    that are `only_by_name` are never meant: "k80" is the card, not a paper's figures for it.
    """
    exact = _shipped_words().get(_key(word))
    if exact:
        return [exact]
    asked = set(_tokens(word))
    if not _model_tokens(word):
        return []
    names = [
        name
        for name, own in _tokens_of_shipped().items()
        if asked <= own and all(_VARIANT.fullmatch(token) for token in own - asked)
    ]
    usual = {name for alias, name in aliases().items() if set(_tokens(alias)) <= asked}
    return [name for name in names if name in usual] or names


def platform_of(word: str) -> str | None:
    """Return the device that a driver, a scheduler or a log means by a word, or None.

    It is the user's own device of that name, or the only shipped one that `meant` finds.
    """
    if word.lower() in _user_files(user_devices_dir()) and _shipped_device(word.lower()) is None:
        return word.lower()
    names = meant(word)
    return names[0] if len(names) == 1 else None


def _tokens(text: str) -> list[str]:
    """Return what tells devices apart in a word: `Tesla V100-SXM2-16GB` is v100, sxm, 16gb."""
    parts = re.findall(r"[a-z0-9.]+", text.lower())
    return [re.sub(r"^sxm\d$", "sxm", part) for part in parts if part not in _BRANDS]


def _key(text: str) -> str:
    return "".join(_tokens(text))


def _model_tokens(text: str) -> set[str]:
    """Return the parts of a word that say more than a variant."""
    return {token for token in _tokens(text) if not _VARIANT.fullmatch(token)}


@lru_cache(maxsize=1)
def _shipped() -> tuple[Device, ...]:
    """Return the shipped devices that others may mean; the files do not change in a process."""
    return tuple(one for one in map(_read_device, _shipped_files()) if not one.only_by_name)


@lru_cache(maxsize=1)
def _shipped_words() -> Mapping[str, str]:
    """Return the names of shipped devices by the key of each name, short name and product name."""
    words = {_key(product): one.name for one in _shipped() for product in one.products}
    words |= {_key(alias): name for alias, name in aliases().items()}
    return words | {_key(one.name): one.name for one in _shipped()}


@lru_cache(maxsize=1)
def _tokens_of_shipped() -> Mapping[str, frozenset[str]]:
    """Return the tokens of the name of each shipped device, and of the size of its memory."""
    sizes = {one.name: f" {(one.memory_bytes or 0) / GB:g}gb" for one in _shipped()}
    return {name: frozenset(_tokens(name + size)) for name, size in sizes.items()}


def device_names() -> list[str]:
    """Give the names of all devices, shipped ones and the user's, sorted."""
    return sorted(_device_files())


def devices(warn: Callable[[str], object] | None = None) -> list[Device]:
    """Return all devices, sorted by name.

    A user's file that is not a device is left out and told to `warn` in one line; without `warn`
    it raises `InputError`.
    """
    readable = []
    for _, path in sorted(_device_files().items()):
        try:
            readable.append(_read_named(path))
        except InputError as error:
            if warn is None:
                raise
            warn(f"{error}; this device is left out")
    return readable


def aliases() -> dict[str, str]:
    """Give the short names, each with the name of the one device that it stands for."""
    return _read_toml(_DEVICES / _ALIASES)


def link(name: str | Path) -> Link:
    """Give the link of a name, `local`, or a path that ends in .toml.

    Raises `InputError` for an unknown name and for a file that is not a link.
    """
    text = str(name)
    if text.lower().endswith(".toml"):
        return _read_link(Path(text))
    files = _link_files()
    if text.lower() not in files:
        if text.lower() == LOCAL:
            raise InputError(
                "link 'local' is not known yet: run 'steptime probe --collectives' first"
            )
        raise unknown("link", text, sorted(files))
    return _read_link(files[text.lower()])


def link_names() -> list[str]:
    """Give the names of all links, shipped ones and the user's, sorted."""
    return sorted(_link_files())


def stack_names() -> list[str]:
    """Return the names of the software stacks, sorted."""
    return sorted(path.stem for path in _STACKS.glob("*.toml"))


@lru_cache(maxsize=16)
def stack(name: str = DEFAULT_STACK) -> Stack:
    """Return the software stack of a name, or of a path that ends in .toml.

    Raises `InputError` for an unknown name and for a file that is not a stack.
    """
    if name.lower().endswith(".toml"):
        path = Path(name)
    elif name.lower() in (names := stack_names()):
        path = _STACKS / f"{name.lower()}.toml"
    else:
        raise unknown("stack", name, names)
    return stack_from_table(_read_toml(path), _shown(path))


def write_user_link(table: Mapping[str, Any]) -> Path:
    """Write a link in datasheet units as the user's link `local` and give its path.

    Raises `InputError` if the table is no link, or the folder cannot be written to. A file that is
    there is replaced at once.
    """
    path = user_links_dir() / f"{LOCAL}.toml"
    text = "\n".join(_toml_lines(table)) + "\n"
    _check_name(link_from_table(tomllib.loads(text), _shown(path)), path)
    _replace(path, text)
    return path


def user_links_dir() -> Path:
    """Give the folder of the user's own link files, beside that of devices."""
    return user_devices_dir().with_name("links")


def user_devices_dir() -> Path:
    """Give the folder of the user's own device files, which need not exist.

    It is $STEPTIME_HOME/devices, else $XDG_DATA_HOME/steptime/devices, else
    ~/.local/share/steptime/devices.
    """
    if home := os.environ.get("STEPTIME_HOME"):
        return Path(home) / "devices"
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "steptime" / "devices"


def write_user_device(table: Mapping[str, Any], name: str) -> Path:
    """Write a device in datasheet units as the user's NAME.toml, make it `local`, give its path.

    Raises `InputError` if the table is no device, its name is not `name`, the name is taken by a
    shipped device, or the folder cannot be written to. A file of the same name is replaced at once.
    """
    key = name.lower()
    if not _NAME.fullmatch(key) or key == LOCAL:
        raise InputError(f"{shorten(name)} cannot name a device: letters, digits and . _ + - only")
    if _shipped_device(key):
        raise InputError(f"{shorten(name)} is the name of a shipped device; choose another one")
    path = user_devices_dir() / f"{key}.toml"
    text = "\n".join(_toml_lines(table)) + "\n"
    _check_name(device_from_table(tomllib.loads(text), _shown(path)), path)
    _replace(path, text)
    _replace(user_devices_dir() / LOCAL, f"{key}\n")
    return path


def device_hash(device: Device) -> str:
    """Return 12 hexadecimal digits that change with every figure that a method may read."""
    figures = {key: value for key, value in asdict(device).items() if key not in _NOT_HASHED}
    text = json.dumps(figures, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _shipped_files() -> list[Path]:
    return sorted(path for path in _DEVICES.glob("*.toml") if path.name != _ALIASES)


def _shipped_device(key: str) -> Path | None:
    """Give the file of a shipped device by its name or short name in lower case, or None."""
    if not _NAME.fullmatch(key):
        return None
    path = _DEVICES / f"{key}.toml"
    if path.name != _ALIASES and path.is_file():
        return path
    by_lower = {alias.lower(): name for alias, name in aliases().items()}
    return _DEVICES / f"{by_lower[key]}.toml" if key in by_lower else None


def _link_files() -> dict[str, Path]:
    """Give the files of all links by name; raises `InputError` where two have the same."""
    shipped = {path.stem: path for path in _LINKS.glob("*.toml")}
    own = _user_files(user_links_dir())
    for name, path in own.items():
        if name in shipped:
            raise InputError(f"{_shown(path)}: a shipped link has this name; rename the file")
    return shipped | own


def _user_files(folder: Path) -> dict[str, Path]:
    """Give the user's files of one folder by name in lower case."""
    try:
        found = sorted(folder.glob("*.toml"))
    except OSError as error:
        raise InputError(f"{_shown(folder)}: {error.strerror}") from error
    return {path.stem.lower(): path for path in found}


def _device_files() -> dict[str, Path]:
    return _user_files(user_devices_dir()) | {path.stem: path for path in _shipped_files()}


def _local_file() -> Path:
    """Give the device file of this machine's last probe."""
    pointer = user_devices_dir() / LOCAL
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise InputError("device 'local' is not known yet: run 'steptime probe' first") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{_shown(pointer)}: {error}") from error
    if not _NAME.fullmatch(name):
        raise InputError(f"{_shown(pointer)}: {shorten(name)} cannot name a device")
    return user_devices_dir() / f"{name}.toml"


def _read_named(path: Path) -> Device:
    """Give the device of a file that is found by its name, which the device must have."""
    found = _read_device(path)
    _check_name(found, path)
    return found


def _check_name(found: Device | Link, path: Path) -> None:
    if found.name.lower() != path.stem.lower():
        raise InputError(
            f"{_shown(path)}: 'name' must be the file's, {shorten(path.stem)}, "
            f"not {shorten(found.name)}"
        )


def _read_device(path: Path) -> Device:
    return device_from_table(_read_toml(path), _shown(path))


def _read_link(path: Path) -> Link:
    return link_from_table(_read_toml(path), _shown(path))


def _read_toml(path: Path) -> dict[str, Any]:
    """Give the table of a TOML file; raises `InputError` with one line if there is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{_shown(path)}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise InputError(f"{_shown(path)}: not a text file in UTF-8") from None
    except RecursionError:
        raise InputError(f"{_shown(path)}: not TOML: nested too deeply") from None
    except (
        ValueError
    ) as error:  # TOMLDecodeError is one, a NUL in the path and an endless number too
        raise InputError(f"{_shown(path)}: not TOML: {error}") from error


def _shown(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() and len(text) <= 300 else shorten(text)


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all; raises `InputError` if the folder cannot be written to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{os.getpid()}.new")
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise InputError(f"{_shown(path)}: cannot be written: {error.strerror}") from error


def _toml_lines(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Give the lines of a TOML table: its values first, then its tables; `None` is left out."""
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    for key, value in table.items():
        if key not in inner and value is not None:
            yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in inner.items():
        path = f"{prefix}{_toml_key(key)}"
        yield f"\n[{path}]"
        yield from _toml_lines(value, f"{path}.")


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: object) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, bool | str):  # TOML's texts are JSON's, but for the DEL character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    raise TypeError(f"TOML has no {type(value).__name__}")
