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
ITERATIONS = frozenset(["it", "iter", "iteration", "step", "batch"])
SCALES = {"k": 1e3, "m": 1e6}
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
        speed = MeasuredSpeed(_peak_step_s(setup) / number, unit)
    if speed.step_s > MAX_STEP_S:
        raise InputError(f"{OPTION} {shorten(value)}: a step of more than a year is none")
    return speed


def _split_speed(value: float | str) -> tuple[float, str]:
    """Return the number of a speed and its unit: one of time, or a word of `MeasuredSpeed`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), "s"
    text = str(value).strip().lower()
    match = _SPEED.fullmatch(text)
    if match is None:
        raise InputError(f"{OPTION} {shorten(value)}: is no speed; write {FORMS}")
    number = float(match[2].replace(",", ""))
    words = match[3].strip()
    if match[1] or words.startswith("%") or words == "mfu":
        return _read_mfu(value, number, words)
    if words in SECONDS_OF_UNIT:
        return number, words
    if words[:1] in SCALES and words[1:].strip().partition("/")[0].rstrip("s") in EXAMPLES | TOKENS:
        number *= SCALES[words[0]]
        words = words[1:].strip()
    return _read_rate(value, number, words)


def _read_rate(value: float | str, number: float, words: str) -> tuple[float, str]:
    """Return a throughput's number, and what it counts in a second."""
    noun, _, per = words.replace(" per ", "/").replace("/sec", "/s").partition("/")
    noun, per = noun.strip(), per.strip().removesuffix("ond")
    singular = noun.removesuffix("s") if len(noun) > 1 else noun
    if per == "s" and singular in EXAMPLES | TOKENS | ITERATIONS:
        names = ((EXAMPLES, "examples"), (TOKENS, "tokens"), (ITERATIONS, "iterations"))
        return number, next(unit for nouns, unit in names if singular in nouns)
    if noun in SECONDS_OF_UNIT and per.removesuffix("s") in ITERATIONS:
        return number * SECONDS_OF_UNIT[noun], "s/iterations"
    hint = "say its unit" if not words else f"unknown unit {shorten(words)}"
    raise InputError(f"{OPTION} {shorten(value)}: {hint}: {FORMS}")


def _read_mfu(value: float | str, number: float, words: str) -> tuple[float, str]:
    """Return a share of the peak, and the unit `mfu`."""
    share = number / 100 if words.startswith("%") else number
    if words.lstrip("% ") not in {"", "mfu"} or not 0 < share <= 1:
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
    flop = sum(sum(parts.values()) for parts in setup.model.counted().values())
    return flop / next(iter(setup.model.effective_device.peak_flop_per_s.values()))
