"""Errors of predictions of training steps, by set and block, and the worst rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from steptime.calibration.evaluate import DRAWS, ComparedValue, summarise_errors
from steptime.calibration.evaluation import ERROR_COLUMNS, WORST, format_errors, format_percent
from steptime.calibration.plan_calibration import (
    PredictedStep,
    PredictedSteps,
    draw_calibrations,
)
from steptime.calibration.plan_rows import Question, read_questions, row_of
from steptime.core.errors import InputError, check_choice
from steptime.core.json_types import JsonObject
from steptime.core.tables.table import Column, Table
from steptime.prediction.method import Method
from steptime.records.ratios import farness
from steptime.records.row import group_by

GROUPS = ("model", "device", "block", "stack", "dtype", "device_count")
SCORE_COLUMNS = (Column("cases", "scored"), *ERROR_COLUMNS, Column("max"))
SET_COLUMNS = (Column("set"), Column("quantity"))
CASE_COLUMNS = (
    Column("place"),
    Column("model"),
    Column("device"),
    Column("device_count"),
    Column("stack"),
    Column("quantity"),
    Column("ratio", "predicted/measured", form=".2f"),
)
CALIBRATED_COLUMNS = (
    *SET_COLUMNS,
    Column("device"),
    Column("stack"),
    Column("points"),
    Column("before", "MAPE before"),
    *SCORE_COLUMNS,
    Column("spread", "MAPE of draws"),
)
REFUSAL_COLUMNS = (Column("set"), Column("rows"), Column("reason"), Column("first"))

ReadRow = tuple[str, str, Question | InputError]  # set, place, and the row or why it has none
PredictedRow = tuple[str, str, PredictedStep | InputError]


@dataclass(frozen=True)
class PlanErrors:
    """The errors of a method on training steps.

    Attributes:
        document: JSON values: `rows`, the errors of each set and quantity; `groups`, those of each
            group; `calibrated`, those of rows that were not drawn, after a calibration with the
            drawn rows of the same device and stack; `unasked`, the rows that cannot be predicted,
            by reason; `worst` and `cases`, single rows.
    """

    document: Mapping[str, Any]

    def tables(self, has_worst: bool = True) -> list[Table]:
        """Return the tables for people."""
        document = self.document
        fits = Column("fits")
        row_columns = (*SET_COLUMNS, Column("row_count", "rows"), *SCORE_COLUMNS, fits)
        group_columns = (*SET_COLUMNS, *map(Column, document["by"]), *SCORE_COLUMNS, fits)
        rows = [_format_row(row) for row in document["rows"]]
        groups = [_format_row(row) for row in document["groups"]]
        calibrated = [_format_row(row) for row in document["calibrated"]]
        tables = [
            Table(row_columns, rows, "Errors of predictions"),
            Table(group_columns, groups, f"By {', '.join(document['by'])}"),
            Table(CALIBRATED_COLUMNS, calibrated, "Rows that were not drawn"),
            Table(REFUSAL_COLUMNS, document["unasked"], "Rows that are refused"),
        ]
        if has_worst:
            title = f"The rows with the largest errors of {document['method']}"
            tables.append(Table(CASE_COLUMNS, document["worst"], title))
        return [table for table in tables if table.rows]

    @property
    def times(self) -> list[JsonObject]:
        """The rows of times, with the keys that the chart of an evaluation reads."""
        return [
            {
                **case,
                "kind": case["set"],
                "regime": case["quantity"].removesuffix("_s"),
                "measured_s": case["measured"],
                "predicted_s": case["predicted"],
            }
            for case in self.document["cases"]
            if case["quantity"].endswith("_s") and not case["quantity"].endswith("per_s")
        ]


def predict_rows(rows: Iterable[ReadRow], method: str | Method) -> Iterator[PredictedRow]:
    """Yield set and place of each row, and its prediction or the reason why it has none."""
    for set_name, place, question in rows:
        if isinstance(question, InputError):
            yield set_name, place, question
            continue
        try:
            yield set_name, place, (question, question.reply(method))
        except InputError as error:
            yield set_name, place, error


def evaluate_tables(paths: Iterable[Path], method: str, **options: Any) -> PlanErrors:
    """Return the errors of a method on tables of steps; `options` are those of `errors_of`."""
    rows = chain.from_iterable(map(read_questions, paths))
    return errors_of(predict_rows(rows, method), method, **options)


def errors_of(
    rows: Iterable[PredictedRow],
    method: str,
    group_names: Sequence[str] = ("block",),
    worst: int = WORST,
    points: int | None = None,
    draws: int = DRAWS,
) -> PlanErrors:
    """Return the errors of the predictions of rows.

    Args:
        rows: the predicted rows.
        method: the name of the method that predicted them.
        group_names: columns of `GROUPS` that group the rows.
        worst: number of the worst rows to show.
        points: if set, rows of each device and stack that calibrate it, to score the others.
        draws: number of draws of these points.

    Raises:
        InputError: for an unknown group, or if no row can be predicted.
    """
    for name in group_names:
        check_choice("group", name, GROUPS, "--by")
    steps: list[PredictedStep] = []
    row_counts: Counter[str] = Counter()
    refused_places: dict[tuple[str, str], list[str]] = defaultdict(list)  # by set and reason
    for set_name, place, step_or_error in rows:
        row_counts[set_name] += 1
        if isinstance(step_or_error, InputError):
            reason = str(step_or_error).removeprefix("plan: ")
            refused_places[set_name, reason].append(place)
        else:
            steps.append(step_or_error)
    cases = [
        row_of(question, reply, quantity)
        for question, reply in steps
        for quantity in question.measured
        if quantity in reply.values
    ]
    refusals = [
        {"set": set_name, "rows": len(places), "reason": reason, "first": places[0]}
        for (set_name, reason), places in refused_places.items()
    ]
    if not cases:
        first_reason = refusals[0]["reason"] if refusals else "there is none"
        raise InputError(f"no row can be asked: {first_reason}")
    sets = [
        {**row, "row_count": row_counts[row["set"]]} for row in _group_errors(cases, group_names=())
    ]
    _count_unmeasured_fits(sets, steps)
    document = {
        "method": method,
        "by": list(group_names),
        "rows": sets,
        "groups": _group_errors(cases, group_names) if group_names else [],
        "calibrated": _calibrated_errors(steps, points, draws) if points else [],
        "unasked": refusals,
        "worst": sorted(cases, key=lambda case: -farness(case["ratio"]))[:worst],
        "cases": cases,
    }
    return PlanErrors(document)


def _count_unmeasured_fits(sets: Iterable[JsonObject], steps: PredictedSteps) -> None:
    """Add rows without a time to `fits` of each set: they ran out of memory, or fit by a report."""
    # Rows without a time tell only whether the step ran, rather than ran out of memory.
    outcomes_by_set: dict[str, list[bool]] = defaultdict(list)  # whether each is predicted rightly
    for question, reply in steps:
        if not question.measured and reply.fits is not None:
            outcomes_by_set[question.set].append(reply.fits == question.ran)
    for row in sets:
        outcomes = outcomes_by_set[row["set"]]
        if outcomes and row["fits"] is not None:
            # `fits` is the share of right ones among `cases`: turned into a count, and back.
            right_count = row["fits"] * row["cases"] + sum(outcomes)
            row["fits"] = right_count / (row["cases"] + len(outcomes))


def _group_errors(cases: Sequence[JsonObject], group_names: Sequence[str]) -> list[JsonObject]:
    """Return the errors of each set and quantity, and of each group within them."""
    columns = ("set", "quantity", *group_names)
    groups = group_by(cases, lambda case: tuple(str(case[name] or "-") for name in columns))
    rows = []
    for key, group in sorted(groups.items()):
        outcomes = [case["fits"] for case in group if case["fits"] is not None]
        errors = summarise_errors([_compare(case) for case in group])
        right_share = sum(outcomes) / len(outcomes) if outcomes else None
        group_values = dict(zip(columns, key, strict=True))
        rows.append({**group_values, **asdict(errors), "fits": right_share})
    return rows


def _compare(case: JsonObject) -> ComparedValue:
    """Return a row with the group of its device and model."""
    balance_group = case["device"], case["model"]
    return ComparedValue(
        case["measured"], case["predicted"], case["low"], case["high"], balance_group
    )


def _calibrated_errors(steps: PredictedSteps, points: int, draws: int) -> list[JsonObject]:
    """Return the errors of rows that were not drawn, over all draws, by set, device and stack."""
    group_names = ("device", "stack")
    cases_before: list[JsonObject] = []
    cases_after: list[JsonObject] = []
    for draw in draw_calibrations(steps, points, draws):
        question = draw.question
        # Memory does not depend on constants of time.
        quantities = question.measured.keys() & draw.after.values.keys() - {"memory_bytes"}
        for quantity in quantities:
            cases_before.append(row_of(question, draw.before, quantity))
            case_after = row_of(question, draw.after, quantity)
            cases_after.append(case_after | {"draw": f"{draw.seed}"})
    rows = _group_errors(cases_after, group_names)
    rows_before = _group_errors(cases_before, group_names)
    draw_rows = _group_errors(cases_after, (*group_names, "draw"))
    key_columns = ("set", "quantity", *group_names)
    for row, row_before in zip(rows, rows_before, strict=True):
        mapes = [  # of each draw
            draw_row["mape"]
            for draw_row in draw_rows
            if all(draw_row[name] == row[name] for name in key_columns)
        ]
        row["points"] = points
        row["cases"] //= draws  # they are counted once in each draw
        row["before"] = row_before["mape"]
        row["spread"] = [min(mapes), max(mapes)]
    return rows


def _format_row(row: JsonObject) -> JsonObject:
    """Return a row of errors with texts in place of numbers."""
    defaults = {"spread": None, "constants": None, "points": None, "before": None}
    full_row = {**defaults, **row}
    return {
        **format_errors(full_row),
        "before": format_percent(full_row["before"]),
        "fits": format_percent(row["fits"]),
    }
