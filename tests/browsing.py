"""A page in a real browser: what it becomes, and what the browser complains about."""

from __future__ import annotations

import subprocess
from pathlib import Path

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
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def complaints(answer: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in answer.stderr.splitlines() if ":CONSOLE" in line]
