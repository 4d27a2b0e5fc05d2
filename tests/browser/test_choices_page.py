"""The page of `choose` in a real browser: a choice, a link to it, a table, and a phone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from browsing import answers
from steptime.cli.main import run

pytestmark = pytest.mark.browser

WORDS = (
    "resnet50,bert_base --device a100,t4,k20,h100 --batch 8,512 --link nvlink-3,ethernet-10 "
    "--replicas 1,2,8 --examples 1000000 --epochs 3 --dtype float32 --optimizer adam"
)

ASK = """
async function settled() {
  for (let i = 0; i < 20; i += 1) await new Promise((done) => setTimeout(done, 50));
}
async function ask(choice) {
  for (const [name, value] of Object.entries(choice)) byId("sort").value = choice.sort
    ?? byId("sort").value, field(name) && (field(name).value = value);
  form.dispatchEvent(new Event("input"));
  await settled();
  const text = (id) => document.getElementById(id).textContent;
  const small = [...document.querySelectorAll("main *")]
    .filter((one) => one.textContent && parseFloat(getComputedStyle(one).fontSize) < 11);
  return { ...JSON.parse(text("result")), command: text("command"), headline: text("headline"),
    rows: byId("rows").tBodies[0].rows.length, shown: !byId("shown").hidden,
    devices: [...byId("devices").tBodies[0].rows].map((row) => row.cells[0].textContent),
    marks: document.querySelectorAll("#chart-parts .mark-rect path").length,
    cost: !byId("chart-cost").closest("figure").hidden, tiles: text("tiles"),
    errors: byId("errors").hidden ? "" : text("errors"), address: location.hash,
    small: small.length, back: getComputedStyle(document.body).backgroundColor,
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
    """Return a folder with the page of two networks on four devices."""
    made = tmp_path_factory.mktemp("choices")
    assert run(["choose", *WORDS.split(), "--page", str(made / "choices.html")]) == 0
    return made


def asked(
    chromium: str, folder: Path, *choices: dict[str, str], first: str = "", **look: Any
) -> list[dict[str, Any]]:
    """Return what the page says after each of the choices."""
    script = ASK.replace("CHOICES", json.dumps(choices))
    found: list[dict[str, Any]] = answers(chromium, folder / "choices.html", script, first, **look)
    return found


def test_a_choice_is_what_the_command_line_answers(chromium, folder, capsys):
    choices = (
        {"model": "resnet50", "device": "a100-sxm4-80gb", "batch": "best", "replicas": "8"},
        {"model": "bert_base", "device": "t4", "batch": "8", "link": "ethernet-10"},
    )
    for found in asked(chromium, folder, *choices):
        capsys.readouterr()
        assert run([*shlex.split(found["command"])[1:], "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        for name in ("step_s", "low_s", "high_s", "speedup", "examples_per_s"):
            assert found["row"][name] == pytest.approx(row[name], rel=1e-5)
        assert found["shown"]
        assert found["rows"] == 3
        assert found["marks"] == 3 * 4  # of each number of replicas the parts of a step
        assert found["small"] == 0


def test_devices_go_by_time_or_cost_and_what_does_not_fit_is_last(chromium, folder):
    one = {"model": "resnet50", "device": "h100-sxm5", "batch": "512", "replicas": "1"}
    by_time, by_cost = asked(chromium, folder, {**one, "sort": "train_h"}, {**one, "sort": "cost"})
    assert by_time["devices"][0] == "h100-sxm5"
    assert sorted(by_cost["devices"]) == sorted(by_time["devices"])
    (large,) = asked(chromium, folder, {**one, "device": "t4"})
    assert "out of memory" in large["headline"]
    assert by_time["devices"][-1] in {"t4", "tesla-k20"}


def test_an_address_is_a_choice_and_what_it_has_not_is_said(chromium, folder):
    script = """parent.postMessage(JSON.stringify([{
      ...JSON.parse(byId("result").textContent),
      errors: byId("errors").hidden ? "" : byId("errors").textContent }]), "*");"""
    first = "device=t4&replicas=3<b>&colour=red"
    (found,) = answers(chromium, folder / "choices.html", script, first)
    assert found["at"]["device"] == "t4"
    assert "which this page has not" in found["errors"]
    assert "colour" in found["errors"]


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(chromium, folder, dark):
    (found,) = asked(chromium, folder, {"replicas": "8"}, width=390, dark=dark)
    assert found["wider"] <= 0
    assert found["back"] == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")
