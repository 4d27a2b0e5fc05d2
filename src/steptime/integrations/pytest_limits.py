"""Limits of a step in a test: the memory that it is predicted to need, and its measured time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steptime.core.errors import InputError, unknown
from steptime.core.units import format_bytes, format_percent, format_seconds
from steptime.core.values import parse_bytes, parse_number, parse_seconds

if TYPE_CHECKING:
    from steptime.questions.run.measured_step import RunAnswer, StepStatistics

LIMIT_NAMES = ("fits", "max_step", "device")
MEMORY_DEVICE = "rtx-4090"  # whose driver and libraries a need of memory counts, without `device`
MAX_FACTOR = 1000.0  # of a predicted time
RUN_ONLY = ("threads", "compile_", "budget", "limit", "backend")  # no options of a prediction
_FACTOR = re.compile(r"(?P<number>[0-9.]+)\s*x\s+predicted")


class Limits(NamedTuple):
    """Limits of a step.

    Attributes:
        fits: memory that it must fit, `24GB` or the name of a device; None for no limit.
        max_step: longest time, `15ms` or `1.2x predicted`; None for no limit.
        device: the device of predictions, and the one that must be present to measure; None for
            the one that is present.
    """

    fits: str | None
    max_step: str | None
    device: str | None


class Verdict(NamedTuple):
    """Whether a step keeps a limit.

    Attributes:
        word: yes, no or unsure.
        line: the reason, in a sentence.
    """

    word: str
    line: str


@dataclass(frozen=True)
class BenchStep:
    """A step as a test names it.

    Attributes:
        model: the MODEL.
        batch: the batch size; None for the model's own.
        options: further options of `steptime run`.
    """

    model: str
    batch: int | None
    options: Mapping[str, Any]

    @property
    def predicted_options(self) -> Mapping[str, Any]:
        """The options that a prediction has, too."""
        return {name: value for name, value in self.options.items() if name not in RUN_ONLY}


def list_run_options(step: BenchStep, limits: Limits | None) -> Mapping[str, Any]:
    """Return the options of `steptime run` for a step; its limits may name the device."""
    options = dict(step.options)
    if limits is not None and limits.device is not None:
        options.setdefault("device", _device_kind_of(limits.device))
    return options


def _device_kind_of(device: str) -> str:
    """Return the place where a device runs steps: cuda of a GPU, else cpu."""
    from steptime.hardware import catalog

    return "cuda" if catalog.device(device).kind == "gpu" else "cpu"


def read_limits(values: Mapping[str, Any]) -> Limits:
    """Return the limits among the keywords of a marker.

    Raises:
        InputError: for a limit that cannot be read, and without any.
    """
    fits, max_step, device = (values.get(name) for name in LIMIT_NAMES)
    limits = Limits(
        None if fits is None else str(fits),
        None if max_step is None else str(max_step),
        None if device is None else str(device),
    )
    if limits.fits is None and limits.max_step is None:
        raise InputError('a marker steptime needs a limit: fits="24GB" or max_step="15ms"')
    if limits.fits is not None and _is_size(limits.fits):
        parse_bytes(limits.fits, "fits")
    if limits.max_step is not None:
        _parse_max_step(limits.max_step)
    return limits


def judge_fit(step: BenchStep, limits: Limits) -> Verdict:
    """Return whether a step is predicted to fit the memory of a limit; nothing is measured.

    Raises:
        InputError: for a network or a device that is unknown.
    """
    from steptime.hardware import catalog
    from steptime.prediction.conformal import TOO_CLOSE, judge_memory
    from steptime.questions.fit.answer import FitAnswer
    from steptime.questions.fit.question import fit

    limit_text = limits.fits or ""
    is_size = _is_size(limit_text)
    if is_size:  # `24GB`: the device decides only on software and kernels
        device = catalog.device(limits.device or MEMORY_DEVICE)
        usable_bytes: float | None = parse_bytes(limit_text, "fits")
    else:  # the name of a device whose memory is the limit
        device = catalog.device(limits.device or limit_text)
        usable_bytes = device.datasheet.usable_bytes
    answer = fit(step.model, device, step.batch, **step.predicted_options)
    if not isinstance(answer, FitAnswer):
        raise InputError("fits: quantised weights of a desktop server have no training step")
    verdict = judge_memory(answer.needed_bytes, usable_bytes, device).verdict
    word = "unsure" if verdict in (TOO_CLOSE, "unknown") else verdict  # else yes or no
    interval = (
        f"{format_bytes(answer.needed_low_bytes)} to {format_bytes(answer.needed_high_bytes)}"
    )
    limit = "unknown memory" if usable_bytes is None else format_bytes(usable_bytes)
    needs = f"needs {format_bytes(answer.needed_bytes)} ({interval}) of {limit} on {device.name}"
    return Verdict(word, f"{_shorten_module_file(answer.model)}, batch {answer.batch}: {needs}")


def judge_time(step: BenchStep, limits: Limits, measured: RunAnswer) -> Verdict:
    """Return whether a measured step keeps the limit of its time.

    It does not where the whole 95 % interval of its median lies above the limit.

    Raises:
        InputError: if the device that measured cannot be predicted.
    """
    from steptime.questions.predict.question import predict
    from steptime.questions.predict.step_time import StepTime

    step_s = measured.step_s
    if step_s is None:
        raise InputError("nothing was measured")
    factor, stated_s = _parse_max_step(limits.max_step or "")
    if stated_s is not None:  # `15ms`
        limit_s = stated_s
        limit_text = format_seconds(limit_s)
    else:  # `1.2x predicted`
        prediction = predict(step.model, measured.platform, step.batch, **step.predicted_options)
        if not isinstance(prediction, StepTime):
            raise InputError("several stacks have no single predicted time")
        limit_s = factor * prediction.step_s
        predicted_text = f"{factor:g} times the predicted {format_seconds(prediction.step_s)}"
        limit_text = f"{format_seconds(limit_s)}, {predicted_text}"
    word = _compare_median(step_s, limit_s)
    excess_share = step_s.median / (limit_s or 1.0) - 1  # a limit of 0 would divide by 0
    excess = f"; {format_percent(excess_share)} above the limit" if excess_share > 0 else ""
    line = f"{describe_step(measured)} of at most {limit_text} on {measured.platform}{excess}"
    return Verdict(word, line)


def describe_step(measured: RunAnswer, median_s: float | None = None) -> str:
    """Describe a measured step: `fc:layers=2, batch 64: 1.2 ms`.

    Args:
        measured: the step.
        median_s: its median over further rounds; None for that of `measured`.
    """
    if median_s is None and measured.step_s is not None:
        median_s = measured.step_s.median
    text = "unknown" if median_s is None else format_seconds(median_s)
    return f"{_shorten_module_file(measured.model)}, batch {measured.batch}: {text}"


def _shorten_module_file(model: str) -> str:
    """Return a MODEL without the user's folder of networks, where a module was exported to."""
    from steptime.hardware import item_files

    is_exported_module = Path(model).is_relative_to(item_files.user_folder("networks"))
    return Path(model).name if is_exported_module else model


def _compare_median(step: StepStatistics, limit_s: float) -> str:
    """Return yes, no, or unsure where the interval holds the limit or is unknown above it."""
    low_s, high_s = step.low_s, step.high_s
    if low_s is None or high_s is None:  # the median alone does not say that a limit is exceeded
        return "yes" if step.median <= limit_s else "unsure"
    if low_s > limit_s:
        return "no"
    return "yes" if high_s <= limit_s else "unsure"


def _is_size(text: str) -> bool:
    return text[:1].isdigit()


def _parse_max_step(text: str) -> tuple[float, float | None]:
    """Return the factor of `1.2x predicted` and None, or 1 and the seconds of `15ms`."""
    match = _FACTOR.fullmatch(text.strip())
    if match:
        return parse_number(match["number"], "max_step", 0, MAX_FACTOR), None
    if "predicted" in text:
        raise unknown("limit", text, ["1.2x predicted", "15ms"], "max_step")
    return 1.0, parse_seconds(text, "max_step")
