"""Every chart alone in a real browser: no complaint, not blank, no label cut or upon another."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import unescape

import pytest
import vl_convert

import synthetic
from browsing import answers, browse, complaints
from steptime.core.copying import replace
from steptime.records.data import Data
from steptime.records.record import Record
from steptime.reports.charts import EmptyPlotError, draw, list_plots, style
from steptime.reports.files import save

pytestmark = pytest.mark.browser

PLATFORMS = (synthetic.PLATFORM, "v100-sxm2-16gb", "h100-sxm5", "rtx-pro-6000-blackwell-max-q")
LONG = "a-network-with-a-very-long-name-that-someone-gave-it"
PAGE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><body>
<script>BUNDLE</script><pre id="found"></pre><script>
const specs = SPECS, found = {};
function inspected(svg) {
  const frame = svg.getBoundingClientRect();
  const shown = (one) => one.textContent.trim() && getComputedStyle(one).opacity !== "0";
  const level = (one) => !/rotate\\(-?(?!0\\))/.test(one.getAttribute("transform") || "");
  const all = [...svg.querySelectorAll("text")].filter(shown).filter(level)
    .map((one) => ({ text: one.textContent, box: one.getBoundingClientRect() }));
  const overlaps = [], cut = all.filter((one) => one.box.left < frame.left - 2
    || one.box.right > frame.right + 2 || one.box.top < frame.top - 2).map((one) => one.text);
  all.forEach((a, index) => all.slice(index + 1).forEach((b) => {
    const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
    const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
    const halo = a.text === b.text && a.box.left === b.box.left;
    if (across > 1 && down > 3 && !halo) overlaps.push([a.text, b.text]);
  }));
  const marks = svg.querySelectorAll(".mark-symbol path, .mark-rect path, .mark-line path").length;
  return { texts: all.length, marks, overlaps, cut };
}
async function main() {
  for (const [kind, spec] of Object.entries(specs)) {
    const place = document.body.appendChild(document.createElement("div"));
    await vegaEmbed(place, spec, { renderer: "svg", actions: false });
    found[kind] = inspected(place.querySelector("svg"));
  }
  document.getElementById("found").textContent = JSON.stringify(found);
}
main();
</script>"""


def of(platforms: Sequence[str], networks: int, *, ops: bool = False) -> list[Record]:
    """Return networks measured and predicted on each platform; one in 17 fails."""
    found = []
    base = synthetic.workloads()
    for index in range(networks):
        first = base[index % len(base)]
        size = next(n for n in ("nodes", "filters", "embedding", "width") if n in first.params)
        grown = int(first.params[size]) + index // len(base)
        workload = replace(first, params={**first.params, size: grown})
        for at, platform in enumerate(platforms):
            mine = synthetic.predicted(workload, ops=ops)
            done = synthetic.measured(workload, seed=platform, slower=1 + at)
            failed = synthetic.failed(workload, "oom", "killed", "")
            mine.append(failed if index % 17 == 16 else done)
            found += [replace(record, platform=platform) for record in mine]
    return found


def long() -> list[Record]:
    renamed = []
    for record in of(PLATFORMS[:1], 6, ops=True):
        params = {"a_hyperparameter_with_a_long_name": record.workload.params["nodes"]}
        renamed.append(
            replace(record, workload=replace(record.workload, model=LONG, params=params))
        )
    return renamed


def lacking() -> list[Record]:
    networks = synthetic.workloads()
    return [
        *(synthetic.measured(one) for one in networks[:12]),
        *(record for one in networks[8:] for record in synthetic.predicted(one)),
        *(synthetic.failed(one, "timeout", "time-limit", "") for one in networks[4:9]),
    ]


@pytest.mark.parametrize(
    ("records", "dark"),
    [
        ("four platforms", False),
        ("lacking", False),
        *(
            pytest.param(one, False, marks=pytest.mark.rare)
            for one in ("five", "many", "long names")
        ),
        ("five", True),  # colours move nothing
    ],
)
def test_charts_are_whole(chromium, tmp_path, records, dark):
    given = {
        "five": lambda: of(PLATFORMS[:1], 5, ops=True),
        "four platforms": lambda: of(PLATFORMS, 24, ops=True),
        "long names": long,
        "lacking": lacking,
        "many": lambda: of(PLATFORMS[:2], 2500),
    }
    data, specs = Data.from_records(given[records]()), {}
    for kind in list_plots():
        try:
            specs[kind] = draw(kind, data) | {"config": style.config(dark=dark)}
        except EmptyPlotError:
            continue
    assert len(specs) >= 5
    text = json.dumps(specs)
    large = {kind: len(json.dumps(spec)) for kind, spec in specs.items()}
    assert max(large.values()) < 2_500_000, large
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    path = tmp_path / "charts.html"
    path.write_text(PAGE.replace("BUNDLE", bundle).replace("SPECS", text.replace("</", "<\\/")))
    answer = browse(chromium, path, "--dump-dom", budget_ms=60_000)
    assert complaints(answer) == []
    match = re.search(r'<pre id="found">(.+?)</pre>', answer.stdout, re.DOTALL)
    assert match, answer.stdout[-500:]
    found = json.loads(unescape(match[1]))
    assert set(found) == set(specs)
    for kind, one in found.items():
        assert one["texts"] > 4, kind
        assert one["marks"] > 0, kind
        assert one["overlaps"] == [], kind
        assert one["cut"] == [], kind


ALONE = r"""
const shown = (one) => one.textContent.trim() && !/rotate\(-?(?!0\))/.test(
  one.getAttribute("transform") || "");
async function inspected() {
  while (!place.view) await new Promise((next) => setTimeout(next, 50));
  const svg = document.querySelector("#chart svg");
  const names = [...svg.querySelectorAll(".mark-text text")].filter(shown)
    .map((one) => ({ text: one.textContent, box: one.getBoundingClientRect() }));
  const level = [...svg.querySelectorAll("line")].map((one) => one.getBoundingClientRect())
    .filter((box) => box.height < 2 && box.width > 20);
  parent.postMessage(JSON.stringify({
    back: getComputedStyle(svg).backgroundColor,
    names: names.length,
    turned: [...svg.querySelectorAll("text")].filter((one) => /DRAM/.test(one.textContent)
      && !shown(one)).length,
    upon: names.filter(({ box }) => level.some((line) => line.top > box.top + 2
      && line.top < box.bottom - 2 && line.left < box.right && line.right > box.left))
      .map(({ text }) => text),
  }), "*");
}
inspected();
"""


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (500, False)])
def test_a_roofline_alone_has_the_colours_of_its_page_and_names_beside_lines(
    chromium, tmp_path, width, dark
):
    path = tmp_path / "roofline.html"
    save(draw("roofline", Data.from_records(of(PLATFORMS[:2], 12))), path)
    found = answers(chromium, path, ALONE, width=width, dark=dark)
    assert found["back"] == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")
    assert found["names"] >= 4
    assert found["turned"] >= 2  # along the slopes
    assert found["upon"] == []
