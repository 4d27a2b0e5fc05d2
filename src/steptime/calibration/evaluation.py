"""The evaluation of a method: its errors, those of other methods, and the worst cases."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import asdict

from steptime.calibration.cases import Case, priors_of
from steptime.calibration.evaluate import (
    DRAWS,
    Scored,
    by_group,
    errors_of,
    kernel_times,
    options_for,
    regime,
    score,
    score_after_calibration,
)
from steptime.core import units
from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.core.tables.table import Column, Table
from steptime.prediction import METHODS, cost_model
from steptime.prediction.kernel import Kernel
from steptime.prediction.method import Method, Price, method_of_price
from steptime.records.ratios import farness

COMPARED_METHODS = ("calibrated", "analytic", "roofline", "paleo")  # shown beside any method
WORST = 5
MAX_OPS = 4  # ops of a case that are shown
MAX_CAUSES = 20  # causes of refusals that are shown
ERROR_COLUMNS = (
    Column("mape", "MAPE"),
    Column("median"),
    Column("p90"),
    Column("coverage"),
    Column("width"),
    Column("bias"),
)
"""The columns of all tables of errors, of single cases and of whole trainings."""
METHOD_COLUMNS = (
    Column("method"),
    Column("cases"),
    *ERROR_COLUMNS,
    Column("factor"),
    Column("balanced"),
    Column("max"),
    Column("spread", "MAPE of draws", is_spare=True),
    Column("constants", is_spare=True),
    Column("points", is_spare=True),
)
REFUSAL_COLUMNS = (Column("cause"), Column("rows"), Column("example"))
CASE_COLUMNS = (
    Column("place"),
    Column("kind"),
    Column("device"),
    Column("measured_s", "measured"),
    Column("predicted_s", "predicted"),
    Column("ratio", "predicted/measured", form=".2f"),
    Column("ops", "slowest ops"),
)
SHARE_COLUMNS = ("mape", "median", "p90", "max", "balanced", "coverage", "width")
NUMBER_FORMATS = {"bias": "+.2f", "factor": ".2f", "constants": "g"}


@dataclass(frozen=True)
class Evaluation:
    """The errors of a method on measured cases.

    Attributes:
        method: the method's name.
        by: the columns that group the cases.
        rows: errors of each method over all cases.
        groups: errors of each group.
        worst: the cases with the largest errors.
        scored: all cases with their predictions.
        compared_cases: number of cases that all methods predict; on these they are compared.
        unasked: the rows that cannot be predicted, by cause, each with an example's place.
    """

    method: str
    by: tuple[str, ...]
    rows: tuple[JsonObject, ...]
    groups: tuple[JsonObject, ...] = field(repr=False)
    worst: tuple[JsonObject, ...] = field(repr=False)
    scored: tuple[Scored, ...] = field(repr=False)
    compared_cases: int
    unasked: tuple[JsonObject, ...] = field(default=(), repr=False)

    def tables(self, has_worst: bool = True) -> list[Table]:
        """Return the tables for people: methods, groups, refusals, and the worst cases."""
        method_rows = [format_errors(row) for row in self.rows]
        group_rows = [format_errors(row) for row in self.groups]
        group_columns = (*map(Column, self.by), *METHOD_COLUMNS)
        tables = [
            Table(METHOD_COLUMNS, method_rows, "Errors of predictions"),
            Table(group_columns, group_rows, f"By {', '.join(self.by)}"),
            Table(REFUSAL_COLUMNS, self.unasked[:MAX_CAUSES], self._refusal_title()),
        ]
        if has_worst:
            worst = [{**row, "ops": "; ".join(map(_describe_op, row["ops"]))} for row in self.worst]
            title = f"The cases with the largest errors of {self.method}"
            tables.append(Table(CASE_COLUMNS, worst, title))
        return [table for table in tables if table.rows]

    def _refusal_title(self) -> str:
        """Return the title of the table of refusals: "...; 3 more causes"."""
        hidden_count = len(self.unasked) - MAX_CAUSES
        hidden_text = f"; {hidden_count:,} more causes" if hidden_count > 0 else ""
        return f"Rows that cannot be asked{hidden_text}"


def case_row(scored: Scored) -> JsonObject:
    """Return a case with its prediction as a row."""
    case = scored.case
    return {
        "place": case.place,
        "kind": case.kind,
        "device": case.device.name,
        "family": case.family,
        "condition": case.condition,
        "regime": regime(case),
        "measured_s": case.seconds,
        "predicted_s": scored.value,
        "low_s": scored.low,
        "high_s": scored.high,
        "ratio": scored.ratio,
    }


def evaluate(
    cases: Sequence[Case],
    method: Method | Price,
    name: str,
    points: int | None = None,
    group_names: Sequence[str] = (),
    draws: int = DRAWS,
    worst: int = WORST,
    refusals: Sequence[tuple[str, str]] = (),
) -> Evaluation:
    """Evaluate a method on cases, beside other methods and published predictions.

    Args:
        cases: the measured cases.
        method: a method of this package, or a price function of the user.
        name: the method's name in tables.
        points: if set, each device is also calibrated with so many of its cases, and scored on the
            others.
        group_names: columns that group the cases.
        draws: number of draws of these points.
        worst: number of the worst cases to show.
        refusals: rows that are no cases: place and cause.

    Raises:
        InputError: if there is no case, or the method predicts none.
    """
    if not cases and refusals:
        place, cause = refusals[0]
        raise InputError(f"none of {len(refusals):,} rows can be asked; {place}: {cause}")
    if not cases:
        raise InputError("no case to evaluate: no row fits the mapping")
    by_group([], group_names)  # refuses unknown columns before anything is scored
    if not isinstance(method, Method):
        method = method_of_price(name, method)
    scored = score(cases, method)
    if not scored:
        raise InputError(f"{name} predicts none of the {len(cases)} cases")
    error_rows = [_error_row(name, scored, _count_constants(method, cases))]
    groups = _list_group_rows(name, scored, group_names)
    if points is not None:
        calibrated_row, calibrated_groups = _evaluate_calibrations(
            cases, points, group_names, draws
        )
        error_rows.append(calibrated_row)
        groups += calibrated_groups
        groups.sort(key=lambda row: [str(row[column]) for column in group_names])
    comparison, compared_cases = _compare_methods(cases, name, method, scored)
    error_rows += comparison
    error_rows += _list_published_rows(cases, name, scored)
    return Evaluation(
        method=name,
        by=tuple(group_names),
        rows=tuple(error_rows),
        groups=tuple(groups),
        worst=tuple(_list_worst_cases(scored, method, worst)),
        scored=tuple(scored),
        compared_cases=compared_cases,
        unasked=tuple(_rows_by_cause(refusals)),
    )


def _list_group_rows(
    name: str, scored: Sequence[Scored], group_names: Sequence[str]
) -> list[JsonObject]:
    """Return the errors of each group of cases; none without columns that group them."""
    if not group_names:
        return []
    return [
        {**dict(zip(group_names, key, strict=True)), **_error_row(name, scores)}
        for key, scores in by_group(scored, group_names).items()
    ]


def _list_worst_cases(scored: Sequence[Scored], method: Method, count: int) -> list[JsonObject]:
    """Return the cases with the largest errors, each with its slowest ops."""
    worst_cases = sorted(scored, key=lambda score: -farness(score.ratio))[:count]
    return [{**case_row(case), "ops": _slowest_ops(case, method)} for case in worst_cases]


def _evaluate_calibrations(
    cases: Sequence[Case], points: int, group_names: Sequence[str], draws: int
) -> tuple[JsonObject, list[JsonObject]]:
    """Return the errors of devices calibrated with some of their cases, in all and by group."""
    scores_of_draws, constant_count = score_after_calibration(cases, points, draws)
    label = f"calibrated with {points}"
    settings = {"constants": constant_count, "points": points}
    row = _average_draws(label, scores_of_draws) | settings
    if not group_names:
        return row, []
    draws_by_group = [by_group(scores, group_names) for scores in scores_of_draws]
    groups = []
    for key in sorted({key for draw in draws_by_group for key in draw}):
        scores_of_group = [draw[key] for draw in draws_by_group if key in draw]
        group_row = _average_draws(label, scores_of_group) | settings
        groups.append(dict(zip(group_names, key, strict=True)) | group_row)
    return row, groups


def _compare_methods(
    cases: Sequence[Case], name: str, method: Method, scored: Sequence[Scored]
) -> tuple[list[JsonObject], int]:
    """Return the errors of other methods on the cases that all of them predict, and their number.

    If these are not all cases of the method, its own errors on them come first.
    """
    rival_names = [rival for rival in COMPARED_METHODS if rival != name]
    scores_by_rival = {rival: score(cases, cost_model(rival)) for rival in rival_names}
    scores_by_rival = {rival: scores for rival, scores in scores_by_rival.items() if scores}
    all_scores = (scored, *scores_by_rival.values())
    shared_ids = set.intersection(*({id(score.case) for score in scores} for scores in all_scores))

    def make_row(label: str, row_method: Method, scores: Sequence[Scored]) -> JsonObject:
        shared_scores = [score for score in scores if id(score.case) in shared_ids]
        return _error_row(label, shared_scores, _count_constants(row_method, cases))

    if not shared_ids:
        return [], 0
    error_rows = []
    if len(shared_ids) < len(scored):  # the method has other errors on the shared ones
        error_rows.append(make_row(f"{name}, the cases of all", method, scored))
    error_rows += [
        make_row(rival, cost_model(rival), scores) for rival, scores in scores_by_rival.items()
    ]
    return error_rows, len(shared_ids)


def _rows_by_cause(refusals: Sequence[tuple[str, str]]) -> list[JsonObject]:
    """Return a row for each cause of refusals, the most frequent first."""
    counts = Counter(cause for _, cause in refusals)
    first_places = {cause: place for place, cause in reversed(refusals)}
    return [
        {"cause": cause, "rows": count, "example": first_places[cause]}
        for cause, count in counts.most_common()
    ]


def _error_row(
    label: str, scored: Sequence[Scored], constant_count: float | None = None
) -> JsonObject:
    """Return the errors of some cases as a row."""
    settings = {"spread": None, "constants": constant_count, "points": 0}
    return {"method": label, **asdict(errors_of(scored)), **settings}


def _average_draws(label: str, scores_of_draws: Sequence[Sequence[Scored]]) -> JsonObject:
    """Return the mean errors of draws as a row, with the smallest and largest MAPE as `spread`.

    A figure that is unknown (None) in one draw is unknown in the mean.
    """
    draws = [asdict(errors_of(scores)) for scores in scores_of_draws]
    row: JsonObject = {"method": label}
    for name in draws[0]:
        figures = [draw[name] for draw in draws]
        row[name] = None if None in figures else float(np.mean(figures))
    mapes = [draw["mape"] for draw in draws]
    return row | {"cases": round(row["cases"] or 0), "spread": [min(mapes), max(mapes)]}


def _count_constants(method: Method, cases: Sequence[Case]) -> int | None:
    """Return the number of constants of a method, None for a price function of the user."""
    if method.name != "calibrated":
        return 0 if method.name in METHODS else None
    return len({name for case in cases for name in priors_of(case.device)})


def _list_published_rows(
    cases: Sequence[Case], name: str, scored: Sequence[Scored]
) -> list[JsonObject]:
    """Return the errors of published predictions, each with the method's on the same cases."""
    error_rows = []
    published_methods = dict.fromkeys(  # each once, in the order of the cases
        published_method for case in cases for published_method in case.published_s_by_method
    )
    for published_method in published_methods:
        rival_cases = [case for case in cases if published_method in case.published_s_by_method]
        rival_scores = [
            Scored(case, case.published_s_by_method[published_method], low=None, high=None)
            for case in rival_cases
        ]
        error_rows.append(_error_row(f"{published_method} (published)", rival_scores))
        shared_scores = [
            score for score in scored if published_method in score.case.published_s_by_method
        ]
        if shared_scores and len(shared_scores) < len(scored):
            error_rows.append(_error_row(f"{name}, the cases of {published_method}", shared_scores))
    return error_rows


def _slowest_ops(scored: Scored, method: Method) -> list[JsonObject]:
    """Return the slowest ops of a case: kind, pass, sizes, count, and seconds in all."""
    settings = method.with_options(options_for(scored.case, method)).settings
    kernel_intervals = kernel_times(scored.case, method, settings)
    op_rows: dict[object, JsonObject] = {}  # by kind, pass and sizes
    for kernel, interval in zip(scored.case.kernels, kernel_intervals, strict=True):
        sizes = _sizes_of_kernel(kernel)
        new_row = {
            "kind": kernel.kind,
            "pass": kernel.pass_,
            "sizes": [list(size) if isinstance(size, tuple) else size for size in sizes],
            "count": 0,
            "step_s": 0.0,
            "compute_s": 0.0,
            "memory_s": 0.0,
        }
        row = op_rows.setdefault((kernel.kind, kernel.pass_, sizes), new_row)
        row["count"] += 1
        row["step_s"] += interval.value
        row["compute_s"] += interval.compute_s
        row["memory_s"] += interval.memory_s
    return sorted(op_rows.values(), key=lambda row: -row["step_s"])[:MAX_OPS]


def _sizes_of_kernel(kernel: Kernel) -> tuple[tuple[int, ...] | int, ...]:
    """Return the sizes of a kernel's products, or its bytes if it has none."""
    return tuple(kernel.products) or (int(kernel.bytes),)


def _describe_op(op: JsonObject) -> str:
    """Describe an op of a case: "12 x linear 1x64x1024x1024: 1.2 ms, arithmetic"."""
    count = f"{op['count']} x " if op["count"] > 1 else ""
    first_size = op["sizes"][0]
    is_product = isinstance(first_size, list)
    size = "x".join(map(str, first_size)) if is_product else f"{first_size:,} bytes"
    roof_s, roof = max((op["compute_s"], "arithmetic"), (op["memory_s"], "memory"))
    # More than half of its time is neither arithmetic nor traffic.
    is_launch_bound = op["step_s"] - roof_s >= op["step_s"] / 2
    limit = "launch" if is_launch_bound else roof
    return f"{count}{op['kind']} {size}: {units.format_seconds(op['step_s'])}, {limit}"


def format_percent(share: float | None) -> str | None:
    """Format a share: "5.1 %"; None for an unknown one."""
    return None if share is None else units.format_percent(share)


def format_errors(row: JsonObject) -> JsonObject:
    """Return a row of errors with texts in place of numbers: "5.1 %", "+0.02"."""
    shares = {name: format_percent(row[name]) for name in SHARE_COLUMNS}
    numbers = {
        name: None if row[name] is None else format(row[name], number_format)
        for name, number_format in NUMBER_FORMATS.items()
    }
    spread_text = row["spread"]
    if row["spread"]:
        low, high = row["spread"]
        spread_text = f"{format_percent(low)} .. {format_percent(high)}"
    return {**row, **shares, **numbers, "spread": spread_text, "points": row["points"] or None}
