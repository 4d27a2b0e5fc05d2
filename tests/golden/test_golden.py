"""The numbers and keys of many command lines are those that were written down.

A change of physics writes them anew (`golden.py capture tests/golden/golden.json`), and says in
docs/validation.md what was before and after.
"""

from __future__ import annotations

import json
import math

import pytest

import golden

WRITTEN = json.loads(golden.COMMITTED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("line", WRITTEN)
def test_a_command_gives_what_was_written_down(line: str) -> None:
    now = golden.captured([tuple(line.split())])
    assert not list(golden.differences({line: WRITTEN[line]}, now))


def test_every_case_is_written_down() -> None:
    assert set(WRITTEN) == {" ".join(case) for case in golden.cases(whole=False)}


def test_the_net_sees_a_moved_a_lost_and_a_changed_row() -> None:
    rows = [{"step_s": value} for value in (1.0, 2.0, 3.0)]
    before = dict(golden.flat(rows))
    for changed in ([rows[1], rows[0], rows[2]], rows[:2], [*rows[:2], {"step_s": 3.0 + 1e-9}]):
        assert dict(golden.flat(changed)) != before
    assert golden.same([1.0, 2.0], [1.0, 2.0 * (1 + 1e-13)])
    assert not golden.same(1.0, 1.0 + 1e-11)
    assert not golden.same(math.inf, 1.0)
