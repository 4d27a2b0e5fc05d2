"""From the times of all-reduces to a link, and from a link to the prediction of replicas."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest

import steptime
from every import every
from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.core.workload import STRATEGIES as MEASURED
from steptime.core.workload import Workload
from steptime.grids.replica_records import STRATEGIES, predict_replicas
from steptime.hardware import catalog, item_files
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Cluster, Device, Link
from steptime.hardware.device_file import link_from_table
from steptime.measure.contract import Options, make_record_method
from steptime.measure.probe.files import SIZES_BYTES, fit, link_table, ring_s
from steptime.prediction.collectives import COLLECTIVES
from steptime.prediction.fabric import Fabric
from steptime.prediction.records import records
from steptime.prediction.steps.step_model import StepModel
from steptime.records import store
from steptime.records.record import Quantity, Record
from told import predicted_and_measured

LINK = Link("link", 20e-6, 1e9, "a test")
DEVICE = Device("toy", "cpu", Datasheet({"float32": 1e12}, 1e11, "a test"))


def test_the_formula_by_hand():
    # 4 processes: 6 messages of 1000 bytes, each 20 us + 1 us
    assert ring_s(4000, 4, 20e-6, 1e9) == pytest.approx(6 * 21e-6)


@every("processes", [2, 3, 8])
@every("size", [1024, 65536, 2**26])
def test_the_formula_is_that_of_scale(processes, size):
    theirs = COLLECTIVES["ring"](size, processes, Fabric(LINK))
    assert ring_s(size, processes, 20e-6, 1e9) == pytest.approx(theirs, rel=1e-12)


@every("processes", [2, 3, 8])
def test_a_fit_gives_back_the_link(processes):
    times = [ring_s(size, processes, 20e-6, 1e9) for size in SIZES_BYTES]
    found = fit(SIZES_BYTES, times, processes)
    assert found.latency_s == pytest.approx(20e-6)
    assert found.bytes_per_s == pytest.approx(1e9)
    assert max(map(abs, found.errors)) < 1e-9


def test_small_sizes_count_as_much_as_large_ones():
    times = [ring_s(size, 2, 20e-6, 1e9) for size in SIZES_BYTES]
    times[-1] *= 1.5  # of absolute errors this alone would be heard
    found = fit(SIZES_BYTES, times, 2)
    assert found.latency_s == pytest.approx(20e-6, rel=0.1)
    assert max(map(abs, found.errors)) == pytest.approx(1 / 3, rel=0.3)


def test_no_latency_is_unknown_and_not_negative():
    times = [size / 1e9 - 2e-7 for size in SIZES_BYTES]
    found = fit(SIZES_BYTES, times, 2)
    assert found.latency_s is None
    assert found.bytes_per_s == pytest.approx(1e9, rel=0.1)


def test_times_that_fall_are_no_link():
    with pytest.raises(InputError, match="larger all-reduces were not slower"):
        fit(SIZES_BYTES, [1e-3 / (1 + place) for place in range(len(SIZES_BYTES))], 2)


def answer() -> dict[str, Any]:
    times = {str(size): [ring_s(size, 2, 20e-6, 1e9)] * 3 for size in SIZES_BYTES}
    return {
        "processes": 2,
        "hosts": ["b", "a"],
        "comm_backend": "gloo",
        "version": "2.13.0",
        "threads": 1,
        "taken_at": "2026-11-21T10:00:00+00:00",
        "all_reduce_s": times,
    }


def test_the_link_file_says_where_it_is_from():
    path = catalog.write_user_link(link_table(answer()))
    table = tomllib.loads(path.read_text())
    assert table["source"] == (
        "measured by steptime calibrate --only link on 2026-11-21 on a, b with torch 2.13.0 "
        "(gloo), 2 processes of 1 threads"
    )
    assert re.search(r"median error 0 %, \+0 % at [\d.]+ [kM]?B$", table["note"])
    assert table["measured"]["bytes"] == list(SIZES_BYTES)
    assert table["measured"]["rounds"] == 3
    found = catalog.link("LOCAL")
    assert (found.latency_s, found.bytes_per_s) == pytest.approx((20e-6, 1e9))
    assert "local" in catalog.link_names()
    assert catalog.link(path) == found


def test_scale_takes_the_link(capsys):
    words = ["scale", "fc", "--device", "T4", "--link", "local", "--replicas", "2", "--json"]
    catalog.write_user_link(link_table(answer()))
    assert run(words) == 0
    document = json.loads(capsys.readouterr().out)
    wanted = ring_s(document["gradient_bytes"], 2, 20e-6, 1e9)
    assert document["rows"][0]["communication_s"] == pytest.approx(wanted)


def test_a_users_link_may_not_take_a_shipped_name():
    folder = item_files.user_folder("links")
    folder.mkdir(parents=True)
    text = 'name = "aws"\nsource = "me"\nGB_per_s = 1\n'
    (folder / "mine.toml").write_text(text.replace("aws", "mine"))
    assert catalog.link("mine").bytes_per_s == 1e9
    (folder / "aws.toml").write_text(text)
    with pytest.raises(InputError, match=r"aws\.toml: a shipped link has this name"):
        catalog.link("aws")


def test_a_curve_of_a_link_is_a_table():
    table = {"name": "a", "source": "b", "GB_per_s": 1, "measured": 3}
    with pytest.raises(InputError, match="'measured' must be a table"):
        link_from_table(table, "here")


def fc(replicas: int = 2) -> Workload:
    model = read_model("fc:layers=2,nodes=100,inputs=50,outputs=10")
    return make_workload(model, 8, replicas=replicas)


START_S = 4e-5  # of an exchange under torch-eager, beside its messages
WEIGHTS = 4 * (51 * 100 + 101 * 100 + 101 * 10)  # bytes of the gradients, and of the weights


@every(
    ("strategy", "overlap", "messages", "added"),
    [
        ("independent", True, (0, 0), 0),
        ("allreduce", False, (4, WEIGHTS / 3), WEIGHTS * 2 / 3),  # 2 (n - 1) of a third
        ("sharded", False, (4, WEIGHTS / 3), WEIGHTS * 2 / 3),
        # two others push and pull, one after the other
        ("parameter-server", True, (4, WEIGHTS), 2 * WEIGHTS),
    ],
)
def test_communication_by_hand(strategy, overlap, messages, added):
    workload = fc(3)
    head, *_ = predict_replicas(
        workload, Cluster(DEVICE, ((3, LINK),)), strategy, overlap, "analytic"
    )
    alone, *_ = records(StepModel(workload, DEVICE, method="analytic"))
    count, size = messages
    comm = count * (20e-6 + size / 1e9) + 3 * added / 1e11
    assert head.quantities["communication_s"].value == pytest.approx(comm)
    update, step = (alone.quantities[name].value or 0 for name in ("update_s", "step_s"))
    if strategy == "sharded":  # each updates a third of the rows, 4 of 10 in the last layer
        assert head.quantities["update_s"].value == pytest.approx(update / 3, rel=0.05)
        step += (head.quantities["update_s"].value or 0) - update
    assert head.quantities["step_s"].value == pytest.approx(step + comm)
    assert head.method.options["strategy"] == strategy
    assert head.workload.plan.data == 3


def test_overlap_waits_less_and_shards_send_as_much():
    def comm(strategy: str, overlap: bool) -> float:
        cluster = Cluster(DEVICE, ((2, LINK),))
        head, *_ = predict_replicas(fc(), cluster, strategy, overlap)
        return head.quantities["communication_s"].value or 0.0

    adding = 3 * WEIGHTS / 2 / 1e11
    one_bucket = ring_s(WEIGHTS, 2, 20e-6, 1e9)  # which is full only at the end
    assert comm("allreduce", True) == pytest.approx(START_S + one_bucket + adding)
    gathered_scattered = 2 * START_S + one_bucket + adding
    assert comm("sharded", True) == pytest.approx(gathered_scattered)


def test_shards_share_memory_and_update():
    """Two replicas keep half of the weights each, and update those."""
    work = make_workload(read_model("fc:layers=2,nodes=2000,inputs=500"), 8, replicas=2)
    cluster = Cluster(DEVICE, ((2, LINK),))
    (whole, *_), (half, *_) = (
        predict_replicas(work, cluster, strategy, True, "analytic")
        for strategy in ("allreduce", "sharded")
    )
    values = [
        {name: head.quantities[name].value or 0.0 for name in ("update_s", "peak_bytes")}
        for head in (whole, half)
    ]
    assert values[1]["update_s"] == pytest.approx(values[0]["update_s"] / 2, rel=1e-2)
    assert values[1]["peak_bytes"] < values[0]["peak_bytes"]
    assert not half.note
    with pytest.raises(InputError, match="paleo: no shards where steps are counted by layers"):
        predict_replicas(work, cluster, "sharded", True, "paleo")


def test_replicas_are_predicted_by_the_method_and_options_that_are_asked_for():
    cluster = Cluster(DEVICE, ((2, LINK),))
    usual, *_ = predict_replicas(fc(), cluster, "allreduce", False)
    half = {"ppp_comp": "0.5", "ppp_comm": "0.5"}
    slow, *_ = predict_replicas(fc(), cluster, "allreduce", False, "analytic", half)
    paleo, *_ = predict_replicas(fc(), cluster, "allreduce", False, "paleo")
    assert (usual.method.name, paleo.method.name) == ("calibrated", "paleo")
    assert slow.method.options.items() >= half.items()
    said = [head.quantities["communication_s"].value for head in (usual, slow, paleo)]
    adding = 3 * WEIGHTS / 2 / 1e11  # at the whole rate of the memory
    assert said[0] == pytest.approx(START_S + ring_s(WEIGHTS, 2, 20e-6, 1e9) + adding)
    assert said[1] == pytest.approx(ring_s(WEIGHTS, 2, 20e-6, 0.5e9) + adding)
    assert said[2] == pytest.approx(WEIGHTS / 1e9)  # neither latency nor adding up


def test_replicas_on_nodes_cross_the_slow_link_only_between_them():
    near = Link("near", 1e-6, 1e10, "a test")
    cluster = Cluster(DEVICE, ((2, near), (2, LINK)))
    head, *_ = predict_replicas(fc(4), cluster, "allreduce", False)
    assert head.method.options["link"] == "link"
    adding = 3 * WEIGHTS * 3 / 4 / 1e11
    comm = START_S + 4 * 1e-6 + 2 * 20e-6 + 6 * WEIGHTS / 4 / 1e9 + adding  # 2 of 6 messages cross
    assert head.quantities["communication_s"].value == pytest.approx(comm)
    inside, *_ = predict_replicas(fc(2), cluster, "allreduce", False)
    assert inside.method.options["link"] == "near"


def test_predictions_know_the_strategies_that_are_measured():
    assert set(STRATEGIES) == set(MEASURED)


def test_what_joins_replicas_must_be_known():
    with pytest.raises(InputError, match="2 replicas need a link"):
        predict_replicas(fc(), Cluster(DEVICE), "parameter-server", True)
    predict_replicas(fc(), Cluster(DEVICE), "independent", True)
    with pytest.raises(InputError, match="unknown strategy 'alreduce'; did you mean 'allreduce'"):
        predict_replicas(fc(), Cluster(DEVICE), "alreduce", True)


def test_inference_exchanges_nothing():
    model = read_model("fc:layers=2,nodes=100,inputs=50,outputs=10")
    workload = make_workload(model, 8, phase="infer", replicas=2)
    head, *_ = predict_replicas(workload, Cluster(DEVICE), "allreduce", True)
    assert head.quantities["communication_s"].value == 0


def measured(strategy: str, overlap: bool, step_s: float) -> Record:
    return Record(
        origin="measured",
        method=make_record_method(
            "torch", "2.13.0", Options(threads=1, strategy=strategy, overlap=overlap), 1
        ),
        workload=fc(),
        platform="toy",
        quantities={"step_s": Quantity(samples=(step_s,) * 5)},
    )


def test_a_measurement_stands_beside_the_prediction_of_its_strategy():
    ways = [("allreduce", True), ("allreduce", False), ("independent", True)]
    cluster = Cluster(DEVICE, ((2, LINK),))
    predicted = [predict_replicas(fc(), cluster, *way)[0] for way in ways]
    found = predicted_and_measured([*predicted, *(measured(*way, 1.0) for way in ways)])
    assert not found.unpaired
    told = [(row["replicas"], row["strategy"], row["overlap"]) for row in found.pairs]
    assert told == [(2, *way) for way in ways]
    ends = [row["name"].partition("8")[2] for row in found.pairs]  # behind "batch 8"
    assert ends == [", allreduce", ", allreduce, no overlap", ", independent"]
    for row, record in zip(found.pairs, predicted, strict=True):
        assert row["a"]["value"] == record.quantities["step_s"].value


EXPERIMENT = """
name = "replicas"
backend = "null"
threads = 1
budget_s = 0.01
replicas = [1, 2]
strategy = ["allreduce", "independent"]
predict = "T4"
[[networks]]
family = "fc"
layers = 1
nodes = 4
inputs = 8
outputs = 4
batch = 2
"""


@pytest.mark.slow
def test_a_sweep_predicts_replicas_over_its_network(tmp_path, capsys):
    file, out = tmp_path / "e.toml", tmp_path / "out"
    file.write_text(EXPERIMENT)
    run(["sweep", str(file), "--out", str(out)])
    said = capsys.readouterr().err
    assert "1 predictions of several replicas are left out: link = " in said
    file.write_text('link = "aws"\n' + EXPERIMENT)
    run(["sweep", str(file), "--out", str(out)])
    assert "left out" not in capsys.readouterr().err
    predicted = [one for one in store.load(out, print) if one.origin == "predicted"]
    told = [(one.workload.plan.data, one.method.options.get("strategy")) for one in predicted]
    assert sorted(map(str, told)) == sorted(
        map(str, [(1, None), (2, "independent"), (2, "allreduce")])
    )
    file.write_text(EXPERIMENT.replace('predict = "T4"', 'link = "aws"'))
    assert run(["sweep", str(file), "--out", str(out)]) == 2
    assert "link is for predictions: it goes with predict" in capsys.readouterr().err
    file.write_text('link = "asw"\n' + EXPERIMENT)
    assert run(["sweep", str(file), "--out", str(out)]) == 2
    assert "unknown link 'asw'; did you mean 'aws'?" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.framework
def test_the_link_between_two_processes(capsys):
    answer = steptime.calibrate(only="link", threads=1, minutes=0.05)
    answer.print()
    shown = capsys.readouterr()
    assert "67.11 MB" in shown.out
    assert "use it as --link local" in shown.out
    document = answer.to_dict()
    assert document["link"] == "local"
    times = [row["all_reduce_s"] for row in document["rows"]]
    assert times[-1] > 3 * times[0]
    found = catalog.link("local")
    assert found.measured["processes"] == 2
    assert found.bytes_per_s == pytest.approx(document["bytes_per_s"])
