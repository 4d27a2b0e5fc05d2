"""The notebooks of `examples`, cell by cell as Jupyter runs them, without it."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

pytest.importorskip("pandas")
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
MEASURES = [pytest.mark.framework, pytest.mark.slow]


def _marked(path: Path) -> Any:
    measures = "steptime.run(" in path.read_text("utf-8")
    return pytest.param(path, id=path.stem, marks=MEASURES if measures else pytest.mark.slow)


@pytest.mark.parametrize("path", [*map(_marked, NOTEBOOKS)])
def test_a_notebook_runs_and_shows_what_its_cells_end_with(path, tmp_path, monkeypatch):
    notebook = json.loads(path.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len({*ids}) == len(ids)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shows = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)  # stored without
            shows += _shows_html("".join(cell["source"]), names)
    assert shows >= 3
    assert {one.name for one in tmp_path.iterdir()} <= {"measured"}  # what it names, no more


def _shows_html(source: str, names: dict[str, Any]) -> bool:
    """Run a cell, and return whether its last line is a value that a notebook draws."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102  # as a notebook does
    if last is None:
        return False
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307  # too
    return hasattr(value, "_repr_html_") and "<table" in value._repr_html_()
