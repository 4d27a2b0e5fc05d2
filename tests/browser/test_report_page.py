"""The report in a real browser: all plots drawn, no complaint, no label upon another."""

from __future__ import annotations

from pathlib import Path

import pytest

import synthetic
from browsing import answers, browse, complaints
from steptime.report.page import page

pytestmark = pytest.mark.browser

LOOK = r"""
const visible = (one) => one.textContent.trim() && getComputedStyle(one).display !== "none"
  && getComputedStyle(one).opacity !== "0";
function labels(svg) {
  return [...svg.querySelectorAll("text")].filter(visible)
    .filter((text) => !/rotate\(-?(?!0\))/.test(text.getAttribute("transform") || ""))
    .map((text) => ({ text: text.textContent, box: text.getBoundingClientRect() }));
}
async function look() {
  await Promise.allSettled(plots);
  const found = { plots: document.body.dataset.plots, overlaps: [], texts: 0 };
  for (const svg of document.querySelectorAll(".plot svg")) {
    const all = labels(svg);
    found.texts += all.length;
    all.forEach((a, index) => {
      for (const b of all.slice(index + 1)) {
        const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
        const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
        if (across > 1 && down > 3) found.overlaps.push([a.text, b.text]);
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
  found.first = document.querySelector("#results tbody tr").textContent;
  found.last = document.querySelector("#results tbody tr:last-child").textContent;
  parent.postMessage(JSON.stringify(found), "*");
}
look();
"""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_all_plots_are_drawn_without_overlap_or_complaint(
    chromium: str, tmp_path: Path, width: int, dark: bool
) -> None:
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


@pytest.mark.parametrize("kind", ONE_KIND)
def test_a_folder_of_one_kind_of_records_has_no_complaint(
    chromium: str, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(ONE_KIND[kind], "results")[0])
    answer = browse(chromium, path, "--dump-dom")
    assert complaints(answer) == []
    assert 'data-plots="ready"' in answer.stdout


def test_a_picture_of_the_page_is_not_blank(chromium: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(synthetic.sweep(), "results")[0])
    picture = tmp_path / "page.png"
    browse(chromium, path, f"--screenshot={picture}")
    assert picture.stat().st_size > 50_000
