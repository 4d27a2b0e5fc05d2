"""A plan as a picture: its bars are the pipeline's run, and there are never too many."""

import itertools
import json
from typing import Any

import pytest

from every import every
from steptime.cli.main import run
from steptime.core.units import format_percent
from steptime.planning.answer import time_request
from steptime.planning.ranks.site import Site
from steptime.planning.request import Request
from steptime.questions.plan.price import answer_plan
from steptime.reports.charts import plan as drawn

SITE = Site("h100-sxm5", 8, "nvlink-4", "infiniband-ndr")
SMALL = "transformer:layers=16,width=1024,heads=8,vocabulary=32000"


def asked(batch: int = 16, **split: Any) -> Request:
    return Request(SMALL, SITE, batch, 1, 512, split)


@every(
    ("schedule", "virtual"),
    [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1)],
)
def test_the_bars_are_the_run(schedule, virtual):
    _, found = time_request(asked(pipeline=4, virtual=virtual, schedule=schedule, data=2))
    rows = drawn.bars(found)
    assert found.run is not None
    end = max(row["to"] for row in rows)
    for d in range(4):
        mine = [row for row in rows if row["device"] == d]
        assert sum(row["to"] - row["from"] for row in mine) == pytest.approx(end)
        busy = sum(row["to"] - row["from"] for row in mine if row["kind"] != "bubble")
        run_s = sum(one.end_s - one.start_s for one in found.run.events if one.device == d)
        assert busy == pytest.approx(run_s + found.tails[d].seconds)
        assert all(a["to"] == pytest.approx(b["from"]) for a, b in itertools.pairwise(mine))
    waits = sum(row["to"] - row["from"] for row in rows if row["kind"] == "bubble")
    assert waits / (4 * end) == pytest.approx(found.bubble_share)
    parts = 3 if schedule == "zero-bubble" else 2
    numbered = [row for row in rows if row["word"].isdigit()]
    assert len(numbered) == 4 * virtual * 8 * parts
    assert {"forward", "backward", "all-reduce of gradients", "update"} <= {r["kind"] for r in rows}


@pytest.mark.parametrize(("devices", "batch"), [(4, 2048), (16, 1024)])
def test_thin_parts_are_shares_of_a_bars_height(devices, batch):
    _, found = time_request(asked(batch, pipeline=devices))
    assert found.run is not None
    rows = drawn.bars(found)
    assert len(found.run.events) == 2 * devices * batch
    assert len(rows) <= 1.5 * drawn.MAX_BARS
    area = {False: 0.0, True: 0.0}
    for row in rows:
        high = (row["lower"] - row["upper"]) / (2 * drawn.HALF_BAR)
        assert high <= 1 + 1e-9
        area[row["kind"] == "bubble"] += (row["to"] - row["from"]) * high
    assert area[True] / sum(area.values()) == pytest.approx(found.bubble_share, rel=1e-6)


def test_a_run_that_is_not_simulated_has_no_bars(monkeypatch):
    monkeypatch.setattr("steptime.planning.step.MAX_EVENTS", 0)
    _, found = time_request(asked(pipeline=4))
    assert drawn.bars(found) == []


def test_the_memory_of_each_device_is_its_parts():
    told = answer_plan(asked(pipeline=4)).to_dict()["memory"]
    rows = drawn.memory_rows(told)
    for stage in told["by_stage"]:
        mine = [row["bytes"] for row in rows if row["device"] == stage["stage"]]
        assert sum(mine) == pytest.approx(stage["needed_bytes"])
    assert {row["room"] for row in rows} == {told["usable_bytes"]}


def test_the_picture_says_the_headline_and_the_bubble():
    request = asked(pipeline=4)
    answer = answer_plan(request)
    _, step = time_request(request)
    text = json.dumps(drawn.picture(answer.to_dict(), step, "four stages"))
    assert answer.headline[0] in text
    assert f"{format_percent(answer.bubble_share)} of the devices' time" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["--pipeline 4 --global-batch 8", "--device-count 1,4 --global-batch 8"]
)
def test_plan_draws_one_plan_or_a_search(words, tmp_path):
    out = tmp_path / "plan.svg"
    where = "--device h100-sxm5 --inside nvlink-4 --length 512"
    assert run(["plan", SMALL, *where.split(), *words.split(), "-o", str(out)]) == 0
    assert "Memory of each device" in out.read_text()
