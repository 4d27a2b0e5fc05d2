"""The device that a word stands for, as a driver, a scheduler, a log or a person writes it.

`Tesla T4`, `RTX 4090`, `NVIDIA_H100_80GB_HBM3` and `a100 80gb` are read in one place,
`find_devices`.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.spelling import VARIANT, digit_slips, key_of, model_tokens, tokens
from steptime.core.toml_files import read_packaged_toml
from steptime.hardware.architectures import has_trait
from steptime.hardware.datasheet import GB
from steptime.hardware.device import Device
from steptime.hardware.device_file import device_from_table
from steptime.hardware.item_files import ALIASES_FILE, ItemFiles

DEVICES = ItemFiles("device", "devices", device_from_table)
LOCAL = "local"
MAX_VARIANTS = 6  # in a message


def aliases() -> Mapping[str, str]:
    """Return the short names, each with the name of the one device that it stands for."""
    return read_packaged_toml(f"devices/{ALIASES_FILE.name}")


def short_names() -> dict[str, str]:
    """Return the names of devices by their short names in lower case."""
    return {alias.lower(): name for alias, name in aliases().items()}


def device_path(key: str) -> Path | None:
    """Return the file of a device by its name or short name in lower case, None without one."""
    return DEVICES.find(key, None if key in DEVICES.shipped() else short_names().get(key))


def find_devices(word: str) -> list[str]:
    """Return the names of the shipped devices that a word may stand for, sorted.

    Case, spaces, punctuation and the maker's name do not matter. A name, a short name and a
    driver's product name stand for one device; a word that leaves out a variant (`a100 80gb`) for
    every variant of it, but for the one of a short name (`A100`) where that is among them. Devices
    that are `only_by_name` are left out: "k80" is the card, not a paper's figures for it.
    """
    exact_name = _device_names_by_key().get(key_of(word))
    if exact_name:
        return [exact_name, *_list_quadro_successors(exact_name, word)]
    word_tokens = set(tokens(word))
    if not model_tokens(word):
        return []
    names = [
        name
        for name, device_tokens in _tokens_by_name().items()
        if word_tokens <= device_tokens
        # The word may leave out variants alone: size of memory, form, cooling.
        and all(VARIANT.fullmatch(token) for token in device_tokens - word_tokens)
    ]
    aliased_names = {name for alias, name in aliases().items() if set(tokens(alias)) <= word_tokens}
    # A short name (`A100`) decides between variants, if the word does not.
    return [name for name in names if name in aliased_names] or names


def _list_quadro_successors(name: str, word: str) -> list[str]:
    """Return later cards with a Quadro's number, where a word leaves out its make: `RTX 6000`."""
    # "RTX 6000" may mean a Quadro or a later card; "Quadro RTX 6000" is only one of them.
    if "quadro" not in name or "quadro" in word.lower():
        return []
    quadro_tokens = set(tokens(name))
    tokens_by_name = _tokens_by_name()
    return [
        device.name
        for device in shipped_devices()
        if has_trait(device, "quadro_number") and quadro_tokens <= tokens_by_name[device.name]
    ]


def platform_of(word: str) -> str | None:
    """Return the device that a driver, a scheduler or a log writes as a word, or None.

    It is the user's own device of that name, or the only one that `find_devices` returns.
    """
    key = word.lower()
    if key in DEVICES.user_files() and key not in DEVICES.shipped() and key not in short_names():
        return key
    names = find_devices(word)
    return names[0] if len(names) == 1 else None


def find_device_by_spelling(text: str) -> Device | None:
    """Return the shipped device whose name is spelled so, found without reading the others."""
    key = key_of(text)
    for name, path in DEVICES.shipped().items():
        if key_of(name) != key:
            continue
        device = DEVICES.read_by_name(path)
        if not device.datasheet.only_by_name:
            # A later card with the number of a Quadro makes the word ambiguous.
            return None if _list_quadro_successors(name, text) else device
    return None


def device_name_of(text: str) -> str:
    """Return the name of the one shipped device that a text stands for.

    Raises:
        InputError: for a text that stands for several devices or for none, with the nearest.
    """
    names = find_devices(text)
    if len(names) == 1:
        # An exact name cannot be a slip of the keyboard.
        slips = [] if key_of(text) in _device_names_by_key() else digit_slips(text, aliases())
        if not slips:
            return names[0]
        # A1000 may be an RTX A1000, or A100 with a digit more: then the text is ambiguous. The
        # shortest slip is the name without additions (A100, not A100-SXM4-80GB).
        names = [*names, min(slips, key=len)]
    suggestions = names or _list_nearest_names(text)
    if 0 < len(suggestions) <= MAX_VARIANTS:
        problem = f"{'ambiguous' if names else 'unknown'} device {shorten(text)}"
        raise InputError(f"{problem}; did you mean {' or '.join(map(repr, suggestions))}?")
    raise unknown("device", text, [*DEVICES.files(), *aliases(), LOCAL])


def _list_nearest_names(text: str) -> list[str]:
    """Return devices that have all tokens of a text, else those with most of its words."""
    text_tokens = model_tokens(text)
    tokens_by_name = _tokens_by_name()
    if not text_tokens:
        return []
    names_with_all_tokens = [name for name in tokens_by_name if text_tokens <= tokens_by_name[name]]
    is_single_word = " " not in text
    if names_with_all_tokens or is_single_word:
        return names_with_all_tokens
    # "DGX H100", "m2 max 38-core"
    # Only devices that share a model number can be meant.
    number_tokens = {token for token in text_tokens if re.search(r"[a-z]\d|\d{3}", token)}
    common_count_by_name = {
        name: len(text_tokens & device_tokens)
        for name, device_tokens in tokens_by_name.items()
        if number_tokens & device_tokens
    }
    best_count = max(common_count_by_name.values(), default=0)
    return [name for name, count in common_count_by_name.items() if count == best_count]


@lru_cache(maxsize=1)
def shipped_devices() -> tuple[Device, ...]:
    """Return the shipped devices but those that are `only_by_name`, which never change."""
    devices = [DEVICES.read_file(path) for path in DEVICES.shipped().values()]
    return tuple([device for device in devices if not device.datasheet.only_by_name])


@lru_cache(maxsize=1)
def _device_names_by_key() -> Mapping[str, str]:
    """Return the names of shipped devices by the key of each name, short name and product name."""
    devices = shipped_devices()
    names = {
        key_of(product): device.name for device in devices for product in device.datasheet.products
    }
    names |= {key_of(alias): name for alias, name in aliases().items()}
    # Later entries win: a device's own name before short names, these before product names.
    return names | {key_of(device.name): device.name for device in devices}


@lru_cache(maxsize=1)
def _tokens_by_name() -> Mapping[str, frozenset[str]]:
    """Return the tokens of the name of each shipped device, and of the size of its memory."""
    return {
        device.name: frozenset(
            tokens(f"{device.name} {(device.datasheet.memory_bytes or 0) / GB:g}gb")
        )
        for device in shipped_devices()
    }
