"""The devices, links and software stacks that are known: shipped as data, or the user's own files.

Words of others for a device (`Tesla T4`, `RTX 4090`) are read by `device_words`, files by
`item_files`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.files import write_atomically
from steptime.core.json_types import JsonObject
from steptime.core.spelling import plain_name
from steptime.core.toml_files import DATA, format_path, read_toml, read_toml_head
from steptime.hardware import links
from steptime.hardware.constants import Constant, constants_from_table
from steptime.hardware.device import Device, Link
from steptime.hardware.device_file import link_from_table
from steptime.hardware.device_words import (
    DEVICES,
    LOCAL,
    device_name_of,
    device_path,
    find_device_by_spelling,
    find_devices,
    shipped_devices,
    short_names,
)
from steptime.hardware.file_cache import cached_by_files, read_cached
from steptime.hardware.item_files import NAME, ItemFiles, user_folder
from steptime.hardware.stack import Stack, stack_from_table

DEFAULT_STACK = "torch-eager"
PAPER_METHOD = "paleo"  # the method whose table of devices is its own

LINKS = ItemFiles("link", "links", link_from_table)


def _read_stack(table: Mapping[str, Any], source: str) -> Stack:
    """Return the stack of a table, with the values of the one that it is `like`."""
    base_name = _base_stack_name(table)
    return stack_from_table(table, source, base=stack(base_name) if base_name else None)


STACKS = ItemFiles("stack", "stacks", _read_stack)


def device(name: str | os.PathLike[str] | Device, method: str = "") -> Device:
    """Return the device of a name, a short name, `local`, a path that ends in .toml, or itself.

    A name may be spelled as others spell it (`find_devices`). Only the file of that device is read.

    Args:
        name: the name, path or device.
        method: the cost model: under `paleo` a name of Paleo's table is of Paleo's figures, else of
            the datasheet's (K80).

    Raises:
        InputError: for an unknown or ambiguous name, and for a file that is not a device.
    """
    if isinstance(name, Device):
        return name
    text = str(name)
    lower_text = text.lower()
    # `local` stands for the device that was calibrated on this machine last.
    if lower_text == LOCAL:
        return DEVICES.read_file(_local_file())
    if lower_text.endswith(".toml"):
        return DEVICES.read_file(Path(text))
    path = device_path(lower_text)
    if path:
        exact_device = DEVICES.read_by_name(path)
        # The figures of a device in Paleo's table are for Paleo's own method. For other methods the
        # word may stand for the real card (`k80`), which is looked for below.
        is_of_paper = exact_device.datasheet.only_by_name
        if method == PAPER_METHOD or not is_of_paper:
            return exact_device
        if not find_devices(text):
            raise InputError(f"device {shorten(text)} is of Paleo's table: --method {PAPER_METHOD}")
    # Cheap first: a full name in another spelling needs one file, a partial name all of them.
    spelled_device = find_device_by_spelling(text)
    if spelled_device:
        return spelled_device
    return DEVICES.read_by_name(DEVICES.shipped()[device_name_of(text)])


def device_names(*, with_user_files: bool = True) -> list[str]:
    """Return the names of all devices, shipped ones and if asked the user's, sorted."""
    return list(DEVICES.files() if with_user_files else DEVICES.shipped())


def is_user_device(name: str) -> bool:
    """Whether a device is one of the user's own files."""
    return name.lower() in DEVICES.user_files()


def devices(warn: Callable[[str], object] | None = None) -> list[Device]:
    """Return all devices, by name.

    Args:
        warn: gets a message for each of the user's files that is not a device. Default: such a file
            raises `InputError`.
    """
    readable = []
    for path in DEVICES.files().values():
        try:
            readable.append(DEVICES.read_by_name(path))
        except InputError as error:
            if warn is None:
                raise
            warn(f"{error}; this device is left out")
    return readable


def link(name: str | os.PathLike[str] | Link, option: str = "") -> Link:
    """Return the link of a name (also `NVLink3 x12`), `local`, a .toml, or itself."""
    if isinstance(name, Link):
        return name
    text = str(name)
    lower_text = text.lower()
    if lower_text == LOCAL and LINKS.find(LOCAL) is None:
        raise InputError("link 'local' is not known: run 'steptime calibrate --only link' first")
    is_path = lower_text.endswith(".toml")
    is_link_name = not is_path and LINKS.find(lower_text) is not None
    if is_path or is_link_name:
        return LINKS.item_of(text, option)
    # No link has this name, but datasheets of devices may call their link so.
    links_by_name = _links_by_datasheet_name(text)
    if len(links_by_name) == 1:
        (only_link,) = links_by_name.values()
        return only_link
    if links_by_name:
        raise unknown("link", text, links_by_name, option)
    return LINKS.item_of(text, option)  # raises for the unknown name


def _links_by_datasheet_name(datasheet_name: str) -> dict[str, Link]:
    """Return, by their own names, the links of the devices whose datasheets name their link so."""
    link_key = plain_name(datasheet_name)
    return {
        device_link.name: device_link
        for device in shipped_devices()
        if plain_name(device.datasheet.node_link) == link_key
        for device_link in links_of(device)
    }


def links_of(device: Device) -> list[Link]:
    """Return the links that the name of a device's link may stand for."""
    return links.links_of(device, link_names(), link)


def link_names() -> list[str]:
    """Return the names of all links, shipped ones and the user's, sorted."""
    return list(LINKS.files())


def stack_names(*, with_user_files: bool = True) -> list[str]:
    """Return the names of all software stacks, shipped ones and if asked the user's, sorted."""
    return list(STACKS.files() if with_user_files else STACKS.shipped())


def stack(name: str = DEFAULT_STACK) -> Stack:
    """Return the software stack of a name or of a .toml file; raises `InputError` for another."""
    path = STACKS.file_of(DEFAULT_STACK if name == "torch" else name)
    return cached_by_files(path, lambda: (_list_stack_and_base_files(path), STACKS.read_file(path)))


def stack_since(name: str) -> str:
    """Return the month since which a software stack is the newest, "" where its file says none.

    Only the heads of the files are read, of the stack and of those that it is `like`.
    """
    for path in _list_stack_and_base_files(STACKS.file_of(name)):
        head = _read_stack_head(path)
        # A stack inherits the month of its base (`like`), unless its file states a month or lists
        # `since` in `unlike`, the entries that are not inherited.
        is_inherited = "since" not in head and "since" not in head.get("unlike", ())
        if not is_inherited:
            return str(head.get("since", ""))
    return ""


def _read_stack_head(path: Path) -> Mapping[str, Any]:
    """Return the values of a stack's file before its first table, anew where it was written."""
    return cached_by_files(("head of a stack", path), lambda: ([path], read_toml_head(path)))


def _list_stack_and_base_files(path: Path) -> list[Path]:
    """Return the file of a stack, that of the one that it is `like`, and so on."""
    paths = [path]
    while base_name := _base_stack_name(_read_stack_head(paths[-1])):
        source = format_path(paths[-1])
        base_path = STACKS.shipped().get(base_name) or STACKS.find(base_name.lower())
        if base_path is None:
            raise unknown("stack", base_name, STACKS.files(), f"{source}: like")
        if base_path in paths:
            raise InputError(f"{source}: 'like' leads back to {base_path.stem} in a circle")
        paths.append(base_path)
    return paths


def _base_stack_name(table: Mapping[str, Any]) -> str:
    """Return the name of the stack that a stack's table is `like`, "" without one."""
    base_name = table.get("like")
    return base_name if isinstance(base_name, str) else ""


def priors(kind: str, software: str = DEFAULT_STACK) -> Mapping[str, Constant]:
    """Return the constants of calibrated times for a kind of device, unmeasured kinds as a GPU.

    Those of the host (a CPU is its own) are the stack's, with those of its uses.
    """
    owner = kind if (DATA / "priors" / f"{kind}.toml").is_file() else "gpu"
    # The default stack supplies the constants that the chosen stack does not state.
    constants = {**constants_of(owner), **stack().uses, **stack(software).uses}
    # A CPU is its own host, whose constants are those of the device.
    return constants if kind == "cpu" else {**constants, **stack(software).host}


def constants_of(owner: str) -> Mapping[str, Constant]:
    """Return the constants of a kind of device, of a `host` or of a `link`, whatever runs there."""
    return read_cached(DATA / "priors" / f"{owner}.toml", constants_from_table)


def write_user_link(table: Mapping[str, Any]) -> Path:
    """Write a link as the user's `local`, return its path; raises `InputError` if it is none."""
    return LINKS.write(table, LOCAL)


def write_user_device(table: Mapping[str, Any], name: str, local: bool = True) -> Path:
    """Write a device in datasheet units as the user's NAME.toml and return its path.

    Args:
        table: the device.
        name: its name.
        local: whether the name `local` stands for it from now on.

    Raises:
        InputError: for another table or name, one that is taken, and a folder without access.
    """
    key = name.lower()
    if not NAME.fullmatch(key) or key == LOCAL:
        raise InputError(f"{shorten(name)} cannot name a device: letters, digits and . _ + - only")
    if key in DEVICES.shipped() or key in short_names():
        raise InputError(f"{shorten(name)} is the name of a shipped device; choose another one")
    path = DEVICES.write(table, key)
    if local:  # the name `local` stands for this device from now on
        write_atomically(path.with_name(LOCAL), f"{key}\n")
    return path


def _local_file() -> Path:
    """Return the file of the device that was calibrated as `local` last."""
    pointer = user_folder("devices") / LOCAL
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise InputError("device 'local' is not known: run 'steptime calibrate' first") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{format_path(pointer)}: {error}") from error
    if not NAME.fullmatch(name):
        raise InputError(f"{format_path(pointer)}: {shorten(name)} cannot name a device")
    return user_folder("devices") / f"{name}.toml"


def device_table(name: str) -> JsonObject:
    """Return the table of a device's file, in its units; raises `InputError` if there is none."""
    path = device_path(name.lower())
    if path is None:
        raise unknown("device", name, device_names())
    return read_toml(path)
