"""A page in a real browser: what it becomes, and what the browser complains about."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--v=0",
)


def browse(
    chromium: str, path: Path, *more: str, size: str = "1280,1000", budget_ms: int = 15_000
) -> subprocess.CompletedProcess[str]:
    """Open a file in a window of `size`, for `budget_ms` of the page's own time."""
    profile = f"--user-data-dir={path.parent / 'profile'}"
    window = (f"--window-size={size}", f"--virtual-time-budget={budget_ms}")
    command = [chromium, *FLAGS, profile, *window, *more, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)


ASSUMED = "We will assume that this is the same field"  # which it is: layers of one table


def complaints(answer: subprocess.CompletedProcess[str]) -> list[str]:
    lines = [line for line in answer.stderr.splitlines() if ":CONSOLE" in line]
    return [line for line in lines if ASSUMED not in line]


FRAME = """<!doctype html>
<link rel="icon" href="data:,">
<iframe src="asked.html#FIRST" width="WIDTH" height="900" style="border: 0"></iframe>
<pre id="found"></pre>
<script>
onmessage = (event) => { document.getElementById("found").textContent = event.data; };
</script>
"""  # a window cannot be narrower than 500 pixels, a frame can


def answers(
    chromium: str,
    page: Path,
    script: str,
    first: str = "",
    width: int = 1280,
    *,
    dark: bool = False,
) -> Any:
    """Return what a script finds in a page, which it posts to the page around; no complaint."""
    asked = f'<script type="text/plain" id="asked">{script}</script>'
    last = '<script>ready.then(() => run(document.getElementById("asked")));</script>'
    (page.parent / "asked.html").write_text(page.read_text() + asked + last)
    path = page.parent / "frame.html"
    path.write_text(FRAME.replace("FIRST", first).replace("WIDTH", str(width)))
    look = ["--blink-settings=preferredColorScheme=0"] if dark else []
    answer = browse(chromium, path, "--dump-dom", *look, size="1400,1000", budget_ms=20_000)
    assert not complaints(answer), complaints(answer)
    match = re.search(r'<pre id="found">(.+?)</pre>', answer.stdout, re.DOTALL)
    assert match, answer.stdout[-500:]
    return json.loads(unescape(match[1]))
