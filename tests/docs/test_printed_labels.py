"""A table that explains an output names each label as it is printed in an output above it."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from places import ROOT

EXCEPTIONS = (  # pages whose tables do not keep the rule yet
    "calibration",
    "importing",
    "steptime-analyse-nodes",
    "steptime-compare",
    "steptime-fit",
    "steptime-plan",
    "steptime-serve",
    "steptime-whatif",
    "validation",
)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRINTED = "printed"  # the heading of labels
OTHER_HEADINGS = ("line", "line or column", "column", "word", "part")
OUTPUT_LANGUAGES = ("console", "text", "")
PART = re.compile(  # of a page: a block of code, or a table
    r"^```(?P<language>\w*)\n(?P<code>.*?)^```$|^(?P<table>(?:\|[^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)


def list_missing_labels(text: str) -> list[str]:
    """Return the labels of a page's tables that neither an output nor a table above them has.

    A first cell is a label, or several with commas. Other tables than `printed` need not explain an
    output: where there is none above them, they are left out.
    """
    output = ""
    missing = []
    for part in PART.finditer(text):
        if part["table"]:
            heading, labels = _read_labels(part["table"])
            if heading == PRINTED or (heading in OTHER_HEADINGS and output):
                missing += [label for label in labels if not _is_printed(label, output)]
            elif heading not in OTHER_HEADINGS:
                output += part["table"].splitlines()[0] + "\n"
        elif part["language"] in OUTPUT_LANGUAGES:
            output += re.sub(r"^\$ .*\n", "", part["code"], flags=re.MULTILINE)
    return missing


def _read_labels(table: str) -> tuple[str, list[str]]:
    """Return the first heading of a table, and the labels in its first column."""
    heading, _, *cells = [
        row.removeprefix("|").split(" | ")[0].strip() for row in table.splitlines()
    ]
    return heading, [label for cell in cells for label in cell.replace("`", "").split(", ")]


def _is_printed(label: str, output: str) -> bool:
    """Whether a label stands in an output; a long heading may be folded into two lines."""
    if _find_spans(label, " ".join(output.split())):
        return True
    words = label.split()
    lines = output.splitlines()
    return any(
        _has_word_below(upper, lower, " ".join(words[:count]), " ".join(words[count:]))
        for upper, lower in pairwise(lines)
        for count in range(1, len(words))
    )


def _has_word_below(upper: str, lower: str, label_start: str, label_end: str) -> bool:
    """Whether the end of a label stands directly below its start."""
    return any(
        start < below_end and below_start < end
        for start, end in _find_spans(label_start, upper)
        for below_start, below_end in _find_spans(label_end, lower)
    )


def _find_spans(label: str, text: str) -> list[tuple[int, int]]:
    """Return where a label stands in a text, not as a part of a longer word."""
    pattern = rf"(?<!\w){re.escape(label)}(?!\w)"
    return [match.span() for match in re.finditer(pattern, text)]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.stem not in EXCEPTIONS],
    ids=lambda page: page.stem,
)
def test_a_table_of_an_output_names_its_labels(page: Path) -> None:
    assert list_missing_labels(page.read_text("utf-8")) == []


OUTPUT = """```console
$ steptime fit small
       longest
 fits  context
 yes       256
```
"""


@pytest.mark.parametrize(
    ("cell", "missing"),
    [
        ("fits", []),
        ("longest context", []),
        ("`fits`, yes", []),
        ("fit", ["fit"]),  # a part of a word
        ("small", ["small"]),  # of the command, not of its output
        ("context fits", ["context fits"]),  # not below each other
        ("fits, the answer", ["the answer"]),
    ],
)
def test_a_label_is_found_as_it_is_printed(cell: str, missing: list[str]) -> None:
    page = f"{OUTPUT}\n| printed | meaning |\n|---|---|\n| {cell} | ... |\n"
    assert list_missing_labels(page) == missing


def test_an_output_below_a_table_does_not_count() -> None:
    page = f"{OUTPUT.replace('fits', 'can')}\n| printed | meaning |\n|---|---|\n| fits | ... |\n\n"
    assert list_missing_labels(page + OUTPUT) == ["fits"]
