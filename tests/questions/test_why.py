"""What a step waits for: cases that are bound by one thing by construction, predicted here."""

from __future__ import annotations

import json

import pytest

from every import every
from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.workload import Plan
from steptime.hardware import catalog
from steptime.prediction.host import Host
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.bound import BOUNDS, InputFeed, _host_path, find_critical_path
from steptime.questions.why.answer import WhyAnswer
from steptime.questions.why.diagnose import diagnose_record, diagnose_records, diagnose_step
from steptime.questions.why.setup import make_setup
from steptime.records import store
from steptime.records.record import Quantity, Record, RecordMethod


def _why(model: str, device: str, batch: int, dtype: str = "float32", **more) -> WhyAnswer:
    workload = make_workload(read_model(model), batch, dtype, more.pop("phase", "train"), "adam")
    if "link" in more:
        more["link"] = catalog.link(more["link"])
    return diagnose_step(make_setup(workload, catalog.device(device), **more))


WIDE, MANY = "fc:layers=8,nodes=8192", "fc:layers=64,nodes=32"
CASES = {  # bound by: (network, device, batch, ...)
    "large products on a GPU": ("compute", WIDE, "a100", 8192, {"dtype": "bfloat16-mixed"}),
    "large products on a TPU": ("compute", WIDE, "tpu-v2-8", 16384, {"dtype": "bfloat16"}),
    "large products on a CPU": ("compute", "fc:layers=4,nodes=2048", "epyc-7763", 512, {}),
    "weights read for one example": ("memory", WIDE, "h100", 1, {"phase": "infer"}),
    "elementwise ops and norms": ("memory", "densenet121", "h100", 512, {"dtype": "float16-mixed"}),
    "an optimizer of large weights": ("memory", WIDE, "tpu-v2-8", 1, {"dtype": "bfloat16"}),
    "weights read on a CPU": ("memory", "fc:layers=4,nodes=4096", "epyc-7763", 1, {}),
    "many tiny layers on a fast GPU": ("host", MANY, "h100", 16, {}),
    "many tiny layers on a CPU": ("host", MANY, "epyc-7763", 2, {}),
    "many tiny layers, bounds": ("host", MANY, "v100", 2, {"method": "analytic"}),
    "slow input": ("input", "resnet50", "a100", 64, {"input_per_s": 50.0}),
    "slow input of a CPU": ("input", "fc:layers=2,nodes=64", "epyc-7763", 64, {"input_per_s": 9}),
    "gradients over Ethernet": (
        "communication", WIDE, "a100", 64, {"replicas": 8, "link": "ethernet-10"},
    ),
    "gradients of CPUs over Ethernet": (
        "communication", "fc:layers=4,nodes=4096", "epyc-7763", 8,
        {"replicas": 4, "link": "ethernet-1"},
    ),
    "large products on Blackwell": ("compute", WIDE, "b200", 8192, {"dtype": "bfloat16-mixed"}),
    "weights read on an accelerator": ("memory", WIDE, "gaudi2", 1, {"dtype": "bfloat16"}),
    "weights read on an Arm CPU": ("memory", WIDE, "graviton3", 1, {"phase": "infer"}),
    "more tiny layers on a card": ("host", MANY, "rtx-4090", 4, {"dtype": "bfloat16-mixed"}),
    "slow input of a small GPU": ("input", "resnet18", "t4", 32, {"input_per_s": 40.0}),
    "gradients over a faster Ethernet": (
        "communication", WIDE, "l4", 32, {"replicas": 16, "link": "ethernet-25"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_diagnosis_is_what_was_constructed(name):
    bound, model, device, batch, more = CASES[name]
    if name == "many tiny layers, bounds":  # V100's file says nothing of the host
        launching = catalog.device(device).with_figures(launch_s=1e-5)
        workload = make_workload(read_model(model), batch, "float32", "train", "sgd")
        found = diagnose_step(make_setup(workload, launching, "analytic"))
    else:
        found = _why(model, device, batch, **more)
    assert found.bound == bound
    assert getattr(found.shares, bound) > 0.5
    assert sum(filter(None, found.shares.to_dict().values())) == pytest.approx(1)
    assert {*found.shares.to_dict()} == {*BOUNDS, "unexplained"}
    assert f"bound by {bound}" in found.headline[0]
    assert 1 <= len(found.ops) <= 3
    assert all(row.ceiling_share > 0 for row in found.ops)


HELPS = {  # what helps most of what changes hardware
    "large products on a TPU": "twice the peak",
    "an optimizer of large weights": "twice the memory bandwidth",
    "many tiny layers on a fast GPU": "a host that issues and launches twice as fast",
    "slow input": "input that never makes it wait",
    "gradients over Ethernet": "twice the rate of the link",
}


@pytest.mark.parametrize("name", HELPS)
def test_what_would_help_is_what_it_is_bound_by(name):
    _, model, device, batch, more = CASES[name]
    found = _why(model, device, batch, **more)
    hard = [row for row in found.helps if not row.change.startswith(("batch", "16 rep", "comp"))]
    assert hard[0].change == HELPS[name]
    assert all(row.speedup >= 1.02 for row in found.helps if "replicas" not in row.change)
    assert found.helps[0].change in found.headline[-1]


def test_a_faster_host_shortens_no_gap_of_the_device():
    """Gaps of 0.1 ms between kernels are the device's: its 40 ms are no host's 6."""
    slow = {"constants": {"launch.gap_s": 1e-4}}
    device = catalog.device("h100").with_calibration(slow)
    workload = make_workload(read_model(MANY), 16, "float32", "train", "adam")
    found = diagnose_step(make_setup(workload, device))
    assert found.step_s > 5 * (StepModel(workload, device).timeline().host_s or 0) > 0
    assert HELPS["many tiny layers on a fast GPU"] not in {row.change for row in found.helps}


@every(
    ("vocabulary", "stack", "helps"),
    [(50257, "torch-eager", True), (50304, "torch-eager", False), (50257, "torch-compile", False)],
)
def test_a_vocabulary_of_odd_size_is_worth_padding(vocabulary, stack, helps):
    """Each row of its gradient begins at an odd place of 2 bytes, unless the compiler pads it."""
    model = f"transformer:layers=2,width=768,length=1024,vocabulary={vocabulary}"
    found = _why(model, "h100", 16, "bfloat16-mixed", options={"stack": stack})
    named = {row.change: row.speedup for row in found.helps}
    padded = "sizes padded to multiples of 8"
    assert (padded in named) is helps
    if helps:
        even = _why(model.replace("50257", "50304"), "h100", 16, "bfloat16-mixed")
        assert named[padded] == pytest.approx(found.step_s / even.step_s, rel=0.01)


def test_half_the_replicas_work_more_each():
    _, model, device, batch, more = CASES["gradients over Ethernet"]
    rows = {row.change: row for row in _why(model, device, batch, **more).helps}
    fewer = rows["fewer replicas: 4"]
    assert fewer.speedup < 1 < fewer.per_device_speedup
    assert fewer.per_device_speedup == pytest.approx(2 * fewer.speedup)


def test_a_speed_up_is_that_of_another_prediction():
    found = _why("resnet50", "v100", 32)
    half = next(row for row in found.helps if row.change == "dtype float16-mixed")
    workload = make_workload(read_model("resnet50"), 32, "float16-mixed", "train", "adam")
    alone = StepModel(workload, "v100").timeline().step_s
    assert half.step_s == pytest.approx(alone)
    assert half.speedup == pytest.approx(found.step_s / alone)


def test_the_path_adds_up_to_the_step():
    for name, device in (("resnet50", "a100"), (MANY, "h100"), ("gpt2", "epyc-7763")):
        model = StepModel(name, device)
        assert find_critical_path(model).step_s == pytest.approx(model.timeline().step_s)


def test_the_host_on_the_critical_path():
    busy = (1.0, 4.0, 1.0)
    assert _host_path(busy, None) == (0.0, 0)
    # it waits: issued after 2, 3 and 4 s, so the first pass ends with the host, the others do not
    assert _host_path(busy, Host((2.0, 3.0, 4.0))) == (2.0, 1)
    assert _host_path(busy, Host((0.5, 0.6, 9.0))) == (9.0, 3)
    assert _host_path(busy, Host((0.0, 0.0, 0.0), base_s=0.25)) == (0.25, 0)
    # it runs ahead: all or nothing
    assert _host_path(busy, Host((2.0, 3.0, 5.9), waits=False)) == (0.0, 0)
    assert _host_path(busy, Host((2.0, 3.0, 6.1), waits=False)) == (6.1, 3)


def test_input_is_read_ahead_or_before():
    assert InputFeed(3.0).wait_s(2.0) == 1.0
    assert InputFeed(1.0).wait_s(2.0) == 0.0
    assert InputFeed(3.0, is_read_ahead=False).wait_s(2.0) == 3.0


def _record(
    step_s: float, input_s: float | None = None, communication_s: float | None = None, **options
):
    workload = make_workload(read_model("resnet50"), 64, "float32", "train", "sgd")
    columns = {"disturbed": (False,) * 4}
    quantities = {"step_s": Quantity(samples=(step_s,) * 4, columns=columns)}
    for name, value in (("input_s", input_s), ("communication_s", communication_s)):
        if value is not None:
            quantities[name] = Quantity(samples=(value,) * 4)
    return Record(
        "measured", RecordMethod("torch", "2", options), workload, "v100-sxm2-16gb", quantities
    )


def test_a_measured_step_is_split_by_what_was_measured():
    alone = _why("resnet50", "v100", 64)
    found = diagnose_record(_record(0.4, input_s=0.1, communication_s=0.08))
    assert found.origin == "measured"
    assert found.shares.input == pytest.approx(0.25)
    assert found.shares.communication == pytest.approx(0.2)
    assert found.shares.compute / found.shares.memory == pytest.approx(
        alone.shares.compute / alone.shares.memory, rel=0.05
    )
    assert found.evidence.ratio == pytest.approx(0.22 / found.evidence.predicted_s)
    assert any("waiting for input" in line for line in found.headline)
    assert sum(filter(None, found.shares.to_dict().values())) == pytest.approx(1)


def test_a_record_of_replicas_says_how_many():
    alone = _record(0.4, communication_s=0.3)
    found = diagnose_record(replace(alone, workload=replace(alone.workload, plan=Plan(data=4))))
    assert (found.bound, found.replicas) == ("communication", 4)
    assert "on 4 x v100-sxm2-16gb" in found.headline[0]
    assert any("Communication was measured at 300 ms" in line for line in found.headline)


def test_what_the_interval_cannot_hold_is_unexplained():
    found = diagnose_record(_record(10.0, input_s=0.1))
    high = _why("resnet50", "v100", 64).high_s
    assert found.shares.unexplained == pytest.approx((9.9 - high) / 10, rel=0.05)
    assert "not explained by the model" in found.headline[2]
    assert found.evidence.is_within_interval is False


def test_input_that_is_not_read_ahead_helps_by_its_time():
    found = diagnose_record(_record(0.4, input_s=0.2))
    rows = {row.change: row for row in found.helps}
    assert rows["input that never makes it wait"].speedup == pytest.approx(2)
    ahead = diagnose_record(_record(0.4, input_s=0.2, input="dataset", loaders=2))
    assert [row.change for row in ahead.helps] == ["input that never makes it wait"]


def test_records_that_cannot_be_told():
    lost = replace(_record(1.0), status="oom", quantities={})
    elsewhere = replace(_record(1.0), platform="nowhere")
    said = list(diagnose_records([lost, elsewhere, _record(0.2)]))
    assert said[0] == "no time of a step: oom"
    assert "no device file has the name of platform 'nowhere'" in said[1]
    assert said[2].bound == "compute"


def test_a_folder_of_one_step_and_of_several(tmp_path, capsys):
    with store.open_writer(tmp_path / "one") as writer:
        writer.append(_record(0.2))
    assert run(["why", "--in", str(tmp_path / "one"), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["bound"] == "compute"
    assert alone["evidence"]["sample_count"] == 4
    assert alone["helps"]
    with store.open_writer(tmp_path / "two") as writer:
        writer.append(_record(0.2))
        writer.append(replace(_record(0.5, input_s=0.45), platform="a100-sxm4-80gb"))
    assert run(["why", "--in", str(tmp_path / "two"), "--json"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert {row["bound"]: row["step_count"] for row in both["bounds"]} == {"compute": 1, "input": 1}
    assert [one["bound"] for one in both["rows"]] == ["compute", "input"]
    assert run(["why", "resnet", "--in", str(tmp_path / "one")]) == 0
    shown = capsys.readouterr().out
    assert "bound by compute" in shown
    assert alone["headline"][-2] not in shown  # tables say it


def test_what_the_model_does_not_explain_is_said_before_what_binds(tmp_path, capsys):
    found = diagnose_record(_record(90.0))
    assert found.shares.unexplained > 0.5
    assert "unexplained; what it explains is bound by compute" in found.headline[0]
    assert found.headline[-1] == "Nothing that the model knows would make it 2 % faster."
    with store.open_writer(tmp_path) as writer:
        writer.append_all([_record(90.0), _record(0.2)])
    assert run(["why", "--in", str(tmp_path)]) == 0
    seen = capsys.readouterr()
    assert "unexplained" in seen.out
    assert "of 1 step the model leaves more than half unexplained" in seen.err + seen.out


def test_a_step_that_does_not_fit_is_noted_as_predict_does():
    answer = _why("gpt2", "t4", 512)
    workload = make_workload(read_model("gpt2"), 512, "float32", "train", "adam")
    remarks = StepModel(workload, "t4").predict().remarks
    assert "out of memory" in answer.notes[0]
    assert answer.notes == tuple(" ".join(remark.split()) for remark in remarks)
