"""Changes of a device as users write them: `memory_GB_per_s=x1.5`, `peak.bfloat16=420`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.values import is_range, parse_bytes, parse_duration, parse_number, parse_range
from steptime.hardware.datasheet import GB, TFLOP
from steptime.hardware.device import Device
from steptime.hardware.device_file import (
    DETAIL_SI_FIELDS,
    DEVICE_SI_FIELDS,
    PEAK_DTYPES,
    PEAK_TABLES,
)
from steptime.prediction.method import Method

_NUMBERS = {**DEVICE_SI_FIELDS, **DETAIL_SI_FIELDS}
KEYS = ("peak", *PEAK_TABLES, *_NUMBERS)
BY_DTYPE = tuple(f"{table}.{dtype}" for table in ("peak", *PEAK_TABLES) for dtype in PEAK_DTYPES)
_READ_FIELDS = (
    "peak_flop_per_s",
    "memory_bytes_per_s",
    "memory_bytes",
    "launch_s",
)  # by every method
MAX_DEVICES = 10_000


@dataclass(frozen=True)
class Change:
    """A change of a figure of a device file.

    Args:
        key: the key of the file; `peak` means all peaks.
        value: the new value in the file's unit, or a factor.
        is_factor: whether the value is a factor.
    """

    key: str
    value: float
    is_factor: bool

    @property
    def is_peak(self) -> bool:
        """Whether the change is of peaks."""
        return self.key.partition(".")[0] in ("peak", *PEAK_TABLES)

    def __str__(self) -> str:
        return f"{self.key}={'x' if self.is_factor else ''}{self.value:g}"


def read_changes(texts: Iterable[str], option: str = "--set") -> list[list[Change]]:
    """Read texts `KEY=VALUE`, each into one change, or several for a range.

    A value is a number in the unit of the device's file (`memory_GB=32`) or a factor (`x1.5`, also
    `1.5x`, as answers have it); both may be a range (`x1..x4x2`, `8..64x2`).

    Raises:
        InputError: for an unknown key, a key that stands twice, and a value that is no number
            above 0.
    """
    changes: dict[str, list[Change]] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            message = f"{option} {shorten(text)} is not of the form KEY=VALUE or KEY=xFACTOR"
            raise InputError(message)
        key = key.removeprefix("details.")
        if value.endswith("x"):
            value = f"x{value[:-1]}"  # `1.5x` is `x1.5`
        _check_key(key, option)
        if key in changes:
            raise InputError(f"{option} '{key}' is given twice")
        is_factor = value.startswith("x")
        numbers = _read_numbers(value, f"{option} {key}", key)
        changes[key] = [Change(key, number, is_factor) for number in numbers]
    return list(changes.values())


def _check_key(key: str, option: str) -> None:
    """Raise `InputError` for a key that no device file has."""
    if key in KEYS or key in BY_DTYPE:
        return
    table, dot, _dtype = key.partition(".")
    is_peak_of_dtype = bool(dot) and table in ("peak", *PEAK_TABLES)
    # The error suggests the nearest of these.
    suggestions = BY_DTYPE if is_peak_of_dtype else KEYS
    raise unknown("figure of a device", key, suggestions, option)


def _read_numbers(text: str, option: str, key: str) -> list[float]:
    """Return the numbers of a value, in the unit of the device's file where it has one of its own.

    `memory_GB=24GiB` is 25.77, `launch_us=0.005ms` is 5.
    """
    is_factor = text.startswith("x")
    number_text = text.removeprefix("x")
    if is_range(number_text):
        range_text = number_text.replace("..x", "..")  # `x1..x4` is `x1..4`
        return [float(number) for number in parse_range(range_text, option)]
    has_unit = not is_factor and not number_text[-1:].isdigit()
    if key.endswith("_GB") and has_unit:
        return [parse_bytes(number_text, option) / GB]
    if key.endswith("_us") and has_unit:
        return [parse_duration(number_text, option, "us")]
    return [parse_number(number_text, option)]


def combine_changes(axes: Sequence[Sequence[Change]]) -> list[tuple[Change, ...]]:
    """Return every combination of changes, one of each axis; raises `InputError` for too many."""
    combinations = list(product(*axes))
    if len(combinations) > MAX_DEVICES:
        raise InputError(f"{len(combinations)} changed devices; at most {MAX_DEVICES}")
    return combinations


def change_device(device: Device, changes: Iterable[Change]) -> Device:
    """Return a device with changed figures; an unknown figure stays unknown under a factor.

    Raises:
        InputError: for a value of all peaks where there are several.
    """
    changed_device = device
    for change in changes:  # each on top of those before it
        changed_device = changed_device.with_figures(**_changed_fields(changed_device, change))
    return changed_device


def _changed_fields(device: Device, change: Change) -> Mapping[str, Any]:
    """Return the fields of a device that a change replaces, none for an unknown figure."""
    if change.is_peak:
        return _changed_peaks(device, change)
    field_name, unit = _NUMBERS[change.key]
    figure = getattr(device.datasheet, field_name)
    if not change.is_factor:
        changed_figure = change.value * unit  # from the unit of the device's file to SI
    elif figure is None:
        return {}  # a multiple of an unknown figure stays unknown
    else:
        changed_figure = figure * change.value
    is_count = field_name in ("multiprocessors", "cores")
    return {field_name: max(1, round(changed_figure)) if is_count else changed_figure}


def _changed_peaks(device: Device, change: Change) -> Mapping[str, Any]:
    """Return the tables of peaks that a change replaces; raises `InputError`."""
    table, _, dtype = change.key.partition(".")  # `peak`, `peak.bfloat16` or another table
    covers_all_tables = table == "peak" and not dtype
    if covers_all_tables:
        field_names = list(PEAK_TABLES.values())
    else:
        field_names = [PEAK_TABLES.get(table, "peak_flop_per_s")]
    fields = {}
    for field_name in field_names:
        peaks: Mapping[str, float] = getattr(device.datasheet, field_name)
        changed_dtypes = [dtype] if dtype else list(peaks)
        if change.is_factor:
            changed_peaks = {
                name: peaks[name] * change.value for name in changed_dtypes if name in peaks
            }
        elif len(changed_dtypes) > 1:  # one number cannot be the peak of several types
            dtypes = ", ".join(peaks)
            raise InputError(f"{change.key}: of which dtype? {device.name} has peaks of {dtypes}")
        else:
            changed_peaks = dict.fromkeys(changed_dtypes, change.value * TFLOP)
        fields[field_name] = {**peaks, **changed_peaks}
    return fields


def describe_idle_changes(device: Device, changes: Sequence[Change], method: Method) -> list[str]:
    """Return notes on changes without effect: of figures unknown, unread, or held by power."""
    changed_figures = {change.key.partition(".")[0] for change in changes}
    notes = []
    changes_peak = any(change.is_peak for change in changes)
    # A method that reads more figures than a roofline's also holds kernels to the power limit.
    is_power_limited = bool(method.reads and device.datasheet.peak_w)
    if changes_peak and is_power_limited and "tdp_W" not in changed_figures:
        notes.append(f"{device.name} may draw no more power than before; tdp_W=x2 lets it")
    for change in changes:
        notes += _describe_idle(device, change, method)
    return notes


def _describe_idle(device: Device, change: Change, method: Method) -> list[str]:
    """Return the note on a change without effect, none for a change that matters."""
    field_names = list(_changed_fields(device, change))
    if not field_names:
        return [f"{change.key} of {device.name} is unknown: {change} changes nothing"]
    field = field_names[0]  # only a change of all peaks has several
    if change.is_peak:
        _table, _dot, dtype = change.key.partition(".")  # `peak` alone is of all types
        lacks_peak = dtype != "" and dtype not in getattr(device.datasheet, field)
        if change.is_factor and lacks_peak:
            return [f"{device.name} has no {change.key}: {change} changes nothing"]
        return []
    read_fields = _READ_FIELDS + method.reads
    # A method that reads more figures than a roofline's also holds kernels to the power limit.
    if method.reads:
        read_fields += ("peak_w",)
    if field in read_fields:
        return []
    return [f"{method.name} does not read {change.key}: {change} changes no time"]
