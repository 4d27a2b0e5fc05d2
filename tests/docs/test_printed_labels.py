"""A table that explains an output names each label as it is printed in an output above it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from places import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HEADINGS = ("printed", "line", "line or column", "part")  # of labels
OUTPUT_LANGUAGES = ("console", "text", "")
PART = re.compile(  # of a page: a block of code, or a table
    r"^```(?P<language>\w*)\n(?P<code>.*?)^```$|^(?P<table>(?:\|[^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)


def list_missing_labels(text: str) -> list[str]:
    """Return the labels of a page's tables that no output above them has.

    A first cell is a label, or several with commas; `...` stands for the rest of a label.
    """
    output = ""
    missing = []
    for part in PART.finditer(text):
        if part["table"]:
            missing += [
                label for label in _list_labels(part["table"]) if not _is_printed(label, output)
            ]
        elif part["language"] in OUTPUT_LANGUAGES:
            output += re.sub(r"^\$ .*\n", "", part["code"], flags=re.MULTILINE)
    return missing


def _list_labels(table: str) -> list[str]:
    """Return the labels of a table whose heading is one of `HEADINGS`."""
    heading, _, *cells = [
        row.removeprefix("|").split(" | ")[0].strip() for row in table.splitlines()
    ]
    if heading not in HEADINGS:
        return []
    labels = [label for cell in cells for label in cell.replace("`", "").split(", ")]
    return [re.sub(r" \.\.\.\)?$", "", label) for label in labels if label != "..."]


def _is_printed(label: str, output: str) -> bool:
    """Whether a label stands in an output; a long heading may be folded into several lines."""
    if _find_spans(label, " ".join(output.split())):
        return True
    lines = output.splitlines()
    return any(
        _is_folded(label.split(), lines[number:], (0, len(line)))
        for number, line in enumerate(lines)
    )


def _is_folded(words: list[str], lines: list[str], above: tuple[int, int]) -> bool:
    """Whether words stand in the first lines, each part of them below the part before."""
    if not words:
        return True
    if not lines:
        return False
    return any(
        start < above[1] and above[0] < end and _is_folded(words[count:], lines[1:], (start, end))
        for count in range(1, len(words) + 1)
        for start, end in _find_spans(" ".join(words[:count]), lines[0])
    )


def _find_spans(label: str, text: str) -> list[tuple[int, int]]:
    """Return where a label stands in a text, not as a part of a longer word."""
    pattern = rf"(?<!\w){re.escape(label)}(?!\w)"
    return [match.span() for match in re.finditer(pattern, text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
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
        ("fits context ...", []),
        ("fits well ...", ["fits well"]),
    ],
)
def test_a_label_is_found_as_it_is_printed(cell: str, missing: list[str]) -> None:
    page = f"{OUTPUT}\n| printed | meaning |\n|---|---|\n| {cell} | ... |\n"
    assert list_missing_labels(page) == missing


def test_an_output_below_a_table_does_not_count() -> None:
    page = f"{OUTPUT.replace('fits', 'can')}\n| printed | meaning |\n|---|---|\n| fits | ... |\n\n"
    assert list_missing_labels(page + OUTPUT) == ["fits"]
