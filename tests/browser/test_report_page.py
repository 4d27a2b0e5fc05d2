"""The report in a real browser: all plots drawn, no complaint, no label upon another."""

from __future__ import annotations

from itertools import cycle, islice

import pytest

import synthetic
from browsing import answers, browse, complaints
from steptime.core.copying import replace
from steptime.core.units import format_seconds
from steptime.records.data import Data
from steptime.records.record import Record
from steptime.reports.page import page

pytestmark = pytest.mark.browser

LOOK = r"""
const visible = (one) => one.textContent.trim() && getComputedStyle(one).display !== "none"
  && getComputedStyle(one).opacity !== "0";
function labels(svg) {
  return [...svg.querySelectorAll("text")].filter(visible)
    .filter((text) => !/rotate\(-?(?!0\))/.test(text.getAttribute("transform") || ""))
    .map((text) => ({ text: text.textContent, box: text.getBoundingClientRect() }));
}
async function inspected() {
  await Promise.allSettled(plots);
  const found = { plots: document.body.dataset.plots, overlaps: [], texts: 0 };
  for (const svg of document.querySelectorAll(".plot svg")) {
    const all = labels(svg);
    found.texts += all.length;
    all.forEach((a, index) => {
      for (const b of all.slice(index + 1)) {
        const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
        const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
        const halo = a.text === b.text && a.box.left === b.box.left; // behind its own text
        if (across > 1 && down > 3 && !halo) found.overlaps.push([a.text, b.text]);
      }
    });
  }
  found.small = [...document.querySelectorAll("main *")].filter(visible)
    .filter((one) => parseFloat(getComputedStyle(one).fontSize) < 11).length;
  const page = document.documentElement;
  found.width = innerWidth;
  found.wider = page.scrollWidth - page.clientWidth;
  found.dragged = Math.max(...[...document.querySelectorAll(".wide")]
    .map((one) => one.scrollWidth - one.clientWidth));
  found.cut = [...document.querySelectorAll("figure")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1)
    .map((one) => one.textContent.slice(0, 40));
  found.tall = Math.max(...[...document.querySelectorAll(".plot")].map((one) => one.clientHeight));
  found.back = getComputedStyle(document.body).backgroundColor;
  found.ink = getComputedStyle(document.querySelector("#plot-roofline .role-axis-label text")).fill;
  found.labels = [...document.querySelectorAll("#results tbody tr:first-child td")]
    .map((cell) => [cell.dataset.name, getComputedStyle(cell, "::before").content !== "none"]);
  const select = document.querySelector(".vega-bind select");
  const place = document.querySelector("#plot-ops");
  const before = place.textContent;
  select.value = [...select.options].at(-1).value;
  select.dispatchEvent(new Event("input"));
  select.dispatchEvent(new Event("change"));
  await place.view.runAsync();
  found.chosen = place.textContent !== before;
  const buttons = [...document.querySelectorAll("#results thead button")];
  buttons.find((button) => button.textContent.includes("measured step")).click();
  document.querySelector("#more").click();
  found.first = document.querySelector("#results tbody tr").textContent;
  found.last = document.querySelector("#results tbody tr:last-child").textContent;
  parent.postMessage(JSON.stringify(found), "*");
}
inspected();
"""


@pytest.mark.parametrize(
    ("width", "dark"),
    [(1280, False), pytest.param(1280, True, marks=pytest.mark.rare), (390, False)],
)
def test_all_plots_are_drawn_without_overlap_or_complaint(chromium, tmp_path, width, dark):
    path = tmp_path / "report.html"
    path.write_text(page(synthetic.sweep(ops=True, failures=True), "results")[0])
    found = answers(chromium, path, LOOK, width=width, dark=dark)
    assert found["plots"] == "ready"
    assert found["texts"] > 200
    assert found["overlaps"] == []
    assert found["small"] == 0
    assert found["width"] == width
    assert found["wider"] <= 0
    assert found["dragged"] <= 0  # tables are read without dragging them
    assert found["cut"] == []
    assert found["tall"] < (2000 if width > 1000 else 4600)
    assert found["chosen"]
    assert "transformer width 128" in found["first"]  # the fastest step
    assert "oom" in found["last"] or "timeout" in found["last"]
    assert found["back"] == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")
    assert found["ink"] == ("rgb(230, 230, 230)" if dark else "rgb(34, 34, 34)")
    assert found["labels"][0] == ["status", width == 390]


ONE_KIND = {
    "failures": [synthetic.failed(synthetic.workloads()[0], "failed", "crashed", "signal 11")],
    "predictions": [one for w in synthetic.workloads() for one in synthetic.predicted(w, ops=True)],
    "measurements": [synthetic.measured(w) for w in synthetic.workloads()],
    "a pair": [synthetic.measured(w, runs=3) for w in synthetic.workloads()[:1]]
    + synthetic.predicted(synthetic.workloads()[0]),
}


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.rare), 390])
def test_the_charts_of_four_platforms_fit_their_room(chromium, tmp_path, width):
    base = synthetic.sweep(ops=True)
    platforms = (synthetic.PLATFORM, "v100-sxm2-16gb", "h100-sxm5", "rtx-pro-6000-blackwell-max-q")
    path = tmp_path / "report.html"
    path.write_text(page([replace(r, platform=p) for p in platforms for r in base], "results")[0])
    script = """
ready.then(() => parent.postMessage(JSON.stringify([...document.querySelectorAll(".plot")]
  .filter((one) => one.clientWidth)
  .map((one) => [one.id, one.scrollWidth - one.clientWidth])), "*"));
"""
    found = dict(answers(chromium, path, script, width=width))
    assert len(found) > 5
    assert set(found.values()) == {0}, found


@pytest.mark.parametrize("kind", ONE_KIND)
def test_a_folder_of_one_kind_of_records_has_no_complaint(chromium, tmp_path, kind):
    path = tmp_path / "report.html"
    path.write_text(page(ONE_KIND[kind], "results")[0])
    answer = browse(chromium, path, "--dump-dom")
    assert complaints(answer) == []
    assert 'data-plots="ready"' in answer.stdout


def test_a_picture_of_the_page_is_not_blank(chromium, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page(synthetic.sweep(), "results")[0])
    picture = tmp_path / "page.png"
    browse(chromium, path, f"--screenshot={picture}")
    assert picture.stat().st_size > 50_000


THOUSAND = r"""
const rows = () => [...document.querySelectorAll("#results tbody tr")];
const pressed = (text) => [...document.querySelectorAll("#results thead button")]
  .find((one) => one.textContent.includes(text)).click();
const settled = () => new Promise((done) => { setTimeout(done, 500); });
async function used() {
  await Promise.allSettled(plots);
  const found = { plots: document.body.dataset.plots, first: rows().length };
  const page = document.documentElement;
  found.wider = page.scrollWidth - page.clientWidth;
  pressed("measured step");
  found.fastest = rows()[0].textContent;
  pressed("measured step");
  found.slowest = rows()[0].textContent;
  const words = document.querySelector("#filter input");
  words.value = "nodes 107 64";
  words.dispatchEvent(new Event("input"));
  found.filtered = rows().map((row) => row.cells[0].textContent);
  found.said = document.querySelector("#filter output").textContent;
  rows()[0].cells[1].click();
  await settled();
  const dialog = document.querySelector("#network");
  found.open = dialog.open;
  found.hash = decodeURIComponent(location.hash);
  found.name = dialog.querySelector("h2").textContent;
  found.text = dialog.textContent;
  found.points = dialog.querySelectorAll(".plot svg .mark-symbol.role-mark path").length;
  const links = [];
  HTMLAnchorElement.prototype.click = function () { links.push([this.download, this.href]); };
  for (const button of document.querySelectorAll("#predicted .save")) button.click();
  await settled();
  found.saved = await Promise.all(links.map(async ([name, href]) =>
    [name, href.startsWith("data:") ? atob(href.split(",")[1]).slice(1, 4) : href.slice(0, 5)]));
  dialog.close();
  dialog.dispatchEvent(new Event("close")); // a browser without a screen never says it
  await settled();
  found.closed = [dialog.open, location.hash];
  words.value = "";
  words.dispatchEvent(new Event("input"));
  document.querySelector("#more").click();
  found.all = rows().length;
  parent.postMessage(JSON.stringify(found), "*");
}
used();
"""


@pytest.fixture(scope="module")
def records():
    """A thousand networks, each with 130 samples."""
    records = []
    for index in range(1000):
        workload = replace(synthetic.workloads()[0], params={"layers": 4, "nodes": 8 + index})
        records += [*synthetic.predicted(workload), many_samples(synthetic.measured(workload))]
    return records


@pytest.fixture(scope="module")
def thousand(records):
    return page(records, "results", "steptime report results")[0]


def many_samples(record: Record) -> Record:
    step = record.quantities["step_s"]
    columns = {name: tuple(islice(cycle(one), 130)) for name, one in step.columns.items()}
    longer = replace(step, samples=tuple(islice(cycle(step.samples), 130)), columns=columns)
    return replace(record, quantities={**record.quantities, "step_s": longer})


@pytest.mark.parametrize(
    ("width", "dark"), [pytest.param(1280, True, marks=pytest.mark.rare), (390, False)]
)
def test_a_thousand_networks_are_sorted_filtered_and_opened(
    chromium, tmp_path, thousand, records, width, dark
):
    assert len(thousand.encode()) < 3_000_000
    path = tmp_path / "report.html"
    path.write_text(thousand)
    found = answers(chromium, path, THOUSAND, width=width, dark=dark)
    assert found["plots"] == "ready"
    assert found["first"] == (6 if width == 390 else 25)
    assert found["wider"] <= 0
    times = [row["measured_s"] for row in Data.from_records(records).results]
    assert f"ok{format_seconds(min(times))}" in found["fastest"]
    assert f"ok{format_seconds(max(times))}" in found["slowest"]
    assert found["filtered"] == ["fc nodes 107, batch 64"]
    assert found["said"] == "1 of 1,000 networks"
    assert found["open"]
    assert found["hash"] == "#network=fc nodes 107, batch 64"
    assert found["name"] == "fc nodes 107, batch 64"
    assert "130 samples in 1 run" in found["text"]
    assert "host test-host" in found["text"]
    assert found["points"] == 120  # of 130: 120,000 for the page
    assert found["saved"] == [["predicted.svg", "blob:"], ["predicted.png", "PNG"]]
    assert found["closed"] == [False, "#networks"]
    assert found["all"] == 1000


def test_a_network_opens_by_its_address(chromium, tmp_path, thousand):
    path = tmp_path / "report.html"
    path.write_text(thousand)
    script = (
        "setTimeout(() => parent.postMessage(JSON.stringify("
        '[document.querySelector("#network").open, document.querySelector("h2#network-name")'
        '.textContent]), "*"), 1000)'
    )
    found = answers(chromium, path, script, "network=fc nodes 500, batch 64")
    assert found == [True, "fc nodes 500, batch 64"]


def test_a_printed_page_has_its_table_and_its_charts(chromium, tmp_path, thousand):
    path = tmp_path / "report.html"
    path.write_text(thousand)
    printed = tmp_path / "page.pdf"
    browse(chromium, path, f"--print-to-pdf={printed}")
    assert printed.read_bytes()[:5] == b"%PDF-"
    assert printed.stat().st_size > 50_000
