"""Speed-ups: ParaDnn's numbers, ratios by hand."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import polars as pl
import pytest

import synthetic
from steptime.analysis.analyses import analysis
from steptime.analysis.comparison.verdict import compare_sides
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.tables.table import Table
from steptime.core.workload import Workload
from steptime.records import store
from steptime.records.data import Data
from steptime.records.readers import read_path
from steptime.records.record import Quantity, Record, RecordMethod
from steptime.reports.files import save

GPU, TPU = "v100-sxm2-16gb", "tpu-v2-8"


def step(platform: str, batch: int, step_s: float, nodes: int = 64, **more: Any) -> Record:
    workload = Workload(
        "fc", {"layers": 4, "nodes": nodes}, batch, dtype=more.pop("dtype", "float32")
    )
    quantities = {"step_s": Quantity(value=step_s)} | more.pop("quantities", {})
    return Record("published", RecordMethod("log", "1"), workload, platform, quantities, **more)


def speedup(*records: Record, **settings: Any) -> Table:
    return analysis("speedup").answer(Data.from_records(records), **settings)


@pytest.fixture(scope="module")
def paradnn(shared):
    names = ("tpu_fc", "gpu_fc")
    found = (read_path(shared / "paradnn" / f"{name}.json.gz").records for name in names)
    return speedup(*itertools.chain(*found))


def test_the_published_speed_ups_of_the_tpu(paradnn, shared):
    expected = json.loads((shared / "paradnn" / "expected.json").read_text("utf-8"))
    found = paradnn.summary
    assert (found["against"], found["pairs"], found["any_dtype"]) == (GPU, 176, True)
    said = expected["speedup_tpu_over_gpu"]
    for name, key in (
        ("min", "min"),
        ("median", "median"),
        ("max", "max"),
        ("geometric_mean", "geomean"),
    ):
        assert found[name] == pytest.approx(said[key], rel=1e-6), name
    assert found["low"] < found["geometric_mean"] < found["high"]
    assert list(found["by"]) == [str(2**n) for n in range(6, 15)]
    for batch, row in expected["median_speedup_by_batch"].items():
        assert found["by"][batch]["median"] == pytest.approx(row["median"], rel=1e-6)
        assert found["by"][batch]["pairs"] == row["n"]


def test_what_failed_on_paradnns_platforms_is_counted(paradnn):
    text = " ".join(analysis("speedup").describe(paradnn))
    assert "Left out, because they failed: 220 on tpu-v2-8, 94 on v100-sxm2-16gb" in text


@pytest.mark.slow
def test_on_other_data_a_gpu_wins_where_networks_are_wide(shared):
    files = (shared / "pytorch-paradnn" / f"fc_{name}_dev.csv.gz" for name in ("T4", "A100"))
    table = speedup(*itertools.chain(*(read_path(path).records for path in files)))
    found = table.summary
    assert (found["against"], found["any_dtype"]) == ("t4", False)
    assert found["geometric_mean"] > 1.5


def test_speed_ups_by_hand():
    times = {64: (1.0, 2.0), 128: (3.0, 1.0), 256: (8.0, 1.0), 512: (1.0, 1.01)}
    records = [step("old", b, old) for b, (old, _) in times.items()]
    records += [step("new", b, new) for b, (_, new) in times.items()]
    lonely = [step("new", 1024, 1.0), step("old", 2048, 1.0, status="oom", quantities={})]
    table = speedup(*records, *lonely)
    found = table.summary
    assert (found["against"], found["pairs"], found["x"]) == ("old", 4, "batch")
    # 1 / 2, 3, 8 and 1 / 1.01, which is the same
    assert found["geometric_mean"] == pytest.approx((0.5 * 3 * 8 / 1.01) ** 0.25)
    assert found["median"] == pytest.approx((1 / 1.01 + 3) / 2)
    assert (found["wins_share"], found["ties_share"]) == (0.5, 0.25)
    assert [row["speedup"] for row in table.rows] == pytest.approx([0.5, 8, 1 / 1.01, 3])
    for row in table.rows:
        assert row["speedup"] == pytest.approx(row["against_step_s"] / row["step_s"])
    assert found["extremes"]["highest"][0]["name"] == "fc batch 256"
    (turned,) = speedup(*records, against="new").summary["levels"]
    assert turned["level"] == "old"
    assert turned["geometric_mean"] == pytest.approx(1 / found["geometric_mean"])
    # a rate is better where it is higher
    rates = [
        replace(one, quantities={"published_examples_per_s": Quantity(value=1 / seconds)})
        for one, seconds in zip(
            records, [*(a for a, _ in times.values()), *(b for _, b in times.values())], strict=True
        )
    ]
    by_rate = speedup(*rates, quantity="published_examples_per_s").summary
    assert by_rate["geometric_mean"] == pytest.approx(found["geometric_mean"])


def test_types_are_told_apart_where_both_sides_have_one_in_common():
    half = [step("old", 64, 4.0, dtype="float16"), step("old", 64, 8.0)]
    (row,) = speedup(*half, step("new", 64, 1.0)).rows
    assert row["speedup"] == pytest.approx(8)
    table = speedup(half[0], step("new", 64, 1.0))
    assert table.rows[0]["speedup"] == pytest.approx(4)
    (row,) = speedup(*half, by="dtype").rows
    assert (row["against"], row["level"], row["speedup"]) == (
        "float32",
        "float16",
        pytest.approx(2),
    )


def measured(options: dict[str, Any], step_s: float, host: str = "n1", seed: int = 0) -> Record:
    rng = np.random.default_rng(seed)
    samples = tuple((step_s * rng.lognormal(0, 0.01, 60)).tolist())
    quantities = {"step_s": Quantity(samples=samples)}
    method = RecordMethod("torch", "2.13.0", options)
    workload = Workload("fc", {"layers": 4}, 64)
    return Record("measured", method, workload, "cpu", quantities, env={"host": host})


def test_options_hosts_and_verdicts_of_measurements():
    eager, fused = {"compile": False, "threads": 2}, {"compile": True, "threads": 2}
    table = speedup(measured(eager, 0.2), measured(fused, 0.1, "n2", 1), by="compile")
    (row,) = table.rows
    assert (row["against"], row["level"], row["verdict"], row["outcome"]) == (
        "no",
        "yes",
        "faster",
        "won",
    )
    assert row["differ"] == "host n1 | n2"
    newer = measured(fused, 0.1, "n2", 1)
    newer = replace(newer, method=replace(newer.method, version="2.14.0"))
    (row,) = speedup(measured(eager, 0.2), newer, by="compile").rows
    assert row["differ"] == "host n1 | n2, version 2.13.0 | 2.14.0"  # as compare says it
    (row,) = speedup(measured(eager, 0.1), measured(eager, 0.1, "n2", 1), by="host").rows
    assert row["verdict"] == "same"
    alike = speedup(measured(eager, 0.1), measured(eager, 0.1, "n2", 1), by="host")
    assert "the same within noise" in analysis("speedup").describe(alike)[0]
    two = [measured(fused | {"threads": n}, 0.1 / n) for n in (1, 2)]
    (row,) = speedup(measured(eager | {"threads": 2}, 0.4), *two, by="compile").rows
    assert row["speedup"] == pytest.approx(8, rel=0.02)  # threads are those of the other side
    three = speedup(*(measured({"threads": n}, 0.8 / n) for n in (1, 2, 4)), by="threads").summary
    assert [(row["level"], round(row["median"])) for row in three["levels"]] == [("2", 2), ("4", 4)]
    hosts = [measured(eager, step_s, host) for step_s, host in ((0.3, "c"), (0.2, "b"), (0.1, "a"))]
    words = speedup(*hosts, by="host").summary
    assert (words["against"], [row["level"] for row in words["levels"]]) == ("c", ["b", "a"])


def test_verdicts_of_single_runs_are_seldom_wrong_and_miss_little():
    rng = np.random.default_rng(7)
    n, error = 4000, 0.01

    def side(value: np.ndarray) -> dict[str, np.ndarray]:
        reach, unknown = np.exp(1.96 * error), np.full(len(value), np.nan)
        known = {"value": value, "low": value / reach, "high": value * reach}
        return known | {"error": unknown, "drift": np.zeros(len(value)), "runs": unknown}

    a, b = (np.exp(rng.normal(0, error, n)) for _ in range(2))
    alone = [compare_sides(side(a[i : i + 1]), side(b[i : i + 1]))["verdict"][0] for i in range(n)]
    assert sum(word in ("faster", "slower") for word in alone) / n == pytest.approx(0.05, abs=0.012)
    assert np.isin(compare_sides(side(a), side(b))["verdict"], ("faster", "slower")).sum() <= 2
    assert (compare_sides(side(a), side(1.1 * b))["verdict"] == "slower").mean() > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 4, 6])
def test_its_picture(number, tmp_path, capsys):
    rng = np.random.default_rng(number)
    records = [
        step(f"platform-{at}", batch, 0.1 * batch / (at + 1) * rng.lognormal(0, 0.3), nodes)
        for at in range(number + 1)
        for batch, nodes in itertools.product((64, 256, 1024), (32, 512))
    ]
    with store.open_writer(tmp_path / "records") as writer:
        writer.append_all(records)
    assert (
        run(
            [
                "analyse",
                "speedup",
                str(tmp_path / "records"),
                "-o",
                str(tmp_path / "s.png"),
                "--json",
            ]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert len(document["summary"]["levels"]) == number
    assert (tmp_path / "s.png").stat().st_size > 5000


def test_a_folder_of_one_platform_has_nothing_to_compare():
    table = speedup(*synthetic.sweep())
    assert not table.rows
    assert analysis("speedup").describe(table) == [
        "nothing to compare: no network has its step_s at two levels of platform"
    ]


def test_a_picture_of_many_points_is_thinned_evenly():
    records = [
        step(platform, 64, seconds, nodes)
        for nodes in range(1, 3201)
        for platform, seconds in (("old", 1.0), ("new", 1 / (0.5 + nodes / 1000)))
    ]
    table = speedup(*records)
    drawn = [v["speedup"] for v in analysis("speedup").draw(table)["data"]["values"] if "at" in v]
    assert len(drawn) == 1600
    assert np.median(drawn) == pytest.approx(table.summary["median"], rel=0.01)
    assert max(drawn) > 0.99 * table.summary["max"]


def test_a_chart_of_a_hyperparameter_that_is_a_name(tmp_path):
    records = [
        Record("published", RecordMethod("log", "1"), Workload("rnn", {"cell": cell}, 8), platform,
               {"step_s": Quantity(value=value)})
        for cell, value in (("lstm", 2.0), ("gru", 1.0)) for platform in ("one", "two")
    ]  # fmt: skip
    table = speedup(*records)
    assert (table.summary["x"], table.summary["pairs"]) == ("cell", 2)
    save(analysis("speedup").draw(table), tmp_path / "s.svg")


def test_what_is_the_same_is_not_won_everywhere():
    sides = [step("old", 2**at, 1.0) for at in range(10)]
    sides += [step("new", 2**at, 1.0 if at < 4 else 0.5) for at in range(10)]
    said = analysis("speedup").describe(speedup(*sides))
    assert "40 % same" in said[0]
    assert "0.5x" not in said[0]
    medians = "1 at 1, 1 at 2, 1 at 4, 1 at 8, 2 at 16, 2 at 32, 2 at 64, 2 at 128, 2 at 256"
    assert f"By batch the median speed-up is {medians}, 2 at 512." in said


def test_a_picture_of_very_many_draws_some_by_chance():
    told = {"step_s": Quantity(value=1.0), "flop": Quantity(value=1e9)}
    records = [step("old", 1 + at, 1.0, quantities=told) for at in range(40)]
    data = Data.from_records(records)
    rows, number = data.draw_results(("batch",), pl.col("measured_s") > 0, 15)
    assert (len(rows), number) == (15, 40)
    assert [row["batch"] for row in rows] == sorted(row["batch"] for row in rows)
    assert len(data.draw_results((), pl.col("measured_s") > 0, 40)[0]) == 40
