"""Devices and links as TOML files in datasheet units, and their form in SI units."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta

from steptime.core.errors import InputError, shorten
from steptime.core.json_types import JsonObject
from steptime.core.signatures.typed import Above0, Figure, Text, Texts, struct, typed_values
from steptime.core.workload import PHASES
from steptime.hardware.datasheet import GB, GIB, TFLOP, Datasheet
from steptime.hardware.device import MEASURED_SPREAD, Device, Link
from steptime.hardware.device_calibration import DeviceCalibration
from steptime.hardware.device_checks import BASE_CLOCK, check_clocks, check_measured

SiFields = Mapping[str, tuple[str, float]]  # key of the file: (field, factor to SI)
DEVICE_SI_FIELDS: SiFields = {
    "memory_GB": ("memory_bytes", GB),
    "memory_GB_per_s": ("memory_bytes_per_s", GB),
    "launch_us": ("launch_s", 1e-6),
    "clock_MHz": ("clock_hz", 1e6),
    "idle_W": ("idle_w", 1.0),
    "tdp_W": ("peak_w", 1.0),
}
DETAIL_SI_FIELDS: SiFields = {
    "multiprocessors": ("multiprocessors", 1),
    "compute_units": ("multiprocessors", 1),
    "arrays": ("arrays", 1),
    "array_side": ("array_side", 1),
    "cores": ("cores", 1),
    "l2_MiB": ("l2_bytes", 2.0**20),
    "l3_MiB": ("l3_bytes", 2.0**20),
    "l3_of_core_MiB": ("l3_of_core_bytes", 2.0**20),
    "last_cache_MiB": ("l2_bytes", 2.0**20),
    "process_nm": ("process_nm", 1.0),
}
_LINK_SI_FIELDS: SiFields = {
    "latency_us": ("latency_s", 1e-6),
    "GB_per_s": ("bytes_per_s", GB),
    "bus_GB_per_s": ("bus_bytes_per_s", GB),
    "switch_GB_per_s": ("switch_bytes_per_s", GB),
}
PEAK_TABLES = {"peak_TFLOP_per_s": "peak_flop_per_s", "vector_TFLOP_per_s": "vector_flop_per_s"}
_OPEN_TABLES = ("measured", "details", "calibration")  # kept with keys that nothing reads
PEAK_DTYPES = ("float64", "float32", "tf32", "bfloat16", "float16", "float8", "int8", "float4")
DEVICE_KEYS = ("name", "kind", "measured")  # all other keys but the calibration: the datasheet
_TEXT_DETAILS = ("maker", "series", "architecture", "memory_type")
_Count = Annotated[int, Meta(ge=1, le=10**8, description="one positive whole number")]
_PEAKS: Any = Annotated[
    struct("Peaks", dict.fromkeys(PEAK_DTYPES, Figure)), Meta(description="a table of dtypes")
]
LEVEL_RATES = tuple([f"{level}_GB_per_s" for level in ("l1", "l2", "l3", "infinity_cache")])
DETAILS = {  # all that the table may have
    "link": Text,
    "used_in": Text,
    **dict.fromkeys(("link_GB_per_s", "tensor_clock_MHz", BASE_CLOCK, *LEVEL_RATES), Figure),
    **{key: _Count if factor == 1 else Figure for key, (_, factor) in DETAIL_SI_FIELDS.items()},
    **dict.fromkeys(("process_nm", "usable_GiB"), Figure),
    **dict.fromkeys(_TEXT_DETAILS, Text),
}
_CALIBRATION_KEY_TYPES = {  # what predictions read of it
    name: kind
    for name, kind in get_type_hints(DeviceCalibration, include_extras=True).items()
    if name not in ("source", "phases", "table")
}
_PHASE_KEY_TYPES = {
    name: _CALIBRATION_KEY_TYPES[name] for name in ("constants", "steps", "intervals")
}
_CALIBRATION_KEY_TYPES |= dict.fromkeys(PHASES, struct("PhaseCalibration", _PHASE_KEY_TYPES))
_CURVE_TABLE: Any = struct(
    "Curve", dict.fromkeys(("work", "min_s"), Sequence[Above0]), ("work", "min_s"), closed=False
)
_MEASURED_KEY_TYPES = {  # of the keys that are read
    "platform": Text,
    "cache_bytes": Above0,
    "memory": Mapping[str, _CURVE_TABLE],
}
_COMMON_KEY_TYPES = {
    **dict.fromkeys(("name", "source", "note"), Text),
    "unverified": Texts,
    "measured": struct("Measured", _MEASURED_KEY_TYPES, closed=False),
}
_LINK_KEY_TYPES = {
    **_COMMON_KEY_TYPES,
    **dict.fromkeys(_LINK_SI_FIELDS, Figure),
    "bus_share": Annotated[float, Meta(gt=0, le=1, description="a number from 0 to 1")],
    "spread": Annotated[float, Meta(gt=0, le=2, description="a number from 0 to 2, in ln")],
    "bus_source": Text,
    "latency_range_us": tuple[Figure, Figure],
    "topology": Text,
}
_DEVICE_KEY_TYPES = {
    **_COMMON_KEY_TYPES,
    **dict.fromkeys(DEVICE_SI_FIELDS, Figure),
    **dict.fromkeys(PEAK_TABLES, _PEAKS),
    "kind": Literal["cpu", "gpu", "tpu", "asic"],
    "products": Texts,
    "only_by_name": bool,
    "details": struct("Details", DETAILS),
    "calibration": struct("Calibration", _CALIBRATION_KEY_TYPES, closed=False),
}
_LINK_TABLE = struct("Link", _LINK_KEY_TYPES, ("name", "source", "GB_per_s"))
_DEVICE_TABLE = struct(
    "Device", _DEVICE_KEY_TYPES, ("name", "kind", "source", "peak_TFLOP_per_s", "memory_GB_per_s")
)


def device_from_table(table: Mapping[str, Any], source: str) -> Device:
    """Return the device of a TOML table in datasheet units.

    Args:
        table: the table.
        source: the name of its file in errors.

    Raises:
        InputError: for an unknown key, a missing one, or a number that no device has.
    """
    # Types are checked, but for tables whose keys are free (`[measured]`, `[details]`).
    values = typed_values(table, _DEVICE_TABLE, source) | {
        key: table[key] for key in _OPEN_TABLES if key in table
    }
    values = _convert_fields_to_si(values, DEVICE_SI_FIELDS)
    _check_power(values, source)
    check_clocks(table, source)
    check_measured(values, source)
    # Each table of peaks in TFLOP/s becomes a field in FLOP/s under another name.
    for key in values.keys() & PEAK_TABLES.keys():
        del values[key]
        values[PEAK_TABLES[key]] = _convert_peaks(table[key], f"{source}: '{key}'")
    details = values.get("details", {})
    if "usable_GiB" in details and "memory_bytes" in values:
        values["usable_share"] = details["usable_GiB"] * GIB / values["memory_bytes"]
    device_values = {key: values.pop(key) for key in DEVICE_KEYS if key in values}
    calibration = DeviceCalibration.from_table(values.pop("calibration", {}))
    datasheet = Datasheet(**values, **_select_details(details))
    return Device(datasheet=datasheet, calibration=calibration, **device_values)


def _check_power(values: Mapping[str, Any], source: str) -> None:
    """Raise `InputError` if a device takes as much power idle as its limit allows."""
    idle_w = values.get("idle_w", 0.0)
    limit_w = values.get("peak_w", math.inf)
    if idle_w >= limit_w:
        raise InputError(f"{source}: 'idle_W' must be below 'tdp_W', not {idle_w:g} of {limit_w:g}")


def _select_details(details: Mapping[str, Any]) -> JsonObject:
    """Return the details that are fields of the datasheet, in SI."""
    datasheet_keys = (*_TEXT_DETAILS, *DETAIL_SI_FIELDS)
    datasheet_details = {key: details[key] for key in datasheet_keys if key in details}
    return _convert_fields_to_si(datasheet_details, DETAIL_SI_FIELDS)


def _convert_peaks(tflop_per_s: Mapping[str, float], place: str) -> dict[str, float]:
    """Return a table of peaks in FLOP/s by dtype; raises `InputError` for an empty one."""
    if not tflop_per_s:
        raise InputError(f"{place} must be a table of dtypes, not empty")
    return {dtype: peak * TFLOP for dtype, peak in tflop_per_s.items()}


def link_from_table(table: Mapping[str, Any], source: str) -> Link:
    """Return the link of a TOML table in datasheet units.

    Args:
        table: the table.
        source: the name of its file in errors.

    Raises:
        InputError: for an unknown key, a missing one, or a number that is not positive.
    """
    values = _convert_fields_to_si(typed_values(table, _LINK_TABLE, source), _LINK_SI_FIELDS)
    if latency_range_us := values.pop("latency_range_us", None):
        low_s, high_s = (1e-6 * latency_us for latency_us in latency_range_us)
        # Without a latency the range has only to be in order.
        if not low_s <= values.get("latency_s", low_s) <= high_s:
            rule = "must be two numbers around 'latency_us', the lower one first"
            raise InputError(
                f"{source}: 'latency_range_us' {rule}, not {shorten(list(latency_range_us))}"
            )
        values["latency_range_s"] = low_s, high_s
    measured = table.get("measured", {})
    if measured:
        # A measured link is known better than one of a datasheet.
        values.setdefault("spread", MEASURED_SPREAD)
    return Link(**{"latency_s": None, **values, "measured": measured})


def _convert_fields_to_si(values: Mapping[str, Any], si_fields: SiFields) -> JsonObject:
    """Return the values, those of keys of numbers by their fields and in SI."""
    converted = {}
    for key, value in values.items():
        name, factor = si_fields.get(key, (key, None))
        converted[name] = value if factor is None else value * factor
    return converted
