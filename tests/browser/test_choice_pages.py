"""The pages of `choose` and `plan` in a real browser: what is chosen is what is answered.

Each page is opened four times, at 400 and 1300 pixels, light and dark; each time choices are made,
the layout is measured, and an accessibility checker, axe-core, looks at the page.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from browsing import answers
from steptime.cli.main import run

pytestmark = pytest.mark.browser

AXE = Path(sys.prefix) / "mnist/axe_playwright_python/axe.min.js"  # where make puts it
LOOKS = [
    (400, True),
    (1300, False),
    pytest.param(400, False, marks=pytest.mark.rare),
    pytest.param(1300, True, marks=pytest.mark.rare),
]
BACKGROUNDS = {False: "rgb(255, 255, 255)", True: "rgb(21, 24, 28)"}
SMALL = "transformer:layers=8,width=1024,heads=8,vocabulary=32000"
LARGE = "transformer:layers=96,width=12288,heads=96,vocabulary=51200"


@dataclass(frozen=True)
class Case:
    """A page and what is asked of it.

    Attributes:
        name: the file of the page.
        words: the words of the command.
        first: the address with which the page opens; a part of it names what the page has not.
        choices: the choices, one after the other; `{}` is the choice of the address.
    """

    name: str
    words: str
    first: str
    choices: tuple[dict[str, str], ...]


CHOOSE = Case(
    "choose",
    "choose resnet50,bert_base --device a100,t4,k20,h100 --batch 8,512 --link nvlink-3,ethernet-10 "
    "--replicas 1,2,8 --examples 1000000 --epochs 3 --dtype float32,float16-mixed --optimizer adam",
    "device=t4&replicas=3<b>&colour=red&max_price=0.6",
    (
        {},
        {
            "model": "resnet50",
            "device": "a100-sxm4-80gb",
            "batch": "best",
            "replicas": "8",
            "max_price": "",
        },
        {
            "model": "bert_base",
            "device": "t4",
            "batch": "8",
            "link": "ethernet-10",
            "dtype": "float16-mixed",
        },
        {"model": "resnet50", "device": "t4", "batch": "512", "replicas": "1", "dtype": "float32"},
        {"sort": "cost", "device": "h100-sxm5"},
    ),
)
WEIGHTS = Case(
    "weights",
    "choose llama3_8b,llama3_70b --device rtx-3070,rtx-4090,m4-max-gpu,a40,ryzen-9-7950x,tpu-v5e "
    "--weights all --length 2048,4096",
    "device=rtx-4090&weights=q9<b>&min_speed=20&max_price=2",
    (
        {},
        {"device": "rtx-3070", "weights": "q4_k_m", "min_speed": "", "max_price": ""},
        {"weights": "all", "device": "m4-max-gpu", "context": "4096"},
        {"model": "llama3_70b", "device": "rtx-3070"},
        {"sort": "cost", "model": "llama3_8b", "device": "ryzen-9-7950x", "weights": "q8_0"},
    ),
)
PLAN = Case(
    "plan",
    f"plan {SMALL},{LARGE} --device a100-sxm4-80gb,h100-sxm5 --device-count 4,16 "
    "--global-batch 32,64 --length 1024 --inside nvlink-3,nvlink-4 --link infiniband-ndr "
    "--tokens 1e11 --zero 1 --sequence-parallel --dtype bfloat16-mixed,float16-mixed",
    "device=h100-sxm5&device_count=5<b>",
    (
        {},
        {
            "device": "h100-sxm5",
            "device_count": "16",
            "global_batch": "64",
            "dtype": "float16-mixed",
        },
        {"model": LARGE, "device_count": "4"},
    ),
)

ANSWERED_OF_WEIGHTS = (
    *("file_bytes", "needed_bytes", "longest_context", "bits_per_weight"),
    *("tokens_per_s_per_user", "tokens_per_s_low", "tokens_per_s_high", "prefill_tokens_per_s"),
    "cost_per_million_tokens",
)

ASK = """
async function settled() {
  for (let i = 0; i < 20; i += 1) await new Promise((done) => setTimeout(done, 50));
}
async function ask(choice) {
  for (const [name, value] of Object.entries(choice)) (field(name) ?? byId(name)).value = value;
  if (Object.keys(choice).length) form.dispatchEvent(new Event("input"));
  await settled();
  const text = (id) => document.getElementById(id)?.textContent ?? "";
  const first = (id) => [...document.querySelectorAll(`#${id} tbody tr`)]
    .map((row) => row.cells[0].textContent);
  const marks = (name) => document.querySelectorAll(`#chart-${name} .mark-rect path`).length;
  const small = [...document.querySelectorAll("main *")].filter((one) => one.textContent
    && one instanceof HTMLElement && parseFloat(getComputedStyle(one).fontSize) < 11);
  return { ...JSON.parse(text("result")), command: text("command"), headline: text("headline"),
    rows: first("rows"), types: first("types"), splits: first("splits"),
    devices: first("devices"), tiles: text("tiles"),
    hidden: text("hidden-devices"), shown: !byId("shown").hidden, small: small.length,
    parts: marks("parts"), pipeline: marks("pipeline"), memory: marks("memory"), why: marks("why"),
    dots: document.querySelectorAll("#chart-speed .mark-symbol.role-mark path").length,
    errors: byId("errors").hidden ? "" : text("errors"), address: location.hash,
    back: getComputedStyle(document.body).backgroundColor,
    wider: document.documentElement.scrollWidth - document.documentElement.clientWidth };
}
(async () => {
  const asked = [];
  for (const choice of CHOICES) asked.push(await ask(choice));
  const { violations } = window.axe ? await axe.run() : { violations: null };
  const faults = violations?.map(({ id, nodes }) => [id, ...nodes.map((node) => node.html)]);
  parent.postMessage(JSON.stringify({ asked, faults: faults ?? null }), "*");
})();
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return a folder with all pages."""
    folder = tmp_path_factory.mktemp("pages")
    for case in (CHOOSE, WEIGHTS, PLAN):
        page = folder / f"{case.name}.html"
        assert run([*case.words.split(), "--page", str(page)]) == 0
    return folder


def look_at(chromium: str, pages: Path, case: Case, width: int, dark: bool) -> list[dict[str, Any]]:
    """Return what a page says after each choice; it is as wide as it is, and axe finds nothing."""
    checker = AXE.read_text("utf-8") if AXE.is_file() else ""
    script = f"{checker}\n{ASK.replace('CHOICES', json.dumps(case.choices))}"
    page = pages / f"{case.name}.html"
    found = answers(chromium, page, script, case.first, width, dark=dark)
    if checker:
        assert found["faults"] == []
    for answer in found["asked"]:
        assert answer["wider"] <= 0
        assert answer["small"] == 0
        assert answer["back"] == BACKGROUNDS[dark]
    asked: list[dict[str, Any]] = found["asked"]
    return asked


def answer_of(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what the command line under a choice answers."""
    capsys.readouterr()
    assert run([*shlex.split(command)[1:], "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_page_of_devices(chromium, pages, capsys, width, dark):
    opened, best, mixed, large, by_cost = look_at(chromium, pages, CHOOSE, width, dark)
    assert opened["at"]["device"] == "t4"
    assert "which this page has not" in opened["errors"]
    assert "colour" in opened["errors"]
    assert "max_price=0.6" in opened["address"]
    assert opened["devices"] == ["t4"]  # the others cost more, or have no price
    assert "3 devices above $0.60 an hour" in opened["hidden"]
    assert "max_price" not in best["address"]
    assert "best" in best["address"]
    assert len(best["devices"]) >= 3
    assert "fits: of" in best["tiles"]
    assert "out of memory" in large["headline"]
    assert "does not fit" in large["tiles"]
    assert sorted(by_cost["devices"]) == sorted(large["devices"])
    assert best["parts"] == 3 * 4  # of each number of replicas the parts of a step
    if (width, dark) != LOOKS[-1]:
        return
    for found in (best, mixed):
        (row,) = answer_of(found["command"], capsys)["rows"]
        for name in ("step_s", "low_s", "high_s", "speedup", "examples_per_s"):
            assert found["row"][name] == pytest.approx(row[name], rel=1e-5)
        assert found["shown"]
        assert found["rows"] == ["1", "2", "8"]
    assert "--dtype float16-mixed" in mixed["command"]
    assert mixed["row"]["precision"] == "float16-mixed"


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_page_of_weights(chromium, pages, capsys, width, dark):
    opened, small, best, large, by_cost = look_at(chromium, pages, WEIGHTS, width, dark)
    assert "weights 'q9<b>', which this page has not" in opened["errors"]
    assert opened["at"]["device"] == "rtx-4090"
    assert opened["devices"] == ["rtx-4090", "a40"]  # the others have no price, or are slow
    assert "3 devices too slow, too dear, or without a price" in opened["hidden"]
    assert {"min_speed=20", "max_price=2"} <= set(opened["address"][1:].split("&"))
    assert "min_speed" not in small["address"]
    assert "rtx-3070: fits" in small["headline"]
    assert len(small["types"]) == small["memory"] == small["dots"] == 17
    assert best["row"]["type"] == "f16"  # of all types the one of most bits
    assert best["devices"][0] == "rtx-4090"  # the fastest that it fits
    assert "out of memory" in large["headline"]
    assert large["devices"][0] == "m4-max-gpu"
    assert by_cost["devices"][0] == "rtx-4090"
    assert "of unknown room" in by_cost["headline"]
    if (width, dark) != LOOKS[-1]:
        return
    for found in (opened, small, best, large, by_cost):
        (row,) = answer_of(found["command"], capsys)["rows"]
        assert (found["row"]["type"], found["row"]["verdict"]) == (row["weights"], row["verdict"])
        numbers = {name: row[name] for name in ANSWERED_OF_WEIGHTS if row[name] is not None}
        absent = {name for name in ANSWERED_OF_WEIGHTS if found["row"][name] is None}
        assert absent == {*ANSWERED_OF_WEIGHTS} - {*numbers}
        assert {name: found["row"][name] for name in numbers} == pytest.approx(numbers, rel=1e-5)


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_the_page_of_plans(chromium, pages, capsys, width, dark):
    opened, best, large = look_at(chromium, pages, PLAN, width, dark)
    assert opened["at"]["device"] == "h100-sxm5"
    assert opened["at"]["device_count"] == "4"
    assert "device_count '5<b>'" in opened["errors"]
    assert "global_batch=64" in best["address"]
    assert not large["shown"]
    assert large["best"] is None
    assert "the nearest needs" in large["headline"]
    if (width, dark) != LOOKS[-1]:
        return
    for found in (opened, best):
        told = answer_of(found["command"], capsys)
        assert found["best"]["plan"] == told["best"]["plan"]
        for key in ("step_s", "low_s", "high_s", "mfu", "cost_total", "training", "memory"):
            assert found["best"][key] == told["best"][key]
        assert len(found["splits"]) == len(told["rows"])
        assert len(found["devices"]) == 4  # two devices, two numbers
        assert min(found["pipeline"], found["memory"], found["why"]) >= 3
        assert "hours of 100 G tokens" in found["tiles"]
    assert "--dtype float16-mixed" in best["command"]
