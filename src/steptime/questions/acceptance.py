"""The answer of an acceptance: each measured step held against what it should reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from steptime.analysis.acceptances.acceptance import (
    FAIL,
    FAILURES,
    LIMIT_SHARE,
    NOT_JUDGED,
    NOT_MEASURED,
    PASS,
    PREDICTION,
    REFERENCE,
    AcceptedNode,
    AcceptedStep,
    accept_by_expectations,
    accept_by_predictions,
    accept_by_records,
    summarise_nodes,
)
from steptime.analysis.acceptances.expectations import PREDICTED, read_expectations
from steptime.core.answer import Answer
from steptime.core.errors import InputError
from steptime.core.progress import print_note
from steptime.core.tables.table import CANNOT_JUDGE, UNSUCCESSFUL, Column, Row, Table
from steptime.core.tables.table_files import is_table_name
from steptime.core.units import (
    QUANTITIES,
    first_of,
    format_count,
    format_percent,
    format_seconds,
    format_si,
    format_value,
)
from steptime.questions.record_sources import begins_with_record, load_records
from steptime.records.data import Data
from steptime.records.record_files import is_record_file

MAX_PASSING_ROWS = 5  # that people see below those that do not pass
MAX_PRINTED_ROWS = 40
MAX_FAILURE_LINES = 8  # of the headline
MAX_NAMES = 4  # of a note


class AcceptanceAnswer(Answer, frozen=True, kw_only=True):
    """Whether each measured step reaches what was expected of it, by node and network.

    Attributes:
        path: the page that was written.
        verdict: `fail` where a step fails or an expected step is not measured, `pass` where all
            judged steps pass, `not judged` where nothing can be judged.
        rows: the steps; the failing ones first.
        nodes: the nodes; the failing ones first.
        passed_count: steps that pass.
        failed_count: steps that fail, or were expected and not measured.
        unjudged_count: measured steps without a reference and without a prediction.
        assumed: the limits, where neither `--limit` nor a line of the table states one.
        headline: the steps that fail, and the number of those that pass.
        notes: remarks on steps within noise, on nodes that lack a step, and on predictions.
    """

    path: str
    verdict: str
    rows: tuple[AcceptedStep, ...]
    nodes: tuple[AcceptedNode, ...]
    passed_count: int
    failed_count: int
    unjudged_count: int
    assumed: Mapping[str, str]
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 3 where a step fails, 2 where nothing can be judged."""
        if self.failed_count:
            return UNSUCCESSFUL
        return 0 if self.passed_count else CANNOT_JUDGE

    def tables(self) -> list[Table]:
        """Return the steps, and the nodes if there are several."""
        tables = [make_step_table(self.rows)]
        if len(self.nodes) > 1:
            tables.append(make_node_table(self.nodes))
        return tables


def make_step_table(rows: Sequence[AcceptedStep]) -> Table:
    """Return the steps as a table: measured, expected, limit, and the verdict."""
    columns = (
        Column("name", "network"),
        Column("host", "node", is_spare=True),
        Column("quantity", is_spare=True),
        Column("measured"),
        Column("expected"),
        Column("expected_from", "from", is_spare=True),
        Column("limit"),
        Column("speed_share", "reached", is_spare=True),
        Column("verdict", is_answer=True),
    )
    return Table(columns, list(map(_format_step_cells, rows)), max_rows=_count_printed_rows(rows))


def _count_printed_rows(rows: Sequence[AcceptedStep | AcceptedNode]) -> int:
    """Return the number of rows that people see: those that do not pass, and a few others."""
    return min(MAX_PRINTED_ROWS, MAX_PASSING_ROWS + sum(row.verdict != PASS for row in rows))


def make_node_table(nodes: Sequence[AcceptedNode]) -> Table:
    """Return the nodes as a table."""
    columns = (
        Column("host", "node"),
        Column("passed_count", "pass"),
        Column("failed_count", "fail"),
        Column("unjudged_count", "not judged"),
        Column("lowest_share", "lowest speed"),
        Column("lowest_name", "in network"),
        Column("verdict", is_answer=True),
    )
    rows = [node.to_dict() for node in nodes]
    return Table(columns, rows, max_rows=_count_printed_rows(nodes))


def _format_step_cells(row: AcceptedStep) -> Row:
    """Return the cells of a step for people; a failed step has its cause in place of a number."""
    format_number = partial(_format_quantity, row.quantity)
    return row.to_dict() | {
        "measured": row.cause if row.measured is None else format_number(row.measured),
        "expected": format_number(row.expected),
        "limit": format_number(row.limit),
    }


def _format_quantity(quantity: str, value: float | None) -> str | None:
    """Return a number in the unit of its quantity: "12.5 ms"."""
    if value is None:
        return None
    unit = QUANTITIES[quantity][0] if quantity in QUANTITIES else ""
    if unit == "s":
        return format_seconds(value)
    text: str = format_value(quantity, value)
    # `format_value` knows only units that end the quantity's name, and falls back to this form.
    is_bare_number = text == f"{value:.6g}"
    has_unit = unit not in ("", "1")
    return format_si(value, unit) if is_bare_number and has_unit else text


def accept_records(
    data: Data,
    expected: Path,
    limit_share: float | None,
    mapping: Path | None,
) -> Sequence[AcceptedStep]:
    """Judge the records of a machine.

    Args:
        data: the records.
        expected: a table of references, or records of a reference machine, or `predicted`.
        limit_share: share of what is expected that is enough; None for the usual limits.
        mapping: what the columns of a table of records mean.

    Raises:
        InputError: for a file that holds no expectation or none that the records answer.
    """
    # `predicted` is a word of the command line, unless a file has that name.
    if str(expected) == PREDICTED and not expected.exists():
        return accept_by_predictions(data, limit_share)
    if not expected.exists():
        raise InputError(f"--expected {expected}: no such file or folder; or the word predicted")
    has_records = expected.is_dir() or (is_record_file(expected) and begins_with_record(expected))
    # A table without a mapping has the plain columns of expectations; all else becomes records.
    is_expectation_table = mapping is None and is_table_name(expected.name)
    if is_expectation_table and not has_records:
        expectations = read_expectations(expected)
        return accept_by_expectations(data, expectations, str(expected), limit_share)
    reference_mapping = None if has_records else mapping
    reference = load_records([expected], reference_mapping, print_note)
    return accept_by_records(data, reference, str(expected), limit_share)


def make_answer(
    rows: Sequence[AcceptedStep], path: Path, limit_share: float | None
) -> AcceptanceAnswer:
    """Return the answer of judged steps, for the page at a path."""
    nodes = summarise_nodes(rows)
    failed_count = sum(row.verdict in FAILURES for row in rows)
    passed_count = sum(row.verdict == PASS for row in rows)
    return AcceptanceAnswer(
        path=str(path),
        verdict=_summarise_verdicts(rows),
        rows=tuple(rows),
        nodes=tuple(nodes),
        passed_count=passed_count,
        failed_count=failed_count,
        unjudged_count=len(rows) - failed_count - passed_count,
        assumed={} if limit_share is not None else _describe_usual_limits(rows),
        headline=(*describe_failures(rows), _describe_counts(rows, nodes, path)),
        notes=tuple(_list_notes(rows)),
    )


def _summarise_verdicts(rows: Sequence[AcceptedStep]) -> str:
    """Return the verdict of all steps: a single failure fails them."""
    verdicts = {row.verdict for row in rows}
    if verdicts & set(FAILURES):
        return FAIL
    return PASS if PASS in verdicts else NOT_JUDGED


def _describe_usual_limits(rows: Sequence[AcceptedStep]) -> dict[str, str]:
    """Return the usual limits in words, by the option that changes them."""
    sources = {row.expected_from for row in rows}
    limits = []
    if REFERENCE in sources:
        limits.append(f"{format_percent(LIMIT_SHARE)} of a reference, unless the file says one")
    if PREDICTION in sources:
        limits.append("the slow end of the 80 % interval of a prediction")
    return {"--limit": "; ".join(limits)} if limits else {}


def describe_failures(rows: Sequence[AcceptedStep]) -> list[str]:
    """Return a line for each step that fails: "n03: gpt2, batch 8: fail: 91 % of the reference"."""
    failures = [row for row in rows if row.verdict in FAILURES]
    lines = [_describe_failure(row) for row in failures[:MAX_FAILURE_LINES]]
    if len(failures) > len(lines):
        lines.append(f"and {format_count(len(failures) - len(lines), 'further failure')}")
    return lines


def _describe_failure(row: AcceptedStep) -> str:
    name = f"{row.host}: {row.name}" if row.host else row.name
    if row.verdict == NOT_MEASURED:
        return f"{name}: expected and not measured ({row.cause})"
    # The run of the step failed, so it has no speed; `cause` is the reason of the failed record.
    if row.speed_share is None:
        return f"{name}: fail: {row.cause}"
    source = "the reference" if row.expected_from == REFERENCE else "the prediction"
    limit = format_percent(row.limit_share or 0.0)
    return f"{name}: fail: {format_percent(row.speed_share)} of {source}, limit {limit}"


def _describe_counts(
    rows: Sequence[AcceptedStep], nodes: Sequence[AcceptedNode], path: Path
) -> str:
    """Return "fail: 11 of 12 steps pass; 3 of 4 nodes pass: page.html"."""
    judged = [row for row in rows if row.verdict != NOT_JUDGED]
    passed_count = sum(row.verdict == PASS for row in judged)
    text = (
        f"{_summarise_verdicts(rows)}: {passed_count} of {format_count(len(judged), 'step')} pass"
    )
    if len(nodes) > 1:
        passing_node_count = sum(node.verdict == PASS for node in nodes)
        text += f"; {passing_node_count} of {format_count(len(nodes), 'node')} pass"
    return f"{text}: {path}"


def _list_notes(rows: Sequence[AcceptedStep]) -> list[str]:
    """Return remarks that change how the verdicts are read."""
    notes = []
    judged = [row for row in rows if row.verdict in (PASS, FAIL)]
    if not judged:
        notes.append(
            "nothing can be judged: no measured step has a reference or a prediction; "
            "steptime predict --in DIR predicts them"
        )
    # False: the interval contains the limit; None: there is no interval.
    within_noise = [_name_step(row) for row in judged if row.is_clear is False]
    if within_noise:
        notes.append(
            f"within noise of the limit: {first_of(within_noise, MAX_NAMES, '; ')}; "
            "more rounds tell on which side"
        )
    unjudged = [_name_step(row) for row in rows if row.verdict == NOT_JUDGED]
    if unjudged and judged:
        names = first_of(unjudged, MAX_NAMES, "; ")
        notes.append(f"without a reference and a prediction, not judged: {names}")
    predicted_count = sum(row.expected_from == PREDICTION for row in judged)
    if predicted_count:
        notes.append(
            f"{format_count(predicted_count, 'step')} held against a prediction, which can be "
            "wrong itself: 1 of 10 sound steps is slower than its 80 % interval"
        )
    return notes + _describe_missing_hosts(rows)


def _describe_missing_hosts(rows: Sequence[AcceptedStep]) -> list[str]:
    """Return a line for each network that some nodes of its kind did not run."""
    # Only nodes of one platform are expected to run the same networks.
    hosts_by_platform: dict[str, set[str]] = {}
    hosts_by_network: dict[tuple[str, str], set[str]] = {}  # those that measured it
    for row in rows:
        if row.host and row.platform:
            hosts_by_platform.setdefault(row.platform, set()).add(row.host)
            hosts_by_network.setdefault((row.name, row.platform), set()).add(row.host)
    lines = []
    for (name, platform), measuring_hosts in hosts_by_network.items():
        missing_hosts = hosts_by_platform[platform] - measuring_hosts
        if missing_hosts:
            lines.append(f"{name}: no record of {first_of(sorted(missing_hosts), MAX_NAMES)}")
    if len(lines) > MAX_NAMES:
        return [*lines[:MAX_NAMES], f"{len(lines) - MAX_NAMES} further networks lack nodes"]
    return lines


def _name_step(row: AcceptedStep) -> str:
    return f"{row.host}, {row.name}" if row.host else row.name
