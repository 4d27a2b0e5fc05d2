"""The page to explore in a real browser: its numbers are those of the command line."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from browsing import browse, complaints
from steptime.build import build_step, make_workload, read_model
from steptime.cli.main import run
from steptime.count import peak_memory_bytes

pytestmark = pytest.mark.browser

RTOL = 1e-9
NUMBERS = (
    *("workers", "global_batch", "batch_per_worker", "step_s", "speedup", "efficiency"),
    *("forward_s", "backward_s", "update_s", "compute_s", "samples_per_s"),
    *("epoch_s", "train_s", "device_hours", "cost"),
)

CHOICES = (
    "network=resnet50&device=v100-sxm2-16gb&link=infiniband-edr&batch=64&workers=1,2,4,...,128",
    "network=alexnet_v2&device=k20&link=ethernet&method=paleo&software=caffe&batch=256&price=0.9",
    (
        "network=inception_v3&device=TITAN_X&link=ethernet20&method=paleo&software=tensorflow"
        "&scaling=strong&batch=100&workers=1,3,7,128&collective=butterfly-mixing"
    ),
    (
        "network=nin&device=K20X&link=infiniband&method=paleo&software=caffe&scaling=strong"
        "&batch=1024&workers=1,32,128"
    ),
    (
        "network=vgg16&device=H100&link=infiniband-ndr&dtype=bfloat16&batch=4096&workers=1,6,8,48"
        "&collective=hierarchical&inside=nvlink-4&per_node=4&latency=2.5"
    ),
    (
        "network=densenet121&device=CPU_I7&link=ethernet-25&ppp_comp=0.37&ppp_comm=0.815&batch=7"
        "&workers=1,5,12&collective=halving-doubling&samples=50000&epochs=0.5&price=3.1"
    ),
    (
        "network=bert_base&device=P100&link=nvlink-1&dtype=float16&batch=3&workers=4,16"
        "&collective=parameter-server&servers=3&epochs=3"
    ),
    (
        "network=mobilenet_v2&device=GEFORCE_750_M&link=pcie3&method=paleo&ppp_comp=0.4&ppp_comm=1"
        "&batch=33&workers=1,2,3,4,5,6,7,8,9,10&collective=one-to-all"
    ),
    "network=fc&device=own&link=pcie-4-x16&batch=65536&scaling=strong&workers=1..4096 x4,9,65536",
    (
        "network=squeezenet1_1&device=a100&link=efa-1-p4d&software=mxnet&scaling=strong&batch=500"
        "&workers=1,2,4,...,512&collective=butterfly"
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
<script>
const until = (seen) => new Promise((done) => {
  const wait = setInterval(() => { if (seen()) { clearInterval(wait); done(); } }, 5);
});
const answer = () => JSON.parse(document.getElementById("result").textContent);
async function ask(fragment) {
  document.getElementById("result").textContent = "";
  location.hash = fragment;
  await until(() => document.getElementById("result").textContent);
  const small = [...document.querySelectorAll("main *")]
    .filter((one) => one.textContent && parseFloat(getComputedStyle(one).fontSize) < 11);
  return { ...answer(), command: document.getElementById("command").textContent,
    headline: document.getElementById("headline").textContent,
    errors: document.getElementById("errors").textContent, small: small.length,
    notes: document.getElementById("notes").textContent, address: location.hash,
    dim: document.getElementById("shown").classList.contains("old"),
    width: innerWidth,
    wider: document.documentElement.scrollWidth - document.documentElement.clientWidth };
}
(async () => {
  const found = [answer()];
  for (const fragment of FRAGMENTS) found.push(await ask(fragment));
  parent.postMessage(JSON.stringify(found), "*");
})();
</script>
"""

USE = """
<script>
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
</script>
"""

FRAME = """<!doctype html>
<link rel="icon" href="data:,">
<iframe src="asked.html#FIRST" width="WIDTH" height="900" style="border: 0"></iframe>
<pre id="found"></pre>
<script>
onmessage = (event) => { document.getElementById("found").textContent = event.data; };
</script>
"""  # a window cannot be narrower than 500 pixels, a frame can


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the page on every network and device, and one more device with a host of its own."""
    folder = tmp_path_factory.mktemp("explored")
    (folder / "own.toml").write_text(OWN)
    names = sorted({re.findall(r"network=(\w+)", choice)[0] for choice in CHOICES})
    devices = "K20,K80,TITAN_X,K20X,CPU_I7,GEFORCE_750_M,V100,H100,P100,A100,tpu-v3"
    arguments = ["--models", ",".join([*names, "alexnet"]), "-o", str(folder / "explore.html")]
    assert run(["explore", *arguments, "--devices", f"{devices},{folder / 'own.toml'}"]) == 0
    return folder


def asked(
    chromium: str, folder: Path, fragments: tuple[str, ...], first: str = "", width: int = 1280
) -> list[dict[str, Any]]:
    """Give what the page says with `first` in its address, then after each of the fragments."""
    script = ASK.replace("FRAGMENTS", json.dumps(fragments))
    return answers(chromium, folder, script, first, width)


def answers(
    chromium: str, folder: Path, script: str, first: str = "", width: int = 1280
) -> list[dict[str, Any]]:
    """Give what a script finds in the page, which it posts to the page around."""
    text = (folder / "explore.html").read_text()
    (folder / "asked.html").write_text(text + script)
    path = folder / "frame.html"
    path.write_text(FRAME.replace("FIRST", first).replace("WIDTH", str(width)))
    answer = browse(chromium, path, "--dump-dom", size="1400,1000", budget_ms=20_000)
    assert complaints(answer) == []
    match = re.search(r'<pre id="found">(.+?)</pre>', answer.stdout, re.DOTALL)
    assert match, answer.stdout[-500:]
    found: list[dict[str, Any]] = json.loads(unescape(match[1]))
    return found


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
            assert ours["comm_s"].keys() == wanted["comm_s"].keys()
            for name, value in wanted["comm_s"].items():
                assert close(ours["comm_s"][name], value), (found["command"], name)
        row, texts = found["rows"][-1], found["texts"]
        workload = make_workload(read_model(texts["network"]), None, texts["dtype"])
        at = replace(workload, batch_per_replica=row["batch_per_worker"])
        assert row["peak_memory_bytes"] == peak_memory_bytes(build_step(at))


def test_the_first_address_is_read_and_written_back(chromium: str, explored: Path) -> None:
    first = "network=NIN&device=p100&link=pcie3&batch=48&workers=1,2,4,...,16"
    opened, again = asked(chromium, explored, ("",), first)
    assert opened["texts"]["network"] == "nin"
    assert opened["texts"]["device"] == "p100-pcie-16gb"
    assert [row["workers"] for row in opened["rows"]] == [1, 2, 4, 8, 16]
    assert again["texts"]["network"] == "resnet50"  # an empty address is the page's own choice
    assert again["address"].startswith("#network=resnet50&device=v100-sxm2-16gb&link=")


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_window_or_too_small(
    chromium: str, explored: Path, width: int
) -> None:
    wrong = f"batch={'9' * 300}&network={'x' * 300}"
    for found in asked(chromium, explored, (*CHOICES, wrong), width=width)[1:]:
        assert found["width"] == width
        assert found["wider"] <= 0, found["command"]
        assert found["small"] == 0


def test_wrong_text_is_told_and_the_last_result_is_marked_as_old(
    chromium: str, explored: Path
) -> None:
    wrong = {
        "batch=0": "batch: must be 1 to 65,536, not 0",
        "batch=1e3": "batch: must be a whole number, not '1e3'",
        "workers=1,2,2": "workers: 2 is given twice",
        "workers=1,2,...,8": "needs three numbers",
        "workers=1,2,4,...,9": "does not meet 9",
        "workers=4..2": "workers: '4..2 +1' is no range",
        "workers=1..1000000": "workers: at most 200 numbers",
        "workers=": "workers: must be a whole number, not ''",
        "ppp_comp=1.5&ppp_comm=1": "above 0 and at most 1, not '1.5'",
        "price=free": "price: must be a number above 0, not 'free'",
        "epochs=-1": "epochs: must be a number above 0",
        "network=resnet51": "unknown network 'resnet51'",
        "colour=red": "the address has no 'colour'",
        "device=tpu-v3": "no peak is known for float32; known: bfloat16",
        "device=tpu-v3&dtype=bfloat16&method=paleo": "no peak is known for float32",
        "network=alexnet&method=paleo": "its filter gradient comes out",
        "scaling=strong&batch=4&workers=8,16": "8, 16 workers cannot share a batch of 4 examples",
    }
    answers = asked(chromium, explored, ("network=nin&batch=8", *wrong))
    good = answers[1]
    assert not good["dim"]
    for (fragment, message), found in zip(wrong.items(), answers[2:], strict=True):
        assert message in found["errors"], fragment
        assert found["old"]
        assert found["dim"]
        assert found["rows"] == good["rows"]


def test_what_does_not_fit_and_what_is_not_known_is_said(chromium: str, explored: Path) -> None:
    fragments = (
        "network=vgg16&device=V100&batch=1024&workers=1,2",
        "network=vgg16&device=own&batch=16&workers=1",
        "network=nin&scaling=strong&batch=4&workers=1,3,8",
        "network=bert_base&method=paleo&batch=1&workers=1",
        "network=vgg16&scaling=strong&batch=512&workers=1,2,4,8",
    )
    _, large, own, shared, paleo, first = asked(chromium, explored, fragments)
    assert not large["rows"][0]["fits"]
    assert "v100-sxm2-16gb has 16 GB: it does not fit" in large["notes"]
    assert "if the memory were large enough" in large["headline"]
    assert "the memory of own is not known" in own["notes"]
    assert "infiniband-edr: no latency is known, so none is counted" in own["notes"]
    assert [row["workers"] for row in shared["rows"]] == [1, 3]
    assert "8 workers cannot share a batch of 4 examples: left out" in shared["notes"]
    assert "3 workers do not divide the batch evenly" in shared["notes"]
    assert "Paleo knows no attention" in paleo["notes"]
    assert [row["fits"] for row in first["rows"]] == [False, False, True, True]
    assert "does not fit with 1, 2 workers" in first["notes"]
    assert "if the memory" not in first["headline"]


def test_a_change_in_the_form_changes_the_result_and_the_address(
    chromium: str, explored: Path
) -> None:
    before, caffe, own, paleo, twice = answers(chromium, explored, USE, "network=nin&batch=64")
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
