"""The roofline: ceilings of files alone, published and measured points, what is said of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

import synthetic
from steptime.analysis.analyses import analysis
from steptime.analysis.rooflines.ceilings import list_ceilings, list_ridges
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.tables.table import Table
from steptime.core.workload import Workload
from steptime.hardware import catalog, device_words
from steptime.hardware.device_file import device_from_table
from steptime.records.data import Data
from steptime.records.record import Quantity, Record, record_to_json

ROOFLINE = analysis("roofline")
SAID: dict[str, Any] = {
    "name": "mine",
    "kind": "gpu",
    "source": "test",
    "memory_GB_per_s": 100,
    "peak_TFLOP_per_s": {"float32": 1, "float16": 8},
    "vector_TFLOP_per_s": {"float32": 0.5},
    "details": {"l2_GB_per_s": 400, "link_GB_per_s": 50},
}


def answer(records: list[Record], **settings: Any) -> Table:
    return ROOFLINE.answer(Data.from_records(records), **settings)


def document(line: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert run([*line, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_ceilings_of_a_file_by_unit_type_and_level():
    rows = list_ceilings(device_from_table(SAID, "test"))
    tops = {(r.unit, r.dtype): r.flop_per_s for r in rows if r.unit}
    assert tops == {
        ("matrix", "float32"): 1e12,
        ("matrix", "float16"): 8e12,
        ("vector", "float32"): 5e11,
    }
    assert {r.level: r.bytes_per_s for r in rows if r.level} == {"DRAM": 1e11, "l2": 4e11}
    found = {(r.unit, r.dtype, r.level): r.ridge_flop_per_byte for r in list_ridges(rows)}
    assert found["matrix", "float16", "DRAM"] == 80  # 8e12 / 1e11
    assert found["matrix", "float16", "l2"] == 20
    assert found["vector", "float32", "DRAM"] == 5
    assert len(found) == 6


def test_a_probe_s_curves_and_a_calibration_are_levels():
    curve = {"work": [1000, 6000, 80000], "min_s": [1e-9, 15e-9, 800e-9]}  # 1000, 400, 100 GB/s
    measured = {"cache_bytes": 8000, "memory": {"copy": curve}}
    constants = {"constants": {"stream.share_hbm": 0.8}}
    device = device_from_table(
        SAID | {"details": {}, "measured": measured, "calibration": constants}, "test"
    )
    levels = {r.level: r.bytes_per_s for r in list_ceilings(device) if r.level}
    assert levels == {
        "DRAM": 1e11,
        "DRAM as calibrated": 8e10,
        "last cache": pytest.approx(4e11),
        "inner caches": pytest.approx(1e12),
    }


def test_devices_alone_have_ceilings_and_ridges(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\nkind = "gpu"\nsource = "test"\nmemory_GB_per_s = 100\n'
        "[peak_TFLOP_per_s]\nfloat32 = 1\n"
    )
    line = ["analyse", "roofline", "--device", f"v100-sxm2-16gb,{tmp_path / 'mine.toml'}"]
    found = document([*line, "-o", str(tmp_path / "x.svg")], capsys)
    rows = {(r["platform"], r["dtype"]): r["ridge_flop_per_byte"] for r in found["rows"]}
    assert rows["mine", "float32"] == 10
    assert rows["v100-sxm2-16gb", "float16"] == pytest.approx(125e12 / 897e9)
    assert found["summary"]["ridges"] == found["rows"]
    assert len(found["summary"]["ceilings"]) == 3 + 1 + 1 + 1
    svg = (tmp_path / "x.svg").read_text()
    assert "mine matrix float32 1 TFLOP/s" in svg
    assert "v100-sxm2-16gb DRAM 897 GB/s" in svg
    assert run(line) == 0
    assert "ridge point" in capsys.readouterr().out


def test_points_are_held_against_the_lower_ceiling():
    table = answer(synthetic.sweep())
    rows = [dict(row) for row in table.rows]
    assert len(rows) == 24
    for row in rows:
        roof = min(synthetic.PEAK, row["intensity"] * synthetic.BANDWIDTH)
        assert row["roof_flop_per_s"] == pytest.approx(roof)
        assert row["roof_fraction"] == pytest.approx(row["flop_per_s"] / roof)
        assert row["bound"] == ("compute" if roof == synthetic.PEAK else "memory")
    assert table.summary["ridge_flop_per_byte"] == pytest.approx(204 / 39)
    share = sum(row["bound"] == "compute" for row in rows) / 24
    assert table.summary["above_ridge_share"] == pytest.approx(share)
    assert table.summary["best_flop_per_s"] == max(row["flop_per_s"] for row in rows)


def published(**quantities: float) -> Record:
    workload = Workload("fc", {"layers": 4, "nodes": 256}, 64)
    first = synthetic.measured(workload)
    held = {name: Quantity(value=value) for name, value in quantities.items()}
    return replace(first, origin="published", platform="v100-sxm2-16gb", quantities=held)


def test_what_a_published_record_lacks_is_said_and_a_prediction_adds_it():
    one = published(step_s=0.01, published_flop_per_s=2e12, published_flop_per_parameter_byte=9.0)
    table = answer([one])
    assert table.rows[0]["flop_per_s"] == 2e12
    assert table.rows[0]["intensity"] is None  # FLOP per byte of parameters are something else
    assert table.rows[0]["roof_fraction"] is None
    assert (
        "1 lack FLOP per byte of memory; `steptime predict --in DIR`"
        in ROOFLINE.describe(table)[-1]
    )
    other = replace(synthetic.predicted(one.workload)[0], platform=one.platform)
    both = answer([one, other])
    assert len(both.rows) == 1
    flop, traffic = (other.quantities[n].value or 0 for n in ("flop", "traffic_bytes"))
    assert both.rows[0]["intensity"] == pytest.approx(flop / traffic)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_a_copied_file_is_left_out_however_it_is_written(separators, tmp_path, capsys):
    one = published(step_s=0.01, published_flop_per_s=2e12)
    told = replace(one, env={**one.env, "note_of": '"duplicate_of": "x"'})
    copied = replace(one, env={**one.env, "duplicate_of": "first.txt"})
    lines = [json.dumps(record_to_json(each), separators=separators) for each in (told, copied)]
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    (row,) = document(["analyse", "roofline", str(tmp_path)], capsys)["rows"]
    assert row["flop_per_s"] == 2e12


def test_shares_of_the_peak_are_speeds_and_those_above_it_are_named():
    share = published(published_flop_share=0.5, published_intensity_flop_per_byte=100.0)
    row = answer([share]).rows[0]
    assert (row["flop_per_s"], row["bound"]) == (0.5 * 15.67e12, "compute")
    table = answer([published(step_s=0.01, published_flop_per_s=80e12)])
    assert table.summary["platforms"][0]["above_peak"] == 1
    assert "above the peak of float32: matrix units were used" in " ".join(ROOFLINE.describe(table))


def test_a_step_of_no_time_has_no_speed():
    flop = {"flop": Quantity(1e9), "step_s": Quantity(0.0)}
    one = replace(synthetic.measured(synthetic.workloads()[0]), origin="published", quantities=flop)
    assert answer([one]).rows == []


def test_an_unknown_device_has_no_ceiling_and_says_so():
    one = replace(published(step_s=0.01, published_flop_per_s=2e12), platform="no-such-device")
    table = answer([one])
    assert table.rows[0]["peak_fraction"] is None
    assert "no ceiling is known" in " ".join(ROOFLINE.describe(table))


def test_ops_are_points_too():
    records = synthetic.predicted(synthetic.workloads()[0], ops=True)
    table = answer(records, ops=True)
    assert len(table.rows) == 36  # 4 of 40 have no FLOP
    assert all(row["roof_flop_per_s"] >= row["predicted_flop_per_s"] * 0.999 for row in table.rows)
    assert table.summary["ridge_flop_per_byte"] == pytest.approx(204 / 39)


@pytest.mark.parametrize("ops", [False, True])
def test_a_hyperparameter_may_be_called_as_a_column_of_the_roofline_is(ops):
    names = ("rate", "peak", "top", "side", "share", "speed", "more", "bound", "own_flop", "name")
    records = [*synthetic.sweep(ops=True), published(step_s=0.01, published_flop_per_s=2e12)]
    others = []
    for one in records:
        params = one.workload.params | {name: 3 + len(name) for name in names}
        others.append(replace(one, workload=replace(one.workload, params=params)))
    plain, other = answer(records, ops=ops), answer(others, ops=ops, color="rate")
    numbers = ("intensity", "flop_per_s", "predicted_flop_per_s", "peak_flop_per_s", "bound")
    told, expected = (
        sorted(str([row[n] for n in numbers]) for row in t.rows) for t in (other, plain)
    )
    assert told == expected
    assert {(row["rate"], row["share"], row["more"]) for row in other.rows} == {(7, 8, 7)}


@pytest.mark.slow
def test_colours_and_lines_follow_a_hyperparameter():
    records = [r for r in synthetic.sweep() if r.workload.model == "fc"]
    values = ROOFLINE.draw(answer(records, color="batch", line="nodes"))["data"]["values"]
    assert {one["of_batch"] for one in values if "of_batch" in one} == {64, 256}
    lines: dict[int, list[int]] = {}
    for one in values:
        if "line" in one:
            lines.setdefault(one["line"], []).append(one["of_nodes"])
    assert sorted(map(sorted, lines.values())) == [[256, 1024]] * 4  # 2 layers x 2 batches


@pytest.mark.slow
def test_paradnn_s_numbers(shared, tmp_path, capsys):
    found = {}
    for name in ("tpu_fc", "gpu_fc", "fc_trace_10sec"):
        folder = tmp_path / name
        path = shared / "paradnn" / f"{name}.json.gz"
        assert run(["import", str(path), "--out", str(folder)]) == 0
        capsys.readouterr()
        found[name] = document(["analyse", "roofline", str(folder)], capsys)
    tpu, gpu, trace = (found[name]["summary"] for name in found)
    assert tpu["best_flop_per_s"] == pytest.approx(115_712e9, rel=1e-5)
    assert tpu["best_peak_fraction"] == pytest.approx(0.6428, abs=5e-5)
    assert tpu["platforms"][0]["peak_flop_per_s"] == 180e12
    assert gpu["best_flop_per_s"] == pytest.approx(86_293e9, rel=1e-5)
    assert gpu["platforms"][0]["best_highest_peak_fraction"] == pytest.approx(0.6903, abs=5e-5)
    assert "above the peak of float32: matrix units were used" in " ".join(
        found["gpu_fc"]["headline"]
    )
    assert trace["ridge_flop_per_byte"] == 75
    assert trace["above_ridge_share"] == pytest.approx(0.170, abs=5e-4)
    assert trace["best_peak_fraction"] == pytest.approx(0.7043, abs=5e-5)
    assert len(found["fc_trace_10sec"]["rows"]) == 230


def test_the_catalog_names_no_link_a_level_of_memory():
    names = [
        name
        for name in catalog.device_names(with_user_files=False)
        if device_words.find_devices(name)
    ]
    levels = {r.level for n in names for r in list_ceilings(catalog.device(n)) if r.level}
    assert levels == {"DRAM"}
