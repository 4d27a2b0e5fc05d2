"""Files of devices, links and stacks: those that the package ships, and the user's own.

A user's file NAME.toml lies in a folder of the same name as the shipped ones (`user_folder`). One
with the name or the short name of a shipped one is refused: no prediction changes silently.
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
from steptime.core.toml_files import DATA, format_path, read_toml, toml_text
from steptime.hardware.device import Device, Link
from steptime.hardware.stack import Stack

ALIASES_FILE = DATA / "devices" / "aliases.toml"
NAME = re.compile(r"[a-z0-9][a-z0-9._+-]{0,99}")
Item = TypeVar("Item", Device, Link, Stack)


def user_folder(kind: str) -> Path:
    """Return the folder of the user's own files of a kind, such as devices; it need not exist.

    It lies in $STEPTIME_HOME, else $XDG_DATA_HOME/steptime, else ~/.local/share/steptime.
    """
    environment = os.environ
    return _find_user_folder(
        kind,
        environment.get("STEPTIME_HOME"),
        environment.get("XDG_DATA_HOME"),
        environment.get("HOME"),
    )


@lru_cache(maxsize=64)
def _find_user_folder(
    kind: str, steptime_home: str | None, data_home: str | None, home: str | None
) -> Path:
    """Return the folder of the user's own files for values of the environment's variables."""
    if steptime_home:
        return Path(steptime_home) / kind
    if data_home:
        return Path(data_home) / "steptime" / kind
    home_folder = Path(home) if home else Path.home()
    return home_folder / ".local" / "share" / "steptime" / kind


@dataclass(frozen=True)
class ItemFiles(Generic[Item]):
    """The files of one kind of item: of a folder of the package, and of the user's.

    Attributes:
        kind: the kind in messages, such as `device`.
        folder: the name of both folders.
        read: returns the item of a TOML table; its second argument names the file in errors.
    """

    kind: str
    folder: str
    read: Callable[[Mapping[str, Any], str], Item]

    @lru_cache  # noqa: B019  # three of them, which live as long as the program
    def shipped(self) -> Mapping[str, Path]:
        """Return the shipped files by name; they do not change while a program runs."""
        paths = sorted((DATA / self.folder).glob("*.toml"))
        return {path.stem: path for path in paths if path != ALIASES_FILE}

    def user_files(self) -> dict[str, Path]:
        """Return the user's files by name in lower case."""
        folder = user_folder(self.folder)
        try:
            return {path.stem.lower(): path for path in sorted(folder.glob("*.toml"))}
        except OSError as error:
            raise InputError(f"{format_path(folder)}: {error.strerror}") from error

    def files(self) -> dict[str, Path]:
        """Return all files by name, sorted."""
        return dict(sorted({**self.user_files(), **self.shipped()}.items()))

    def find(self, key: str, alias: str | None = None) -> Path | None:
        """Return the file of a name, None where there is none.

        Args:
            key: the name in lower case.
            alias: the name that it is short for.

        Raises:
            InputError: for a user's file with the name of a shipped one.
        """
        # Text that cannot be a name must not become a path.
        if not NAME.fullmatch(key):
            return None
        full_name = alias or key
        shipped_file = self.shipped().get(full_name)
        user_file = self.user_files().get(key)
        if user_file and shipped_file:
            path = format_path(user_file)
            raise InputError(f"{path}: a shipped {self.kind} has this name; rename the file")
        return shipped_file or user_file

    def read_file(self, path: Path) -> Item:
        """Return the item of a file, whatever its name."""
        return self.read(read_toml(path), format_path(path))

    def read_by_name(self, path: Path) -> Item:
        """Return the item of a file that was found by its name, which must be the item's."""
        return _check_name(self.read_file(path), path)

    def file_of(self, name: str, option: str = "") -> Path:
        """Return the file of a name, or of a path that ends in .toml.

        Args:
            name: the name or path.
            option: the option that has the name, for messages.

        Raises:
            InputError: for an unknown name.
        """
        key = name.lower()
        path = Path(name) if key.endswith(".toml") else self.find(key)
        if path is None:
            raise unknown(self.kind, name, self.files(), option)
        return path

    def item_of(self, name: str, option: str = "") -> Item:
        """Return the item of a name, or of a path that ends in .toml; raises as `file_of` does."""
        return self.read_file(self.file_of(name, option))

    def write(self, table: Mapping[str, Any], name: str) -> Path:
        """Write the user's NAME.toml, replacing one that is there at once, and return its path."""
        path = user_folder(self.folder) / f"{name}.toml"
        text = toml_text(table)
        _check_name(self.read(tomllib.loads(text), format_path(path)), path)
        write_atomically(path, text, makes_folder=True)
        return path


def _check_name(item: Item, path: Path) -> Item:
    """Return an item whose name is that of its file; raises `InputError` for another name."""
    if item.name.lower() != path.stem.lower():
        rule = f"'name' must be the file's, {shorten(path.stem)}, not {shorten(item.name)}"
        raise InputError(f"{format_path(path)}: {rule}")
    return item
