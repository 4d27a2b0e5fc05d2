"""The page to explore in a real browser: its numbers are those of the command line."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from browsing import answers
from steptime.build import build_step, make_workload, read_model
from steptime.cli.main import run
from steptime.hardware import catalog
from steptime.network.count import peak_memory_bytes
from steptime.prediction.step_model import StepModel

pytestmark = pytest.mark.browser

RTOL = 1e-4  # of fractions of 13 bits, which add up
NUMBERS = (
    *("workers", "global_batch", "batch_per_worker", "step_s", "speedup", "efficiency"),
    *("forward_s", "backward_s", "update_s", "compute_s", "samples_per_s"),
    *("epoch_s", "train_s", "device_hours", "cost"),
)
ENDS_RTOL = 8e-3  # of a byte, and of kernels of one time that are told apart

CHOICES = (
    "network=resnet50&device=v100-sxm2-16gb&link=infiniband-edr&dtype=float32&replicas=128",
    (
        "network=alexnet_v2&device=k20&link=ethernet&method=paleo&software=caffe&batch=256"
        "&price=0.9&workers=1,2,4,...,128"
    ),
    (
        "network=inception_v3&device=TITAN_X&link=ethernet20&method=paleo&software=tensorflow"
        "&scaling=strong&batch=1024&replicas=128&collective=butterfly-mixing"
    ),
    (
        "network=nin&device=K20X&link=infiniband&method=paleo&software=caffe&scaling=strong"
        "&batch=1024&replicas=32"
    ),
    (
        "network=vgg16&device=H100&link=infiniband-ndr&dtype=bfloat16&method=analytic"
        "&optimizer=sgd&batch=4096&replicas=48&collective=hierarchical&inside=nvlink-4&per_node=4&links_per_node=4"
        "&latency=2.5"
    ),
    (
        "network=densenet121&device=CPU_I7&link=ethernet-25&dtype=float32&method=analytic&ppp_comp=0.37"
        "&ppp_comm=0.815&batch=8&replicas=12&collective=halving-doubling&samples=50000&epochs=0.5"
        "&price=3.1"
    ),
    (
        "network=bert_base&device=P100&link=nvlink-1&dtype=float16&method=analytic&batch=4&replicas=16"
        "&collective=parameter-server&servers=4&epochs=3"
    ),
    (
        "network=mobilenet_v2&device=GEFORCE_750_M&link=pcie3&method=paleo&ppp_comp=0.4&ppp_comm=1"
        "&batch=32&replicas=6&collective=one-to-all"
    ),
    (
        "network=fc&device=own&link=pcie-4-x16&dtype=float32&batch=65536&scaling=strong"
        "&replicas=1024&inside=nvlink-2"
    ),
    (
        "network=squeezenet1_1&device=a100&link=efa-1-p4d&method=analytic&software=mxnet&scaling=strong&batch=512"
        "&dtype=float16-mixed&optimizer=sgd&replicas=512&collective=butterfly"
    ),
)

OWN = """
name = "own"
kind = "gpu"
source = "made for this test"
memory_GB_per_s = 100
launch_us = 40
[peak_TFLOP_per_s]
float32 = 20
"""

ASK = """
const answer = () => JSON.parse(document.getElementById("result").textContent);
const heard = () => new Promise((done) =>
  window.addEventListener("hashchange", done, { once: true }));
async function ask(fragment) {
  if (location.hash.slice(1) !== fragment) {
    const changed = heard();
    location.hash = fragment;
    await changed;
  }
  const small = [...document.querySelectorAll("main *")]
    .filter((one) => one.textContent && parseFloat(getComputedStyle(one).fontSize) < 11);
  return { ...answer(), command: document.getElementById("command").textContent,
    headline: document.getElementById("headline").textContent,
    errors: document.getElementById("errors").textContent, small: small.length,
    notes: document.getElementById("notes").textContent, address: location.hash,
    dim: document.getElementById("shown").classList.contains("old"),
    back: getComputedStyle(document.body).backgroundColor,
    groups: [...document.querySelectorAll("optgroup")].map((one) => one.label),
    cost: !document.getElementById("chart-cost").closest("figure").hidden,
    width: innerWidth,
    wider: document.documentElement.scrollWidth - document.documentElement.clientWidth };
}
(async () => {
  const found = [{ ...answer(), ...await ask(location.hash.slice(1)) }];
  for (const fragment of FRAGMENTS) found.push(await ask(fragment));
  parent.postMessage(JSON.stringify(found), "*");
})();
"""

USE = """
const found = [];
const state = () => ({ values: texts(), address: location.hash,
  latency: !document.getElementById("latency").hidden,
  step: JSON.parse(document.getElementById("result").textContent).rows[0].step_s });
function type(name, text) {
  field(name).value = text;
  field(name).dispatchEvent(new Event("input", { bubbles: true }));
  found.push(state());
}
found.push(state());
type("software", "caffe");
type("ppp_comp", "0.42");
type("method", "paleo");
type("batch", "128");
document.getElementById("copy").click();
parent.postMessage(JSON.stringify(found), "*");
"""


DEVICES = """
const rows = deviceRows(last.choice, "cost");
parent.postMessage(JSON.stringify(rows.map((row) => ({ ...row, device: row.device.name }))), "*");
"""


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page on every network and device, and one more device with a host of its own."""
    folder = tmp_path_factory.mktemp("explored")
    (folder / "own.toml").write_text(OWN)
    names = sorted({re.findall(r"network=(\w+)", choice)[0] for choice in CHOICES})
    devices = "K20,K80,TITAN_X,K20X,CPU_I7,GEFORCE_750_M,V100,H100,P100,A100,tpu-v3"
    arguments = ["--models", ",".join([*names, "alexnet"]), "-o", str(folder / "explore.html")]
    assert run(["explore", *arguments, "--devices", f"{devices},{folder / 'own.toml'}"]) == 0
    return folder


def asked(
    chromium: str,
    folder: Path,
    fragments: tuple[str, ...],
    first: str = "",
    width: int = 1280,
    **look: bool,
) -> Any:
    """Return what the page says with `first` in its address, then after each of the fragments."""
    script = ASK.replace("FRAGMENTS", json.dumps(fragments))
    return answers(chromium, folder / "explore.html", script, first, width, **look)


def close(ours: float | None, wanted: float | None) -> bool:
    if ours is None or wanted is None:
        return ours is wanted
    return math.isclose(ours, wanted, rel_tol=RTOL)


def test_ten_choices_have_the_numbers_of_the_command_line(
    chromium: str, explored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    for found in asked(chromium, explored, CHOICES)[1:]:
        assert found["faults"] == [], found
        assert not found["old"]
        words = shlex.split(found["command"])
        assert run(words[1:]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["collective"] == found["collective"]
        assert document["stops_paying"] == found["stops_paying"]
        assert len(document["rows"]) == len(found["rows"]) > 1
        for ours, wanted in zip(found["rows"], document["rows"], strict=True):
            for name in NUMBERS:
                assert close(ours[name], wanted[name]), (found["command"], name, ours, wanted)
            for name in ("low_s", "high_s"):
                assert wanted[name] == (ours[name] and pytest.approx(ours[name], rel=ENDS_RTOL))
            assert ours["comm_s"].keys() == wanted["comm_s"].keys()
            for name, value in wanted["comm_s"].items():
                assert close(ours["comm_s"][name], value), (found["command"], name)
        row = found["rows"][-1]
        word = dict(zip(words[3::2], words[4::2], strict=False))
        optimizer, dtype = word["--optimizer"], word["--dtype"]
        workload = make_workload(read_model(words[2]), None, dtype, "train", optimizer)
        at = replace(workload, batch_per_replica=row["batch_per_worker"])
        stack = StepModel(workload, word["--device"], method=document["method"]).stack
        assert row["peak_memory_bytes"] == peak_memory_bytes(build_step(at), stack)


def test_every_device_alone_is_as_the_command_choose_has_it(
    chromium: str, explored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = "network=resnet50&samples=50000&epochs=3"
    ours = answers(chromium, explored / "explore.html", DEVICES, first)
    capsys.readouterr()
    words = ["--dtype", "bfloat16-mixed", "--optimizer", "adam", "--samples", "50000"]
    wanted = {}
    for batch in {row["batch"] for row in ours}:
        names = ",".join(row["device"] for row in ours if row["batch"] == batch)
        more = ["--batch", str(batch), "--epochs", "3", "--devices", names, "--json"]
        assert run(["choose", "resnet50", *words, *more]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        wanted |= {row["device"]: row for row in rows}
    assert len(ours) == len(wanted) > 1
    costs = [row["cost"] for row in ours if row["cost"] is not None]
    assert costs == sorted(costs) != []
    for row in ours:
        same = wanted[row["device"]]
        assert row["batch"] == same["best_batch"]
        assert close(row["step_s"], same["step_s"])
        assert close(row["hours"], same["train_s"] / 3600)
        assert row["cost"] == (same["cost"] and pytest.approx(same["cost"], rel=0.01))  # by seconds
        for name in ("low_s", "high_s"):
            assert row[name] == (same[name] and pytest.approx(same[name], rel=ENDS_RTOL))
        of_gpu = catalog.device(row["device"]).kind == "gpu"  # the page knows no other's energy
        energy = same["energy_j"] if of_gpu else None
        assert row["energy"] == (energy and pytest.approx(energy / 3.6e6, rel=RTOL))


def test_between_listed_batches_times_lie_between(chromium: str, explored: Path) -> None:
    fragments = tuple(f"network=nin&device=V100&dtype=float32&batch={n}" for n in (32, 48, 64))
    _, low, between, high = asked(chromium, explored, fragments)
    first, middle, last = (found["rows"][0] for found in (low, between, high))
    share = math.log(48 / 32) / math.log(2)
    for name in ("forward_s", "backward_s"):
        power = (last[name] / first[name]) ** share
        assert middle[name] == pytest.approx(first[name] * power, rel=1e-12)
    memory = (first["peak_memory_bytes"] + last["peak_memory_bytes"]) / 2
    assert middle["peak_memory_bytes"] == pytest.approx(memory, abs=1)
    assert "batch 48: not listed" in between["notes"]
    assert "not listed" not in low["notes"]


def test_a_current_machine_is_what_the_page_opens_with(chromium: str, explored: Path) -> None:
    (opened,) = asked(chromium, explored, ())
    texts = opened["texts"]
    assert (texts["network"], texts["device"]) == ("resnet50", "h100-sxm5")
    assert (opened["dtype"], texts["optimizer"], texts["price"]) == ("bfloat16-mixed", "adam", "")
    assert texts["method"] == "calibrated"
    assert [row["workers"] for row in opened["rows"]] == [1, 2, 4, 8]
    assert "in bfloat16-mixed with Adam, h100-sxm5 has 85.04 GB" in opened["notes"]
    assert "hours and cost $" in opened["headline"]  # at the least price of the shipped offers
    assert opened["cost"]
    kinds = ["NVIDIA data centre", "Google TPU", "Others", "Paleo's own figures"]
    assert opened["groups"] == kinds


def test_a_type_that_the_device_lacks_is_said_and_the_rest_is_kept(
    chromium: str, explored: Path
) -> None:
    first = "network=nin&device=V100&dtype=bfloat16-mixed&optimizer=adam"
    opened, tpu = asked(chromium, explored, ("network=nin&device=tpu-v3&dtype=float32",), first)
    assert not opened["faults"]
    assert opened["dtype"] == "float16-mixed"
    assert "v100-sxm2-16gb has no peak for bfloat16-mixed" in opened["notes"]
    assert "shown in float16-mixed" in opened["notes"]
    assert "--dtype float16-mixed --optimizer adam" in opened["command"]
    assert tpu["dtype"] == "bfloat16-mixed"


def test_the_first_address_is_read_and_written_back(chromium: str, explored: Path) -> None:
    first = "network=NIN&device=p100&link=pcie3&batch=48&workers=1,2,4,...,16&dtype=float32"
    opened, again = asked(chromium, explored, ("",), first)
    assert opened["texts"]["network"] == "nin"
    assert opened["texts"]["device"] == "p100-pcie-16gb"
    assert [row["workers"] for row in opened["rows"]] == [1, 2, 4, 8, 16]
    assert again["texts"]["network"] == "resnet50"  # an empty address is the page's own choice
    assert again["address"].startswith("#network=resnet50&device=h100-sxm5&link=")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_nothing_is_wider_than_the_window_or_too_small(
    chromium: str, explored: Path, width: int, dark: bool
) -> None:
    wrong = f"batch={'9' * 300}&network={'x' * 300}"
    for found in asked(chromium, explored, (*CHOICES, wrong), width=width, dark=dark)[1:]:
        assert found["back"] == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")
        assert found["width"] == width
        assert found["wider"] <= 0, found["command"]
        assert found["small"] == 0


def test_wrong_text_is_told_and_the_last_result_is_marked_as_old(
    chromium: str, explored: Path
) -> None:
    wrong = {
        "batch=0": "batch: must be a whole number from 1 to 65,536, not '0'",
        "batch=1e3": "batch: must be a whole number from 1 to 65,536, not '1e3'",
        "replicas=9": "unknown replicas '9'",
        "workers=1,2,...,9": "unknown replicas '9'",
        "method=analytic&ppp_comp=1.5&ppp_comm=1": "above 0 and at most 1, not '1.5'",
        "price=free": "price: must be a number above 0, not 'free'",
        "epochs=-1": "epochs: must be a number above 0",
        "network=resnet51": "unknown network 'resnet51'",
        "colour=red": "the address has no 'colour'",
        "device=tpu-v3&method=paleo": "tpu-v3: no peak is known for any listed type",
        "network=alexnet&method=paleo": "its filter gradient comes out",
    }
    told = asked(chromium, explored, ("network=nin&batch=8", *wrong))
    good = told[1]
    assert not good["dim"]
    for (fragment, message), found in zip(wrong.items(), told[2:], strict=True):
        assert message in found["errors"], fragment
        assert found["old"]
        assert found["dim"]
        assert found["rows"] == good["rows"]


def test_what_does_not_fit_and_what_is_not_known_is_said(chromium: str, explored: Path) -> None:
    fragments = (
        "network=vgg16&device=V100&dtype=float32&batch=1024&replicas=2",
        "network=vgg16&device=own&dtype=float32&link=infiniband&batch=16&replicas=1",
        "network=nin&scaling=strong&batch=4&replicas=8",
        "network=bert_base&device=K80&method=paleo&batch=1&replicas=1",
        "network=vgg16&device=V100&dtype=float32&scaling=strong&batch=512&replicas=8",
        "network=nin&scaling=strong&batch=4&replicas=3",
    )
    _, large, own, shared, paleo, first, three = asked(chromium, explored, fragments)
    assert not large["rows"][0]["fits"]
    assert "v100-sxm2-16gb has 17.01 GB: it does not fit" in large["notes"]
    assert "if the memory were large enough" in large["headline"]
    assert "the memory of own is not known" in own["notes"]
    assert "infiniband: no latency is known, so none is counted" in own["notes"]
    assert [row["workers"] for row in shared["rows"]] == [1, 2, 4]
    assert "8 replicas cannot share a batch of 4 examples: left out" in shared["notes"]
    assert "3 replicas do not divide the batch evenly" in three["notes"]
    assert "Paleo knows no attention" in paleo["notes"]
    assert [row["fits"] for row in first["rows"]] == [False, False, True, True]
    assert "does not fit with 1, 2 replicas" in first["notes"]
    assert "if the memory" not in first["headline"]


def test_a_change_in_the_form_changes_the_result_and_the_address(
    chromium: str, explored: Path
) -> None:
    first = "network=nin&device=K80&dtype=float32&method=analytic&batch=64"
    before, caffe, own, paleo, twice = answers(chromium, explored / "explore.html", USE, first)
    assert (caffe["values"]["ppp_comp"], caffe["values"]["ppp_comm"]) == ("0.21", "0.56")
    assert caffe["step"] == pytest.approx(before["step"] / 0.21)  # nothing waits for the host
    assert "software=caffe&batch=64" in caffe["address"]
    assert own["values"]["software"] == "own"
    assert own["step"] == pytest.approx(before["step"] / 0.42)
    assert "software=own&ppp_comp=0.42&ppp_comm=0.56&" in own["address"]
    assert own["latency"]
    assert not paleo["latency"]  # Paleo's rules have none
    assert "method=paleo" in paleo["address"]
    assert twice["step"] > paleo["step"]
