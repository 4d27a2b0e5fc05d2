"""Records that nobody should write: whatever they hold, no command breaks and nothing runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import record_cases


@pytest.mark.slow
def test_faulty_records_break_no_command(tmp_path: Path) -> None:
    found = record_cases.attack(tmp_path, seed=27, count=2000, batch=1000)
    assert found.tracebacks == []
    assert set(found.codes) <= {0, 2}
    assert found.runs == 2 * len(record_cases.commands(tmp_path, tmp_path, tmp_path))
