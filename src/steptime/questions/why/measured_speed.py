"""The speed of a run as people say it: `410ms`, `1450 examples/s`, `4.75 it/s`, `38% MFU`."""

import re
from dataclasses import dataclass

from steptime.build import tokens_per_example
from steptime.core.errors import InputError, shorten
from steptime.core.values import SECONDS_OF_UNIT
from steptime.questions.why.setup import Setup

OPTION = "--measured"
FORMS = "410ms, 1450 examples/s, 12k tokens/s, 4.75 it/s, 2.1 s/it or '38% MFU'"
MAX_STEP_S = 86_400.0 * 365
EXAMPLES = frozenset(["example", "sample", "image", "img", "seq", "sequence", "frame"])
TOKENS = frozenset(["token", "tok", "t"])
ITERATIONS = frozenset(["it", "iter", "iteration", "step", "batch", "batche"])  # of `batches`
SCALES = {"k": 1e3, "m": 1e6}
TIME_UNITS = {"sec": "s", "second": "s", "msec": "ms", "millisecond": "ms", "minute": "min"}
"""The units of time of words that people write for them, without a plural's `s`."""
_PER = re.compile(r"\s*(?:/|\bper\b)\s*")  # `img / sec`, `ms per step`
_SPEED = re.compile(r"(mfu)?\s*=?\s*(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+)\s*(.*)", re.ASCII)


@dataclass(frozen=True)
class MeasuredSpeed:
    """A measured step, and the unit in which somebody stated it.

    Args:
        step_s: seconds of a step.
        unit: time, iterations, examples, tokens or mfu.
    """

    step_s: float
    unit: str

    @property
    def is_iteration(self) -> bool:
        """Whether a loop's iteration was timed, which may hold several steps."""
        return self.unit in {"time", "iterations"}

    @property
    def is_throughput(self) -> bool:
        """Whether it counts examples or tokens, of all replicas or of one."""
        return self.unit in {"examples", "tokens"}


def read_speed(value: float | str, setup: Setup) -> MeasuredSpeed:
    """Return the measured step that a text or a number of seconds says.

    Throughputs are those of all replicas. MFU counts the arithmetic of the network, without what is
    computed twice, over the peak of the step's data type.

    Raises:
        InputError: for another text, a throughput in tokens of a network without them, and a speed
            above every possible one.
    """
    number, unit = _split_speed(value)
    if not number > 0:
        raise InputError(f"{OPTION} {shorten(value)}: a speed is above 0, such as {FORMS}")
    examples = setup.workload.batch_per_replica * setup.replicas
    if unit in SECONDS_OF_UNIT:
        speed = MeasuredSpeed(number * SECONDS_OF_UNIT[unit], "time")
    elif unit == "s/iterations":
        speed = MeasuredSpeed(number, "iterations")
    elif unit == "iterations":
        speed = MeasuredSpeed(1 / number, unit)
    elif unit == "examples":
        speed = MeasuredSpeed(examples / number, unit)
    elif unit == "tokens":
        speed = MeasuredSpeed(examples * _tokens_per_example(setup) / number, unit)
    else:
        # MFU: the step at the peak over the measured step.
        speed = MeasuredSpeed(_peak_step_s(setup) / number, unit)
    if speed.step_s > MAX_STEP_S:
        raise InputError(f"{OPTION} {shorten(value)}: a step of more than a year is none")
    return speed


def _split_speed(value: float | str) -> tuple[float, str]:
    """Return the number of a speed and its unit: one of time, or a word of `MeasuredSpeed`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), "s"
    match = _SPEED.fullmatch(str(value).strip().lower())
    if match is None:
        raise InputError(f"{OPTION} {shorten(value)}: is no speed; write {FORMS}")
    mfu_prefix, number_text, unit_text = match.groups()
    number = float(number_text.replace(",", ""))
    unit_words = _PER.sub("/", unit_text.strip())  # `tokens per s` is `tokens/s`
    is_mfu = mfu_prefix or unit_words.startswith("%") or unit_words == "mfu"
    if is_mfu:
        return _read_mfu(value, number, unit_words)
    time_unit = _find_time_unit(unit_words)
    if time_unit:
        return number, time_unit
    scale, rate_words = _split_scale(unit_words)
    return _read_rate(value, number * scale, rate_words)


def _split_scale(unit_words: str) -> tuple[float, str]:
    """Return the factor that a unit begins with, and the rest: `k tokens/s` is 1,000 tokens/s."""
    first_letter = unit_words[:1]
    rate_words = unit_words[1:].strip()
    counted_noun = rate_words.partition("/")[0].rstrip("s")
    # The first letter of `ms/it` belongs to the unit: no noun that is counted follows it.
    is_scale = first_letter in SCALES and counted_noun in EXAMPLES | TOKENS
    return (SCALES[first_letter], rate_words) if is_scale else (1.0, unit_words)


def _find_time_unit(word: str) -> str:
    """Return the unit of time that a word stands for, "" for none: `secs` is `s`."""
    return word if word in SECONDS_OF_UNIT else TIME_UNITS.get(word.removesuffix("s"), "")


def _read_rate(value: float | str, number: float, words: str) -> tuple[float, str]:
    """Return a throughput's number, and what it counts in a second."""
    numerator, _, denominator = words.partition("/")
    counted_unit = _find_counted_unit(numerator)
    if counted_unit and _find_time_unit(denominator) == "s":
        return number, counted_unit
    is_per_iteration = denominator.removesuffix("s") in ITERATIONS
    time_unit = _find_time_unit(numerator)
    if time_unit and is_per_iteration:
        return number * SECONDS_OF_UNIT[time_unit], "s/iterations"
    hint = f"unknown unit {shorten(words)}; write" if words else "say its unit:"
    raise InputError(f"{OPTION} {shorten(value)}: {hint} {FORMS}")


def _find_counted_unit(noun: str) -> str:
    """Return the unit that a throughput counts, "" for an unknown noun: `imgs` are `examples`."""
    singular = noun.removesuffix("s")
    if singular in EXAMPLES:
        return "examples"
    if singular in TOKENS:
        return "tokens"
    return "iterations" if singular in ITERATIONS else ""


def _read_mfu(value: float | str, number: float, words: str) -> tuple[float, str]:
    """Return a share of the peak, and the unit `mfu`."""
    share = number / 100 if words.startswith("%") else number
    is_mfu_unit = words.lstrip("% ") in {"", "mfu"}
    if not is_mfu_unit or not 0 < share <= 1:
        raise InputError(f"{OPTION} {shorten(value)}: MFU is a share up to 1, such as '38% MFU'")
    return share, "mfu"


def _tokens_per_example(setup: Setup) -> int:
    """Return the tokens of an example; raises `InputError` for a network without them."""
    tokens = tokens_per_example(setup.workload)
    if tokens is None:
        label = setup.workload.label
        raise InputError(f"{OPTION}: {label} reads no tokens; nearest: examples/s")
    return tokens


def _peak_step_s(setup: Setup) -> float:
    """Return the seconds of the network's arithmetic at the peak of its data type."""
    flop = sum(sum(flop_by_pass.values()) for flop_by_pass in setup.model.flop_by_row().values())
    peaks = setup.model.effective_device.datasheet.peak_flop_per_s
    dtype_peak_flop_per_s = next(iter(peaks.values()))  # the step's type is first
    return flop / dtype_peak_flop_per_s
