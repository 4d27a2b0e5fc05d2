"""Constants say which rows told them, or why; no device's file holds a figure of scored rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from steptime.core.toml_files import DATA, read_toml
from steptime.hardware.constants import kinds_of_use, stack_uses
from validation.fitting.stages import STAGES
from validation.sets import GROUNDS, ground, names, neutral_value, owned

OWNERS = [
    *(path for room in ("priors", "stacks", "hosts") for path in (DATA / room).glob("*.toml")),
    DATA / "conditions.toml",
]
DECLARED = {name for use in stack_uses() for name in kinds_of_use(use)}
LIMITS = re.compile(r"(capped|best|long|reached)_\w+")  # of what somebody ran


def constants(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the tables of a file that have a value, by name."""
    for form, rows in read_toml(path).items():
        for name, row in (rows if isinstance(rows, dict) else {}).items():
            if isinstance(row, dict) and "value" in row:
                yield f"{form}.{name}", row


def test_a_constant_says_the_rows_that_told_it_or_why():
    said = [(path.stem, *one) for path in OWNERS for one in constants(path)]
    wrong = [
        (owner, name)
        for owner, name, row in said
        if {"rows", "fitted_on", "why"} & row.keys() not in ({"rows", "fitted_on"}, {"why"})
    ]
    assert len(said) > 300
    assert wrong == []
    assert [(owner, name) for owner, name, row in said if row.get("rows") == []] == []


def test_links_hold_no_constant():
    assert [one for path in (DATA / "links").glob("*.toml") for one in constants(path)] == []


def test_no_device_file_holds_what_somebody_reached():
    held = [
        (path.stem, name)
        for path in (DATA / "devices").glob("*.toml")
        for table in (read_toml(path), read_toml(path).get("details", {}))
        for name in table
        if LIMITS.fullmatch(name)
    ]
    assert held == []


def test_rows_are_sets_that_validation_knows():
    assert {name for _, _, one in owned() for name in one.rows} - names() == set()


def test_what_a_stage_fits_says_its_sets():
    told = {name: one.rows for owner, name, one in owned() if owner in ("gpu", "conditions")}
    for stage in STAGES.values():
        for name in stage.free:
            if not name.startswith("host."):
                assert told[name] == stage.rows, name


def test_what_rows_told_can_be_left_out():
    """By a stage of the fit, by a stack before it, by a width, or by what it is without them."""
    fitted = {name for stage in STAGES.values() for name in stage.free}
    left = [
        name
        for _, name, one in owned()
        if one.rows and name not in fitted | DECLARED and not name.startswith("interval.")
    ]
    assert [name for name in left if neutral_value(name) is None] == []
    alone = [name for one in STAGES.values() if one.rows == ("timm",) for name in one.free]
    assert [name for name in alone if neutral_value(name) is None] == []


def test_what_constants_stand_on_is_said():
    assert {ground(one) for _, _, one in owned()} == {*GROUNDS}
