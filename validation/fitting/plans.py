"""The tables of docs/validation.md on published steps of language models."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from validation.layouts import tables_in
from validation.left_out import left_out, steps_of
from validation.score import evaluate_tables

PAGE = Path(__file__).parents[2] / "docs/validation.md"
EXAMPLES = Path(__file__).parents[2] / "docs/examples/papers.csv"
BEGIN, END = "<!-- python -m validation.page plans writes from here -->", "<!-- to here, plans -->"
TIMES = ("step_s", "request_s", "tpot_s", "ttft_s", "tokens_per_s_per_device")  # of steps
Row = Mapping[str, Any]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def percent(value: float | None, places: int = 1) -> str:
    """Return a share in percent, `-` for one that is not known."""
    return "-" if value is None else f"{value:.{places}%}"


def errors(rows: Sequence[Row]) -> list[list[str]]:
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
        [one.by, one.group, str(one.rows), *map(percent, one[3:7]), percent(one.inside, 0)]
        for one in left_out(steps_of([*paths, EXAMPLES]))
    ]
    return "\n\n".join(
        (
            "### Every set",
            table(["set", "quantity", "rows", "scored", *heads], sets),
            "### Times, by what the constants of their stack have seen",
            table(["set", "quantity", "block", "scored", *heads], blocks),
            "### Steps of a group that no constant has seen",
            table(
                [
                    "by",
                    "left out",
                    "steps",
                    "as told",
                    "no constant of steps",
                    "left out",
                    "median",
                    "inside",
                ],
                out,
            ),
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
