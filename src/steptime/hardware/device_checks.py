"""Faults of a device file that no type of a single key shows."""

import math
from collections.abc import Mapping
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.workload import PHASES

BASE_CLOCK = "base_clock_MHz"


def check_clocks(table: Mapping[str, Any], source: str) -> None:
    """Raise `InputError` for a base clock above the boosted one."""
    base_mhz = table.get("details", {}).get(BASE_CLOCK, 0)
    if base_mhz > table.get("clock_MHz", math.inf):
        reason = f"must not be above 'clock_MHz', {table['clock_MHz']:g}, but is {base_mhz:g}"
        raise InputError(f"{source}: 'details.{BASE_CLOCK}' {reason}")


def check_measured(values: Mapping[str, Any], source: str) -> None:
    """Raise `InputError` where numbers of a calibration or of curves do not go together."""
    calibration = values.get("calibration", {})
    tables = {"calibration": calibration}
    tables |= {f"calibration.{phase}": calibration.get(phase, {}) for phase in PHASES}
    for path, table in tables.items():
        for name, interval in table.get("intervals", {}).items():
            low, high = interval
            if low > high:
                reason = f"must be two logs, the lower one first, not {shorten(interval)}"
                raise InputError(f"{source}: '{path}.intervals.{name}' {reason}")
    for name, curve in values.get("measured", {}).get("memory", {}).items():
        if len(curve["work"]) != len(curve["min_s"]):
            reason = "must have as many numbers of 'work' as 'min_s'"
            raise InputError(f"{source}: 'measured.memory.{name}' {reason}")
