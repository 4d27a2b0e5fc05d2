"""Judge a machine: does each step on each node reach its limit?

The expectation of a step is a reference from a file or from another machine's records, else its
prediction. A limit is a share of the reference; of a prediction it is the slow end of its 80 %
interval, which one of ten sound steps misses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from steptime.analysis.acceptances.accepted_steps import (
    UNKNOWN_NUMBER,
    MeasuredSteps,
    StepMeasurement,
    StepNumber,
    reference_numbers,
)
from steptime.analysis.acceptances.expectations import Expectation
from steptime.analysis.acceptances.matched_expectations import describe_line, match_expectations
from steptime.core.answer import AnswerRow
from steptime.core.errors import InputError
from steptime.records.data import Data
from steptime.records.row import group_by, is_higher_better

LIMIT_SHARE = 0.95  # of a reference
PASS, FAIL, NOT_MEASURED, NOT_JUDGED = "pass", "fail", "not measured", "not judged"
VERDICTS = (FAIL, NOT_MEASURED, NOT_JUDGED, PASS)  # in the order of the rows
FAILURES = (FAIL, NOT_MEASURED)
REFERENCE, PREDICTION = "reference", "predicted"
STEP_S = "step_s"


class AcceptedStep(AnswerRow, frozen=True, kw_only=True):
    """A step of a network on a node, compared with its expected value.

    Attributes:
        name: the network, with the settings in which it differs from other rows.
        host: the node; None where unknown.
        model: the network.
        batch: examples of one replica in a step.
        dtype: data type of the step.
        platform: the device or machine.
        quantity: the quantity that is judged.
        verdict: `pass`, `fail`, `not measured` (expected, and no record has it) or `not judged`
            (measured, and neither a reference nor a prediction is known).
        measured: the measured quantity, a median for a time; None where the step failed.
        measured_low: low end of the 95 % interval of `measured`.
        measured_high: high end of the 95 % interval of `measured`.
        expected: the reference, or the prediction.
        expected_from: `reference` or `predicted`.
        expected_low: low end of the 95 % interval of a measured reference, of the 80 % interval of
            a prediction.
        expected_high: high end of this interval of `expected`.
        limit: the worst value of `quantity` that passes.
        limit_share: `limit` as a share of the expected speed.
        speed_share: measured over expected speed: 0.9 for a step that takes 1 / 0.9 of the expected
            time.
        is_clear: whether the whole interval of the measurement is on one side of the limit;
            None without an interval.
        cause: why there is no measured number, as in docs/sweeps.md.
    """

    name: str
    host: str | None
    model: str | None = None
    batch: int | None = None
    dtype: str | None = None
    platform: str | None = None
    quantity: str
    verdict: str
    measured: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    expected: float | None = None
    expected_from: str | None = None
    expected_low: float | None = None
    expected_high: float | None = None
    limit: float | None = None
    limit_share: float | None = None
    speed_share: float | None = None
    is_clear: bool | None = None
    cause: str | None = None


class AcceptedNode(AnswerRow, frozen=True, kw_only=True):
    """All steps of a node.

    Attributes:
        host: the node; None where unknown.
        verdict: `fail` where a step fails or an expected step is not measured; `pass` where all
            judged steps pass; `not judged` where no step can be judged.
        passed_count: steps that pass.
        failed_count: steps that fail, or were expected and not measured.
        unjudged_count: measured steps without a reference and without a prediction.
        lowest_share: smallest share of the expected speed that a step reaches.
        lowest_name: the network of that step.
    """

    host: str | None
    verdict: str
    passed_count: int
    failed_count: int
    unjudged_count: int
    lowest_share: float | None
    lowest_name: str | None


class Expected(NamedTuple):
    """What a step should reach.

    Attributes:
        number: the reference or the prediction.
        source: `REFERENCE` or `PREDICTION`.
        limit_share: share of it that is enough; None for the slow end of its interval.
    """

    number: StepNumber
    source: str | None
    limit_share: float | None


NOTHING_EXPECTED = Expected(number=UNKNOWN_NUMBER, source=None, limit_share=None)


def accept_by_records(
    data: Data, reference: Data, source: str, limit_share: float | None
) -> list[AcceptedStep]:
    """Judge all steps by the records of a reference machine; a step without one by its prediction.

    Args:
        data: the records that are judged.
        reference: the records of the reference.
        source: its name, for an error message.
        limit_share: share that is enough; None for the usual limits.

    Raises:
        InputError: if the reference has none of the steps.
    """
    steps = MeasuredSteps(data, STEP_S).steps
    try:
        numbers = reference_numbers(reference, steps)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    share = LIMIT_SHARE if limit_share is None else limit_share
    rows = []
    for step, number in zip(steps, numbers, strict=True):
        expected = Expected(number, REFERENCE, share)
        # The reference has no such step, but there may be a prediction of it.
        if number.value is None:
            expected = _expect_prediction(step, limit_share)
        rows.append(_judge_step(step, STEP_S, expected))
    return sort_steps(rows)


def accept_by_predictions(data: Data, limit_share: float | None) -> list[AcceptedStep]:
    """Judge all steps by their predictions; see `accept_by_records`."""
    steps = MeasuredSteps(data, STEP_S).steps
    return sort_steps(
        [_judge_step(step, STEP_S, _expect_prediction(step, limit_share)) for step in steps]
    )


def accept_by_expectations(
    data: Data, expectations: Sequence[Expectation], source: str, limit_share: float | None
) -> list[AcceptedStep]:
    """Judge all steps by a file of expectations; a step that it does not name by its prediction.

    Args:
        data: the records that are judged.
        expectations: the lines of the file.
        source: the file, for an error message.
        limit_share: share that is enough where a line does not say one; None for the usual limits.

    Raises:
        InputError: for a network that nobody knows, a column or a quantity that no record has, and
            a line that means several measured steps or a step that another line means.
    """
    rows: list[AcceptedStep] = []
    judged: set[tuple[str, object, object]] = set()  # keys of the steps that some line names
    for quantity, lines in group_by(expectations, lambda line: line.quantity).items():
        measured = MeasuredSteps(data, quantity, source)
        matching = match_expectations(measured, lines, source)
        for step in measured.steps:
            line = matching.line_by_group.get(step.group)
            if line is not None:
                rows.append(_judge_step(step, quantity, _expect_line(line, step, limit_share)))
                judged.add(_step_key(step))
        # Expected but not measured is a failure, too.
        rows += [_make_missing_row(line, cause) for line, cause in matching.missing_lines]
    # Steps that no line names are judged by their predictions.
    for step in MeasuredSteps(data, STEP_S).steps:
        if _step_key(step) not in judged:
            rows.append(_judge_step(step, STEP_S, _expect_prediction(step, limit_share)))
    return sort_steps(rows)


def _step_key(step: StepMeasurement) -> tuple[str, object, object]:
    """Return the key of a step, whatever its quantity: node, network, options."""
    return step.host, step.identity, step.facts["method_options"]


def _expect_prediction(step: StepMeasurement, limit_share: float | None) -> Expected:
    """Return the prediction as what a step should reach; nothing where there is none."""
    prediction = step.prediction
    if prediction.value is None:
        return NOTHING_EXPECTED
    has_interval = prediction.low is not None and prediction.high is not None
    share = limit_share
    if share is None and not has_interval:
        share = LIMIT_SHARE
    return Expected(prediction, PREDICTION, share)  # without a share, the interval is the limit


def _expect_line(line: Expectation, step: StepMeasurement, limit_share: float | None) -> Expected:
    """Return the expectation of a line for a step, with its limit."""
    usual_share = line.limit_share if line.limit_share is not None else limit_share
    if line.reference is None:  # the line says `predicted` instead of a number
        return _expect_prediction(step, usual_share)
    share = LIMIT_SHARE if usual_share is None else usual_share
    reference = StepNumber(value=line.reference, low=None, high=None)
    return Expected(reference, REFERENCE, share)


def _make_missing_row(line: Expectation, cause: str) -> AcceptedStep:
    """Return an expectation that no record has as a row."""
    return AcceptedStep(
        name=describe_line(line),
        host=line.settings.get("host"),
        quantity=line.quantity,
        verdict=NOT_MEASURED,
        expected=line.reference,
        expected_from=PREDICTION if line.reference is None else REFERENCE,
        cause=cause,
    )


def _judge_step(step: StepMeasurement, quantity: str, expected: Expected) -> AcceptedStep:
    """Return a step with its limit and its verdict."""
    is_rate = is_higher_better(quantity)
    limit = _find_limit(expected, is_rate)
    facts, number = step.facts, step.number
    has_expectation = expected.number.value is not None
    cause = None
    # All records of the step failed.
    if number.value is None:
        verdict = FAIL
        cause = _describe_failure(facts["status"], facts["cause"], quantity)
    elif limit is None:
        verdict = NOT_JUDGED
    else:
        # A rate must reach its limit, a time must not exceed it.
        is_within_limit = number.value >= limit if is_rate else number.value <= limit
        verdict = PASS if is_within_limit else FAIL
    return AcceptedStep(
        name=step.name,
        host=step.host or None,
        model=facts["model"],
        batch=facts["batch"],
        dtype=facts["dtype"],
        platform=facts["platform"],
        quantity=quantity,
        verdict=verdict,
        measured=number.value,
        measured_low=number.low,
        measured_high=number.high,
        expected=expected.number.value,
        expected_from=expected.source if has_expectation else None,
        expected_low=expected.number.low,
        expected_high=expected.number.high,
        limit=limit,
        limit_share=_share_of_speed(limit, expected.number.value, is_rate),
        speed_share=_share_of_speed(number.value, expected.number.value, is_rate),
        is_clear=_is_clear(number, limit),
        cause=cause,
    )


def _find_limit(expected: Expected, is_rate: bool) -> float | None:
    """Return the worst number that passes, None where nothing is expected."""
    value, share = expected.number.value, expected.limit_share
    if value is None:
        return None
    if share is None:  # the slow end of a prediction's interval
        return expected.number.low if is_rate else expected.number.high
    return value * share if is_rate else value / share


def _share_of_speed(value: float | None, expected: float | None, is_rate: bool) -> float | None:
    """Return a number as a share of the expected speed: of times the inverse ratio."""
    if value is None or expected is None:
        return None
    return value / expected if is_rate else expected / value


def _is_clear(number: StepNumber, limit: float | None) -> bool | None:
    if limit is None or number.low is None or number.high is None:
        return None
    return not number.low <= limit <= number.high


def _describe_failure(status: str, cause: str | None, quantity: str) -> str:
    """Return why a step has no number: "oom (killed)"."""
    if status == "ok":
        return f"no {quantity}"
    return f"{status} ({cause})" if cause else status


def sort_steps(rows: Sequence[AcceptedStep]) -> list[AcceptedStep]:
    """Return the rows in the order of `VERDICTS`, of each the slowest against its limit first."""

    def sort_key(row: AcceptedStep) -> tuple[int, float]:
        # Within a verdict the slowest steps come first, by their speed over that of their limit
        # (or of their expectation); steps without a number come last.
        margin = math.inf
        if row.speed_share is not None:
            margin = row.speed_share / (row.limit_share or 1.0)
        return VERDICTS.index(row.verdict), margin

    return sorted(rows, key=sort_key)


def summarise_nodes(rows: Sequence[AcceptedStep]) -> list[AcceptedNode]:
    """Return a row for each node, those that fail first.

    An expected step that no node measured counts for no node.
    """
    # An expected step that no node measured has neither a platform nor a host.
    measured = [row for row in rows if row.platform is not None or row.host]
    by_host = group_by(measured, _host_of)
    nodes = [_summarise_node(host, steps) for host, steps in by_host.items()]
    return sorted(nodes, key=lambda node: (VERDICTS.index(node.verdict), node.host or ""))


def _host_of(row: AcceptedStep) -> str | None:
    return row.host


def _summarise_node(host: str | None, steps: Sequence[AcceptedStep]) -> AcceptedNode:
    """Return the verdict on a node from those on its steps, with its slowest step."""
    failed_count = sum(step.verdict in FAILURES for step in steps)
    passed_count = sum(step.verdict == PASS for step in steps)
    # One failed step fails a node; one that passed is needed to pass.
    verdict = NOT_JUDGED
    if failed_count:
        verdict = FAIL
    elif passed_count:
        verdict = PASS
    shares = [(step.speed_share, step.name) for step in steps if step.speed_share is not None]
    lowest_share, lowest_name = min(shares, default=(None, None))
    return AcceptedNode(
        host=host,
        verdict=verdict,
        passed_count=passed_count,
        failed_count=failed_count,
        unjudged_count=len(steps) - failed_count - passed_count,
        lowest_share=lowest_share,
        lowest_name=lowest_name,
    )
