"""Slow nodes: one among 64 is named, and where all are alike, none."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import clusters
import synthetic
from steptime.analysis.analyses import analysis
from steptime.analysis.comparison.verdict import MARGIN
from steptime.analysis.outliers import (
    FALSE_ALARMS,
    deviations,
    middle_and_spread,
    z_limit,
)
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.tables.table import Table
from steptime.core.tables.text_table import text
from steptime.core.units import format_percent
from steptime.core.workload import Plan, Workload
from steptime.records import store
from steptime.records.data import Data
from steptime.records.record import Quantity, Record

HOSTS = [f"n{number:02}" for number in range(64)]
DRAWS = 200
CELLS = [Workload("fc", {"layers": layers}, 64) for layers in range(1, 7)]


def _named(rng: np.random.Generator, cells: int, runs: int, slower: float = 0.0) -> list[int]:
    """Return which of 64 nodes are named where the node 17 is slower."""
    visits = np.median(clusters.noise(rng, cells, 64, runs), axis=-1)
    logs = np.moveaxis(visits, -1, 1).reshape(cells * runs, 64)
    logs += rng.normal(0, 0.003, 64)
    logs[:, 17] += math.log1p(slower)
    found = deviations(logs)
    return [
        int(at) for at in np.flatnonzero(found.is_slow & (found.log_ratio > math.log1p(MARGIN)))
    ]


@pytest.mark.parametrize(("cells", "runs"), [(6, 3), (4, 5), (24, 1), (2, 3)])
def test_false_alarms_and_power_over_200_draws(cells, runs):
    rng = np.random.default_rng(20261122)
    alike = [_named(rng, cells, runs) for _ in range(DRAWS)]
    assert sum(map(bool, alike)) <= 0.05 * DRAWS
    slow = [_named(rng, cells, runs, 0.04) for _ in range(DRAWS)]
    assert sum(17 in one for one in slow) >= 0.95 * DRAWS
    assert sum(one == [17] for one in slow) >= 0.9 * DRAWS


def test_false_alarms_hold_without_a_margin_and_with_heavy_tails():
    rng = np.random.default_rng(1)
    alarms = heavy = 0
    for _ in range(DRAWS):
        alarms += deviations(rng.normal(0, 0.01, (6, 64))).is_slow.any()
        found = deviations(0.003 * rng.standard_t(3, (6, 64)))
        heavy += bool((found.is_slow & (found.log_ratio > math.log1p(MARGIN))).any())
    assert alarms <= 0.05 * DRAWS
    assert heavy <= 0.05 * DRAWS


def test_the_robust_z_by_hand():
    """Of 0, 1, 2, 3, 14 the median is 2, the deviations 2, 1, 0, 1, 12, and their median is 1."""
    values = np.array([0.0, 1.0, 2.0, 3.0, 14.0])
    middle, spread = middle_and_spread(values)
    assert (values - middle) / spread == pytest.approx(0.6745 * np.array([-2, -1, 0, 1, 12]))
    # where more than half are equal the mean deviation tells: of 0, 0, 0, 0, 5 it is 1
    middle, spread = middle_and_spread(np.array([0.0, 0, 0, 0, 5]))
    assert (5 - middle) / spread == pytest.approx(5 / 1.253314)
    assert middle_and_spread(np.zeros(8)) == (0, 0)


def test_what_is_beyond_the_threshold_is_named():
    """63 nodes at 0, +-0.01, +-0.02, +-0.03 have a deviation of 0.02: 3.86 of 64 are 0.114."""
    alike = np.tile(0.01 * np.arange(-3, 4), 9)
    # a row of one cell: its median, 0, is taken off
    for off, threshold, slow in ((0.11, 3.5, []), (0.12, 3.5, [63]), (0.12, 4.2, [])):
        found = deviations(np.append(alike, off)[None, :], threshold=threshold)
        assert np.flatnonzero(found.is_slow).tolist() == slow
        assert np.flatnonzero(found.is_fast).tolist() == []
    assert z_limit(64, FALSE_ALARMS) == pytest.approx(3.86, abs=0.01)
    assert not deviations(np.zeros((2, 8))).is_slow.any()
    crowd = np.r_[np.linspace(-1, 1, 60), 9.0, 9.5, 10.0]  # three that would hide one another
    assert np.flatnonzero(deviations(crowd[None, :]).is_slow).tolist() == [60, 61, 62]


def test_the_many_like_the_others_are_a_line():
    rng = np.random.default_rng(5)
    table, _ = _table(clusters.measured(rng, HOSTS, CELLS, {"n04": 1.1}))
    assert [row["verdict"] for row in table.rows] == ["slow", *["like the others"] * 63]
    said, _, slow, more = text(table).splitlines()
    assert slow.split()[0] == "n04"
    assert more == "... and 63 more; --json has all"
    alike = sorted(row["slower_fraction"] for row in table.rows[1:])
    assert said.startswith("63 nodes like the others: ")
    assert said.endswith(f"{format_percent(alike[0], '+')} to {format_percent(alike[-1], '+')}")


def _predictions(bound: dict[str, bool]) -> list[Record]:
    """Return predictions of `CELLS`, compute-bound or not: ridge 204e9 / 39e9 FLOP/byte."""
    found = []
    for cell in CELLS:
        one = synthetic.predicted(cell)[0]
        intensity = 50.0 if bound[cell.key] else 1.0
        quantities = {"step_s": 0.01, "flop": 1e9, "traffic_bytes": 1e9 / intensity}
        held = {name: Quantity(value=value) for name, value in quantities.items()}
        found.append(replace(one, quantities=held))
    return found


def _table(records: list[Record], **settings: Any) -> tuple[Table, list[str]]:
    one = analysis("nodes")
    table = one.answer(Data.from_records(records), **settings)
    return table, one.describe(table)


def test_a_slow_node_is_named_with_how_much_and_in_what():
    rng = np.random.default_rng(2)
    bound = {cell.key: at < 3 for at, cell in enumerate(CELLS)}
    memory = [cell for cell in CELLS if not bound[cell.key]]
    linked = [replace(cell, plan=Plan(data=4)) for cell in CELLS[:3]]
    records = [
        *clusters.measured(rng, HOSTS, CELLS[:3], {"n05": 1.05}),
        *clusters.measured(rng, HOSTS, memory, {"n05": 1.05, "n40": 1.08}),
        *clusters.measured(rng, HOSTS, linked, {"n05": 1.05, "n63": 1.2}),
        *_predictions(bound),
    ]
    lost = replace(records[0], status="failed", cause="node-fail", quantities={})
    records.append(replace(lost, env={**lost.env, "host": "n77"}))
    table, said = _table(records)
    rows = {row["host"]: row for row in table.rows}
    assert table.summary["slow"] == [h for h in rows if rows[h]["verdict"] == "slow"]
    assert set(table.summary["slow"]) == {"n05", "n40", "n63"}
    assert [rows[host]["slow_in"] for host in ("n05", "n40", "n63")] == ["all", "memory", "link"]
    assert rows["n05"]["slower_fraction"] == pytest.approx(0.05, abs=0.012)
    assert rows["n05"]["low_fraction"] < 0.05 < rows["n05"]["high_fraction"]
    assert rows["n40"]["memory_fraction"] == pytest.approx(0.08, abs=0.02)
    assert abs(rows["n40"]["compute_fraction"]) < 0.02
    assert (rows["n77"]["verdict"], rows["n77"]["cause"]) == ("not measured", "node-fail")
    assert said[-1] == "no result: n77 (node-fail)"
    assert any(line.startswith("n40 is slow in what is bound by memory (") for line in said)
    spec = analysis("nodes").draw(table)
    assert {row["panel"] for row in spec["data"]["values"]} == {
        "all cells", "bound by compute", "bound by memory", "bound by link",
    }  # fmt: skip


def test_a_node_without_a_kind_of_cells_warns_nobody(recwarn):
    rng = np.random.default_rng(4)
    bound = {cell.key: at < 3 for at, cell in enumerate(CELLS)}
    records = clusters.measured(rng, HOSTS[:20], CELLS, {"n04": 1.1})
    some = [r for r in records if r.env["host"] != "n07" or bound[r.workload.key]]
    rows = {row["host"]: row for row in _table([*some, *_predictions(bound)])[0].rows}
    assert (rows["n04"]["verdict"], rows["n04"]["slow_in"]) == ("slow", "all")
    assert rows["n07"]["memory_fraction"] is None
    assert not [one for one in recwarn if issubclass(one.category, RuntimeWarning)]


def test_two_nodes_do_not_tell_which_is_slow():
    rng = np.random.default_rng(2)
    table, said = _table(clusters.measured(rng, HOSTS[:2], CELLS, {"n00": 2.0}))
    assert (table.rows, table.summary["slow"]) == ([], [])
    assert said == ["no 3 nodes measured the same cells: of two, nobody can say which is slow"]


def test_nodes_that_lack_cells_are_held_against_those_that_have_them():
    rng = np.random.default_rng(3)
    records = clusters.measured(rng, HOSTS[:12], CELLS, {"n04": 1.1})
    some = [r for r in records if r.env["host"] != "n07" or r.workload in CELLS[:2]]
    rows = {row["host"]: row for row in _table(some, margin="3%")[0].rows}
    assert [host for host, row in rows.items() if row["verdict"] == "slow"] == ["n04"]
    assert (rows["n04"]["cells"], rows["n07"]["cells"]) == (6, 2)


def test_one_visit_that_went_wrong_does_not_name_its_node():
    rng = np.random.default_rng(7)
    visits = [
        replace(one, env={**one.env, "round": number})
        for number in range(3)
        for at in [{"n04": 1.06, "n09": 1.3 if number == 1 else 1.0}]  # 9 % in the mean of three
        for one in clusters.measured(rng, HOSTS[:32], CELLS[:2], at, runs=1)
    ]
    table, said = _table(visits)
    assert table.summary["slow"] == ["n04"]
    assert (table.summary["cells"], {row["cells"] for row in table.rows}) == (2, {2})
    assert "32 nodes measured the same 2 cells" in said[-1]


def test_the_command_prints_the_verdict(tmp_path, capsys):
    rng = np.random.default_rng(5)
    with store.open_writer(tmp_path) as writer:
        writer.append_all(clusters.measured(rng, HOSTS[:16], CELLS, {"n04": 1.1}))
    assert run(["analyse", "nodes", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["slow"] == ["n04"]
    assert document["rows"][0]["host"] == "n04"
    assert document["headline"][0].startswith("n04 is ")
    assert run(["compare", str(tmp_path), "--by", "host", "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert nodes == {name: document[name] for name in ("summary", "headline", "rows")}
    for word, code in {"slow": 3, "slower": 3, "changed": 3, "vanished": 0}.items():
        assert run(["analyse", "nodes", str(tmp_path), "--fail-on", word]) == code
    assert run(["analyse", "nodes", str(tmp_path), "--fail-on", "slo"]) == 2
    assert "did you mean 'slow'?" in capsys.readouterr().err


def test_a_gate_on_too_few_nodes_says_that_nothing_can_be_judged(tmp_path, capsys):
    rng = np.random.default_rng(5)
    with store.open_writer(tmp_path) as writer:
        writer.append_all(clusters.measured(rng, HOSTS[:2], CELLS, {HOSTS[0]: 1.5}))
    for word, code in {"slow": 2, "changed": 2, "vanished": 0}.items():
        assert run(["analyse", "nodes", str(tmp_path), "--fail-on", word]) == code
    assert "nobody can say which is slow" in capsys.readouterr().out
