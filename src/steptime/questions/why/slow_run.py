"""The diagnosis of a run by its stated speed: what the model explains, and what to check."""

from collections.abc import Collection
from dataclasses import replace

import msgspec

from steptime.core.units import format_percent, format_seconds
from steptime.questions.bound import CriticalPath
from steptime.questions.why.answer import Evidence, Shares, WhyAnswer
from steptime.questions.why.causes import LikelyCause, SlowRun, order_causes
from steptime.questions.why.diagnose import add_improvements, make_answer
from steptime.questions.why.measured_speed import read_speed
from steptime.questions.why.setup import Setup
from steptime.questions.why.suspicions import FINDERS

FIRST_CAUSES = 3  # in a sentence


def diagnose_speed(
    measured: float | str,
    setup: Setup,
    user_options: Collection[str] = (),
    busy: float | None = None,
) -> WhyAnswer:
    """Diagnose a step whose speed was measured: what is explained, what not, and what to check.

    The model shares out the measured step up to the upper end of its interval; time above that is
    unexplained, and no improvement shortens it.

    Args:
        measured: a speed such as `410ms` or `1450 examples/s`, or seconds of a step.
        setup: the step on its device, of which nothing else was measured.
        user_options: parameters of the question whose values are no guess of ours.
        busy: share of the time in which the device was busy; None where nobody says.

    Raises:
        InputError: as a prediction does, and for a text that is no speed.
    """
    speed = read_speed(measured, setup)
    predicted = setup.path
    # The model explains time up to the upper end of its interval, and no time above it.
    predicted_high_s = predicted.step_s if predicted.high_s is None else predicted.high_s
    explained_s = min(speed.step_s, predicted_high_s)
    shares = _share_out(predicted, explained_s, speed.step_s)
    evidence = _compare(setup, speed.step_s)
    answer = make_answer(setup, "measured", speed.step_s, shares, setup.replicas, evidence)
    run = SlowRun(setup, speed, frozenset(user_options), busy)
    is_faster = predicted.low_s is not None and speed.step_s < predicted.low_s
    # A run faster than its interval needs no cause.
    if not is_faster:
        causes = order_causes(run, FINDERS)
        headline = (*answer.headline, _describe_causes(answer, causes))
        answer = msgspec.structs.replace(answer, causes=causes, headline=headline)
    return add_improvements(answer, _explained_setup(setup, explained_s, speed.step_s))


def _share_out(predicted: CriticalPath, explained_s: float, step_s: float) -> Shares:
    """Return the shares of a measured step, whose explained part divides as the predicted step."""
    share_by_bound = {
        bound: share * explained_s / step_s for bound, share in predicted.shares.items()
    }
    return Shares(**share_by_bound, unexplained=1 - explained_s / step_s)


def _explained_setup(setup: Setup, explained_s: float, step_s: float) -> Setup:
    """Return the measured step: its explained part scales with a change, the other part stays."""
    predicted = setup.path
    waits_s = predicted.seconds_by_bound["communication"] + predicted.seconds_by_bound["input"]
    worked_s = predicted.step_s - waits_s
    # Predicted waits stay as they are; the work takes what is left of the explained time.
    factor = max(0.0, explained_s - waits_s) / worked_s if worked_s else 1.0
    return replace(setup, factor=factor, unexplained_s=step_s - explained_s)


def _compare(setup: Setup, step_s: float) -> Evidence:
    """Return the numbers of the measured step, and of the prediction beside it."""
    predicted = setup.path
    peaks = setup.model.effective_device.datasheet.peak_flop_per_s
    # The effective device lists the peak of the step's own data type first.
    dtype_peak_flop_per_s = next(iter(peaks.values()))
    achieved_flop_per_s = setup.model.lower_step().executed_flop / step_s
    return Evidence(
        stack=setup.model.stack.name,
        predicted_s=predicted.step_s,
        ratio=step_s / predicted.step_s if predicted.step_s else None,
        is_within_interval=_is_within_interval(predicted, step_s),
        # A stated speed says nothing of waits, samples or their interval.
        input_share=None,
        communication_s=None,
        sample_count=None,
        disturbed_sample_count=None,
        low_s=None,
        high_s=None,
        peak_share=achieved_flop_per_s / dtype_peak_flop_per_s,
    )


def _is_within_interval(predicted: CriticalPath, step_s: float) -> bool | None:
    """Return whether a step lies in its predicted interval; None of a method without intervals."""
    if predicted.low_s is None or predicted.high_s is None:
        return None
    return predicted.low_s <= step_s <= predicted.high_s


def _describe_causes(answer: WhyAnswer, causes: tuple[LikelyCause, ...]) -> str:
    """Describe what to check first: `1.41 s are unexplained; check first: loader, clocks.`."""
    names = ", ".join(cause.cause for cause in causes[:FIRST_CAUSES])
    unexplained_share = answer.shares.unexplained or 0.0
    if unexplained_share <= 0:
        return f"The model can explain all of it; if it should be faster, check first: {names}."
    duration = format_seconds(unexplained_share * answer.step_s)
    return (
        f"{duration} ({format_percent(unexplained_share)}) are unexplained; check first: {names}."
    )
