"""What the project says of itself agrees in every place."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import steptime

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = {
    canonicalize_name(line.partition("==")[0]): line.partition("==")[2]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
}


def _requirements() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"]
    own = (extras[name] for name in ("torch", "jax", "onnx", "onnxruntime", "mcp", "dev"))
    texts = [text for some in (PROJECT["project"]["dependencies"], *own) for text in some]
    return [Requirement(text) for text in texts]


def test_the_version_is_said_once():
    assert metadata.version("steptime") == steptime.__version__
    assert "version" in PROJECT["project"]["dynamic"]


def test_every_requirement_has_a_lower_bound_and_a_pin_within_its_bounds():
    for requirement in _requirements():
        assert any(s.operator == ">=" for s in requirement.specifier), requirement
        assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def test_the_version_of_a_citation_is_the_newest_of_the_changes():
    said = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.search(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert said
    assert newest
    assert said[1] == newest[1] == steptime.__version__


def test_the_container_installs_extras_that_exist():
    extras = re.search(r"/source\[([^]]*)\]", (ROOT / "Containerfile").read_text())
    assert extras
    assert set(extras[1].split(",")) <= PROJECT["project"]["optional-dependencies"].keys()


def test_what_is_always_installed_has_an_upper_bound():
    for text in PROJECT["project"]["dependencies"]:
        assert any(s.operator == "<" for s in Requirement(text).specifier), text


@pytest.mark.slow
def test_nothing_private_of_a_library_is_imported():
    bounded = {"torch"}  # an extra with an upper bound, some of whose doors are private alone
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                named = [f"{node.module}.{one.name}" for one in node.names]
            for name in named:
                parts = [part for part in name.split(".") if not part.startswith("__")]
                private = [part for part in parts if part.startswith("_")]
                assert not private or parts[0] in {"steptime", *bounded}, f"{path}: {name}"


def test_constraints_pin_all_that_is_needed_and_name_no_host():
    text = (ROOT / "constraints.txt").read_text()
    assert "://" not in text
    assert PINS["torch"] == "2.13.0"
    for pin in PINS.values():
        assert re.fullmatch(r"[0-9][0-9a-z.]*", pin), pin
    for name in _closure():
        assert name in PINS, name


def _closure() -> set[str]:
    """Return all packages that steptime's requirements bring, as far as they are installed."""
    waiting, seen = _requirements(), set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        seen.add(name)
        waiting += [Requirement(need) for need in needs]
    return seen


@pytest.mark.slow
def test_what_the_source_imports_is_declared():
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [
        text for some in (PROJECT["project"]["dependencies"], *extras.values()) for text in some
    ]
    declared = {canonicalize_name(Requirement(text).name) for text in texts}
    distributions = metadata.packages_distributions()
    for path in (ROOT / "src").rglob("*.py"):
        for module in _imported(ast.parse(path.read_text())):
            if module not in sys.stdlib_module_names and module != "steptime":
                # a package that is not installed here (PyTorch) has the name of its module
                found = {canonicalize_name(name) for name in distributions.get(module, [module])}
                assert found & declared, f"{path}: {module}"


def _imported(tree: ast.AST) -> set[str]:
    """Return the top names of the modules that a file imports."""
    names = [name.name for n in ast.walk(tree) if isinstance(n, ast.Import) for name in n.names]
    names += [str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_the_wheel_holds_package_and_pages_and_validation_goes_with_the_source():
    targets = PROJECT["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"] == {
        "packages": ["src/steptime"],
        "shared-data": {"docs": "share/steptime/docs"},
    }
    assert {"/docs", "/validation", "/attack"} <= {*targets["sdist"]["include"]}
    assert (ROOT / "validation/__main__.py").is_file()


def test_the_package_alone_imports_nothing_but_the_standard_library():
    code = "import sys; before = set(sys.modules); import steptime; print(*set(sys.modules)-before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if not name.startswith("_")}
    standard = {name for name in loaded if name.partition(".")[0] in sys.stdlib_module_names}
    assert loaded - standard == {"steptime"}


def test_help_names_every_make_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert targets
    done = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.split()[1] for line in done.stdout.splitlines()} == set(targets[1].split())


def test_make_says_in_one_line_that_python_is_too_old(tmp_path):
    old = tmp_path / "old-python"
    old.write_text(
        f'#!/bin/sh\nshift\nexec {sys.executable} -c "import sys; sys.version_info = (3, 9); $1"\n'
    )
    old.chmod(0o755)
    arguments = ["make", "run", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "steptime needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / "venv").exists()
