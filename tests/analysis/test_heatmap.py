"""Heat maps: cells, their spread, what failed and why, and the colours of both."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

import pytest

import synthetic
from steptime.analysis.analyses import analysis
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.core.tables.table import Table
from steptime.core.workload import Workload
from steptime.records.data import Data
from steptime.records.record import Quantity, Record, RecordMethod
from steptime.reports.charts.heatmap import grid
from told import row_of

HEATMAP = analysis("heatmap")


def answer(records: list[Record], **settings: Any) -> Table:
    return HEATMAP.answer(Data.from_records(records), **settings)


def fc(layers: int, nodes: int, batch: int) -> Workload:
    return Workload("fc", {"layers": layers, "nodes": nodes}, batch)


def speed(record: Record) -> float:
    found: float = row_of(record)["examples_per_s"]
    return found


GRID = [fc(layers, nodes, batch) for layers in (2, 4) for nodes in (8, 64) for batch in (1, 16)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"x": "node"}, "did you mean 'nodes'"), ({"value": "family"}, "'family' has no numbers")],
)
def test_a_column_that_cannot_be_drawn_is_named(settings, says):
    with pytest.raises(InputError, match=says):
        answer([synthetic.measured(workload) for workload in GRID], **settings)


def test_a_cell_is_the_median_of_its_networks():
    records = [synthetic.measured(workload) for workload in GRID]
    table = answer(records, x="nodes", y="batch")
    assert len(table.rows) == 4
    for row in table.rows:
        mine = [
            speed(r)
            for r in records
            if (r.workload.params["nodes"], r.workload.global_batch) == (row["x"], row["y"])
        ]
        assert row["networks"] == len(mine) == 2
        assert row["value"] == pytest.approx(median(mine))
        assert (row["low"], row["high"]) == pytest.approx((min(mine), max(mine)))
    panels = answer(records, x="nodes", y="batch", over="layers")
    assert {row["panel"] for row in panels.rows} == {2, 4}
    assert {row["networks"] for row in panels.rows} == {1}
    few = answer(records, x="nodes", y="batch", only=["layers=2", "batch=16"])
    assert [(row["y"], row["networks"]) for row in few.rows] == [(16, 1), (16, 1)]


def test_a_network_that_is_predicted_not_to_fit_has_no_speed_but_a_size():
    def predicted(workload: Workload, step_s: float, peak: int, status: str = "ok") -> Record:
        quantities = {"step_s": Quantity(step_s), "peak_bytes": Quantity(peak)}
        method = RecordMethod("calibrated", "1", {})
        return Record("predicted", method, workload, "t4", quantities, status=status)

    records = [predicted(fc(2, nodes, 1), nodes, nodes) for nodes in (8, 64)]
    records += [predicted(fc(4, 8, 1), 8, 8), predicted(fc(4, 64, 1), 64, 64, "oom")]
    times = answer(records, x="layers", y="nodes", value="predicted_s")
    cells = {(row["x"], row["y"]): row for row in times.rows}
    assert cells[4, 64]["value"] is None
    assert (cells[4, 64]["failed"], cells[4, 64]["status"]) == (1, "oom")
    assert times.summary["failed"] == {"oom": 1}
    both = answer(records, x="nodes", y="batch", value="predicted_s")
    assert [(row["value"], row["networks"], row["failed"]) for row in both.rows] == [
        (8, 2, 0),
        (64, 1, 1),
    ]
    sizes = answer(records, x="layers", y="nodes", value="memory")
    cells = {(row["x"], row["y"]): row for row in sizes.rows}
    assert (cells[4, 64]["value"], cells[4, 64]["failed"]) == (64, 1)
    assert sizes.summary["partly_failed_cells"] == 1


def test_what_failed_is_a_cell_with_its_cause_and_what_was_not_tried_is_none():
    records = [synthetic.measured(w) for w in GRID[:3]]
    records += [synthetic.failed(GRID[3], "oom", "killed", ""), synthetic.measured(GRID[4])]
    records += [synthetic.failed(GRID[5], "timeout", "time-limit", "")]
    table = answer(records, x="nodes", y="batch")
    cells = {(row["x"], row["y"]): row for row in table.rows}
    assert cells[64, 16]["value"] is None
    assert (cells[64, 16]["status"], cells[64, 16]["cause"]) == ("oom", "killed")
    assert (cells[8, 16]["networks"], cells[8, 16]["failed"]) == (1, 1)  # layers 2; of 4, timeout
    assert (8, 1) in cells
    assert table.summary["failed"] == {"oom": 1}
    again = answer([*records, synthetic.measured(GRID[3])], x="nodes", y="batch")
    assert again.summary["failed_cells"] == 0  # a second try succeeded
    drawn = HEATMAP.draw(table)["data"]["values"]
    assert [one["failed_with"] for one in drawn if "failed_with" in one] == ["oom: killed"]
    assert sum(one.get("number", "").endswith("*") for one in drawn) == 1


def test_axes_are_what_varies_most_and_words_stand_for_quantities():
    records = synthetic.sweep()
    table = answer(records)
    assert (table.summary["x"], table.summary["y"]) == ("batch", "layers")
    assert table.summary["value"] == "examples_per_s"
    error = answer(records, x="family", y="batch", value="error").rows
    results = Data.from_records(records).results
    row = next(r for r in error if (r["x"], r["y"]) == ("transformer", 1))
    ratios = [1 / r["ratio"] - 1 for r in results if (r["family"], r["batch"]) == (row["x"], 1)]
    assert row["value"] == pytest.approx(median(ratios))
    assert answer(records, value="memory").summary["value"] == "peak_bytes"
    assert answer(records, value="utilisation").summary["highest"] <= 1
    assert answer([r for r in records if r.origin == "predicted"], value="step_s").rows


def test_many_numbers_share_steps():
    records = [synthetic.measured(fc(2, nodes, b)) for nodes in range(8, 308) for b in (1, 4)]
    table = answer(records, x="nodes", y="batch")
    assert len({row["x"] for row in table.rows}) <= 60
    assert sum(row["networks"] for row in table.rows) == 600
    assert "nodes: 60 steps of equal ratio." in HEATMAP.describe(table)


def test_colours_are_logarithmic_over_two_decades_and_part_at_zero():
    def scale(*values: float) -> Any:
        rows = [{"x": at, "y": 1, "value": value} for at, value in enumerate(values)]
        spec = grid("t", [], rows, x="a", y="b", value="speedup")
        return spec["layer"][0]["encoding"]["color"]["scale"]

    assert scale(1.0, 99.0)["type"] == "linear"
    assert scale(1.0, 101.0)["type"] == "log"
    assert scale(-1.0, 2.0)["domainMid"] == 0


def test_axes_are_in_numeric_order():
    rows = [{"x": x, "y": y, "value": 1.0} for x in (16, 2, 128) for y in ("b", "a")]
    encoding = grid("t", [], rows, x="a", y="b", value="ratio")["layer"][0]["encoding"]
    assert encoding["x"]["sort"] == [2, 16, 128]
    assert encoding["y"]["sort"] == ["b", "a"]  # upwards


@pytest.mark.slow
def test_paradnn_s_failures_are_cells(shared, tmp_path, capsys):
    folder = str(tmp_path / "tpu")
    run(["import", str(shared / "paradnn/tpu_fc.json.gz"), "--out", folder])
    capsys.readouterr()
    line = [
        "analyse",
        "heatmap",
        folder,
        "--x",
        "nodes",
        "--y",
        "batch",
        "--over",
        "layers",
        "--json",
    ]
    assert run([*line, "-o", str(tmp_path / "x.svg")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(row["networks"] for row in found["rows"]) == 1724
    assert sum(row["failed"] for row in found["rows"]) == 220
    assert {row["status"] for row in found["rows"]} == {None, "oom"}
    assert (tmp_path / "x.svg").stat().st_size < 1_000_000


def test_nothing_known_is_said():
    one = replace(synthetic.measured(GRID[0]), quantities={})
    table = answer([one], x="nodes", y="batch")
    assert HEATMAP.describe(table) == ["no examples_per_s is known here over nodes and batch"]
    alone = answer([synthetic.measured(GRID[0])])
    assert HEATMAP.describe(alone) == [
        "no examples_per_s is known here over two hyperparameters that vary"
    ]


def test_platforms_are_panels_and_never_one_cell():
    here = [synthetic.measured(one) for one in GRID]
    there = [replace(one, platform="other") for one in here]
    table = answer([*here, *there], x="nodes", y="batch")
    assert {row["panel"] for row in table.rows} == {here[0].platform, "other"}
    alone = answer(here, x="nodes", y="batch")
    for row in alone.rows:
        twins = [r for r in table.rows if (r["x"], r["y"]) == (row["x"], row["y"])]
        assert [(r["value"], r["networks"]) for r in twins] == [(row["value"], 2)] * 2
    with pytest.raises(InputError, match=r"--over layers needs --only platform=NAME: "):
        answer([*here, *there], x="nodes", y="batch", over="layers")
    only = answer([*here, *there], x="nodes", y="batch", over="layers", only=["platform=other"])
    assert {row["panel"] for row in only.rows} == {2, 4}
    assert "other" in only.source
    assert here[0].platform not in only.source


def test_predictions_alone_have_a_utilisation_and_a_share_of_their_ceiling():
    records = [one for each in synthetic.workloads() for one in synthetic.predicted(each)]
    data = Data.from_records(records)
    table = analysis("heatmap").answer(data, value="utilisation")
    assert len(table.rows) == 8
    assert all(0 < row["value"] < 1 for row in table.rows)
    for row in analysis("roofline").answer(data).rows:
        share = row["predicted_flop_per_s"] / row["roof_flop_per_s"]
        assert row["roof_fraction"] == pytest.approx(share)
