"""Faults of a device file that no type of a single key shows."""

import math
from collections.abc import Mapping
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.workload import PHASES

BASE_CLOCK = "base_clock_MHz"


def check_clocks(table: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` for a base clock above the boosted one."""
    base_mhz = table.get("details", {}).get(BASE_CLOCK, 0)
    if base_mhz > table.get("clock_MHz", math.inf):
        said = f"must not be above 'clock_MHz', {table['clock_MHz']:g}, but is {base_mhz:g}"
        raise InputError(f"{where}: 'details.{BASE_CLOCK}' {said}")


def check_measured(values: Mapping[str, Any], where: str) -> None:
    """Raise `InputError` where numbers of a calibration or of curves do not go together."""
    table = values.get("calibration", {})
    parts = {"calibration": table} | {f"calibration.{one}": table.get(one, {}) for one in PHASES}
    for part, own in parts.items():
        for name, ends in own.get("intervals", {}).items():
            if ends[0] > ends[1]:
                said = f"must be two logs, the lower one first, not {shorten(ends)}"
                raise InputError(f"{where}: '{part}.intervals.{name}' {said}")
    for name, curve in values.get("measured", {}).get("memory", {}).items():
        if len(curve["work"]) != len(curve["min_s"]):
            said = "must have as many numbers of 'work' as 'min_s'"
            raise InputError(f"{where}: 'measured.memory.{name}' {said}")
