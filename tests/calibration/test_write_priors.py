"""The script that fits priors rewrites its constants and leaves the others alone."""

import sys
from pathlib import Path

import pytest

from steptime.core.constants import Constant, constants_from_table
from steptime.core.toml_files import read_toml

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])


def test_constants_are_rewritten_to_three_digits(tmp_path: Path) -> None:
    from fitting.write import write

    path = tmp_path / "gpu.toml"
    path.write_text('[a]\nx = {value = 1, spread = 0, fitted_on = "old"}\n')
    write(path, {"a.y": Constant(0.87654, 0.03, 'six "rows"'), "b.z": Constant(12345.0, 0.0, "z")})
    found = constants_from_table(read_toml(path), "gpu.toml")
    assert found == {
        "a.x": Constant(1, 0, "old"),
        "a.y": Constant(0.877, 0.03, 'six "rows"'),
        "b.z": Constant(12300.0, 0.0, "z"),
    }
