"""An evaluation: methods side by side on the same cases, groups of them, and the worst ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from steptime import catalog
from steptime.calibration.cases import Case
from steptime.calibration.evaluate import (
    DRAWS,
    Draws,
    Scored,
    after_calibration,
    errors_of,
    grouped,
    regime,
    rivals_of,
    score,
)
from steptime.core.errors import InputError
from steptime.core.hardware import Device
from steptime.core.table import Table, columns, picked
from steptime.predict import cost_model
from steptime.predict.kernel import Interval, Kernel
from steptime.predict.method import Method

BESIDE = ("calibrated", "analytic", "roofline", "paleo")  # methods that stand beside the one asked
WORST = 5
PARTS = 4  # ops of a case that are shown
HEADS = columns(
    "method", "cases", "mape=MAPE", "median", "p90", "max", "bias", "factor", "balanced",
    "coverage", "width", "spread=MAPE of draws", "?constants", "?points",
)  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found: a row a method over all cases, rows of groups, the worst cases.

    `scored` are the cases with what the method that was asked for predicts.
    """

    method: str
    by: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    groups: tuple[Mapping[str, Any], ...]
    worst: tuple[Mapping[str, Any], ...]
    scored: tuple[Scored, ...]

    @property
    def tables(self) -> list[Table]:
        """The tables for people: methods, groups, the worst cases op by op."""
        found = [Table(HEADS, [shown(row) for row in self.rows], "Errors of predictions")]
        if self.groups:
            heads = (*columns(*self.by), *HEADS)
            title = f"By {', '.join(self.by)}"
            found.append(Table(heads, [shown(row) for row in self.groups], title))
        if self.worst:
            heads = columns(
                "place", "kind", "device", "measured_s=measured", "predicted_s=predicted",
                "ratio:.2f=p / m", "ops=slowest ops",
            )  # fmt: skip
            lines = [{**row, "ops": "; ".join(map(_said, row["ops"]))} for row in self.worst]
            found.append(Table(heads, lines, f"The cases that {self.method} misses by most"))
        return found

    @property
    def document(self) -> dict[str, Any]:
        """The evaluation as one JSON document."""
        return {
            "method": self.method,
            "by": list(self.by),
            "rows": list(self.rows),
            "groups": list(self.groups),
            "worst": list(self.worst),
        }

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row a case; needs pandas."""
        import pandas as pd  # type: ignore[import-untyped,unused-ignore]

        return pd.DataFrame([case_row(one) for one in self.scored])

    def _repr_html_(self) -> str:
        """Return the tables as HTML, as notebooks show them."""
        from steptime.core.printers import html

        return "".join(map(html, self.tables))


def case_row(one: Scored) -> dict[str, Any]:
    """Return a case that was scored as a row."""
    return {
        **picked(one.case, "place kind"),
        "device": one.case.device.name,
        **picked(one.case, "family condition"),
        "regime": regime(one.case),
        "measured_s": one.case.seconds,
        "predicted_s": one.value,
        "low_s": one.low,
        "high_s": one.high,
        "ratio": one.value / one.case.seconds,
    }


def evaluate(
    cases: Sequence[Case],
    method: Method | Callable[[Kernel, Device], Interval | float],
    name: str,
    points: int | None = None,
    by: Sequence[str] = (),
    draws: int = DRAWS,
    worst: int = WORST,
) -> Evaluation:
    """Return how far a method is off on cases, beside other methods and published rivals.

    `method` is a method of the house, or a price of one's own, called `name`. With `points` each
    device is calibrated with so many of its cases, in `draws` draws, and scored on the others.
    Raises `InputError` where there is no case.
    """
    if not cases:
        raise InputError("no case to evaluate: no row fits the mapping")
    grouped([], by)
    own = score(cases, method)
    if not own:
        raise InputError(f"{name} predicts none of the {len(cases)} cases")
    rows = [_row(name, own, _constants(method, cases))]
    groups = [
        {**dict(zip(by, key, strict=True)), **_row(name, some)}
        for key, some in (grouped(own, by) if by else {}).items()
    ]
    if points is not None:
        found = after_calibration(cases, points, draws)
        label = f"calibrated with {points}"
        rows.append(_of_draws(label, found, found.errors))
        parts = [grouped(one, by) for one in found.errors] if by else []
        for key in sorted({key for part in parts for key in part}):
            some = [part[key] for part in parts if key in part]
            groups.append({**dict(zip(by, key, strict=True)), **_of_draws(label, found, some)})
        groups.sort(key=lambda row: [str(row[one]) for one in by])
    rows += [
        _row(other, made, _constants(cost_model(other), cases))
        for other in BESIDE
        if other != name and (made := score(cases, cost_model(other)))
    ]
    rows += _rivals(cases, name, own)
    far = sorted(own, key=lambda one: -abs(one.off))[:worst]
    return Evaluation(
        name,
        tuple(by),
        tuple(rows),
        tuple(groups),
        tuple({**case_row(one), "ops": _ops(one, method)} for one in far),
        tuple(own),
    )


def _row(
    label: str, scored: Sequence[Scored], constants: float | None = None, points: int = 0
) -> dict[str, Any]:
    return {
        "method": label,
        **asdict(errors_of(scored)),
        "spread": None,
        "constants": constants,
        "points": points,
    }


def _of_draws(label: str, found: Draws, draws: Sequence[Sequence[Scored]]) -> dict[str, Any]:
    """Return the mean of the errors of draws, and the least and largest MAPE among them."""
    each = [asdict(errors_of(one)) for one in draws]
    mean = {
        name: None
        if any(one[name] is None for one in each)
        else float(np.mean([one[name] for one in each]))
        for name in each[0]
    }
    every = [one["mape"] for one in each]
    return {
        "method": label,
        **mean,
        "cases": round(mean["cases"] or 0),
        "spread": [min(every), max(every)],
        **picked(found, "constants points"),
    }


def _constants(method: object, cases: Sequence[Case]) -> int | None:
    """Return how many constants a method has, None where that is not known."""
    if not isinstance(method, Method):
        return None
    if method.name != "calibrated":
        return 0
    return len({name for case in cases for name in catalog.priors(case.device.kind)})


def _rivals(cases: Sequence[Case], name: str, own: Sequence[Scored]) -> list[dict[str, Any]]:
    """Return the rows of published rivals, each with the method's own on the same cases."""
    found = []
    for rival, scored in rivals_of(cases).items():
        found.append(_row(f"{rival} (published)", scored))
        same = {id(one.case) for one in scored}
        beside = [one for one in own if id(one.case) in same]
        if beside and len(beside) < len(own):
            found.append(_row(f"{name}, the cases of {rival}", beside))
    return found


def _ops(one: Scored, method: object) -> list[dict[str, Any]]:
    """Return the slowest ops of a case: kind, how often, seconds in all, and what bounds them."""
    made = method if isinstance(method, Method) else cost_model("calibrated")
    case = one.case
    price: Any = made.price if isinstance(method, Method) else method
    seen = made.sees(case.device, case.kernels[0].dtype, made.settings) if case.kernels else None
    totals: dict[Any, list[float]] = {}
    for kernel in case.kernels if seen else ():
        at = seen if isinstance(method, Method) else case.device
        priced = price(kernel, at)
        interval = priced if isinstance(priced, Interval) else Interval(float(priced))
        key = kernel.kind, kernel.pass_, kernel.products or (int(kernel.bytes),)
        entry = totals.setdefault(key, [0, 0.0, 0.0, 0.0])
        for i, part in enumerate((1, interval.value, interval.compute_s, interval.memory_s)):
            entry[i] += part
    slowest = sorted(totals.items(), key=lambda item: -item[1][1])[:PARTS]
    return [
        {
            "kind": kind,
            "pass": pass_,
            "sizes": [list(size) if isinstance(size, tuple) else size for size in sizes],
            "count": int(count),
            "step_s": seconds,
            "compute_s": compute,
            "memory_s": memory,
        }
        for (kind, pass_, sizes), (count, seconds, compute, memory) in slowest
    ]


def _said(op: Mapping[str, Any]) -> str:
    from steptime.core.units import seconds

    often = f"{op['count']} x " if op["count"] > 1 else ""
    first = op["sizes"][0]
    size = "x".join(map(str, first)) if isinstance(first, list) else f"{first:,} bytes"
    parts = {"arithmetic": op["compute_s"], "memory": op["memory_s"]}
    rest = op["step_s"] - max(parts.values())
    limit = max(parts, key=lambda name: parts[name]) if rest < op["step_s"] / 2 else "launch"
    return f"{often}{op['kind']} {size}: {seconds(op['step_s'])}, {limit}"


def percent(value: float | None, form: str = ".1%") -> str | None:
    """Return a share as people read it: `5.1%`; None for one that is not known."""
    return None if value is None else format(value, form)


def shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with shares in percent, as people read them."""
    low_high = row["spread"]
    return {
        **row,
        **{name: percent(row[name]) for name in ("mape", "median", "p90", "max", "balanced")},
        "bias": f"{row['bias']:+.2f}",
        "factor": f"{row['factor']:.2f}",
        "coverage": percent(row["coverage"], ".0%"),
        "width": percent(row["width"], ".0%"),
        "spread": low_high and f"{low_high[0]:.1%} .. {low_high[1]:.1%}",
        "constants": None if row["constants"] is None else f"{row['constants']:g}",
        "points": row["points"] or None,
    }
