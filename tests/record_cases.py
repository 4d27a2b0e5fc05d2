"""Records as nobody should write them, and every command that reads records, run over them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import synthetic
from steptime.analysis.analyses import PLOTS
from steptime.core.copying import replace
from steptime.core.workload import Plan
from steptime.records.record import Quantity, record_to_json

HOSTILE = (
    "</script><script>window.ran=1</script>",
    "\"'`);window.ran=1;//",
    "javascript:window.ran=1",
    '<svg onload="window.ran=1">',
    "]]><!--",
    "\x1b]0;owned\x07\x1b[2J",
    "=cmd|'/C calc'!A0",
)


EXPERIMENT = """name = "e"
batch = [64, 128]
predict = ["V100"]
measure = false
[[networks]]
family = "fc"
layers = [2, 4]
nodes = 64
"""


class Raw(str):
    """A JSON text that stands as it is, such as one that is no JSON."""

    __slots__ = ()


NESTED: Any = []
for _ in range(200):
    NESTED = [NESTED, {"a": None}]
VALUES: tuple[Any, ...] = (
    *(None, "", "x", "5", True, False, 0, -1, 1.5, -2.5, 3, 2**63, 10**30, [], {}, [1], {"a": 1}),
    *(["x", None], {"": ""}, {"a": {"b": [1, {"c": 2}]}}, NESTED, 1e-300, 1e100, 1e308, 5e-324),
    *(Raw("NaN"), Raw("1e400"), Raw("-Infinity"), Raw("9" * 5000), Raw('"\\ud800"'), "x" * 3000),
    *("a\x00b", "a\nb", "nodes", "Layers", 'a"b', "a'b", "a.b", "$", "*", *HOSTILE),
)
WRONG: tuple[Any, ...] = ("x", "", True, -1, 0, 1e300, [], [[1]], {}, {"a": {"b": []}})
KEYS = (
    "",
    "Layers",
    "layers",
    'a"b',
    "a'b",
    "a.b",
    "a\x00b",
    "name",
    "folder",
    "Flop",
    "step_s",
    "data",
    *HOSTILE,
)


def base() -> list[dict[str, Any]]:
    """Return sound records of every origin and kind as JSON values."""
    records = synthetic.sweep(failures=True)
    records += synthetic.predicted(synthetic.workloads()[0], ops=True)[:12]
    several = replace(synthetic.workloads()[0], plan=Plan(data=2))
    records += [synthetic.measured(several, runs=2), *synthetic.predicted(several)]
    measured = synthetic.measured(synthetic.workloads()[9])
    stated = {"step_s": Quantity(0.01), "published_flop_share": Quantity(0.4)}
    records += [
        replace(measured, origin="published", quantities=stated, platform="v100-sxm2-16gb"),
        replace(measured, scope="dense0", env={**measured.env, "op_kind": "dense"}),
        replace(measured, platform="p100-pcie-16gb", env={**measured.env, "host": "other"}),
    ]
    return [record_to_json(record) for record in records]


def record_cases(seed: int | str, count: int) -> Iterator[str]:
    """Yield lines of records, each with one to three faults: of a value or of a key."""
    rng, sound = random.Random(seed), base()  # noqa: S311 - no secret
    for _ in range(count):
        table = copy.deepcopy(rng.choice(sound))
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            _harm(table, rng)
        yield _text(table)


def _harm(table: dict[str, Any], rng: random.Random) -> None:
    places = list(_places(table))
    holder, key = rng.choice(places)
    what = rng.random()
    if what < 0.75:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    elif what < 0.85:
        del holder[key]
    elif isinstance(holder, dict):
        value = holder.pop(key) if what < 0.92 else holder[key]
        holder[rng.choice(KEYS)] = value
    else:
        holder.extend([holder[key]] * rng.choice((1, 50)))


def _places(held: Any, below: int = 9) -> Iterator[tuple[Any, Any]]:
    """Yield each place of a value; of a list the first alone, so that samples are not the most."""
    keys = list(held) if isinstance(held, dict) else range(min(1, len(held)))
    for key in keys:
        yield held, key
        if isinstance(held[key], dict | list) and below:
            yield from _places(held[key], below - 1)


def edited(table: Any, wrongs: Sequence[Any] = WRONG, step: int = 1) -> Iterator[Any]:
    """Yield copies of JSON values as a hand may edit them: one value is of another type or gone.

    Of all such copies every `step`th is made.
    """
    changes = (*wrongs, ...)
    for number in range(0, len([*_places(table)]) * len(changes), step):
        place, change = divmod(number, len(changes))
        made = copy.deepcopy(table)
        holder, key = [*_places(made)][place]
        if changes[change] is ...:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(changes[change])
        yield made


EACH = pytest.mark.parametrize(
    "step", [pytest.param(19, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.rare)]
)
"""A nineteenth of the edits, one at every second place, is slow; all of them are rare."""


def _text(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)


def write(folder: Path, lines: Sequence[str]) -> Path:
    """Write a folder of records: the lines, between sound ones."""
    folder.mkdir(parents=True)
    sound = [json.dumps(one) for one in base()]
    half = len(sound) // 2
    text = "\n".join([*sound[:half], *lines, *sound[half:]]) + "\n"
    (folder / "records-0.jsonl").write_text(text, encoding="utf-8")
    return folder


def _experiment(out: Path) -> Path:
    """Write an experiment of which a folder may hold some cells, and return its path."""
    path = out / "e.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


def commands(folder: Path, other: Path, out: Path) -> list[list[str]]:
    """Return a command line of each way to analyse a folder of records."""
    drawn = [*PLOTS, "roofline", "heatmap", "nodes", "history", "breakdown", "sensitivity"]
    drawn += ["speedup"]
    one, two = [str(folder)], [str(folder), str(other)]
    found: list[list[str]] = [
        *(
            ["analyse", "table", *one],
            ["analyse", "table", *one, "--format", "csv"],
            ["analyse", "table", *one, "--json"],
        ),
        *(
            ["analyse", "results", *one, "--format", "html"],
            ["analyse", "results", *one],
            ["analyse", "errors", *one],
        ),
        *(
            ["analyse", "roofline", *one],
            ["analyse", "roofline", *one, "--ops"],
            ["analyse", "heatmap", *one],
            ["analyse", "nodes", *one],
        ),
        *(
            ["analyse", "history", *two],
            ["analyse", "breakdown", *one],
            ["analyse", "sensitivity", *one],
        ),
        *(
            ["analyse", "speedup", *one],
            ["analyse", "speedup", *two, "--by", "folder"],
            ["compare", *one],
        ),
        *(["compare", *two], ["compare", *one, "--by", "platform"], ["sweep", "status", *one]),
        *(["compare", *one, "--by", "layers"], ["analyse", "heatmap", *one, "--x", "layers"]),
        *(["evaluate", *one], ["why", "--in", *one], ["whatif", "v100", "--in", *one]),
        *(["query", "FROM records", "--in", *one, "--format", form] for form in ("text", "csv")),
        ["query", "FROM records", "--in", *one, "--json"],
        ["predict", "--in", *one, "--device", "v100"],
        ["import", *one, "--out", str(out / "imported")],
        ["sweep", str(_experiment(out)), "--out", *one, "--dry-run"],
    ]
    files = ("csv", "jsonl", "parquet")
    return [
        *found,
        *(["report", *one, "-o", str(out / f"r.{ending}")] for ending in ("html", "md")),
        *(["query", "--in", *one, "-o", str(out / f"e.{ending}")] for ending in files),
        *(["analyse", kind, *one, "-o", str(out / f"{kind}.html")] for kind in drawn),
    ]
