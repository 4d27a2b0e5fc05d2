"""An evaluation: methods side by side on the same cases, groups of them, and the worst ones."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec.structs import asdict

from steptime.calibration.cases import Case, priors_of
from steptime.calibration.evaluate import (
    DRAWS,
    Scored,
    after_calibration,
    by_group,
    errors_of,
    kernel_times,
    regime,
    score,
)
from steptime.core import units
from steptime.core.errors import InputError
from steptime.core.table import Column, Table
from steptime.prediction import METHODS, cost_model
from steptime.prediction.method import Method, Price, priced_by
from steptime.records.ratios import farness

BESIDE = ("calibrated", "analytic", "roofline", "paleo")  # methods that stand beside the one asked
WORST = 5
PARTS = 4  # ops of a case that are shown
CAUSES = 20  # of rows that cannot be asked, that are shown
ERROR_COLUMNS = (
    Column("mape", "MAPE"),
    Column("median"),
    Column("p90"),
    Column("coverage"),
    Column("width"),
    Column("bias"),
)
"""The columns of all tables of errors, of single cases and of whole trainings."""
HEADS = (
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
LEFT_OUT = (Column("cause"), Column("rows"), Column("example"))
OF_CASE = (
    Column("place"),
    Column("kind"),
    Column("device"),
    Column("measured_s", "measured"),
    Column("predicted_s", "predicted"),
    Column("ratio", "p / m", form=".2f"),
    Column("ops", "slowest ops"),
)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found: a row a method over all cases, rows of groups, the worst cases.

    `scored` are the cases with what the method that was asked for predicts, `compared_cases` how
    many of them all methods predict: on these methods stand side by side. `unasked` are the rows
    that no prediction could be asked for, by cause, with the place of one of them.
    """

    method: str
    by: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    groups: tuple[Mapping[str, Any], ...] = field(repr=False)
    worst: tuple[Mapping[str, Any], ...] = field(repr=False)
    scored: tuple[Scored, ...] = field(repr=False)
    compared_cases: int
    unasked: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    def tables(self, has_worst: bool = True) -> list[Table]:
        """Return the tables for people: methods, groups, the worst cases op by op."""
        worst = [{**row, "ops": "; ".join(map(_said, row["ops"]))} for row in self.worst]
        hidden_count = len(self.unasked) - CAUSES
        unasked_title = "Rows that cannot be asked" + (
            f"; {hidden_count:,} more causes" if hidden_count > 0 else ""
        )
        contents = (
            (HEADS, [*map(shown, self.rows)], "Errors of predictions"),
            (
                (*map(Column, self.by), *HEADS),
                [*map(shown, self.groups)],
                f"By {', '.join(self.by)}",
            ),
            (LEFT_OUT, self.unasked[:CAUSES], unasked_title),
        )
        tables = [Table(heads, rows, title) for heads, rows, title in contents]
        title = f"The cases with the largest errors of {self.method}"
        if has_worst:
            tables.append(Table(OF_CASE, worst, title))
        return [table for table in tables if table.rows]


def case_row(one: Scored) -> dict[str, Any]:
    """Return a case that was scored as a row."""
    return {
        "place": one.case.place,
        "kind": one.case.kind,
        "device": one.case.device.name,
        "family": one.case.family,
        "condition": one.case.condition,
        "regime": regime(one.case),
        "measured_s": one.case.seconds,
        "predicted_s": one.value,
        "low_s": one.low,
        "high_s": one.high,
        "ratio": one.ratio,
    }


def evaluate(
    cases: Sequence[Case],
    method: Method | Price,
    name: str,
    points: int | None = None,
    by: Sequence[str] = (),
    draws: int = DRAWS,
    worst: int = WORST,
    unasked: Sequence[tuple[str, str]] = (),
) -> Evaluation:
    """Return how far a method is off on cases, beside other methods and published rivals.

    `method` is a method of the house, or a price of one's own, called `name`. With `points` each
    device is calibrated with so many of its cases, in `draws` draws, and scored on the others.
    `unasked` are rows that are no cases. Raises `InputError` where there is no case.
    """
    if not cases and unasked:
        place, cause = unasked[0]
        raise InputError(f"none of {len(unasked):,} rows can be asked; {place}: {cause}")
    if not cases:
        raise InputError("no case to evaluate: no row fits the mapping")
    by_group([], by)
    method = method if isinstance(method, Method) else priced_by(name, method)
    own = score(cases, method)
    if not own:
        raise InputError(f"{name} predicts none of the {len(cases)} cases")
    rows = [_row(name, own, _constants(method, cases))]
    groups = [
        {**dict(zip(by, key, strict=True)), **_row(name, some)}
        for key, some in (by_group(own, by) if by else {}).items()
    ]
    if points is not None:
        drawn, constants = after_calibration(cases, points, draws)
        label = f"calibrated with {points}"
        told = {"constants": constants, "points": points}
        rows.append(_of_draws(label, drawn) | told)
        parts = [by_group(one, by) for one in drawn] if by else []
        for key in sorted({key for part in parts for key in part}):
            some = [part[key] for part in parts if key in part]
            groups.append(dict(zip(by, key, strict=True)) | _of_draws(label, some) | told)
        groups.sort(key=lambda row: [str(row[one]) for one in by])
    others = {one: score(cases, cost_model(one)) for one in BESIDE if one != name}
    others = {one: made for one, made in others.items() if made}
    every = [{id(one.case) for one in some} for some in (own, *others.values())]
    of_all = set.intersection(*every)
    if 0 < len(of_all) < len(own):
        shared = [one for one in own if id(one.case) in of_all]
        rows.append(_row(f"{name}, the cases of all", shared, _constants(method, cases)))
    for other, made in others.items():
        if shared := [one for one in made if id(one.case) in of_all]:
            rows.append(_row(other, shared, _constants(cost_model(other), cases)))
    rows += _rivals(cases, name, own)
    far = sorted(own, key=lambda one: -farness(one.ratio))[:worst]
    return Evaluation(
        name,
        tuple(by),
        tuple(rows),
        tuple(groups),
        tuple({**case_row(one), "ops": _ops(one, method)} for one in far),
        tuple(own),
        len(of_all),
        tuple(_by_cause(unasked)),
    )


def _by_cause(unasked: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return a row for each cause, the commonest first."""
    causes = Counter(cause for _, cause in unasked)
    first = {cause: place for place, cause in reversed(unasked)}
    return [
        {"cause": cause, "rows": number, "example": first[cause]}
        for cause, number in causes.most_common()
    ]


def _row(label: str, scored: Sequence[Scored], constants: float | None = None) -> dict[str, Any]:
    rest = {"spread": None, "constants": constants, "points": 0}
    return {"method": label, **asdict(errors_of(scored)), **rest}


def _of_draws(label: str, draws: Sequence[Sequence[Scored]]) -> dict[str, Any]:
    """Return the mean of the errors of draws, and the least and largest MAPE among them."""
    each = [asdict(errors_of(one)) for one in draws]
    columns_ = {name: [one[name] for one in each] for name in each[0]}
    mean = {k: None if None in some else float(np.mean(some)) for k, some in columns_.items()}
    every = columns_["mape"]
    told = {"cases": round(mean["cases"] or 0), "spread": [min(every), max(every)]}
    return {"method": label, **mean, **told}


def _constants(method: Method, cases: Sequence[Case]) -> int | None:
    """Return how many constants a method has, None where that is not known."""
    if method.name != "calibrated":
        return 0 if method.name in METHODS else None
    return len({name for case in cases for name in priors_of(case.device)})


def _rivals(cases: Sequence[Case], name: str, own: Sequence[Scored]) -> list[dict[str, Any]]:
    """Return the rows of published rivals, each with the method's own on the same cases."""
    found = []
    for rival in {rival: None for case in cases for rival in case.rivals}:
        of_it = [case for case in cases if rival in case.rivals]
        scored = [Scored(case, case.rivals[rival], None, None) for case in of_it]
        found.append(_row(f"{rival} (published)", scored))
        beside = [one for one in own if rival in one.case.rivals]
        if beside and len(beside) < len(own):
            found.append(_row(f"{name}, the cases of {rival}", beside))
    return found


def _ops(one: Scored, method: Method) -> list[dict[str, Any]]:
    """Return the slowest ops of a case: kind, how often, seconds in all, and what bounds them."""
    times = kernel_times(one.case, method, method.settings)
    totals: dict[Any, dict[str, Any]] = {}
    for kernel, found in zip(one.case.kernels, times, strict=True):
        key = kernel.kind, kernel.pass_, kernel.products or (int(kernel.bytes),)
        sizes = [list(size) if isinstance(size, tuple) else size for size in key[2]]
        entry = totals.setdefault(key, {"kind": key[0], "pass": key[1], "sizes": sizes})
        parts = {
            "count": 1,
            "step_s": found.value,
            "compute_s": found.compute_s,
            "memory_s": found.memory_s,
        }
        entry |= {name: entry.get(name, 0) + part for name, part in parts.items()}
    return sorted(totals.values(), key=lambda op: -op["step_s"])[:PARTS]


def _said(op: Mapping[str, Any]) -> str:
    often = f"{op['count']} x " if op["count"] > 1 else ""
    first = op["sizes"][0]
    size = "x".join(map(str, first)) if isinstance(first, list) else f"{first:,} bytes"
    most_s, limit = max((op["compute_s"], "arithmetic"), (op["memory_s"], "memory"))
    limit = limit if op["step_s"] - most_s < op["step_s"] / 2 else "launch"
    return f"{often}{op['kind']} {size}: {units.seconds(op['step_s'])}, {limit}"


def percent(value: float | None) -> str | None:
    """Return a share as people read it: `5.1 %`; None for one that is not known."""
    return None if value is None else units.percent(value)


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with shares in percent, as people read them."""
    low_high = row["spread"]
    shares = ("mape", "median", "p90", "max", "balanced", "coverage", "width")
    forms = {"bias": "+.2f", "factor": ".2f", "constants": "g"}
    return {
        **row,
        **{name: percent(row[name]) for name in shares},
        **{n: None if row[n] is None else format(row[n], form) for n, form in forms.items()},
        "spread": low_high and f"{percent(low_high[0])} .. {percent(low_high[1])}",
        "points": row["points"] or None,
    }
