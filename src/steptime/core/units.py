"""The table of quantities with their units, and numbers as people read them."""

from collections.abc import Callable, Mapping
from typing import Any

QUANTITIES = {  # name: (unit, meaning)
    "step_s": ("s", "time of one step"),
    "forward_s": ("s", "time of the forward pass"),
    "backward_s": ("s", "time of the backward pass"),
    "update_s": ("s", "time of the optimizer"),
    "comm_s": ("s", "time of communication"),
    "input_s": ("s", "time spent waiting for input"),
    "first_step_s": ("s", "time of the first step, compilation included"),
    "flop": ("FLOP", "floating-point operations of a step; a multiply-add is 2"),
    "forward_flop": ("FLOP", "floating-point operations of the forward pass"),
    "traffic_bytes": ("byte", "bytes of every op's inputs and outputs"),
    "comm_bytes": ("byte", "bytes sent and received"),
    "peak_memory_bytes": ("byte", "memory at the worst moment of a step"),
    "accuracy": ("1", "share of the test set that a trained network tells right"),
    "loss": ("1", "loss of the last step of a training"),
    "energy_j": ("J", "energy of a step"),
    "power_w": ("W", "mean power"),
    "published_speed_per_s": ("/s", "examples a second, as published"),
    "published_speed_uncertainty_per_s": ("/s", "its uncertainty, as published"),
    "published_speed_jitter_per_s": ("/s", "its jitter, as published"),
    "published_steps_per_s": ("/s", "steps a second in each interval of a log"),
    "published_flop_per_s": ("FLOP/s", "floating-point operations a second, as published"),
    "published_flop": ("FLOP", "floating-point operations of a step, as published"),
    "published_flop_per_parameter_byte": ("FLOP/byte", "FLOP of a step over bytes of weights"),
    "published_parameters": ("1", "trainable numbers, as published"),
    "published_time_share": ("1", "share of the step's time"),
    "published_flop_share": ("1", "share of the peak, the best of the profiles"),
    "published_flop_shares": ("1", "share of the peak in each profile"),
    "published_bandwidth_share": ("1", "share of the peak memory bandwidth"),
    "published_traffic_bytes": ("byte", "bytes of memory in a profile"),
    "published_intensity_flop_per_byte": ("FLOP/byte", "FLOP over bytes of memory in a profile"),
    "published_infeed_share": ("1", "share of the time spent waiting for input"),
    "published_infeed_share_std": ("1", "its deviation from step to step"),
    "published_infeed_shares": ("1", "share of the time waiting for input in each profile"),
}

_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))


def si(value: float, unit: str, digits: int = 4) -> str:
    """Return `value` with a decimal prefix: `si(2.5e9, "FLOP")` is `2.5 GFLOP`."""
    if value == 0:
        return f"0 {unit}"
    value = float(f"{value:.{digits}g}")  # so that 999,999 B is 1 MB and not 1000 kB
    steps = _LARGE if abs(value) >= 1e3 else _SMALL if unit in ("s", "J", "W") else ((1.0, ""),)
    factor, prefix = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{value / factor:.{digits}g} {prefix}{unit}"


def seconds(value: float) -> str:
    """Return a time with its prefix: `seconds(0.0021)` is `2.1 ms`."""
    return f"{value:.4g} s" if value >= 1 else si(value, "s")


def size(value: float) -> str:
    """Return bytes in decimal units: `size(2.5e9)` is `2.5 GB`."""
    return si(value, "B")


def rate(value: float) -> str:
    """Return a number of things a second: `1,234` or `12.34`."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def percent(value: float) -> str:
    """Return a share: `percent(0.618)` is `61.8 %`."""
    return f"{100 * value:.3g} %"


def _of(unit: str) -> Callable[[float], str]:
    return lambda value: si(value, unit)


UNITS: dict[str, Callable[[float], str]] = {  # end of a key: how a person reads its number
    "flop_per_byte": lambda value: f"{value:.4g} FLOP/byte",
    "flop_per_s": _of("FLOP/s"),
    "bytes_per_s": _of("B/s"),
    "examples_per_s": lambda value: f"{value:{'.4g' if value < 1e4 else ',.0f'}} examples/s",
    "per_s": rate,
    "bytes": size,
    "flop": _of("FLOP"),
    "hz": _of("Hz"),
    "s": seconds,
    "h": lambda value: f"{value:.4g} h",
    "j": _of("J"),
    "s_per_mac": lambda value: f"{value * 1e12:.4g} ps",
    "j_per_mac": lambda value: f"{value * 1e12:.4g} pJ",
    "w": _of("W"),
    "g": _of("g"),
    "kwh": lambda value: f"{value:.4g} kWh",
    "nm": lambda value: f"{value:g}",
    "mm2": lambda value: f"{value:g}",
    "cost": lambda value: f"{value:,.2f}" if value >= 0.05 or not value else f"{value:.2g}",
    "share": percent,
    "fraction": percent,
    "efficiency": percent,
    "speedup": lambda value: f"{value:.4g}x",
    "ratio": lambda value: f"{value:.3g}",
    "parameters": lambda value: f"{value:,}",
    "macs": lambda value: f"{value:,}",
}


def shown(key: str, value: Any) -> str:
    """Return the value of `key` as a person reads it: in the unit that the key ends with.

    A text stands as it is, None is a dash; lists and tables are shown item by item.
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={shown(key, item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(shown(key, item) for item in value)
    if isinstance(value, int | float):
        for unit, form in UNITS.items():
            if key == unit or key.endswith(f"_{unit}"):
                return form(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def duration(value: float) -> str:
    """Return a time to wait: `1:05` minutes and seconds, or hours too."""
    whole = max(0, round(value))
    hours, minutes, secs = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: `1 row`, `1,998 rows`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
