"""The page of plans in a real browser: what is chosen there is what the command line answers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from browsing import answers
from steptime.cli.main import run

pytestmark = pytest.mark.browser

SMALL = "transformer:layers=8,width=1024,heads=8,vocabulary=32000"
LARGE = "transformer:layers=96,width=12288,heads=96,vocabulary=51200"
WORDS = (
    f"{SMALL},{LARGE} --device a100-sxm4-80gb,h100-sxm5 --device-count 4,16 "
    "--global-batch 32,64 --length 1024 --inside nvlink-3,nvlink-4 --link infiniband-ndr "
    "--tokens 1e11 --zero 1 --sequence-parallel"
)

ASK = """
const marks = (name) => document.querySelectorAll(`#chart-${name} .mark-rect path`);
async function settled() {
  for (let i = 0; i < 40; i += 1) await new Promise((done) => setTimeout(done, 50));
}
async function ask(choice) {
  for (const [name, value] of Object.entries(choice)) field(name).value = value;
  form.dispatchEvent(new Event("input"));
  await settled();
  const text = (id) => document.getElementById(id).textContent;
  const rows = (id) => document.querySelectorAll(`#${id} tbody tr`).length;
  return { ...JSON.parse(text("result")), command: text("command"), headline: text("headline"),
    splits: rows("splits"), beside: rows("devices"), shown: !byId("shown").hidden,
    tiles: text("tiles"), errors: byId("errors").hidden ? "" : text("errors"),
    bars: marks("pipeline").length, held: marks("memory").length, why: marks("why").length,
    back: getComputedStyle(document.body).backgroundColor, address: location.hash,
    wider: document.documentElement.scrollWidth - document.documentElement.clientWidth };
}
(async () => {
  const found = [];
  for (const choice of CHOICES) found.push(await ask(choice));
  parent.postMessage(JSON.stringify(found), "*");
})();
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the page of two networks, two devices, two numbers and two batches."""
    made = tmp_path_factory.mktemp("plans")
    assert run(["plan", *WORDS.split(), "--page", str(made / "plans.html")]) == 0
    return made


def asked(
    chromium: str, folder: Path, *choices: dict[str, str], first: str = "", **look: Any
) -> list[dict[str, Any]]:
    """Return what the page says after each of the choices."""
    script = ASK.replace("CHOICES", json.dumps(choices))
    found: list[dict[str, Any]] = answers(chromium, folder / "plans.html", script, first, **look)
    return found


def test_a_choice_is_what_the_command_line_answers(chromium, folder, capsys):
    choices = ({}, {"device": "h100-sxm5", "device_count": "16", "global_batch": "64"})
    capsys.readouterr()
    for found in asked(chromium, folder, *choices):
        assert found["shown"]
        assert run([*shlex.split(found["command"])[1:], "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert found["best"]["plan"] == told["best"]["plan"]
        for key in ("step_s", "low_s", "high_s", "mfu", "cost_total", "training", "memory"):
            assert found["best"][key] == told["best"][key]
        assert found["splits"] == len(told["rows"])
        assert found["beside"] == 4  # two devices, two numbers
        assert found["bars"] >= 3
        assert found["held"] >= 3
        assert found["why"] >= 3
        assert "hours of 100 G tokens" in found["tiles"]


def test_what_no_split_fits_is_said(chromium, folder):
    (found,) = asked(chromium, folder, {"model": LARGE})
    assert not found["shown"]
    assert found["best"] is None
    assert "the nearest needs" in found["headline"]


def test_an_address_is_a_choice_and_what_it_has_not_is_said(chromium, folder):
    first = "device=h100-sxm5&device_count=5<b>"
    (found,) = asked(chromium, folder, {}, first=first)
    assert found["at"]["device"] == "h100-sxm5"
    assert found["at"]["device_count"] == "4"
    (kept,) = asked(chromium, folder, {"global_batch": "64"})
    assert "global_batch=64" in kept["address"]


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(chromium, folder, dark):
    (found,) = asked(chromium, folder, {"device_count": "16"}, width=390, dark=dark)
    assert found["wider"] <= 0
    assert found["back"] == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")
