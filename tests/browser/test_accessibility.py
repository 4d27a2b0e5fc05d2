"""An accessibility checker, axe-core, finds nothing on a report or a chart, light or dark."""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from pathlib import Path

import pytest

import synthetic
from browsing import browse
from steptime.cli.main import run
from steptime.core.tables.table import UNSUCCESSFUL
from steptime.records import store

pytestmark = pytest.mark.browser

AXE = Path(sys.prefix) / "mnist/axe_playwright_python/axe.min.js"  # where make puts it
CHECK = """<script>AXE</script><script>
setTimeout(async () => {
  const { violations } = await axe.run();
  const found = violations.map((one) => [one.id, ...one.nodes.map((node) => node.html)]);
  document.body.append(Object.assign(document.createElement("pre"),
    { id: "violations", textContent: JSON.stringify(found) }));
}, 3000);
</script></body>"""
PAGES = {
    "report": "report results --expected predicted -o page.html",
    "picture": "analyse roofline results -o page.html",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with predictions of some networks, and measurements of others."""
    made = tmp_path_factory.mktemp("pages")
    words = "fc:layers=4,nodes=256..1024x2 --grid --device t4 --batch 64,256 --out"
    assert run(["predict", *words.split(), str(made / "results")]) == 0
    with store.open_writer(made / "results") as writer:
        for record in synthetic.sweep()[:4] + synthetic.sweep()[-24:-20]:
            writer.append(record)
    return made


def violations(chromium: str, page: Path, *look: str) -> list[list[str]]:
    text = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", page.read_text("utf-8"))
    script = CHECK.replace("AXE", AXE.read_text("utf-8"))
    checked = page.with_suffix(".checked.html")
    checked.write_text(text.replace("</body>", script), encoding="utf-8")
    answer = browse(chromium, checked, "--dump-dom", *look, budget_ms=20_000)
    match = re.search(r'<pre id="violations">(.+?)</pre>', answer.stdout, re.DOTALL)
    assert match, answer.stdout[-500:]
    return json.loads(unescape(match[1]))


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: make puts it into .venv")
@pytest.mark.parametrize("name", PAGES)
def test_a_checker_finds_nothing(name, chromium, folder, monkeypatch):
    monkeypatch.chdir(folder)
    code = run(PAGES[name].split())
    assert code in (0, UNSUCCESSFUL)  # steps that fail their acceptance are on its page
    for look in ((), ("--blink-settings=preferredColorScheme=0",)):
        assert violations(chromium, folder / "page.html", *look) == []


@pytest.mark.skipif(not AXE.is_file(), reason="needs axe-core: make puts it into .venv")
def test_a_checker_finds_a_fault(chromium, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        '<html lang="en"><title>x</title><body><main><h1>x</h1><img src="data:,"></main></body>'
    )
    assert [one[0] for one in violations(chromium, page)] == ["image-alt"]
