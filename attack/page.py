"""The page of what attacks came to, from their results."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

HEAD = """# How it was attacked

Everything here is written by `python -m attack --write` (`--share 0.1 kills` runs a tenth of one
attack; `--seed` draws others). It needs a clone after `make test` and nothing else. The slow tests
run 20 kills, `make test-rare` 50 and a tenth of each other attack. Whatever went wrong when it was
attacked first is mended, and a test holds it.

"""
ABOUT: Mapping[str, str] = {
    "kills": "Commands are killed where they are at work, again and again in the folder that the "
    "kill before left, and at last run to their end. Three of five kills come at the n-th event of "
    "the process (it opens a file for writing, writes, flushes to the disk, renames, removes, "
    "locks, starts a process; of a write half may be done), the others after a drawn share of its "
    "time. SIGINT goes to all processes of the terminal. Lost is a record that was acknowledged or "
    "was there before; doubled one that is there twice; an orphan a process that does not go by "
    "itself. The Slurm suites run on a Slurm that is made up, which answers every third submission "
    "with a timeout although it takes the job; a cell is doubled there where two jobs would "
    "measure it. tests/slurm kills tasks, workers and nodes of a real one.",
    "disks": "Thirteen commands that write, on disks that fill, take nothing or are emptied while "
    "they run. Right is exit code 0, 1, 2 or 3, one line that says why, earlier records as they "
    "were to the byte, no process that stays, nothing in TMPDIR.",
    "writers": "Processes that wait for one another and then append 25 records each to one folder.",
    "inputs": "Files and options from generators (`scripts/attack`): networks, devices, links, "
    "stacks, prices, mappings, formulas, experiments, logs, traces, records, Slurm's answers, "
    "options of every command. Failed is a traceback, a hang, an exit code that is none of ours, "
    "an escape sequence, or more than 2 GB.",
    "texts": "Texts in HTML, SVG, CSV, SQL, shell, paths, escapes of terminals, Python and "
    "templates, in one field after the other (of records: model, file, type, platform, cause, "
    "note, scope, method, options, host, names of hyperparameters, quantities and so on; the name "
    "of a folder; a device's file), through one way out after the other. Right is a page in which "
    "nothing of it runs, a CSV without formulas, a terminal without escapes, no canary, nothing "
    "outside of the folder. In a browser tests/browser looks at the same pages.",
    "archives": "Bombs, names that go up or begin at the root, links, lies about sizes, archives "
    "in archives, pickles, files that are cut or another's. Right is an answer or one line.",
    "mutants": "Small wrong changes of the source, one at a time in a copy, and the tests of its "
    "room. A killed one is seen by a test that passes without it.",
}  # fmt: skip
FULL: Mapping[str, str] = {
    "kills": "1,000 kills", "disks": "468 runs", "writers": "200 writers",
    "inputs": "100,000 inputs", "texts": "24 fields and 19 texts, 30 ways out",
    "archives": "40 archives", "mutants": "29 mutants",
}  # fmt: skip
COUNTED = ("kills", "runs", "writers", "inputs", "texts", "read")


def versions() -> str:
    """Return the versions of what was attacked."""
    names = ("steptime", "duckdb", "msgspec", "torch")
    libraries = ", ".join(f"{name} {version(name)}" for name in names)
    return f"{libraries}, Python {platform.python_version()}, {platform.system()}"


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page, in Markdown."""
    rows = [
        {
            "attack": f"[{name}](#{name})", "full size": FULL[name], "run": _size(name, one),
            "faults": one["faults"], "seed": one["seed"], "date": one["date"],
            "minutes": f"{one['seconds'] / 60:.1f}",
        }
        for name in ABOUT if (one := results.get(name))
    ]  # fmt: skip
    parts = [HEAD + _table(rows)]
    for name, about in ABOUT.items():
        if one := results.get(name):
            note = f" {one['note']}" if "note" in one else ""
            said = f"Run on {one['date']} with {one['versions']}.{note}"
            parts.append(f"## {name.capitalize()}\n\n{about}\n\n{_table(one['rows'])}\n{said}\n")
    return "\n".join(parts)


def _size(name: str, one: Mapping[str, Any]) -> str:
    """Return how much of an attack was run."""
    if name == "mutants":
        return str(one["rows"][-1]["became"])
    for column in COUNTED:
        if column in one["rows"][0]:
            return f"{sum(row[column] for row in one['rows']):,}"
    return ""


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [*rows[0]]
    lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|")
