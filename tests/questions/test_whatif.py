"""The same networks on changed hardware, held against hand arithmetic and the talk of ParaDnn."""

from __future__ import annotations

import json

import pytest

import steptime
from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.grids.batches import MAX_BATCH
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction import cost_model
from steptime.questions.networks import DEFAULT_BATCHES, DEFAULT_SET, networks
from steptime.questions.whatif.changes import change_device, describe_idle_changes, read_changes
from steptime.questions.whatif.compare import (
    EXAMPLE_TRAFFIC,
    STEP_TRAFFIC,
    compare_networks,
    describe_summary,
    rank_upgrades,
    try_devices,
)
from steptime.questions.whatif.networks_on_devices import make_cases

V3 = ("memory_GB_per_s=x1.5", f"peak=x{420 / 180}", "memory_GB=x2")  # of ParaDnn's talk


def _changes(*texts: str):
    return [axis[0] for axis in read_changes(texts)]


def _cases(text: str, device: str = "tpu-v2-8", batches=(64,), method="analytic", **more):
    found = catalog.device(device)
    asked = [
        make_workload(read_model(one), batch, None, "train", "sgd", device=found)
        for one in networks(text)
        for batch in batches
    ]
    return make_cases(asked, found, method, **more)


@pytest.mark.rare  # golden answers of whatif
def test_a_tpu_v2_becomes_a_v3_on_the_fc_family():
    found = compare_networks(
        _cases(DEFAULT_SET, batches=[int(one) for one in DEFAULT_BATCHES.split(",")]), _changes(*V3)
    )
    said = found.summary
    assert said.network_count == 6 * 9 * 3
    assert said.compute_bound_speedup == pytest.approx(2.3, rel=0.02)
    assert said.memory_bound_speedup == pytest.approx(1.5, rel=1e-9)
    assert said.batch_growth == 2
    assert said.memory_bound_larger_batch_speedup == pytest.approx(3, rel=0.03)
    assert 2.8 < said.max_larger_batch_speedup <= 3  # of a whole network, at batch 64
    by = {(one.bound, one.batch, one.traffic): one for one in found.classes}
    assert by["memory", "larger", STEP_TRAFFIC].max_speedup == pytest.approx(3, rel=1e-9)
    assert by["memory", "larger", EXAMPLE_TRAFFIC].speedup == pytest.approx(1.5, rel=0.01)
    assert by["compute", "same", None].max_speedup == pytest.approx(420 / 180, rel=1e-9)
    assert sum(row.network_count for row in said.bounds) == said.network_count


def test_the_largest_batches_gain_what_compute_does():
    (case,) = _cases("fc:layers=32,nodes=8192", largest=True)
    # 32 layers of 8192^2 weights and their gradients are 8.4 GB of 64; the rest holds activations
    assert case.batch == case.largest == 65536
    found = compare_networks([case], _changes(*V3))
    assert found.summary.memory_bound_larger_batch_speedup == pytest.approx(3, rel=0.01)
    (row,) = found.rows
    assert (row.batch, row.grown_batch) == (65536, 131072)
    assert row.grown_speedup == pytest.approx(420 / 180, rel=0.02)


def test_networks_that_fit_only_after_or_only_before():
    found = _cases("fc:layers=32,nodes=8192", batches=(64, 131072))
    after = compare_networks(found, _changes("memory_GB=x2"))
    assert [row.status for row in after.rows] == ["ok", "new"]
    assert after.summary.newly_fitting_count == 1
    assert any("fit only after the change" in line for line in describe_summary(after.summary))
    less = compare_networks(found, _changes("memory_GB=4"))
    assert [row.status for row in less.rows] == ["oom after", "oom"]
    assert less.summary.no_longer_fitting_count == 1
    assert less.summary.speedup is None


def test_a_gpu_behind_its_host_gains_nothing():
    found = compare_networks(
        _cases("fc:layers=64,nodes=64", "a100", method="calibrated"), _changes("peak=x4")
    )
    assert found.rows[0].bound == "host"
    assert found.rows[0].speedup == pytest.approx(1)


def test_which_upgrade_pays():
    found = _cases("fc:layers=8,nodes=8192", batches=(16,))  # it reads weights: 16 FLOP/byte of 75
    changes = _changes("memory_GB_per_s=x2", "peak=x2", "memory_GB=x2")
    first, second, third = rank_upgrades(
        changes, try_devices(found, [(change,) for change in changes]).rows
    )
    assert (first.upgrade, third.upgrade) == ("memory_GB_per_s=x2", "peak=x2")
    assert first.gain_share == pytest.approx(1)
    assert 0.8 < second.gain_share < 1  # twice the batch, in about the same time


def test_a_factor_is_written_as_it_is_read_or_as_answers_print_it():
    assert _changes("memory_GB=1.5x") == _changes("memory_GB=x1.5")


def test_a_grid_of_devices():
    axes = read_changes(["memory_GB_per_s=x1..x4x2", "peak=x1..x2x2"])
    found = _cases("fc:layers=8,nodes=8192", batches=(16,))
    rows, _ = try_devices(found, [(a, b) for a in axes[0] for b in axes[1]])
    assert [row.speedup for row in rows] == pytest.approx([1, 1, 2, 2, 4, 4])


def test_changes_are_in_the_unit_of_the_file():
    t4 = catalog.device("t4")
    after = change_device(
        t4, _changes("memory_GB=32", "details.l2_MiB=x2", "peak.float32=16", "tdp_W=x2")
    )
    assert after.datasheet.memory_bytes == 32e9
    assert after.datasheet.l2_bytes == 2 * t4.datasheet.l2_bytes
    assert after.datasheet.peak_flop_per_s["float32"] == 16e12
    assert after.datasheet.peak_flop_per_s["float16"] == t4.datasheet.peak_flop_per_s["float16"]
    assert after.datasheet.peak_w == 2 * t4.datasheet.peak_w
    every = change_device(t4, _changes("peak=x2"))
    assert all(
        every.datasheet.peak_flop_per_s[name] == 2 * peak
        for name, peak in t4.datasheet.peak_flop_per_s.items()
    )
    assert all(
        every.datasheet.vector_flop_per_s[k] == 2 * v
        for k, v in t4.datasheet.vector_flop_per_s.items()
    )
    one = t4.with_figures(peak_flop_per_s={"float32": 1.0})
    assert change_device(one, _changes("peak=8")).datasheet.peak_flop_per_s == {"float32": 8e12}


def test_what_changes_nothing_is_said():
    tpu, analytic = catalog.device("tpu-v2-8"), cost_model("analytic")
    assert change_device(tpu, _changes("l2_MiB=x4")).datasheet.l2_bytes is None
    assert "is unknown" in describe_idle_changes(tpu, _changes("l2_MiB=x4"), analytic)[0]
    assert "does not read" in describe_idle_changes(tpu, _changes("l2_MiB=4"), analytic)[0]
    assert "no peak.float32" in describe_idle_changes(tpu, _changes("peak.float32=x2"), analytic)[0]
    assert not describe_idle_changes(
        catalog.device("t4"), _changes("l2_MiB=x4"), cost_model("calibrated")
    )
    assert not describe_idle_changes(tpu, _changes("peak=x4"), analytic)
    t4, calibrated = catalog.device("t4"), cost_model("calibrated")
    assert "tdp_W=x2 lets it" in describe_idle_changes(t4, _changes("peak=x4"), calibrated)[0]
    assert not describe_idle_changes(t4, _changes("peak=x4", "tdp_W=x4"), calibrated)


def test_networks_of_ranges():
    assert networks("fc:layers=4..8x2,nodes=32,inputs=1..2") == [
        f"fc:layers={layers},nodes=32,inputs={inputs}" for layers in (4, 8) for inputs in (1, 2)
    ]
    assert networks("resnet50") == ["resnet50"]
    with pytest.raises(InputError, match="at most 10000"):
        networks("fc:layers=1..200,nodes=1..200")


def test_the_largest_batch_is_that_of_fit(capsys):
    (case,) = _cases("resnet50", "t4", method="calibrated")
    assert run(["fit", "resnet50", "--device", "t4", "--json"]) == 0
    largest = json.loads(capsys.readouterr().out)["largest_batch"]
    assert case.largest <= largest < 2 * case.largest


def test_memory_that_is_unknown_holds_all():
    (case,) = _cases("fc", "t4", method="calibrated")
    nowhere: Device = case.model.device.with_figures(memory_bytes=None)
    assert case.largest_on(nowhere) == 1 << 20 > case.largest


def test_the_cap_of_the_search_is_no_largest_batch():
    """A network of 64 inputs fits a GPU at any batch that is tried."""
    small = "fc:layers=1,nodes=8,inputs=8,outputs=8"
    answer = steptime.whatif("a100", {"memory_GB": "x2"}, small, batch="largest")
    assert answer.rows[0].batch == answer.rows[0].changed_largest_batch == MAX_BATCH
    assert f"at least {MAX_BATCH}" in str(answer)
    assert f"batch {MAX_BATCH:,} fits, and no larger one was tried" in answer.notes[-1]
    ranged = steptime.whatif("a100", {"memory_GB": "x1..x2x2"}, small, batch="largest")
    upgraded = steptime.whatif("a100", None, small, "largest", upgrade=["memory_GB=x2"])
    assert ranged.notes[-1] == upgraded.notes[-1] == answer.notes[-1]
    large = steptime.whatif("t4", {"memory_GB": "x2"}, "resnet50", batch="largest")
    assert "at least" not in str(large)


def test_a_batch_above_the_cap_of_the_search_fits_where_its_memory_does():
    small = "fc:layers=1,nodes=8,inputs=8,outputs=8"
    answer = steptime.whatif("a100", {"peak": "x2"}, small, batch=2 * MAX_BATCH)
    assert answer.rows[0].status == "ok"
    assert answer.rows[0].grown_batch == 2 * MAX_BATCH


@pytest.mark.parametrize("factor", ["1.1", "1.7", "2"])
def test_a_batch_between_powers_of_two_fits_where_its_memory_does(factor: str):
    """resnet50 at 160 examples fits a V100 of 16 GB, and 256 examples do not."""
    batch = 160
    answer = steptime.whatif("v100", {"memory_GB": f"x{factor}"}, "resnet50", batch=batch)
    (row,) = answer.rows
    device = catalog.device("v100")
    changed = change_device(device, [axis[0] for axis in read_changes([f"memory_GB=x{factor}"])])
    model = make_cases([make_workload(read_model("resnet50"), batch)], device, "calibrated")[
        0
    ].model
    assert row.largest_batch < batch < 2 * row.largest_batch
    assert model.needs(batch).fit(device)
    assert row.status == "ok"
    assert row.grown_batch >= batch
    assert model.with_device(changed).needs(row.grown_batch).fit(changed)
