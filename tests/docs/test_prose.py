"""The linter of prose finds long sentences and sentences without a noun, and nothing in code."""

import runpy

import pytest

from places import ROOT

page_faults = runpy.run_path(str(ROOT / "scripts/check-prose"))["page_faults"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("A short page says one thing a sentence. It names what it means.", None),
        ("What the server leaves out is named in a note.", "a sentence without its noun"),
        ("Is it slow? What does a step wait for in this case?", None),
        ("# What does a heading say of the page that follows\n", None),
        ("```console\n$ " + "word " * 80 + "\n```\n", None),
        ("| a |\n| --- |\n| " + "word " * 80 + " |\n", None),
        ("Types are " + ", ".join(["`name`"] * 80) + ".", None),
        ("The word " + "word " * 70 + "ends.", "73 words in a sentence"),
        ("The word " + "word " * 30 + "ends.", "33.0 words a sentence in the mean"),
    ],
)
def test_faults_of_a_page(text, fault):
    faults = list(page_faults("page.md", text))
    assert (faults == []) if fault is None else any(fault in line for line in faults), faults
