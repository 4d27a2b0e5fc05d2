"""The report in a real browser: all plots drawn, no complaint, no label upon another."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

import synthetic
from browsing import browse, complaints
from steptime.report.page import page

pytestmark = pytest.mark.browser

LOOK = """
<script>
const wait = setInterval(() => {
  if (!document.body.dataset.plots) return;
  clearInterval(wait);
  document.querySelectorAll("details").forEach((fold) => { fold.open = true; });
  const found = { plots: document.body.dataset.plots, overlaps: [], small: [], texts: 0 };
  for (const svg of document.querySelectorAll(".plot svg")) {
    const labels = [...svg.querySelectorAll("text")]
      .filter((text) => text.textContent.trim() && getComputedStyle(text).opacity !== "0")
      .filter((text) => !/rotate\\(-?(?!0\\))/.test(text.getAttribute("transform") || ""))
      .map((text) => ({ text: text.textContent, box: text.getBoundingClientRect(),
                        size: parseFloat(getComputedStyle(text).fontSize) }));
    found.texts += labels.length;
    labels.forEach((a, index) => {
      if (a.size < 11) found.small.push(a.text);
      for (const b of labels.slice(index + 1)) {
        const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
        const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
        if (across > 1 && down > 3) found.overlaps.push([a.text, b.text]);
      }
    });
  }
  found.wider = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const select = document.querySelector(".vega-bind select");
  const heading = () => document.querySelector("#plot-ops").textContent;
  const before = heading();
  select.value = [...select.options].at(-1).value;
  select.dispatchEvent(new Event("input"));
  select.dispatchEvent(new Event("change"));
  const buttons = [...document.querySelectorAll("#results thead button")];
  buttons.find((button) => button.textContent.includes("measured step")).click();
  const first = document.querySelector("#results tbody tr");
  const last = document.querySelector("#results tbody tr:last-child");
  found.first = first.textContent;
  found.last = last.textContent;
  setTimeout(() => {
    found.chosen = heading() !== before;
    const out = document.createElement("pre");
    out.id = "found";
    out.textContent = JSON.stringify(found);
    document.body.append(out);
  }, 500);
}, 50);
</script>
"""


def test_all_plots_are_drawn_without_overlap_or_complaint(chromium: str, tmp_path: Path) -> None:
    text, _ = page(synthetic.sweep(ops=True, failures=True), "results")
    path = tmp_path / "report.html"
    path.write_text(text + LOOK)
    answer = browse(chromium, path, "--dump-dom")
    assert complaints(answer) == []
    match = re.search(r'<pre id="found">(.*?)</pre>', answer.stdout, re.DOTALL)
    assert match, answer.stdout[-500:]
    found = json.loads(unescape(match[1]))
    assert found["plots"] == "ready"
    assert found["texts"] > 200
    assert found["overlaps"] == []
    assert found["small"] == []
    assert found["wider"] <= 0
    assert found["chosen"]
    assert "transformer width 128" in found["first"]  # the fastest step
    assert "oom" in found["last"] or "timeout" in found["last"]


def test_a_folder_of_failures_alone_has_no_complaint(chromium: str, tmp_path: Path) -> None:
    records = [synthetic.failed(synthetic.workloads()[0], "failed", "crashed", "signal 11")]
    path = tmp_path / "report.html"
    path.write_text(page(records, "results")[0])
    answer = browse(chromium, path, "--dump-dom")
    assert complaints(answer) == []
    assert 'data-plots="ready"' in answer.stdout


def test_a_picture_of_the_page_is_not_blank(chromium: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page(synthetic.sweep(), "results")[0])
    picture = tmp_path / "page.png"
    browse(chromium, path, f"--screenshot={picture}")
    assert picture.stat().st_size > 50_000
