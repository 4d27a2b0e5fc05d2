"""Changes of a device as users write them: `memory_GB_per_s=x1.5`, `peak.bfloat16=420`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.values import is_range, parse_bytes, parse_duration, parse_number, parse_range
from steptime.hardware.device import (
    GB,
    OF_DETAILS,
    OF_DEVICE,
    PEAK_DTYPES,
    PEAK_TABLES,
    TFLOP,
    Device,
)
from steptime.prediction.method import Method

_NUMBERS = {**OF_DEVICE, **OF_DETAILS}
KEYS = ("peak", *PEAK_TABLES, *_NUMBERS)
BY_DTYPE = tuple(f"{table}.{dtype}" for table in ("peak", *PEAK_TABLES) for dtype in PEAK_DTYPES)
_READ = ("peak_flop_per_s", "memory_bytes_per_s", "memory_bytes", "launch_s")  # by every method
MOST_DEVICES = 10_000


@dataclass(frozen=True)
class Change:
    """A figure of a device file, and what becomes of it: a value in the file's unit, or a factor.

    `key` is that of the file; `peak` means all peaks.
    """

    key: str
    value: float
    times: bool

    def __str__(self) -> str:
        return f"{self.key}={'x' if self.times else ''}{self.value:g}"


def read_changes(texts: Iterable[str], where: str = "--set") -> list[list[Change]]:
    """Return the changes that each of some texts `KEY=VALUE` means: several for a range.

    A value is a number in the unit of the device's file (`memory_GB=32`) or a factor (`x1.5`, also
    `1.5x`, as answers have it); both may be a range (`x1..x4x2`, `8..64x2`). Raises `InputError`
    for an unknown key, one that is given twice, and what is not a number above 0.
    """
    found: dict[str, list[Change]] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise InputError(f"{where} {shorten(text)} is not of the form KEY=VALUE or KEY=xFACTOR")
        key = key.removeprefix("details.")
        if value[-1] == "x":
            value = f"x{value[:-1]}"
        if key not in (*KEYS, *BY_DTYPE):
            table, dot, _ = key.partition(".")
            known = BY_DTYPE if dot and table in ("peak", *PEAK_TABLES) else KEYS
            raise unknown("figure of a device", key, known, where)
        if key in found:
            raise InputError(f"{where} '{key}' is given twice")
        times, place = value.startswith("x"), f"{where} {key}"
        found[key] = [Change(key, number, times) for number in _values(value, place, key)]
    return list(found.values())


def _values(text: str, where: str, key: str) -> list[float]:
    """Return the numbers of a value, in the unit of the device's file where it has one of its own.

    `memory_GB=24GiB` is 25.77, `launch_us=0.005ms` is 5.
    """
    plain = text.removeprefix("x")
    if is_range(plain):
        return [float(number) for number in parse_range(plain.replace("..x", ".."), where)]
    is_bare = plain[-1:].isdigit() or text.startswith("x")
    if key.endswith("_GB") and not is_bare:
        return [parse_bytes(plain, where) / GB]
    if key.endswith("_us") and not is_bare:
        return [parse_duration(plain, where, "us")]
    return [parse_number(plain, where)]


def combined(axes: Sequence[Sequence[Change]]) -> list[tuple[Change, ...]]:
    """Return every combination of changes, one of each axis; raises `InputError` for too many."""
    found = list(product(*axes))
    if len(found) > MOST_DEVICES:
        raise InputError(f"{len(found)} changed devices; at most {MOST_DEVICES}")
    return found


def changed(device: Device, changes: Iterable[Change]) -> Device:
    """Return the device with its figures changed; what is unknown stays so under a factor.

    Raises `InputError` for a value of all peaks where there are several.
    """
    for change in changes:
        device = replace(device, **_field(device, change))
    return device


def _field(device: Device, change: Change) -> dict[str, Any]:
    table, _, dtype = change.key.partition(".")
    if table not in ("peak", *PEAK_TABLES):
        name, factor = _NUMBERS[change.key]
        known = getattr(device, name)
        if change.times and known is None:
            return {}
        value = known * change.value if change.times else change.value * factor
        return {name: max(1, round(value)) if name in ("multiprocessors", "cores") else value}
    fields = (
        tuple(PEAK_TABLES.values())
        if table == "peak" and not dtype
        else (PEAK_TABLES.get(table, ""),)
    )
    found = {}
    for name in (field or "peak_flop_per_s" for field in fields):
        peaks: Mapping[str, float] = getattr(device, name)
        if not (change.times or dtype or len(peaks) <= 1):
            known = ", ".join(peaks)
            raise InputError(f"{change.key}: of which dtype? {device.name} has peaks of {known}")
        wanted = [dtype] if dtype else list(peaks)
        if change.times:
            new = {one: peaks[one] * change.value for one in wanted if one in peaks}
        else:
            new = dict.fromkeys(wanted, change.value * TFLOP)
        found[name] = {**peaks, **new}
    return found


def remarks(device: Device, changes: Iterable[Change], method: Method) -> list[str]:
    """Return which changes change nothing or little: figures unknown, unread, or held by power."""
    asked, said = list(changes), []
    keys = {one.key.partition(".")[0] for one in asked}
    if keys & {"peak", *PEAK_TABLES} and "tdp_W" not in keys and method.reads and device.peak_w:
        said.append(f"{device.name} may draw no more power than before; tdp_W=x2 lets it")
    for change in asked:
        table, _, dtype = change.key.partition(".")
        names = list(_field(device, change))
        if not names:
            said.append(f"{change.key} of {device.name} is unknown: {change} changes nothing")
        elif table in ("peak", *PEAK_TABLES):
            if dtype and change.times and dtype not in getattr(device, names[0]):
                said.append(f"{device.name} has no {change.key}: {change} changes nothing")
        elif names[0] not in _READ + method.reads + (("peak_w",) if method.reads else ()):
            said.append(f"{method.name} does not read {change.key}: {change} changes no time")
    return said
