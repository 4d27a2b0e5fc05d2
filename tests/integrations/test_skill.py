"""SKILL.md and llms.txt are what the script makes of the commands, which run here."""

from __future__ import annotations

import re
import runpy

import pytest

from places import ROOT
from steptime.api import PROGRAMS, QUESTIONS

MAKER = runpy.run_path(str(ROOT / "scripts/make-skill"))


@pytest.mark.slow
def test_the_skill_shows_what_its_examples_print():
    written = (ROOT / "SKILL.md").read_text("utf-8")
    assert written == MAKER["skill_page"](), "run scripts/make-skill"
    assert all(f"* `steptime {name}`: " in written for name in QUESTIONS | PROGRAMS)


def test_the_index_names_commands_and_pages_that_exist():
    written = (ROOT / "llms.txt").read_text("utf-8")
    assert written == MAKER["index_page"](), "run scripts/make-skill"
    for target in re.findall(r"\]\(([^)]*)\)", written):
        assert (ROOT / target).is_file()
