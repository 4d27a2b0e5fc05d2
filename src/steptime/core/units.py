"""The table of quantities with their units, and numbers as people read them."""

from __future__ import annotations

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
    """Give `value` with a decimal prefix: `si(2.5e9, "FLOP")` is `2.5 GFLOP`."""
    if value == 0:
        return f"0 {unit}"
    value = float(f"{value:.{digits}g}")  # so that 999,999 B is 1 MB and not 1000 kB
    steps = _LARGE if abs(value) >= 1e3 else _SMALL if unit in ("s", "J", "W") else ((1.0, ""),)
    factor, prefix = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{value / factor:.{digits}g} {prefix}{unit}"


def seconds(value: float) -> str:
    """Give a time with its prefix: `seconds(0.0021)` is `2.1 ms`."""
    return f"{value:.4g} s" if value >= 1 else si(value, "s")


def size(value: float) -> str:
    """Give bytes in decimal units: `size(2.5e9)` is `2.5 GB`."""
    return si(value, "B")


def duration(value: float) -> str:
    """Give a time to wait: `1:05` minutes and seconds, or hours too."""
    whole = max(0, round(value))
    hours, minutes, secs = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def counted(number: int, noun: str) -> str:
    """Give a number of things in words: `1 row`, `1,998 rows`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
