"""The devices, links and software stacks that are known: shipped as data, or the user's own files.

A user's file NAME.toml lies in a folder of the same name as the shipped ones (`user_folder`). One
with the name or the short name of a shipped one is refused: no prediction changes silently.

What others write for a device (a driver, a scheduler, a log, a person: `Tesla T4`, `RTX 4090`,
`NVIDIA_H100_80GB_HBM3`, `a100 80gb`) is read in one place, `meant`.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.files import write_atomically
from steptime.core.spelling import VARIANT, digit_slips, key_of, model_tokens, tokens
from steptime.core.toml_files import DATA, format_path, read_toml, read_toml_head, toml_text
from steptime.hardware import links
from steptime.hardware.constants import Constant, constants_from_table
from steptime.hardware.device import GB, Device, Link, device_from_table, link_from_table
from steptime.hardware.fresh import fresh, kept
from steptime.hardware.stack import Stack, stack_from_table

LOCAL = "local"
DEFAULT_STACK = "torch-eager"
PAPER_METHOD = "paleo"  # the method whose table of devices is its own
_ALIASES = DATA / "devices" / "aliases.toml"
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,99}")
_TOOK_OVER = {"ada", "blackwell"}  # generations whose cards have a Quadro's number
_MOST_VARIANTS = 6  # in a message
_Item = TypeVar("_Item", Device, Link, Stack)


@dataclass(frozen=True)
class _Shelf(Generic[_Item]):
    """The files of one folder of data, and of the user's folder of that name."""

    what: str
    folder: str
    read: Callable[[Mapping[str, Any], str], _Item]

    @lru_cache  # noqa: B019  # three shelves, which live as long as the program
    def shipped(self) -> Mapping[str, Path]:
        """Return the shipped files by name; none comes while a program runs."""
        folder = DATA / self.folder
        return {one.stem: one for one in sorted(folder.glob("*.toml")) if one != _ALIASES}

    def own(self) -> dict[str, Path]:
        """Return the user's files by name in lower case."""
        folder = user_folder(self.folder)
        try:
            return {path.stem.lower(): path for path in sorted(folder.glob("*.toml"))}
        except OSError as error:
            raise InputError(f"{format_path(folder)}: {error.strerror}") from error

    def files(self) -> dict[str, Path]:
        """Return all files by name, sorted."""
        return dict(sorted({**self.own(), **self.shipped()}.items()))

    def path(self, key: str, alias: str | None = None) -> Path | None:
        """Return the file of a name in lower case, or of what it is short for, or None."""
        if not _NAME.fullmatch(key):
            return None
        known = self.shipped().get(alias or key)
        own = self.own().get(key)
        if own and known:
            raise InputError(
                f"{format_path(own)}: a shipped {self.what} has this name; rename the file"
            )
        return known or own

    def at(self, path: Path) -> _Item:
        """Return the item of a file, whatever its name."""
        return self.read(read_toml(path), format_path(path))

    def named(self, path: Path) -> _Item:
        """Return the item of a file found by its name, which must be that of the item."""
        return _checked(self.at(path), path)

    def file(self, name: str, option: str = "") -> Path:
        """Return the file of a name, or of a path that ends in .toml; `option` is for messages."""
        key = name.lower()
        path = Path(name) if key.endswith(".toml") else self.path(key)
        if path is None:
            raise unknown(self.what, name, self.files(), option)
        return path

    def one(self, name: str, option: str = "") -> _Item:
        """Return the item of a name, or of a path that ends in .toml."""
        return self.at(self.file(name, option))

    def write(self, table: Mapping[str, Any], name: str) -> Path:
        """Write the user's NAME.toml, replacing one that is there at once, and return its path."""
        path = user_folder(self.folder) / f"{name}.toml"
        text = toml_text(table)
        _checked(self.read(tomllib.loads(text), format_path(path)), path)
        write_atomically(path, text, makes_folder=True)
        return path


_DEVICES = _Shelf("device", "devices", device_from_table)
_LINKS = _Shelf("link", "links", link_from_table)


def _read_stack(table: Mapping[str, Any], where: str) -> Stack:
    """Return the stack of a table, told over the one that it is `like`."""
    like = _like(table, where)
    return stack_from_table(table, where, stack(like) if like else None)


_STACKS = _Shelf("stack", "stacks", _read_stack)


def _checked(item: _Item, path: Path) -> _Item:
    if item.name.lower() != path.stem.lower():
        own = f"'name' must be the file's, {shorten(path.stem)}, not {shorten(item.name)}"
        raise InputError(f"{format_path(path)}: {own}")
    return item


def user_folder(kind: str) -> Path:
    """Return the folder of the user's own files of a kind, such as devices; it need not exist.

    It lies in $STEPTIME_HOME, else $XDG_DATA_HOME/steptime, else ~/.local/share/steptime.
    """
    if home := os.environ.get("STEPTIME_HOME"):
        return Path(home) / kind
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "steptime" / kind


def device(name: str | os.PathLike[str] | Device, method: str = "") -> Device:
    """Return the device of a name, a short name, `local`, a path that ends in .toml, or itself.

    A name may be spelled as others spell it (`meant`). Only the file of that device is read. Under
    the method `paleo` a name of Paleo's table means Paleo's figures, else the datasheet's: K80.
    Raises `InputError` for an unknown or ambiguous name and for a file that is not a device.
    """
    if isinstance(name, Device):
        return name
    text, key = str(name), str(name).lower()
    if key == LOCAL or key.endswith(".toml"):
        return _DEVICES.at(_local_file() if key == LOCAL else Path(text))
    path = _device_path(key)
    item = path and _DEVICES.named(path)
    if item and (method == PAPER_METHOD or not item.only_by_name):
        return item
    if item and not meant(text):
        raise InputError(f"device {shorten(text)} is of Paleo's table: --method {PAPER_METHOD}")
    return _spelled(text) or _DEVICES.named(_DEVICES.shipped()[_one_meant(text)])


def device_names(own: bool = True) -> list[str]:
    """Return the names of all devices, shipped ones and if asked the user's, sorted."""
    return list(_DEVICES.files() if own else _DEVICES.shipped())


def is_own(name: str) -> bool:
    """Whether a device is one of the user's own files."""
    return name.lower() in _DEVICES.own()


def devices(warn: Callable[[str], object] | None = None) -> list[Device]:
    """Return all devices by name; `warn` is told of a user's file that is not a device.

    Without `warn` such a file raises `InputError`.
    """
    readable = []
    for path in _DEVICES.files().values():
        try:
            readable.append(_DEVICES.named(path))
        except InputError as error:
            if warn is None:
                raise
            warn(f"{error}; this device is left out")
    return readable


def aliases() -> dict[str, str]:
    """Return the short names, each with the name of the one device that it stands for."""
    return read_toml(_ALIASES)


def link(name: str | os.PathLike[str] | Link, option: str = "") -> Link:
    """Return the link of a name (also `NVLink3 x12`), `local`, a .toml, or itself."""
    if isinstance(name, Link):
        return name
    text = str(name)
    if text.lower() == LOCAL and _LINKS.path(LOCAL) is None:
        raise InputError("link 'local' is not known: run 'steptime calibrate --only link' first")
    if not text.lower().endswith(".toml") and _LINKS.path(text.lower()) is None:
        callers = [one for one in _shipped() if links.plain(one.node_link) == links.plain(text)]
        near = {one.name: one for device in callers for one in links_of(device)}
        if len(near) == 1:
            return near.popitem()[1]
        if near:
            raise unknown("link", text, near, option)
    return _LINKS.one(text, option)


def links_of(device: Device) -> list[Link]:
    """Return the links that a device's file may mean by what it calls its own (`links.meant`)."""
    return links.meant(device, link_names(), link)


def link_names() -> list[str]:
    """Return the names of all links, shipped ones and the user's, sorted."""
    return list(_LINKS.files())


def stack_names(own: bool = True) -> list[str]:
    """Return the names of all software stacks, shipped ones and if asked the user's, sorted."""
    return list(_STACKS.files() if own else _STACKS.shipped())


def stack(name: str = DEFAULT_STACK) -> Stack:
    """Return the software stack of a name or of a .toml file; raises `InputError` for another."""
    path = _STACKS.file(DEFAULT_STACK if name == "torch" else name)
    return kept(path, lambda: (_with_bases(path), _STACKS.at(path)))


def stack_since(name: str) -> str:
    """Return the month since which a software stack is the newest, "" where its file says none.

    Only the heads of the files are read, of the stack and of those that it is `like`.
    """
    for path in _with_bases(_STACKS.file(name)):
        head = _stack_head(path)
        if "since" in head or "since" in head.get("unlike", ()):
            return str(head.get("since", ""))
    return ""


def _stack_head(path: Path) -> Mapping[str, Any]:
    """Return the values of a stack's file before its first table, anew where it was written."""
    return kept(("head of a stack", path), lambda: ([path], read_toml_head(path)))


def _with_bases(path: Path) -> list[Path]:
    """Return the file of a stack, that of the one that it is `like`, and so on."""
    found = [path]
    while like := _like(_stack_head(found[-1]), ""):
        base = _STACKS.shipped().get(like) or _STACKS.path(like.lower())
        if base is None:
            raise unknown("stack", like, _STACKS.files(), f"{format_path(found[-1])}: like")
        if base in found:
            raise InputError(
                f"{format_path(found[-1])}: 'like' leads back to {base.stem} in a circle"
            )
        found.append(base)
    return found


def _like(table: Mapping[str, Any], _: str) -> str:
    like = table.get("like")
    return like if isinstance(like, str) else ""


def priors(kind: str, software: str = DEFAULT_STACK) -> Mapping[str, Constant]:
    """Return the constants of calibrated times for a kind of device, unmeasured kinds as a GPU.

    Those of the host (a CPU is its own) are the stack's, with those of its uses.
    """
    owner = kind if (DATA / "priors" / f"{kind}.toml").is_file() else "gpu"
    found = {**constants_of(owner), **stack().uses, **stack(software).uses}
    return found if kind == "cpu" else {**found, **stack(software).host}


def constants_of(owner: str) -> Mapping[str, Constant]:
    """Return the constants of a kind of device, of a `host` or of a `link`, whatever runs there."""
    return fresh(DATA / "priors" / f"{owner}.toml", constants_from_table)


def write_user_link(table: Mapping[str, Any]) -> Path:
    """Write a link as the user's `local`, return its path; raises `InputError` if it is none."""
    return _LINKS.write(table, LOCAL)


def write_user_device(table: Mapping[str, Any], name: str, local: bool = True) -> Path:
    """Write a device in datasheet units as the user's NAME.toml, `local` or not; return its path.

    Raises `InputError` for another table or name, one that is taken, and a folder without access.
    """
    key = name.lower()
    if not _NAME.fullmatch(key) or key == LOCAL:
        raise InputError(f"{shorten(name)} cannot name a device: letters, digits and . _ + - only")
    if key in _DEVICES.shipped() or key in _short_names():
        raise InputError(f"{shorten(name)} is the name of a shipped device; choose another one")
    path = _DEVICES.write(table, key)
    if local:
        write_atomically(path.with_name(LOCAL), f"{key}\n")
    return path


def _device_path(key: str) -> Path | None:
    return _DEVICES.path(key, None if key in _DEVICES.shipped() else _short_names().get(key))


def _short_names() -> dict[str, str]:
    return {alias.lower(): name for alias, name in aliases().items()}


def _local_file() -> Path:
    pointer = user_folder("devices") / LOCAL
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise InputError("device 'local' is not known: run 'steptime calibrate' first") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{format_path(pointer)}: {error}") from error
    if not _NAME.fullmatch(name):
        raise InputError(f"{format_path(pointer)}: {shorten(name)} cannot name a device")
    return user_folder("devices") / f"{name}.toml"


def meant(word: str) -> list[str]:
    """Return the names of the shipped devices that a word may stand for, sorted.

    Case, spaces, punctuation and the maker's name do not matter. A name, a short name and a
    driver's product name stand for one device; a word that leaves out a variant (`a100 80gb`) for
    every variant of it, but for the one of a short name (`A100`) where that is among them. Devices
    that are `only_by_name` are never meant: "k80" is the card, not a paper's figures for it.
    """
    exact = _shipped_words().get(key_of(word))
    if exact:
        return [exact, *_later(exact, word)]
    asked = set(tokens(word))
    if not model_tokens(word):
        return []
    names = [
        name
        for name, own in _tokens_of_shipped().items()
        if asked <= own and all(VARIANT.fullmatch(token) for token in own - asked)
    ]
    usual = {name for alias, name in aliases().items() if set(tokens(alias)) <= asked}
    return [name for name in names if name in usual] or names


def _later(name: str, word: str) -> list[str]:
    """Return what took over a Quadro's number, where a word leaves out its make: `RTX 6000`."""
    if "quadro" not in name or "quadro" in word.lower():
        return []
    same = set(tokens(name))
    return [one for one, own in _tokens_of_shipped().items() if same <= own and own & _TOOK_OVER]


def platform_of(word: str) -> str | None:
    """Return the device that a driver, a scheduler or a log means by a word, or None.

    It is the user's own device of that name, or the only shipped one that `meant` finds.
    """
    key = word.lower()
    if key in _DEVICES.own() and key not in _DEVICES.shipped() and key not in _short_names():
        return key
    names = meant(word)
    return names[0] if len(names) == 1 else None


def device_table(name: str) -> dict[str, Any]:
    """Return what the file of a device says, in its units; raises `InputError` if there is none."""
    path = _device_path(name.lower())
    if path is None:
        raise unknown("device", name, device_names())
    return read_toml(path)


def _spelled(text: str) -> Device | None:
    """Return the shipped device whose name is spelled so, found without reading the others."""
    key = key_of(text)
    for name, path in _DEVICES.shipped().items():
        if key_of(name) == key and not (found := _DEVICES.named(path)).only_by_name:
            return None if _later(name, text) else found
    return None


def _one_meant(text: str) -> str:
    names = meant(text)
    if len(names) == 1:
        slips = [] if key_of(text) in _shipped_words() else digit_slips(text, aliases())
        if not slips:
            return names[0]
        names.append(min(slips, key=len))  # A1000 may be an RTX A1000, or A100 with a digit more
    asked = model_tokens(text)
    every = _tokens_of_shipped().items()
    near = names or [name for name, own in every if asked and asked <= own]
    if not near and " " in text:  # those with most of its words: "DGX H100", "m2 max 38-core"
        numbered = {token for token in asked if re.search(r"[a-z]\d|\d{3}", token)}
        alike = {name: len(asked & own) for name, own in every if numbered & own}
        near = [name for name, count in alike.items() if count == max(alike.values())]
    if 0 < len(near) <= _MOST_VARIANTS:
        what = f"{'ambiguous' if names else 'unknown'} device {shorten(text)}"
        raise InputError(f"{what}; did you mean {' or '.join(map(repr, near))}?")
    raise unknown("device", text, [*device_names(), *aliases(), LOCAL])


@lru_cache(maxsize=1)
def _shipped() -> tuple[Device, ...]:
    """Return the shipped devices that others may mean; the files do not change in a process."""
    every = [_DEVICES.at(path) for path in _DEVICES.shipped().values()]
    return tuple([one for one in every if not one.only_by_name])


@lru_cache(maxsize=1)
def _shipped_words() -> Mapping[str, str]:
    """Return the names of shipped devices by the key of each name, short name and product name."""
    words = {key_of(product): one.name for one in _shipped() for product in one.products}
    words |= {key_of(alias): name for alias, name in aliases().items()}
    return words | {key_of(one.name): one.name for one in _shipped()}


@lru_cache(maxsize=1)
def _tokens_of_shipped() -> Mapping[str, frozenset[str]]:
    """Return the tokens of the name of each shipped device, and of the size of its memory."""
    sizes = {one.name: f" {(one.memory_bytes or 0) / GB:g}gb" for one in _shipped()}
    return {name: frozenset(tokens(name + size)) for name, size in sizes.items()}
