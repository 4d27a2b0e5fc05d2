"""How far predictions are from published tables: errors by set and block, and the worst rows."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from steptime.calibration.asking import KINDS
from steptime.calibration.evaluate import DRAWS, errors, score
from steptime.calibration.evaluation import WORST, percent, shown
from steptime.calibration.mapping import cases_of, mapping
from steptime.calibration.published import Layout, Question, Told, questions, row_of
from steptime.calibration.published_told import drawn
from steptime.core.errors import InputError, one_of
from steptime.core.table import Table, columns
from steptime.predict import cost_model
from steptime.predict.kernel import Interval

GROUPS = ("model", "device", "block", "stack", "dtype", "devices")
HEADS = columns(
    "asked=rows", "cases=scored", "mape=MAPE", "median", "p90", "max", "bias", "coverage", "width",
    "fits",
)  # fmt: skip
OF_SET = columns("set", "quantity")
OF_ROW = columns("place", "model", "device", "devices", "stack", "quantity", "ratio:.2f=p / m")
OF_TOLD = (*OF_SET, *columns("device", "stack", "points", "before=MAPE before"), *HEADS[1:-1],
           *columns("spread=MAPE of draws"))  # fmt: skip
_NUMBERS = itemgetter("measured", "predicted", "low", "high")
OF_UNASKED = columns("set", "rows", "reason", "first")


@dataclass(frozen=True)
class Published:
    """What published tables say of a method: a document of JSON values, and tables for people.

    `rows` are errors of each set and quantity, `groups` those of its blocks, `unasked` the rows
    that could not be asked, counted by reason; `cases` are all rows that were scored. `calibrated`
    are errors of rows that were not drawn, of each device and stack that was told the others.
    """

    document: Mapping[str, Any]

    @property
    def tables(self) -> list[Table]:
        """The tables for people."""
        told = self.document
        by = (*OF_SET, *columns(*told["by"]), *HEADS[1:])
        every = (
            ((*OF_SET, *HEADS), map(_shown, told["rows"]), "Errors of predictions"),
            (by, map(_shown, told["groups"]), f"By {', '.join(told['by'])}"),
            (OF_TOLD, map(_shown, told["calibrated"]), "Rows that were not drawn"),
            (OF_ROW, told["worst"], f"The rows that {told['method']} misses by most"),
            (OF_UNASKED, told["unasked"], "Rows that were not asked"),
        )
        return [Table(heads, rows, title) for heads, some, title in every if (rows := [*some])]


def evaluate_tables(
    tables: Mapping[Path, Layout],
    method: str,
    by: Sequence[str] = ("block",),
    worst: int = WORST,
    points: int | None = None,
    draws: int = DRAWS,
) -> Published:
    """Return how far a method is off on published tables, each by its layout.

    `points` of each device and stack calibrate it, in `draws` draws, to score the others. Raises
    `InputError` for an unknown group, or where no row can be asked.
    """
    for one in by:
        one_of("group", one, GROUPS, "--by")
    scored: list[dict[str, Any]] = []
    steps: list[tuple[Question, Told]] = []
    asked: Counter[str] = Counter()
    alone: dict[str, list[bool]] = defaultdict(list)
    unasked: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, layout in tables.items():
        for label, place, answer in told_of(path, layout, method):
            asked[label] += 1
            if isinstance(answer, InputError):
                unasked[label, str(answer).removeprefix("plan: ")].append(place)
                continue
            question, told = answer
            steps.append(answer)
            if not question.measured and told.fits is not None:
                alone[label].append(told.fits == question.ran)
            known = [name for name in question.measured if name in told.values]
            scored += [row_of(question, told, name) for name in known]
    left = [
        {"set": key[0], "rows": len(places), "reason": key[1], "first": places[0]}
        for key, places in unasked.items()
    ]
    if not scored:
        raise InputError(f"no row can be asked: {left[0]['reason'] if left else 'there is none'}")
    sets = [{**row, "asked": asked[row["set"]]} for row in _errors(scored, ())]
    for row in sets:  # those that ran nowhere have no time
        if (more := alone[row["set"]]) and row["fits"] is not None:
            right = row["fits"] * row["cases"] + sum(more)
            row["fits"] = right / (row["cases"] + len(more))
    far = sorted(scored, key=lambda row: -abs(row["ratio"] - 1))[:worst]
    groups = _errors(scored, by) if by else []
    apart = _left(steps, points, draws) if points else []
    said = {"rows": sets, "groups": groups, "calibrated": apart, "unasked": left, "worst": far}
    return Published({"method": method, "by": list(by), **said, "cases": scored})


def told_of(
    path: Path, layout: Layout, method: str
) -> Iterator[tuple[str, str, tuple[Question, Told] | InputError]]:
    """Yield set and place of each row, and what is told of it or why it cannot be asked."""
    if layout.kind == "ops":
        said = mapping({**layout.rows, "words": layout.words}, layout.name)
        for one in score([*cases_of(path, said)], cost_model(method)):
            label, place = f"{layout.name}, {one.case.kind}", one.case.place
            texts, measured = {"device": one.case.device.name}, {"seconds": one.case.seconds}
            question = Question(label, place, "ops", texts, {}, measured, True)
            told = Told({"seconds": Interval(one.value, one.low, one.high)})
            yield label, place, (question, told) if one.value > 0 else InputError("a size is 0")
        return
    for label, place, asked in questions(path, layout):
        if isinstance(asked, InputError):
            yield label, place, asked
            continue
        try:
            yield label, place, (asked, KINDS[asked.kind](asked, method))
        except InputError as error:
            yield label, place, error


def _errors(scored: Sequence[dict[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """Return the errors of each set and quantity, by what `by` names of their rows."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    heads = ("set", "quantity", *by)
    for row in scored:
        groups[tuple(str(row[name] or "-") for name in heads)].append(row)
    found = []
    for key, some in sorted(groups.items()):
        right = [row["fits"] for row in some if row["fits"] is not None]
        fits = sum(right) / len(right) if right else None
        compared = [(*_NUMBERS(row), (row["device"], row["model"])) for row in some]
        known = dict(zip(heads, key, strict=True))
        found.append({**known, **asdict(errors(compared)), "fits": fits})
    return found


def _left(rows: Sequence[tuple[Question, Told]], points: int, draws: int) -> list[dict[str, Any]]:
    """Return the errors of rows that were not drawn, over all draws, by set, device and stack."""
    by, was, now = ("device", "stack"), list[dict[str, Any]](), list[dict[str, Any]]()
    for seed, asked, told, after in drawn(rows, points, draws):
        for name in asked.measured.keys() & after.values.keys() - {"memory_bytes"}:
            was.append(row_of(asked, told, name))
            now.append(row_of(asked, after, name) | {"draw": f"{seed}"})
    found, each = _errors(now, by), _errors(now, (*by, "draw"))
    for row, before in zip(found, _errors(was, by), strict=True):
        key = ("set", "quantity", *by)
        mapes = [one["mape"] for one in each if all(one[name] == row[name] for name in key)]
        row |= {"points": points, "cases": row["cases"] // draws, "before": before["mape"]}
        row |= {"spread": [min(mapes), max(mapes)]}
    return found


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    said = {"spread": None, "constants": None, "points": None, "before": None, **row}
    shares = {"before": percent(said["before"]), "fits": percent(row["fits"], ".0%")}
    return {**shown(said), **shares}
