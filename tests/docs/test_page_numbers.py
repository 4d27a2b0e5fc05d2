"""Numbers that pages say in prose, held against the tables and constants that they come from."""

from __future__ import annotations

import re
import runpy
import tomllib

import pytest

from places import ROOT
from steptime.prediction.calibrated.interval import LEVEL
from steptime.sweeps.cells import cells_of
from steptime.sweeps.experiment import read_experiment
from validation.campaign_units import FITTED
from validation.conformal import FEWEST
from validation.fitting.devices import DRAWS, POINTS

BLIND_HEADING = "### Campaigns that no constant was fitted to\n"
TRUST, SUMMARY, README = "docs/trust.md", "docs/validation.md", "README.md"

# page, a phrase of it with a number, the kind of work in the table, and the column
CLAIMS = (
    (TRUST, r"trainings are off by (\d+) % in the median", "trainings", "median error"),
    (TRUST, r"kernels by (\d+) %", "kernels", "median error"),
    (TRUST, r"(\d+) % of collectives", "collectives", "inside the 80 % interval"),
    (TRUST, r"(\d+) % of servings of mixtures", "mixture servings", "inside the 80 % interval"),
    (SUMMARY, r"(\d+) % for memory", "memory", "median error"),
    (SUMMARY, r"(\d+) % for servers of dense models", "servings", "median error"),
    (SUMMARY, r"and (\d+) % for\s+trainings", "trainings", "median error"),
    (SUMMARY, r"experts \(up to (\d+) %\)", "mixture trainings", "median error"),
    (SUMMARY, r"collectives \((\d+) %\)", "collectives", "median error"),
)


def read_page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def read_table(text: str) -> dict[str, dict[str, str]]:
    """Return the first table of a text: its rows by their first cell, with cells by heading."""
    lines = re.search(r"^(?:\|.*\n)+", text, re.MULTILINE)
    assert lines
    cells = [line.split("|")[1:-1] for line in lines[0].splitlines()]
    heads, _, *rows = [[cell.strip() for cell in line] for line in cells]
    return {row[0]: dict(zip(heads, row, strict=True)) for row in rows}


def blind_rows() -> dict[str, dict[str, str]]:
    return read_table(read_page(SUMMARY).partition(BLIND_HEADING)[2])


@pytest.mark.parametrize(("page", "phrase", "kind", "column"), CLAIMS)
def test_a_percentage_in_prose_is_that_of_the_table(page, phrase, kind, column):
    prose = re.sub(r"^\|.*\n", "", read_page(page), flags=re.MULTILINE)
    percentages = re.findall(phrase, prose)
    assert len(percentages) == 1, f"{page} must say this once: {phrase}"
    assert percentages[0] == f"{float(blind_rows()[kind][column].rstrip('%')):.0f}"


def test_a_percentage_of_trust_is_a_claim_that_is_held():
    """Every percentage of the page but the share that intervals aim at is in CLAIMS."""
    text = read_page(TRUST)
    phrases = [phrase for page, phrase, *_ in CLAIMS if page == TRUST]
    held = {percentage for phrase in phrases for percentage in re.findall(phrase, text)}
    assert {*re.findall(r"(\d+) %", text)} <= held | {f"{100 * LEVEL:.0f}"}


def test_the_table_of_the_readme_is_that_of_the_page():
    readme = read_table(read_page(README).partition("## How far off is it?")[2])
    page = blind_rows()
    assert list(readme) == list(page)
    for kind, row in readme.items():
        cells = page[kind]
        assert row["median error"] == cells["median error"], kind
        assert row["inside the interval"] == cells["inside the 80 % interval"], kind
        assert (row["rows"], row["campaigns"]) == (cells["rows"], cells["campaigns"]), kind


def test_the_worst_mixtures_of_the_summary_are_the_worst_of_the_table():
    errors = {kind: float(row["median error"].rstrip("%")) for kind, row in blind_rows().items()}
    assert max(errors, key=errors.__getitem__) == "mixture trainings"


def test_the_method_of_the_summary_is_that_of_the_code():
    page = " ".join(read_page(SUMMARY).split())
    assert f"with fewer than {FEWEST} campaigns" in page
    assert FITTED == 0.25
    assert "that constants were fitted to counts for a quarter" in page
    words = {5: "five"}
    assert f"Then {POINTS} rows of the device" in page
    assert f"calibrate it in {words[DRAWS]} draws" in page


def test_make_run_measures_as_many_networks_as_pages_say():
    path = ROOT / "src/steptime/data/experiments/quickstart.toml"
    count = len(cells_of(read_experiment(path), "cpu").cells)
    assert f"measures and predicts {count} small networks" in read_page(README)
    assert f"measures and predicts {count} small networks" in read_page("docs/installing.md")


def test_the_python_of_the_pages_is_that_of_the_package():
    project = tomllib.loads(read_page("pyproject.toml"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    assert f"Python {oldest} or newer" in read_page(README)
    assert f"Python {oldest} or newer" in read_page("docs/installing.md")


def test_the_torch_of_installing_is_that_of_the_constraints():
    (version,) = re.findall(r"pip install torch==([\d.]+)", read_page("docs/installing.md"))
    assert f"\ntorch=={version}\n" in read_page("constraints.txt")


def test_the_answer_about_the_gates_is_that_of_their_tables():
    page = read_page("docs/gate-error-rates.md")
    program = runpy.run_path(str(ROOT / "benchmarks/gate_error_rates.py"))
    tables = page[page.index(program["FALSE_ALARMS"]) :]
    assert page == program["format_page"](tables, 2000), "its head is not that of its tables"
