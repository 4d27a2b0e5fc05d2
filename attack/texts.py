"""Texts of strangers in every field, to every place where they come out: none runs.

A case is one field of records, a folder or a device that holds hostile texts, and one way out: a
page, a picture, a table, a statement. What is looked at: scripts and handlers in pages, formulas in
CSV, escapes on the terminal, whether a canary ran, files outside.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html.parser import HTMLParser
from itertools import cycle
from pathlib import Path
from typing import Any

import record_cases
from attack.tally import Tally
from attack.victims import End, run, warm
from steptime.cli.main import run as command

CANARY = "RAN"
AT_ROOT = Path(tempfile.gettempdir(), "RAN-of-steptime")  # what a text names from the root
TEXTS = (
    *record_cases.HOSTILE,
    '"><img src=x onerror="window.ran=1">',
    "<svg/onload=window.ran=1>",
    "'; DROP TABLE flat; SELECT '",
    "') UNION SELECT content FROM read_text('/etc/passwd') --",
    f"$(touch {CANARY})`touch {CANARY}`; touch {CANARY} & touch {CANARY} #",
    f"../../{CANARY}",
    f"{AT_ROOT}",
    "+1+cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    f"__import__('pathlib').Path('{CANARY}').touch()",
    "{{ 7*7 }}{% raw %}",
    "\x9b31m\u202eevil\u2028line",
)
FIELDS = {
    "model": ("workload", "model"), "file": ("workload", "file"), "dtype": ("workload", "dtype"),
    "optimizer": ("workload", "optimizer"), "phase": ("workload", "phase"),
    "platform": ("platform",), "cause": ("cause",), "note": ("note",), "scope": ("scope",),
    "method": ("method", "name"), "version": ("method", "version"),
    "option": ("method", "options", "gpu"), "host": ("env", "host"),
    "framework": ("env", "framework"), "meter": ("env", "memory_meter"),
    "source file": ("env", "source_file"), "stack": ("env", "stack"), "time": ("taken_at",),
    "hyperparameter": ("workload", "params", "layers"),
}  # fmt: skip
KEYS = {
    "name of a hyperparameter": ("workload", "params"), "name of a quantity": ("quantities",),
    "name of an option": ("method", "options"), "name in env": ("env",),
}  # fmt: skip
SINKS: Mapping[str, str] = {
    "table": "analyse table IN", "table.csv": "analyse table IN --format csv",
    "table.json": "analyse table IN --json", "results.html": "analyse results IN --format html",
    "results.md": "analyse results IN --format markdown", "results": "analyse results IN",
    "errors": "analyse errors IN", "breakdown": "analyse breakdown IN", "nodes": "analyse nodes IN",
    "compare": "compare IN --by platform", "status": "sweep status IN",
    "roofline": "analyse roofline IN", "query.csv": "query FROM(records) --in IN --format csv",
    "query": "query FROM(records) --in IN", "query.json": "query FROM(records) --in IN --json",
    "export.csv": "query --in IN -o x.csv", "export.jsonl": "query --in IN -o x.jsonl",
    "report.html": "report IN -o x.html", "report.md": "report IN -o x.md",
    "plot.html": "analyse roofline IN -o x.html", "plot.svg": "analyse heatmap IN -o x.svg",
    "evaluate": "evaluate IN", "predict": "predict --in IN --device V100",
    "sensitivity": "analyse sensitivity IN", "speedup": "analyse speedup IN",
    "history": "analyse history IN IN",
}  # fmt: skip
DEVICE = """name = {0}
source = {0}
note = {0}
kind = "gpu"
memory_GB = 40
memory_GB_per_s = 900
peak_TFLOP_per_s = {{float32 = 15, bfloat16 = 30}}
"""
OF_DEVICES: Mapping[str, str] = {  # by each text as name, source and note of a device's file
    "device": "predict fc --device d.toml", "device.json": "fit fc --device d.toml --json",
    "device.csv": "choose fc --device d.toml,T4 --batch 4 --format csv",
    "choices.html": "choose fc --device d.toml --batch 4 --page x.html",
}  # fmt: skip
FOLDER = "name of the folder"
FORMULA = re.compile(r"^\s*[=+@-](?![\d.]+([eE][+-]?\d+)?$)")
ESCAPES = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
RUNS = re.compile(r"^\s*(javascript|data):", re.IGNORECASE)


class _Page(HTMLParser):
    """What of a page would run: handlers, scripts and links that a stranger wrote."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.runs: list[str] = []
        self._is_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note handlers and links that hold our mark."""
        kind = dict(attrs).get("type") or ""
        self._is_script = tag == "script" and not kind.startswith("application")
        for name, value in attrs:
            text = value or ""
            is_link = name in ("href", "src", "xlink:href", "action") and RUNS.match(text)
            if ("ran=1" in text and name.startswith("on")) or (is_link and "ran" in text):
                self.runs.append(f"<{tag} {name}={text[:60]}>")

    def handle_data(self, data: str) -> None:
        """Note a script that is nothing but our mark."""
        if self._is_script and data.strip().startswith("window.ran=1"):
            self.runs.append(f"<script>{data[:60]}")


def attack(name: str, share: float, seed: int, scratch: Path) -> Tally:
    """Return what became of a share of the fields, or of the texts, at one way out."""
    rng, tally = random.Random(f"{seed} {name}"), Tally({"way out": name})  # noqa: S311  # draws, no secret
    is_device = name in OF_DEVICES
    every = TEXTS if is_device else (*FIELDS, *KEYS, FOLDER)
    for number, place in enumerate(sorted(rng.sample(every, max(1, round(share * len(every)))))):
        (folder := scratch / f"{name}-{number}").mkdir(parents=True)
        if is_device:
            (folder / "d.toml").write_text(DEVICE.format(json.dumps(place)))
        label = "in"
        if place == FOLDER:
            label = rng.choice([one for one in TEXTS if "/" not in one])
        if not is_device:
            (folder / label).mkdir()
            lines = "".join(json.dumps(one) + "\n" for one in records(place))
            (folder / label / "records-0.jsonl").write_text(lines)
        words = [
            label if one == "IN" else one.replace("FROM(records)", "FROM records")
            for one in {**SINKS, **OF_DEVICES}[name].split()
        ]
        end = (run if number else warm)(partial(command, words), folder)
        texts = 1 if is_device or place == FOLDER else len(TEXTS)
        tally.add({"commands": 1, "texts": texts, "answered": end.code == 0})
        tally.wrong += [f"{place}: {text}" for text in faults(name, end, folder)]
    return tally


def records(place: str) -> Iterator[dict[str, Any]]:
    """Yield records as JSON values, one field of which holds a hostile text."""
    texts = cycle(TEXTS)
    for table in record_cases.base():
        if place == FOLDER:
            yield table
            continue
        if place in KEYS:
            holder = _holder(table, KEYS[place])
            if not holder:
                continue
            holder[next(texts)] = next(iter(holder.values()))
        else:
            *way, last = FIELDS[place]
            _holder(table, way)[last] = next(texts)
        yield table


def _holder(table: dict[str, Any], way: Any) -> dict[str, Any]:
    for name in way:
        table = table.setdefault(name, {})
    return table


def faults(name: str, end: End, folder: Path) -> list[str]:
    """Return what is wrong with what came out."""
    files = {one.suffix: one.read_text("utf-8") for one in folder.glob("x.*")}
    is_file = bool(files)
    text = next(iter(files.values())) if is_file else end.said
    ending = Path(name).suffix
    screen = "" if ending == ".json" else end.said
    looks: dict[str, Callable[[], bool]] = {
        "a traceback": lambda: end.has_traceback,
        f"exit code {end.code}": lambda: end.code not in (0, 1, 2, 3),
        "an escape on the terminal": lambda: bool(ESCAPES.search(screen)),
        "the canary ran": lambda: _has_canary(folder),
        "left in TMPDIR": lambda: bool(end.left),
        "it runs in a page": lambda: ending in (".html", ".svg") and bool(page_runs(text)),
        "a formula in CSV": lambda: ending == ".csv" and bool(formulas(text)),
    }  # fmt: skip
    more = {".csv": formulas, ".html": page_runs, ".svg": page_runs}.get(ending, lambda _: "")
    return [f"{what}: {str(more(text))[:200]} {end.said[-300:]}" for what, is_wrong in looks.items()
            if is_wrong()]  # fmt: skip


def _has_canary(folder: Path) -> bool:
    places = (folder, folder.parent, folder.parent.parent)
    return AT_ROOT.exists() or any((one / CANARY).exists() for one in places)


def page_runs(text: str) -> list[str]:
    """Return what of a page or picture would run."""
    page = _Page()
    page.feed(text)
    return page.runs


def formulas(text: str) -> list[str]:
    """Return the cells of a CSV that a spreadsheet would compute."""
    rows = csv.reader(io.StringIO(text))
    return [cell for row in rows for cell in row if FORMULA.match(cell)]
