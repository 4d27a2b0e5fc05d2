"""The tables of docs/validation.md: what can be claimed, every set, and steps of trainings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from steptime.calibration.plan_errors import PredictedRow, errors_of
from steptime.prediction import cost_model
from validation.layouts import tables_in
from validation.left_out import (
    SERVED,
    Parts,
    again,
    answered,
    as_wide_as_others,
    labelled,
    left_out,
    predicted_as,
)
from validation.score import CaseAnswer
from validation.sets import GROUNDS, census
from validation.ways import Replies, Row, told_of, ways

EXAMPLES = Path(__file__).parents[2] / "docs/examples/papers.csv"
METHOD = "calibrated"
TIMES = ("step_s", "request_s", "tpot_s", "ttft_s", "tokens_per_s_per_device")  # of steps
DRAWN = ("aiconfigurator",)  # sets of which one of `Layout.draw` rows is asked: each runs a server
SCALES = ((64, "up to 64"), (512, "65 to 512"), (1 << 30, "more than 512"))  # devices
BOTH = ("mean", "median", "coverage", "width")
FORMS = {"plan": "trainings, dense", "experts": "trainings, mixtures"}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(value: float | None, places: int = 1) -> str:
    """Return a share in percent, `-` for one that is not known."""
    return "-" if value is None else f"{value:.{places}%}"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return mean, median, coverage and width of errors."""
    near = [percent(row[name]) for name in ("mape", "median")]
    return near + [percent(row[name], 0) for name in ("coverage", "width")]


def files(data: Path) -> list[Path]:
    """Return the files and folders of reference data whose tables are scored."""
    measured = sorted(one for one in (data / "measured").iterdir() if one.is_dir())
    return [data / "llm", *measured, data / "pytorch-paradnn", EXAMPLES]


class Score:
    """Rows of reference data as shipped, and left out; `unnamed`, steps without their stacks.

    `replies` are the answers that tell how far constants move the rows (`ways`).
    """

    def __init__(self, data: Path, unnamed: bool = False) -> None:
        tables = tables_in(files(data))[0]
        if unnamed:
            tables = {path: one for path, one in tables.items() if one.kind == "step"}
        self.every = [
            row
            for path, one in tables.items()
            for row in labelled({path: one}, METHOD, "" if unnamed else None, one.key in DRAWN)
        ]
        self.rows = answered(self.every)
        self.replies: Replies = {}
        self.after = left_out(self.rows, METHOD, data, self.replies)

    def both(self, label: Callable[[Row], str] | None = None) -> list[list[str]]:
        """Return errors of sets, or of what labels rows, as shipped and left out."""
        shipped, after = (
            errors_of(_labelled(predicted_as(self.every, rows), rows, label), METHOD).document
            for rows in (self.rows, self.after)
        )
        pairs = zip(shipped["rows"], after["rows"], strict=True)
        return [
            [one["set"], one["quantity"], f"{one['cases']:,}", *cells(one), *cells(two)]
            for one, two in pairs
        ]


def _labelled(
    every: Iterable[PredictedRow], rows: Sequence[Row], label: Callable[[Row], str] | None
) -> list[PredictedRow]:
    if label is None:
        return [*every]
    named = [replace(row.question, set=label(row)) for row in rows]
    return [(one.set, one.place, (one, row.reply)) for one, row in zip(named, rows, strict=True)]


def class_of(row: Row) -> str:
    """Return what a row is, in words."""
    answer, quantities = row.question.answer, row.question.measured
    if isinstance(answer, CaseAnswer):
        return "single ops and layers" if answer.case.is_single_op else "steps of one device"
    if "exchange_s" in quantities:
        return "exchanges"
    if quantities.keys() & SERVED:
        return "servings, mixtures" if row.reply.form.endswith("experts") else "servings"
    return "models" if "parameters" in quantities else FORMS.get(row.reply.form, row.reply.form)


def summary(score: Score) -> str:
    """Return what can be claimed, class by class, and how many constants stand on what."""
    heads = ["class", "quantity", "rows", *BOTH, *(f"{name}, left out" for name in BOTH)]
    owners = [[str(row[name]) for name in ("owner", "constants", *GROUNDS)] for row in census()]
    return "\n\n".join(
        (
            table(heads, [row for row in score.both(class_of) if row[0] != "models"]),
            "### Constants and their sources",
            table(["owner", "constants", *GROUNDS], owners),
        )
    )


def _scale(row: Row) -> str:
    return next(words for most, words in SCALES if row.reply.device_count <= most)


GROUPS: Mapping[str, Callable[[Row], str]] = {
    "model": lambda row: row.question.texts["model"].partition(",heads")[0],
    "device": lambda row: row.question.texts["device"],
    "devices": _scale,
    "stack": lambda row: row.reply.stack,
}


def groups(rows: Sequence[Row], replies: Replies) -> list[list[str]]:
    """Return errors of steps of which each group is left out, group by group."""
    some = [row for row in rows if "step_s" in row.question.measured and told_of(row)]
    base, found = cost_model(METHOD), []
    off = ways(some, base, replies)
    for by, group_of in GROUPS.items():

        def parts(row: Row, by: str = by, of: Callable[[Row], str] = group_of) -> Parts:
            return frozenset({(by, of(row))})

        after = as_wide_as_others([*again(off, parts, base)], parts)
        before, now = (
            errors_of(_labelled((), own, group_of), METHOD).document["rows"]
            for own in (some, after)
        )
        pairs = [(a, b) for a, b in zip(before, now, strict=True) if a["quantity"] == "step_s"]
        found += [[by, a["set"], str(a["cases"]), *cells(a), *cells(b)] for a, b in pairs]
    return found


def unnamed(data: Path) -> str:
    """Return the errors of steps of trainings whose stack nobody names."""
    score = Score(data, unnamed=True)
    steps = [row for row in score.both(lambda _: "together") if row[1] == "step_s"]
    steps += [row for row in score.both() if row[1] == "step_s"]
    heads = ["set", "quantity", "rows", *BOTH, *(f"{name}, left out" for name in BOTH)]
    return table(heads, steps)


def page(score: Score) -> str:
    """Return the tables of every set, and those of steps of language models."""
    every = predicted_as(score.every, score.rows)
    shipped = errors_of(every, METHOD).document
    heads = [*BOTH, *(f"{name}, left out" for name in BOTH)]
    steps = [row for row in shipped["groups"] if row["quantity"] in TIMES]
    blocks = [
        [row["set"], row["quantity"], row["block"], str(row["cases"]), *cells(row)] for row in steps
    ]
    unasked = [[row["set"], str(row["rows"]), row["reason"]] for row in shipped["unasked"]]
    return "\n\n".join(
        (
            "### Every set",
            table(["set", "quantity", "rows", *heads], score.both()),
            "### Times, by the rows that the constants of their stack were fitted to",
            table(["set", "quantity", "block", "rows", *BOTH], blocks),
            "### Steps with a model, a device, a scale or a stack left out",
            table(["by", "left out", "rows", *heads], groups(score.rows, score.replies)),
            "### Rows that are refused",
            table(["set", "rows", "reason"], unasked),
        )
    )
