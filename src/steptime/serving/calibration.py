"""A calibration of servers: constants of host and scheduler that runs of clients tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError, unknown
from steptime.core.files import write_atomically
from steptime.core.toml_files import format_path, read_toml, toml_text
from steptime.core.units import format_count, format_percent
from steptime.planning.ranks.shape import Shape

CONSTANTS = ("step_s", "sequence_s", "prompt_s", "long_prompt_s")
"""Constants of a stack of servers that a calibration replaces."""
MAX_FACTOR = 10.0  # of a network's device time, and its inverse: a file with more is damaged
MAX_CONSTANT_S = 10.0
_DIMENSIONS = ("width", "heads", "kv_heads", "ffn", "vocabulary", "experts")


def network_key(shape: Shape) -> str:
    """Return the dimensions of a network, the same for all names that it has."""
    sizes = {"layers": len(shape.kinds)}
    sizes |= {name: shape.kind_settings[name] for name in _DIMENSIONS}
    return ",".join(f"{name}={size}" for name, size in sizes.items())


@dataclass(frozen=True)
class NetworkFactor:
    """The factor of the device's seconds of one network.

    Args:
        model: the network, as the runs name it.
        network: its dimensions (`network_key`).
        device: the device that it ran on.
        factor: what the device takes over what is predicted.
    """

    model: str
    network: str
    device: str
    factor: float


@dataclass(frozen=True)
class ServingCalibration:
    """Constants of host and scheduler, as runs of clients tell them.

    Args:
        stack: the software of the servers.
        source: the files of the runs.
        run_count: number of runs.
        constants: seconds of `CONSTANTS`, by name.
        factors: factors of the networks that ran.
        request_error: median of |predicted / measured - 1| of a whole request, of runs that were
            left out of the fit; None of a single run.
        ttft_error: the same of the time to the first token.
    """

    stack: str
    source: str
    run_count: int
    constants: Mapping[str, float]
    factors: tuple[NetworkFactor, ...] = ()
    request_error: float | None = None
    ttft_error: float | None = None

    def factor_of(self, shape: Shape, device: str) -> float:
        """Return the factor of a network on a device, 1 of one that did not run."""
        key = network_key(shape)
        matching = (f.factor for f in self.factors if f.network == key and f.device == device)
        return next(matching, 1.0)

    @property
    def devices(self) -> list[str]:
        """The devices of the runs."""
        return list(dict.fromkeys(factor.device for factor in self.factors))

    def describe(self, shape: Shape, device: str) -> list[str]:
        """Describe where the constants come from, and how far left-out runs are off.

        For example `calibrated on 2 runs of clients: a run that is left out is off by 4.1 % end to
        end in the median`.
        """
        text = f"calibrated on {format_count(self.run_count, 'run')} of clients"
        # With a single run none can be left out.
        if self.request_error is None:
            lines = [f"{text}: a second run would tell how far others are off"]
        else:
            error = format_percent(self.request_error)
            lines = [f"{text}: a run that is left out is off by {error} end to end in the median"]
        if device not in self.devices:
            lines.append(f"the calibration is of {', '.join(self.devices)}, not of {device}")
        elif all(factor.network != network_key(shape) for factor in self.factors):
            lines.append(f"the calibration has no run of {shape.label}")
        return lines


def write_calibration(calibration: ServingCalibration, path: Path) -> None:
    """Write a calibration as TOML."""
    table: dict[str, object] = {
        "stack": calibration.stack,
        "source": calibration.source,
        "runs": calibration.run_count,
        "request_error": calibration.request_error,
        "ttft_error": calibration.ttft_error,
        "serving": dict(calibration.constants),
    }
    networks = "".join(
        f"\n[[networks]]\n{toml_text(vars(factor))}" for factor in calibration.factors
    )
    write_atomically(path, toml_text(table) + networks)


def read_calibration(path: Path) -> ServingCalibration:
    """Read a calibration of servers.

    Raises:
        InputError: for a file that is none, and for values that cannot be.
    """
    table = read_toml(path)
    place = format_path(path)
    # Which of these keys is missing says that the file is something else.
    missing = [name for name in ("stack", "runs", "serving") if name not in table]
    if missing:
        text = f"{place}: is no calibration of servers: {missing[0]} is missing"
        raise InputError(f"{text}; nearest: steptime calibrate --serving RESULTS --out {place}")
    constants = table["serving"]
    if not isinstance(constants, Mapping):
        raise InputError(f"{place}: serving: must be a table of {', '.join(CONSTANTS)}")
    for name in constants:
        if name not in CONSTANTS:
            raise unknown("constant", name, CONSTANTS, f"{place}: serving")
    seconds = {
        name: _check_number(value, f"{place}: serving.{name}", 0, MAX_CONSTANT_S)
        for name, value in constants.items()
    }
    network_tables = table.get("networks", [])
    factors = [
        _read_factor(network_table, f"{place}: networks[{i}]")
        for i, network_table in enumerate(network_tables)
    ]
    return ServingCalibration(
        stack=_check_text(table["stack"], f"{place}: stack"),
        source=str(table.get("source", "")),
        run_count=int(_check_number(table["runs"], f"{place}: runs", 1, 1e6)),
        constants=seconds,
        factors=tuple(factors),
        request_error=_read_error(table, "request_error", place),
        ttft_error=_read_error(table, "ttft_error", place),
    )


def _read_factor(row: Any, place: str) -> NetworkFactor:
    """Read the factor of a network's device time; raises `InputError` for a wrong table."""
    if not isinstance(row, Mapping):
        raise InputError(f"{place}: must be a table")
    return NetworkFactor(
        model=_check_text(row.get("model"), f"{place}.model"),
        network=_check_text(row.get("network"), f"{place}.network"),
        device=_check_text(row.get("device"), f"{place}.device"),
        factor=_check_number(row.get("factor"), f"{place}.factor", 1 / MAX_FACTOR, MAX_FACTOR),
    )


def _read_error(table: Mapping[str, Any], name: str, place: str) -> float | None:
    return _check_number(table[name], f"{place}: {name}", 0, 1e9) if name in table else None


def _check_text(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{place}: must be a text")
    return value


def _check_number(value: object, place: str, at_least: float, at_most: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not at_least <= float(value) <= at_most:  # type: ignore[arg-type]  # a number
        raise InputError(f"{place}: must be a number from {at_least:g} to {at_most:g}")
    return float(value)  # type: ignore[arg-type]  # checked above
