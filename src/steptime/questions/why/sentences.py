"""The diagnosis of a step in sentences with numbers."""

from collections.abc import Sequence

from steptime.core.units import format_percent, format_seconds
from steptime.questions.why.answer import (
    IMPROVEMENTS_LINE,
    OPS_LINE,
    UNEXPLAINED,
    Evidence,
    ExpensiveOp,
    Improvement,
    Shares,
    WhyAnswer,
)
from steptime.records.record import LARGEST_DISTURBED_SHARE

MAX_IMPROVEMENTS = 4  # in a sentence
SMALLEST_SHARE = 0.005  # of a step, from which on a share is listed
SMALLEST_WAIT = 0.01  # share of a step from which on it waits for input or communication
IDLE_SHARE = 0.9  # of the host's time: a device that works less than that is idle between kernels
WORTHWHILE_SPEEDUP = 1.02
CAUSES = {
    "compute": "arithmetic",
    "memory": "memory traffic",
    "host": "calls and launches of the host",
    "input": "waiting for input",
    "communication": "exposed communication",
    UNEXPLAINED: "not explained by the model",
}


def is_mostly_unexplained(shares: Shares) -> bool:
    """Return whether the model explains less than half of a step."""
    return (shares.unexplained or 0.0) > 0.5


def describe_step(answer: WhyAnswer, busy_share: float) -> list[str]:
    """Describe the step, a fact a line: `resnet50, ...: bound by compute.`, and its shares.

    Args:
        answer: the diagnosis.
        busy_share: share of the predicted step in which the device works.
    """
    count = f"{answer.replicas} x " if answer.replicas > 1 else ""
    label = f"{answer.model}, batch {answer.batch}, {answer.dtype} on {count}{answer.device}"
    caveat = ""
    if is_mostly_unexplained(answer.shares):
        unexplained = format_percent(answer.shares.unexplained or 0.0)
        caveat = f"the model leaves {unexplained} unexplained; what it explains is "
    lines = [
        f"{label}: {caveat}bound by {answer.bound}.",
        f"A step takes {format_seconds(answer.step_s)} ({_describe_origin(answer)}).",
        f"{_describe_shares(answer)}.",
    ]
    is_device_idle = answer.bound == "host" and busy_share < IDLE_SHARE
    if is_device_idle:
        lines.append(
            f"The device works {format_percent(busy_share)} of the time that the host takes to "
            "issue the step."
        )
    return lines


def _describe_origin(answer: WhyAnswer) -> str:
    """Describe where the step's time comes from, with the stack of evidence other than torch."""
    stack = None if answer.evidence is None else answer.evidence.stack
    return f"{answer.origin} with {stack}" if stack and stack != "torch" else answer.origin


def _describe_shares(answer: WhyAnswer) -> str:
    """Describe the shares of a step, as `80 % arithmetic, 20 % memory traffic`."""
    shares_and_bounds = [
        (share, bound)
        for bound, share in answer.shares.to_dict().items()
        if share is not None and share >= SMALLEST_SHARE
    ]
    shares_and_bounds.sort(reverse=True)
    return ", ".join(
        f"{format_percent(share)} {CAUSES[bound]}" for share, bound in shares_and_bounds
    )


def describe_evidence(evidence: Evidence, shares: Shares) -> list[str]:
    """Describe a measurement: `The model predicts 0.2 s for the step; it took 1.1 times as ...`."""
    lines = []
    if evidence.ratio is not None:
        has_waits = shares.input + shares.communication >= SMALLEST_WAIT
        subject = "what is neither input nor communication" if has_waits else "the step"
        place = ""
        if evidence.is_within_interval is not None:  # the method has an interval
            place = f", {'within' if evidence.is_within_interval else 'outside of'} the interval"
        lines.append(
            f"The model predicts {format_seconds(evidence.predicted_s)} for {subject}; it took "
            f"{evidence.ratio:.3g} times as long{place}."
        )
    if evidence.input_share:
        share = format_percent(evidence.input_share)
        lines.append(f"{share} of the step was measured as waiting for input.")
    if evidence.communication_s:
        duration = format_seconds(evidence.communication_s)
        lines.append(f"Communication was measured at {duration} a step.")
    disturbed_share = (evidence.disturbed_sample_count or 0) / (evidence.sample_count or 1)
    if disturbed_share > LARGEST_DISTURBED_SHARE:
        lines.append(f"Other work disturbed {format_percent(disturbed_share)} of the samples.")
    return [*lines, f"It executed its FLOP at {format_percent(evidence.peak_share)} of the peak."]


def describe_ops(ops: Sequence[ExpensiveOp]) -> str:
    """Describe ops: `The most expensive ops of the device's time: conv1 (conv2d) 2 ms, ...`."""
    texts = []
    for op in ops:
        count = f", {1 + op.equal_count} equal ops" if op.equal_count else ""
        duration = (
            f"{format_seconds(op.step_s)} each" if op.equal_count else format_seconds(op.step_s)
        )
        ceiling = format_percent(op.ceiling_share or 0.0)
        texts.append(
            f"{op.op} ({op.kind}{count}) {duration}, {format_percent(op.total_share)}, "
            f"{op.bound}-bound at {ceiling} of its ceiling"
        )
    return f"{OPS_LINE} {'; '.join(texts)}."


def describe_improvements(improvements: Sequence[Improvement], shares: Shares) -> str:
    """Describe changes that help: `Would help, in examples a second by the model: batch 8 (2x)`."""
    texts = [
        f"{improvement.change} ({improvement.speedup:.3g}x)"
        for improvement in improvements
        if improvement.speedup >= WORTHWHILE_SPEEDUP
    ]
    if not texts:
        return "Nothing that the model knows would make it 2 % faster."
    caveat = ", the unexplained part left as it is" if is_mostly_unexplained(shares) else ""
    return f"{IMPROVEMENTS_LINE} the model{caveat}: {', '.join(texts[:MAX_IMPROVEMENTS])}."
