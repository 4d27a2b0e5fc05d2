"""`python -m validation TABLE --json` gives what `evaluate` of a published table gave in 0.15.

Written by that command before it moved here, but for later changes of physics, which write it anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from published_golden import HELD, SLOW, TABLES, WRITTEN, scored

import golden
from every import every

BEFORE = json.loads(WRITTEN.read_text("utf-8"))


def check(table: Path) -> None:
    before, now = BEFORE[table.name], scored(table)
    assert now.keys() == before.keys()
    assert {key: now[key] for key in now if not golden.same(now[key], before[key])} == {}


@pytest.mark.parametrize("table", HELD, ids=lambda table: table.name)
def test_a_table_that_is_here_is_scored_as_written_down(table):
    check(table)


@every("name", TABLES)
def test_a_table_of_others_is_scored_as_written_down(name, shared):
    check(shared / "llm" / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_a_further_table_is_scored_as_written_down(name, shared):
    check(shared / "llm" / name)


def test_every_table_is_written_down():
    assert set(BEFORE) == {*(table.name for table in HELD), *TABLES, *SLOW}
