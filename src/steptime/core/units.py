"""The table of quantities with their units, and numbers as people read them."""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import log10
from typing import Any

from steptime.core.toml_files import read_packaged_toml

QUANTITIES: Mapping[str, list[str]] = read_packaged_toml(
    "quantities.toml"
)  # a unit and what is meant

HOURS_OF_DAY = 24
HOURS_BELOW = 2 * HOURS_OF_DAY  # from here on a time is written in days
_Prefixes = tuple[tuple[float, str], ...]
_PLAIN: _Prefixes = ((1.0, ""),)
_LARGE: _Prefixes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL: _Prefixes = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))


def format_si(value: float, unit: str, digits: int = 4) -> str:
    """Return `value` with a decimal prefix: `si(2.5e9, "FLOP")` is `2.5 GFLOP`."""
    if value == 0:
        return f"0 {unit}"
    rounded = float(f"{value:.{digits}g}")  # so that 999,999 B is 1 MB and not 1000 kB
    magnitude = abs(rounded)
    prefixes = _PLAIN
    if magnitude >= 1e3:
        prefixes = _LARGE
    elif unit in ("s", "J", "W"):  # there are no millibytes
        prefixes = _SMALL
    # The largest prefix that leaves at least 1 before the point, else the smallest of all.
    factor, prefix = prefixes[-1]
    for prefix_factor, prefix_text in prefixes:
        if magnitude >= prefix_factor:
            factor, prefix = prefix_factor, prefix_text
            break
    return f"{rounded / factor:.{digits}g} {prefix}{unit}"


def format_seconds(value: float) -> str:
    """Return a time with its prefix: `seconds(0.0021)` is `2.1 ms`."""
    return f"{value:.4g} s" if value >= 1 else format_si(value, "s")


def format_hours(value: float) -> str:
    """Return a long time: hours below two days, `30.5 h`, else days, `3.854 days`."""
    if abs(value) < HOURS_BELOW:
        return f"{value:.4g} h"
    return f"{value / HOURS_OF_DAY:,.4g} days"


@lru_cache(maxsize=1 << 15)
def format_bytes(value: float) -> str:
    """Return bytes in decimal units: `size(2.5e9)` is `2.5 GB`."""
    return format_si(value, "B")


def format_rate(value: float) -> str:
    """Return a throughput without its unit: `1,234` or `12.34`."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def format_percent(value: float, sign: str = "") -> str:
    """Return a share: `percent(0.618)` is `61.8 %`, `percent(12.34, "+")` is `+1,234 %`."""
    figure = round(100 * value, 4) + 0.0  # what arithmetic leaves over is no error of 2e-14 %
    return f"{figure:{sign}{'.3g' if abs(value) < 9.995 else ',.0f'}} %"


def _si_formatter(unit: str) -> Callable[[float], str]:
    return lambda value: format_si(value, unit)


CENTS_BELOW = 100  # amounts of money from here on are whole
UNITS: dict[str, Callable[[float], str]] = {  # end of a key: how a person reads its number
    "flop_per_byte": lambda value: f"{value:.4g} FLOP/byte",
    "flop_per_s": _si_formatter("FLOP/s"),
    "bytes_per_s": _si_formatter("B/s"),
    "examples_per_s": lambda value: f"{value:{'.4g' if value < 1e4 else ',.0f'}} examples/s",
    "per_s": format_rate,
    "bytes": format_bytes,
    "flop": _si_formatter("FLOP"),
    "hz": _si_formatter("Hz"),
    "s": format_seconds,
    "h": format_hours,
    "j": _si_formatter("J"),
    "s_per_mac": lambda value: f"{value * 1e12:.4g} ps",
    "j_per_mac": lambda value: f"{value * 1e12:.4g} pJ",
    "w": _si_formatter("W"),
    "g": _si_formatter("g"),
    "kwh": lambda value: f"{value:.4g} kWh",
    **dict.fromkeys(("nm", "mm2"), lambda value: f"{value:g}"),
    **dict.fromkeys(
        ("cost", "cost_total"),
        lambda value: f"{value:,.2f}" if value >= 0.05 or not value else f"{value:.2g}",
    ),
    **dict.fromkeys(("share", "fraction", "efficiency"), format_percent),
    "speedup": lambda value: f"{value:.4g}x",
    "ratio": lambda value: f"{value:.3g}",
    **dict.fromkeys(("parameters", "macs"), lambda value: f"{value:,}"),
}


def format_value(key: str, value: Any) -> str:
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
        return ", ".join(f"{name}={format_value(key, item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(format_value(key, item) for item in value)
    if isinstance(value, int | float):
        for unit, format_number in UNITS.items():
            if key == unit or key.endswith(f"_{unit}"):
                return format_number(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def format_interval(key: str, value: Any, low: float | None, high: float | None) -> str:
    """Return a quantity with its interval, in one unit: `1.62 s [1.36-1.92]`.

    Without a `high` end it is a bound where `low` is the value itself: `at least 1.62 s`.
    """
    text = format_value(key, value)
    if value is None or low is None:
        return text
    if high is None:
        # An open interval that begins at the value is a lower bound; another one is not shown.
        is_lower_bound = low == value
        return f"at least {text}" if is_lower_bound else text
    # The ends are shown in the unit of the text: a value of 0.012 s is written 12 ms, and its ends
    # are multiplied by 1000, too.
    number_text = text.partition(" ")[0].rstrip("x").replace(",", "")
    number = float(number_text)
    scale = 10.0 ** round(log10(number / value)) if number and value else 1.0
    return f"{text} [{low * scale:.4g}-{high * scale:.4g}]"


def format_duration(value: float) -> str:
    """Return a time to wait: `1:05` minutes and seconds, or hours too."""
    total_s = max(0, round(value))
    hours, minutes, secs = total_s // 3600, total_s // 60 % 60, total_s % 60
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def format_money(amount: float, currency: str | None) -> str:
    """Return an amount of money: `33.41 USD`, `1,250 USD`."""
    return f"{amount:,.2f} {currency}" if amount < CENTS_BELOW else f"{amount:,.0f} {currency}"


def first_of(names: Iterable[str], limit: int, between: str = ", ") -> str:
    """Return the first names and the number of the others: `a, b and 3 more`."""
    all_names = list(names)
    hidden_count = len(all_names) - limit
    suffix = f" and {hidden_count:,} more" if hidden_count > 0 else ""
    return between.join(all_names[:limit]) + suffix


def format_count(number: float, noun: str) -> str:
    """Return a number with its noun: `1 row`, `1,998 rows`, `0.5 epochs`."""
    return f"{number:{',' if isinstance(number, int) else 'g'}} {noun}{'s' * (number != 1)}"
