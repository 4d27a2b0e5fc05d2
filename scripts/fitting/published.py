"""The tables of docs/validation.md on published steps of language models."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from steptime.calibration.published import tables_in
from steptime.calibration.published_errors import evaluate_tables

PAGE = Path(__file__).parents[2] / "docs/validation.md"
EXAMPLES = Path(__file__).parents[2] / "docs/examples/papers.csv"
BEGIN, END = "<!-- scripts/validate-plans writes from here -->", "<!-- to here, plans -->"
TIMES = ("step_s", "request_s", "tpot_s", "ttft_s", "tokens_per_s_per_device")  # of steps
LEAST = 2  # of models or devices that a set must have for one to be left out
Row = Mapping[str, Any]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(value: float | None, places: int = 1) -> str:
    """Return a share in percent, `-` for one that is not known."""
    return "-" if value is None else f"{value:.{places}%}"


def errors(rows: Sequence[Row]) -> list[str]:
    """Return the cells of the errors of sets or blocks."""
    return [
        [
            *(percent(row[name]) for name in ("mape", "median", "p90", "max")),
            f"{row['bias']:+.2f}",
            percent(row["coverage"], 0),
            percent(row["width"], 0),
            percent(row["fits"], 0),
        ]
        for row in rows
    ]


def left_out(cases: Sequence[Row], name: str) -> Iterator[tuple[str, int, float, float]]:
    """Yield set, rows, and mean and median errors where others of the set say how fast it is.

    Each model (or device) is left out in turn: its predictions are multiplied by the mean factor
    that the set's others are off by, as one constant fitted to them would do.
    """
    sets: dict[str, list[Row]] = defaultdict(list)
    for case in cases:
        if case["quantity"] in TIMES:
            sets[f"{case['set']}, {case['quantity']}"].append(case)
    for label, some in sorted(sets.items()):
        known = sorted({case[name] for case in some})
        if len(known) < LEAST:
            continue
        wrong = []
        for one in known:
            off = fmean(log(case["ratio"]) for case in some if case[name] != one)
            own = [case["ratio"] for case in some if case[name] == one]
            wrong += [abs(ratio / exp(off) - 1) for ratio in own]
        yield label, len(known), fmean(wrong), median(wrong)


def page(paths: Sequence[Path]) -> str:
    """Return the tables of some files of published steps."""
    told = evaluate_tables(tables_in([*paths, EXAMPLES])[0], "calibrated").document
    heads = ["mean", "median", "p90", "max", "bias", "coverage", "width", "fits"]
    sets = [
        [row["set"], row["quantity"], str(row["asked"]), str(row["cases"]), *cells]
        for row, cells in zip(told["rows"], errors(told["rows"]), strict=True)
    ]
    steps = [row for row in told["groups"] if row["quantity"] in TIMES]
    blocks = [
        [row["set"], row["quantity"], row["block"], str(row["cases"]), *cells]
        for row, cells in zip(steps, errors(steps), strict=True)
    ]
    unasked = [[row["set"], str(row["rows"]), row["reason"]] for row in told["unasked"]]
    out = [
        [f"{label}, a {name} of {known}", percent(mean), percent(middle)]
        for name in ("model", "device")
        for label, known, mean, middle in left_out(told["cases"], name)
    ]
    return "\n\n".join(
        (
            "### Every set",
            table(["set", "quantity", "rows", "scored", *heads], sets),
            "### Times, by what the constants of their stack have seen",
            table(["set", "quantity", "block", "scored", *heads], blocks),
            "### One model, or one device, left out of each set",
            table(["set, left out", "mean", "median"], out),
            "### Rows that were not asked",
            table(["set", "rows", "reason"], unasked),
        )
    )


def main(arguments: Sequence[str]) -> int:
    """Print the tables, or write them into the page."""
    text = page([Path(one) for one in arguments if one != "--write"])
    if "--write" not in arguments:
        print(text)
        return 0
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{after}", encoding="utf-8")
    return 0
