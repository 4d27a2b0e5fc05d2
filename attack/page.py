"""The page of what attacks came to, from their results."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

HEAD = """# How it was attacked

`python -m attack` tries to break steptime in seven ways. It kills commands, fills disks, writes
from many processes at once, feeds damaged files, hostile texts and archives, and breaks the
source to see whether tests notice. This page has its last results. Each fault that an attack ever
found is mended, and a test keeps it so.

To repeat it, run `python -m attack --write` in a clone after `make test`. `--share 0.1 kills` runs
a tenth of one attack, and `--seed` draws other cases. The test suite repeats a part of each attack.

`full size` is the size of the whole attack, `run` the part that was run. `faults` counts what went
wrong, by the rules of the attack's section. Cases are drawn at random from `seed`.

"""
ABOUT: Mapping[str, str] = {
    "kills": """\
Is any record lost if a command is killed? Each command is killed while it works, started again in
the same folder, killed again, and so on until one run ends by itself. After each run the folder is
checked.

* `kills`: their number, and the number by each of the signals KILL, TERM and INT (Ctrl-C);
* `at an event`: kills at a drawn event of the process (it opens a file for writing, writes,
  flushes, renames, removes, locks, or starts a process). A write may be half done. All others
  come after a drawn time;
* `ended by itself`: runs that ended before a kill, or were not to be killed;
* `acknowledged`: records that the command had reported as kept (0: it reports none one by one);
* `lost`: acknowledged or earlier records that are gone. `doubled`: records that are there twice;
* `orphans`: processes that stay. `left in TMPDIR`: temporary files that stay;
* `tracebacks`: Python tracebacks on the screen. `wrong`: any other fault, such as half a page.

The `writer of records` only appends records to a folder. A Slurm suite is a sweep on a cluster. It
runs on a simulated Slurm that answers every third submission with a timeout although it accepts
the job. There `doubled` counts cells that two jobs would measure. The tests in `tests/slurm` kill
tasks, workers and nodes of a real Slurm.""",
    "disks": """\
Thirteen commands write to disks that are full, are read-only, or lose their files meanwhile. A
disk `full to 10 B to 100 kB` has that much space left. `emptied at the n-th file` removes all files
when the command opens its n-th one. Sizes and `n` are drawn.

A run is right if it ends with exit code 0, 1, 2 or 3, explains a failure in one line, leaves all
earlier records unchanged, and leaves no process and no temporary file. `wrong` counts all other
runs. `36 x 1` means that 36 runs ended with exit code 1, which stands for errors such as a full
disk ([exit codes](commands.md)).""",
    "writers": """\
Many processes append 25 records each to one folder at the same time. `failed` counts processes,
`lost` and `doubled` count records.""",
    "inputs": """\
Generated files and options, most of them faulty (`scripts/attack`): networks, devices, links,
stacks, prices, mappings, formulas, experiments, logs, traces, records, Slurm's answers, and
options of every command. An input has `failed` if it leads to a traceback, a hang, an undocumented
exit code, an escape sequence on the terminal, or more than 2 GB of memory.""",
    "texts": """\
Can a text in somebody's record run in your browser, spreadsheet or shell? 19 hostile texts (HTML,
SVG, CSV formulas, SQL, shell, paths, terminal escapes, Python, templates) are written into 24
fields: those of records (model, file, note, host, names of options, ...) and the name of a folder.
Then 30 outputs show them: `report.html` is `steptime report -o x.html`, `export.csv` is
`query -o x.csv`. The last four show a device file with such texts. `runs` counts commands, `texts`
the hostile texts that they were given.

A run is `wrong` if a part of a page would run, a CSV has a formula, the terminal gets an escape
sequence, or a file appears that a text wanted to create. `exit code 0` counts runs that succeeded:
`sweep status` refuses these folders, as no sweep was submitted from them. The tests in
`tests/browser` open such pages in a browser.""",
    "archives": """\
Hostile archives and weight files: decompression bombs, names that lead out of the folder, links,
false sizes, archives in archives, pickles that run code, files that are cut or of another type.
Each must be read (`exit code 0`) or `refused` in one line, with less than 2 GB of memory.""",
    "mutants": """\
Do the tests notice a wrong line? A mutant is a copy of the source with one small wrong change. The
tests of the changed package run on it. A mutant is killed if a test fails that passes without the
change. `killed by` names that test.""",
}
HEADINGS: Mapping[str, str] = {
    "KILL TERM INT": "by KILL, TERM, INT",
    "exit codes": "runs x exit code",
    "of them records": "records among them",
    "way out": "output",
    "commands": "runs",
    "answered": "exit code 0",
    "archives": "kind of archive",
    "read": "archives",
    "refused in a line": "refused",
    "became": "result",
    "by": "killed by",
}  # of columns, where they differ from the keys of the results
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
    headings = [HEADINGS.get(name, name) for name in names]
    cells = [[_cell(row[name]) for name in names] for row in rows]
    lines = [headings, ["---"] * len(names), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|")
