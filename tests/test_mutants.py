"""A tenth of what `scripts/mutants` does: faults in important lines make tests fail."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/mutants"


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_faults_in_important_lines_are_found():
    result = _run("--only", "2,17,25")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "3 of 3 killed"


@pytest.mark.slow
def test_every_mutant_changes_one_line_that_is_there():
    result = _run("--list")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 29
    source = Path(__file__).resolve().parents[1] / "src/steptime"
    for line in lines:
        file, _, change = line[4:].partition(": ")
        old, _, _ = change.partition(" -> ")
        assert (source / file).read_text(encoding="utf-8").count(old.rstrip()) >= 1
