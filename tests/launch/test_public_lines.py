"""Launch lines and recipes that people published: what is understood of each is what it says."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from steptime.launch.reader import read_launch

LINES = tomllib.loads(Path(__file__).with_name("public_lines.toml").read_text("utf-8"))["line"]
RECIPES = ("base_model:", "model_name_or_path:")  # YAML; any other text is a command


def _read(line, folder):
    text = line["text"].strip()
    is_recipe = text.startswith(RECIPES)
    device_count = 1 if is_recipe or line["format"] == "trl" else line.get("devices")
    if not is_recipe and "\n" not in text:
        return read_launch(text, folder, device_count)
    path = folder / ("recipe.yml" if is_recipe else "launch.sh")
    path.write_text(text + "\n")
    return read_launch(str(path), folder, device_count)


@pytest.mark.parametrize("line", LINES, ids=[line["source"] for line in LINES])
def test_each_fact_of_a_public_line_is_understood(line, tmp_path):
    job = _read(line, tmp_path)
    assert job is not None
    assert {name: job.facts.get(name) for name in line["facts"]} == line["facts"]


def test_the_lines_are_of_many_formats_and_sources():
    assert len(LINES) >= 50
    assert len({line["source"] for line in LINES}) == len(LINES)
    assert all(line["source"].startswith("https://github.com/") for line in LINES)
    lines_by_format = Counter(line["format"] for line in LINES)
    assert len(lines_by_format) >= 10
    assert min(lines_by_format.values()) >= 5
