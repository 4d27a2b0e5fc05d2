"""Records of a step whose batch is unknown: no speed, and no traceback on any surface."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.reports.charts import list_plots

SPEEDS = ("throughput", "devices")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the records of two traces."""
    folder = tmp_path_factory.mktemp("traces")
    for name, length in (("slow", 90), ("fast", 50)):
        events = [
            {
                "ph": "X",
                "cat": category,
                "name": op,
                "ts": 100 * step,
                "dur": length,
                "pid": 1,
                "tid": 1,
            }
            for step in range(3)
            for category, op in (
                ("user_annotation", f"ProfilerStep#{step}"),
                ("cpu_op", "aten::mm"),
            )
        ]
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"traceEvents": events}))
        steptime.import_(path, folder / "out")
    return folder / "out"


def test_there_is_no_speed(folder):
    rows = steptime.analyse("table", folder).rows
    assert [(row.batch, row.mean_speed) for row in rows] == [(None, None)] * 2
    assert {row.examples_per_s for row in steptime.analyse("results", folder).rows} == {None}


@pytest.mark.parametrize("kind", [kind for kind in list_plots() if kind not in SPEEDS])
def test_each_picture_is_drawn_or_says_why_not(kind, folder, tmp_path):
    path = tmp_path / "picture.svg"
    with contextlib.suppress(InputError):
        steptime.analyse(kind, folder, out=path)
        assert path.stat().st_size


@pytest.mark.parametrize("kind", SPEEDS)
def test_pictures_of_speeds_say_that_no_batch_is_known(kind, folder, tmp_path):
    with pytest.raises(InputError, match="batch"):
        steptime.analyse(kind, folder, out=tmp_path / "picture.svg")


@pytest.mark.parametrize("ending", [".html", ".md"])
def test_a_report_is_written(ending, folder, tmp_path):
    answer = steptime.report(folder, out=tmp_path / f"report{ending}")
    assert answer.published == 2
    assert "fast" in (tmp_path / f"report{ending}").read_text()


def test_two_traces_are_compared(folder):
    answer = steptime.compare([folder, folder])
    assert len(answer.rows) == 4
    assert not answer.unpaired
