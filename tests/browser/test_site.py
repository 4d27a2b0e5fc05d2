"""The script of the documents' site: what is copied of a block of commands."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from browsing import browse, complaints
from places import ROOT

pytestmark = pytest.mark.browser

BLOCK = """$ steptime run fc
 step  1 ms
$ steptime predict fc \\
  --device t4
 step  2 ms
"""
PAGE = """<!doctype html><link rel="icon" href="data:,">
<div class="highlight-console"><div class="highlight"><pre>BLOCK</pre></div></div>
<pre id="found"></pre>
<script>SITE</script>
<script>
function copied(first, last) {
  const text = document.querySelector(".highlight-console pre").firstChild;
  const range = document.createRange();
  range.setStart(text, first);
  range.setEnd(text, last);
  document.getSelection().removeAllRanges();
  document.getSelection().addRange(range);
  const clipboardData = new DataTransfer();
  const event = new ClipboardEvent("copy", { clipboardData, bubbles: true, cancelable: true });
  document.dispatchEvent(event);
  return event.defaultPrevented ? clipboardData.getData("text/plain") : null;
}
const found = RANGES.map(([first, last]) => copied(first, last));
document.getElementById("found").textContent = JSON.stringify(found);
</script>
"""


def test_a_copied_block_holds_its_commands_alone(chromium, tmp_path):
    output = BLOCK.index(" step  1")
    ranges = {
        (0, len(BLOCK)): "steptime run fc\nsteptime predict fc \\\n  --device t4",
        (2, len(BLOCK)): "steptime run fc\nsteptime predict fc \\\n  --device t4",
        (11, 17): "run fc",  # a piece of a command
        (output, output + 11): None,  # output alone is copied as it is
    }
    page = PAGE.replace("BLOCK", BLOCK).replace("RANGES", json.dumps([*ranges]))
    path = tmp_path / "page.html"
    path.write_text(page.replace("SITE", (ROOT / "docs/_static/site.js").read_text("utf-8")))
    answer = browse(chromium, path, "--dump-dom")
    assert not complaints(answer)
    match = re.search(r'<pre id="found"[^>]*>(.+?)</pre>', answer.stdout, re.DOTALL)
    assert match
    assert json.loads(unescape(match[1])) == [*ranges.values()]


BUTTON_PAGE = """<!doctype html><link rel="icon" href="data:,">
<div class="highlight-console"><div class="highlight"><pre>BLOCK</pre></div></div>
<div class="highlight-python"><div class="highlight"><pre>import steptime
</pre></div></div>
<pre id="found"></pre>
<script>
const copies = [];
const clipboard = { writeText: async (text) => copies.push(text) };
Object.defineProperty(navigator, "clipboard", { value: clipboard });
SITE
document.addEventListener("DOMContentLoaded", async () => {
  const buttons = [...document.querySelectorAll("button.copy")];
  for (const button of buttons) button.click();
  await Promise.resolve();
  const answer = { copies, texts: buttons.map((button) => button.textContent) };
  document.getElementById("found").textContent = JSON.stringify(answer);
});
</script>
"""


def test_the_button_of_a_block_copies_its_commands_without_their_output(chromium, tmp_path):
    script = (ROOT / "docs/_static/site.js").read_text("utf-8")
    path = tmp_path / "page.html"
    path.write_text(BUTTON_PAGE.replace("BLOCK", BLOCK).replace("SITE", script))
    answer = browse(chromium, path, "--dump-dom", budget_ms=1_000)
    assert not complaints(answer)
    match = re.search(r'<pre id="found"[^>]*>(.+?)</pre>', answer.stdout, re.DOTALL)
    assert match
    assert json.loads(unescape(match[1])) == {
        "copies": ["steptime run fc\nsteptime predict fc \\\n  --device t4", "import steptime"],
        "texts": ["Copied", "Copied"],
    }
