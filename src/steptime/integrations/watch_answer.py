"""The answer of a watched loop: its steps beside their prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from steptime.core.answer import Answer
from steptime.core.units import format_bytes, format_count, format_percent, format_seconds
from steptime.integrations.watch_clock import StepSample
from steptime.integrations.watch_prediction import WatchPrediction

MIN_JUDGED = 20  # samples, as many as `measure` takes
MIN_WAIT = 0.05  # a smaller share of waiting is not worth a word
SHORTEST_S = 1e-9  # of a step by a clock that saw no time pass
MAX_CAUSES = 3  # in a line


class MemoryUse(NamedTuple):
    """Peaks of memory.

    Attributes:
        peak_bytes: of the tensors on the GPU; None elsewhere.
        process_bytes: of this process; None where the system does not tell.
    """

    peak_bytes: int | None = None
    process_bytes: int | None = None


class WatchAnswer(Answer, frozen=True, kw_only=True):
    """The steps of a loop, measured while it ran.

    Attributes:
        model: the network, the file that it was exported to where it could be read.
        batch: examples of a step; None where unknown.
        platform: the device that ran the steps.
        step_count: number of timed steps, the first one left out.
        step_s: seconds of a step, its wait for input included; None without steps.
        low_s: lower end of the 95 % interval of `step_s`; None where unknown.
        high_s: upper end of the interval of the prediction, None without one.
        input_share: share of the steps' time that waits for input; None without steps.
        examples_per_s: throughput of one process; None where unknown.
        predicted_s: predicted seconds of a step without waiting; None without a prediction.
        predicted_low_s: lower end of the interval of the prediction; None where unknown.
        predicted_high_s: upper end of the 80 % interval of `predicted_s`.
        predicted_from: what the prediction was made from: export of the network, or trace of one
            step where it cannot be exported; None without a prediction.
        ratio: measured over predicted seconds; None without a prediction.
        utilisation: share of the peak that the steps reach (MFU); None where no peak is known.
        predicted_utilisation: the same as predicted.
        peak_bytes: peak of the tensors on the GPU; None elsewhere.
        process_bytes: peak of the memory of this process; None where the system does not tell.
        predicted_peak_bytes: predicted peak of the tensors; None without a prediction.
        verdict: slower, faster, as predicted or unsure; None without a prediction.
        causes: what to check, the likeliest first, of a slow step.
        watch_s: seconds of the CPU that watching itself took of a step.
        prepare_s: seconds that reading the network and its prediction took, once.
        folder: the folder of the record; None where none was asked for.
        headline: the verdict in a few lines.
        notes: remarks that change how the answer is read.
    """

    model: str
    batch: int | None
    platform: str
    step_count: int
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    input_share: float | None = None
    examples_per_s: float | None = None
    predicted_s: float | None = None
    predicted_low_s: float | None = None
    predicted_high_s: float | None = None
    predicted_from: str | None = None
    ratio: float | None = None
    utilisation: float | None = None
    predicted_utilisation: float | None = None
    peak_bytes: int | None = None
    process_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    verdict: str | None = None
    causes: tuple[str, ...] = ()
    watch_s: float = 0.0
    prepare_s: float = 0.0
    folder: str | None = None
    headline: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def load_statistics() -> None:
    """Import what `estimate_step` needs, so that no step pays for it."""
    estimate_step([StepSample(1.0, 0.0)] * MIN_JUDGED)


def estimate_step(
    samples: Sequence[StepSample],
) -> tuple[float, float | None, float | None]:
    """Return the median of steps after their warm-up, and the ends of its 95 % interval [s]."""
    from steptime.records.statistics import estimate

    numbers = estimate([[sample.step_s for sample in samples]])
    return numbers["value"] or 0.0, numbers["low"], numbers["high"]


def split_warm_up(
    samples: Sequence[StepSample],
) -> tuple[Sequence[StepSample], Sequence[StepSample], bool]:
    """Return the samples of the warm-up, those after it, and whether these are steady."""
    import numpy as np

    from steptime.records.warmup import find_warm_up

    logs = np.log([max(sample.step_s, SHORTEST_S) for sample in samples])
    # Results are arrays with an entry a run: one run here, of a cell with one run.
    warm_up = find_warm_up(logs=[logs], sizes=[1])
    warm_up_count = int(warm_up.sample_counts[0])
    is_steady = bool(warm_up.steady[0] == 1)  # 0 is unsteady, NaN too short to tell
    return samples[:warm_up_count], samples[warm_up_count:], is_steady


def input_share(samples: Sequence[StepSample]) -> float | None:
    """Return the share of the samples' time that waits for input; None without any."""
    total_s = sum(sample.step_s for sample in samples)
    return sum(sample.input_s for sample in samples) / total_s if total_s else None


def judge_step(low_s: float | None, high_s: float | None, predicted: WatchPrediction) -> str:
    """Return slower, faster or as predicted where the whole interval of the median is; or unsure.

    Args:
        low_s: lower end of the interval of the measured median.
        high_s: upper end of the interval of the prediction, None without one.
        predicted: the prediction; one without an interval is a lower bound.
    """
    if low_s is None or high_s is None:
        return "unsure"
    if predicted.low_s is None or predicted.high_s is None:  # the prediction is a lower bound
        return "unsure"
    if low_s > predicted.high_s:
        return "slower"
    if high_s < predicted.low_s:
        return "faster"
    is_inside = predicted.low_s <= low_s and high_s <= predicted.high_s
    return "as predicted" if is_inside else "unsure"


def describe_verdict(
    step_s: float, verdict: str | None, predicted: WatchPrediction | None, share: float | None
) -> str:
    """Return `2.3 times slower than predicted (8.1 ms); 61 % of the step waits for the loader`.

    It is "" where nothing is predicted and no wait was timed.
    """
    parts = []
    if predicted is not None:
        parts.append(_describe_ratio(step_s, verdict, predicted))
    if share is not None and share >= MIN_WAIT:
        parts.append(f"{format_percent(share)} of the step waits for the loader")
    if not parts and share is not None:  # without a prediction the wait is all that can be said
        return "no wait for the loader"
    return "; ".join(parts)


def describe_speed(step_s: float, batch: int | None, step_count: int) -> str:
    """Return `12.3 ms a step, 5,203 examples/s, over 200 steps`."""
    rate = "" if batch is None else f", {batch / step_s:,.4g} examples/s"
    return f"{format_seconds(step_s)} a step{rate}, over {format_count(step_count, 'step')}"


def describe_utilisation(step_s: float, predicted: WatchPrediction | None) -> str:
    """Return `MFU 31 %, predicted 45 %`; "" where no peak is known."""
    if predicted is None:
        return ""
    utilisation = predicted.utilisation(step_s)
    expected = predicted.utilisation(predicted.step_s)
    if utilisation is None or expected is None:
        return ""
    return f"MFU {format_percent(utilisation)}, predicted {format_percent(expected)}"


def describe_memory(memory: MemoryUse, predicted: WatchPrediction | None) -> str:
    """Return `memory 11.8 GB, predicted 12.3 GB`; "" where nothing is known.

    Without a GPU it is that of the whole process, which holds more than tensors.
    """
    if memory.peak_bytes is not None:
        text = f"memory {format_bytes(memory.peak_bytes)}"
    elif memory.process_bytes is not None:
        text = f"memory {format_bytes(memory.process_bytes)} of the process"
    else:
        return ""
    if predicted is None or predicted.peak_bytes is None:
        return text
    expected = format_bytes(predicted.peak_bytes)
    # beside the memory of the process it must be said that only tensors are predicted
    meaning = "" if memory.peak_bytes else " of tensors"
    return f"{text}, predicted {expected}{meaning}"


def _describe_ratio(step_s: float, verdict: str | None, predicted: WatchPrediction) -> str:
    text = f"predicted {format_seconds(predicted.step_s)}"
    if predicted.low_s is not None and predicted.high_s is not None:
        text = f"{text}, {format_seconds(predicted.low_s)} to {format_seconds(predicted.high_s)}"
    text = f"{text} on {predicted.device}"
    ratio = step_s / predicted.step_s
    if verdict == "slower":
        return f"{_format_factor(ratio)} times slower than predicted ({text})"
    if verdict == "faster":
        return f"{_format_factor(1 / ratio)} times faster than predicted ({text})"
    if verdict == "as predicted":
        return f"as predicted ({text})"
    return f"no verdict yet ({text})"


def _format_factor(factor: float) -> str:
    """Return `2.3`, `140`."""
    return f"{factor:.2g}" if factor < 99.5 else f"{factor:,.0f}"  # 99.5 would be 1e+02
