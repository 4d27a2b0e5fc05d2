"""Where do I add ...? Each recipe of docs/recipes.md, followed in a copy of the package.

A block that begins with `# src/...` is a file; one that begins with `--- src/...` says the lines
that a file gets, each run of them behind the line that begins as the context above it does. The
commands of the recipe must then do what it promises.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import steptime
import synthetic
from places import ROOT, TESTS
from steptime.records import store

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/recipes.md").read_text("utf-8")
SWEEP = """name = "small"
[[networks]]
model = "deep_mnist"
batch = 16
"""


def _blocks(recipe: str) -> list[tuple[str, str]]:
    """Return the blocks of a recipe, each with its language."""
    section = PAGE.partition(f"\n## {recipe}\n")[2].partition("\n## ")[0]
    assert section, recipe
    return re.findall(r"^```(\w+)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def _follow(recipe: str, copy: Path) -> set[str]:
    """Follow a recipe in a copy of the project, and give the files that it touched."""
    touched = set()
    for language, block in _blocks(recipe):
        path, _, text = block.partition("\n")
        if path.startswith("# src/"):
            file = copy / path.removeprefix("# ")
            assert not file.exists(), file
            file.write_text(text, encoding="utf-8")
            touched.add(path.removeprefix("# "))
        elif language == "diff":
            path = path.removeprefix("--- ")
            (copy / path).write_text(_with_lines((copy / path).read_text("utf-8"), text), "utf-8")
            touched.add(path)
    return touched


def _with_lines(text: str, difference: str) -> str:
    lines = text.splitlines()
    at = 0
    for change in difference.splitlines():
        if change.startswith("+"):
            lines.insert(at, change[1:])
        else:
            found = [i for i, line in enumerate(lines) if line.startswith(change[1:])]
            assert found, change
            at = found[0]
        at += 1
    return "\n".join([*lines, ""])


def _run(recipe: str, copy: Path, folder: Path) -> str:
    """Run the commands of a recipe, and give what they print."""
    env = {**os.environ, "PYTHONPATH": str(copy / "src"), "STEPTIME_HOME": str(folder / "home")}
    said = []
    for block in (block for language, block in _blocks(recipe) if language == "sh"):
        for command in [block] if block.startswith("python") else block.splitlines():
            word, *words = shlex.split(command)
            start = [sys.executable, *(["-m", "steptime"] if word == "steptime" else [])]
            done = subprocess.run(
                [*start, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"
            said.append(done.stdout + done.stderr)
    return "".join(said)


def _says(*parts: str) -> Callable[[str, Path], None]:
    def check(said: str, folder: Path) -> None:
        for part in parts:
            assert part in said

    return check


def _report(*parts: str) -> Callable[[str, Path], None]:
    """Say what stands in what is printed and in the report together."""

    def check(said: str, folder: Path) -> None:
        _says(*parts)(said + (folder / "report.html").read_text("utf-8"), folder)

    return check


RECIPES = {  # what: the most files it may touch, what must be seen
    "A device": (1, _says("on my-accelerator (calibrated)")),
    "A mapping": (1, _says("1 record of 1 file", "a-friend", "t4", "76.19")),
    "An optimizer": (1, _says("gpt2, train, bfloat16-mixed, signum on a100-sxm4-80gb")),
    # 32 layers of 7 products with 43,008 rows in all, and 256 for each
    "An adapter": (2, _says(", VeRA r=256 on linear", "1433600 parameters")),
    "Frozen weights in few bits": (1, _says("LoRA r=16 on attention, hqq weights")),
    # 8.03e9 weights, of 3.5 bits but those of the head, of 6.5625
    "A type of GGUF": (1, _says("q3_0", "3.715 GB")),
    "A stack for one's own machine": (1, _says("a context of 8,192 (koboldcpp)")),
    "A layer": (1, _says("(8, 16)")),
    "A family": (2, _says("perceptron:inputs=784,hidden=64", "on v100-sxm2-16gb (calibrated)")),
    "A format": (2, _says("small.widths, batch 8", "79,510", "on v100-sxm2-16gb (calibrated)")),
    "An op kind": (  # 8 x 16 elements, of 3 FLOP each forward and 4 backward
        2,
        _says(
            "{'softsign': 384, 'softsign_grad': 512}",
            "softsign: 150 us",  # 4096 x 4096 x 4 bytes read and written at 900 GB/s, a launch
            "torch runs it: True",
        ),
    ),
    # 1 ms, and 1 ns for each of 2000 x 8 + 8 + 8 x 200 + 200 weights
    "A backend": (2, _says('"name": "made-up"', '"median": 0.001017808')),
    "A price": (2, _says("on v100-sxm2-16gb (added)", "added")),
    "A collective": (1, _says("twice")),
    "A chart": (2, _report("The fastest networks", "plot-fastest")),
    "An analysis": (
        3,
        _report(
            "name,memory_ratio",
            "24 networks have both",
            "Memory: measured over predicted</h2>",
            "plot-memory-error",
        ),
    ),
    "A column": (1, _says("mean_speed,first_step_s,")),
    "A question": (  # 2,000 inputs x 8 nodes x 4 bytes
        2,
        _says(
            *("weight", '"size_bytes"', "weights  Print the weights", "--top N"),
            *('"default": "10"', "size_bytes=64000", '"panel": "Explain"'),
        ),
    ),
}


WHOLE = {  # files that are too long for a page
    "A backend": {"src/steptime/measure/backends/made_up.py": "steptime_null_backend.py"},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with records of 24 networks, and with a sweep."""
    folder = tmp_path_factory.mktemp("recipes")
    with store.open_writer(folder / "results") as writer:
        writer.append_all(synthetic.sweep())
    (folder / "small.toml").write_text(SWEEP, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(name, marks=() if name in {"A question", "An op kind"} else pytest.mark.rare)
        for name in RECIPES
    ],
)
def test_a_recipe_works_in_no_more_files_than_it_may(recipe, results, tmp_path):
    most, check = RECIPES[recipe]
    package = Path(steptime.__file__).parent
    # With the times of its files, so that what Python has compiled stays valid.
    shutil.copytree(package, tmp_path / "src" / "steptime")
    touched = _follow(recipe, tmp_path)
    for file, whole in WHOLE.get(recipe, {}).items():
        shutil.copy(TESTS / "null_backend" / whole, tmp_path / file)
        touched.add(file)
    assert len(touched) <= most
    check(_run(recipe, tmp_path, results), results)
