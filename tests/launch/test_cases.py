"""Public launch lines and job files, read as their facts say; of the data beside the project."""

import json

import pytest

from steptime.launch.reader import read_launch


@pytest.fixture(scope="module")
def cases(shared):
    folder = shared.parent / "cases" / "launch"
    return folder, [
        json.loads(line) for line in (folder / "EXPECTED.jsonl").read_text().splitlines()
    ]


def read_case(folder, case):
    path = folder / case["file"]
    text = path.read_text().replace("\\\n", " ").strip() if case["ask"] == "line" else str(path)
    device_count = 1 if case["question"] == "fit" else case.get("devices")
    return read_launch(text, path.parent, device_count)


def test_each_fact_is_understood(cases):
    folder, rows = cases
    wrong = {}
    for case in rows:
        facts = read_case(folder, case).facts
        for name, value in case["facts"].items():
            if facts.get(name) != value:
                wrong[case["file"], name] = (value, facts.get(name))
    assert wrong == {}


def test_each_default_is_marked(cases):
    folder, rows = cases
    unmarked = {
        (case["file"], name)
        for case in rows
        for name in case.get("by_default") or ()
        if name not in read_case(folder, case).defaults
    }
    assert unmarked == set()
