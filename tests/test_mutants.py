"""A tenth of what `scripts/mutants` does: faults in important lines make tests fail."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts/mutants"


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.rare
def test_faults_in_important_lines_are_found():
    result = _run("--only", "2,17,25")
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "3 of 3 killed"


def test_every_mutant_stands_once_and_has_tests():
    script = runpy.run_path(str(SCRIPT))
    mutants, root = script["MUTANTS"], script["ROOT"]
    assert len(mutants) == 29
    for one in mutants:
        assert len(script["_files"](one, root)) == 1, one
        assert all(script["_place"](word, root / "tests") for word in one.tests.split()), one


@pytest.mark.rare
def test_what_says_nothing_of_a_mutant_is_not_taken_for_its_death(tmp_path):
    script = runpy.run_path(str(SCRIPT))
    for place, text in {
        "src/steptime/__init__.py": "",
        "src/steptime/integrations/__init__.py": "",
        "src/steptime/integrations/pytest_plugin.py": "",  # which an installed pytest imports
        "src/steptime/new/rates.py": "FAST = 2\n",
        "tests/new/test_rates.py": "from steptime.new.rates import FAST\n\n\n"
        "def test_fast():\n    assert FAST == 2\n",
        "tests/new/test_wrong.py": "def test_wrong():\n    assert False\n",
        "tests/new/test_any.py": "def test_any():\n    assert True\n",
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["src"]\n')

    def words(*mutant):
        return tuple(script["attempt"](script["Mutant"](*mutant), tmp_path))

    moved = words("old/rates.py", "FAST = 2", "FAST = 3", "old/test_rates.py")
    assert moved == ("killed", "tests/new/test_rates.py::test_fast")
    assert words("old/rates.py", "FAST = 2", "FAST = 3", "test_any.py")[0] == "SURVIVES"
    for mutant, why in (
        (("new/rates.py", "SLOW = 2", "SLOW = 3", "test_rates.py"), "its text stands 0 times"),
        (("new/rates.py", "FAST = 2", "FAST = 3", "test_gone.py"), "its tests are gone"),
        (("new/rates.py", "FAST = 2", "FAST =", "test_rates.py"), "pytest ends with 2"),
        (("new/rates.py", "FAST = 2", "FAST = 3", "test_wrong.py"), "fails without it, too"),
    ):
        word, by = words(*mutant)
        assert word == "STALE", mutant
        assert why in by
    assert (tmp_path / "src/steptime/new/rates.py").read_text() == "FAST = 2\n"
