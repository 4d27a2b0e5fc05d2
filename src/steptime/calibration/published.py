"""Tables of steps that others published: a file a layout says what their columns ask.

A table is recognised by its columns, never by its name: the layout all of whose columns it has, the
one with most of them. A row becomes texts (`model`, `device`), numbers (`tensor`, `batch`) and what
was measured, by formulas of its cells, and a kind of `asking.py` answers it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.formula import filled, formula
from steptime.core.table import picked
from steptime.core.table_files import Words, table_rows
from steptime.core.toml_files import DATA, read_toml
from steptime.hardware import catalog
from steptime.network import families as models
from steptime.prediction.kernel import Interval

PUBLISHED = DATA / "published"
SITES = PUBLISHED / "sites.toml"
Row = Mapping[str, Any]


class Layout(BaseModel):
    """What the columns of a kind of table mean.

    `kind` says who answers (`asking.KINDS`). `texts` are texts with formulas in braces, `numbers`
    formulas, `measured` formulas of what was measured by the name of the quantity. Rows for which a
    formula of `refused` is true are not asked, for the reason beside it; those that `ran` were in
    the memory of their devices. `words` translate cells by column. `rows` are a mapping file's,
    where a table is of single ops.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    source: str
    columns: tuple[str, ...]
    kind: str
    texts: dict[str, str] = {}
    numbers: dict[str, str] = {}
    measured: dict[str, str] = {}
    rows: dict[str, Any] = {}
    words: Words = {}
    refused: tuple[tuple[str, str], ...] = ()
    ran: str = "1"
    set: str = ""


@dataclass(frozen=True)
class Question:
    """A row, as it is asked: texts, numbers, what was measured by quantity, whether it ran."""

    set: str
    place: str
    kind: str
    texts: Mapping[str, str]
    numbers: Mapping[str, Any]
    measured: Mapping[str, float]
    ran: bool


@dataclass(frozen=True)
class Told:
    """What is predicted for a row: quantities by name, whether it fits, what time is made of.

    `form` names the interval of its times.
    """

    values: Mapping[str, Interval]
    devices: int = 1
    stack: str = ""
    fits: bool | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    form: str = "serve"


def row_of(asked: Question, told: Told, quantity: str) -> dict[str, Any]:
    """Return a quantity of a row, in SI, beside what is told of it.

    `fits` says whether that is told rightly, `block` what its stack has not seen.
    """
    measured, found = asked.measured[quantity], told.values[quantity]
    return {
        **picked(asked, "set place"),
        **{name: asked.texts.get(name) for name in ("model", "device", "dtype")},
        "stack": told.stack or None,
        "devices": told.devices,
        "block": _block(asked, told),
        "quantity": quantity,
        "measured": measured,
        "predicted": found.value,
        **picked(found, "low high"),
        "ratio": found.value / measured,
        "fits": None if told.fits is None else told.fits == asked.ran,
        "parts": dict(told.parts),
    }


def _block(asked: Question, told: Told) -> str | None:
    """Return what of a row the constants of its stack were not fitted on."""
    seen = catalog.stack(told.stack).seen if told.stack else None
    if not seen:
        return None if seen is None else "not said"
    for name in ("model", "device"):
        if name in asked.texts and asked.texts[name] not in seen.get(f"{name}s", ()):
            return f"unseen {name}"
    return "larger scale" if told.devices > seen.get("most_devices", told.devices) else "seen"


@lru_cache(maxsize=1)
def layouts() -> tuple[Layout, ...]:
    """Return the layouts that are known, those with most columns first."""
    paths = sorted(path for path in PUBLISHED.glob("*.toml") if path != SITES)
    found = [Layout.model_validate(read_toml(path)) for path in paths]
    return tuple(sorted(found, key=lambda one: -len(one.columns)))


def _columns(path: Path) -> set[str]:
    is_table = path.name.removesuffix(".gz").endswith((".csv", ".tsv"))
    return {*next(table_rows(path), (0, {}))[1]} if is_table else set()


def layout_of(path: Path) -> Layout | None:
    """Return the layout of a table, None where its columns are those of none."""
    found = _columns(path)
    return next((one for one in layouts() if found.issuperset(one.columns)), None)


def lacking(path: Path) -> str | None:
    """Return what a table lacks that has most columns of a layout; None where it has few."""
    found = _columns(path)
    near = min(layouts(), key=lambda one: len({*one.columns} - found) / len(one.columns))
    left = [name for name in near.columns if name not in found]
    few = len(left) <= len(near.columns) / 4
    return f"{path.name}: columns of {near.name}, without {', '.join(left)}" if few else None


def tables_in(paths: Sequence[Path]) -> tuple[dict[Path, Layout], list[Path]]:
    """Return the tables of files and folders that are recognised, and the files that are not."""
    inside = (sorted(path.glob("*.[ct]sv*")) if path.is_dir() else [path] for path in paths)
    files = [*chain.from_iterable(inside)]
    found = {file: one for file in files if (one := layout_of(file))}
    return found, [file for file in files if file not in found]


def questions(path: Path, layout: Layout) -> Iterator[tuple[str, str, Question | InputError]]:
    """Yield set and place of each row, and what it asks or why it cannot be asked."""
    for line, row in table_rows(path, layout.words):
        place, label = f"{path.name}:{line}", layout.name
        try:
            label = filled(layout.set, row) or layout.name
            yield label, place, _question(layout, row, label, place)
        except InputError as error:
            yield label, place, error


def _question(layout: Layout, row: Row, label: str, place: str) -> Question:
    for condition, reason in layout.refused:
        if formula(condition)(row):
            raise InputError(filled(reason, row))
    texts = {name: filled(text, row).strip() for name, text in layout.texts.items()}
    if "model" in texts:
        texts["model"] = model_named(texts["model"])
    if "device" in texts:
        texts["device"] = catalog.device(texts["device"]).name
    numbers = {name: formula(text)(row) for name, text in layout.numbers.items()}
    found = {name: formula(text)(row) for name, text in layout.measured.items()}
    known = {name: one for name, one in found.items() if isinstance(one, int | float)}
    measured = {name: float(one) for name, one in known.items() if 0 < one < inf}
    ran = bool(formula(layout.ran)(row))
    if not measured and ran:
        raise InputError(f"no {' or '.join(layout.measured)} is told")
    return Question(label, place, layout.kind, texts, numbers, measured, ran)


def model_named(text: str) -> str:
    """Return the network that people call so (`LLAMA3.1-405B`), or a text with hyperparameters."""
    if ":" in text:
        return text
    name = models.named(text.partition("(")[0].strip())
    if name not in models.names():
        raise InputError(f"no model is named {shorten(text)}")
    return name


def stack_at(software: str, date: str) -> str:
    """Return the stack of a software that was the latest at a date (`2024-09`, or `24.09`).

    Before the first it is the first. Raises `InputError` for a software without dated stacks.
    """
    year, month = [*re.findall(r"\d+", date), "1", "1"][:2]
    if not date[:1].isdigit():
        raise InputError(f"{shorten(date)} is no date such as 2024-09 or 24.09")
    at = f"{2000 + int(year) % 100}-{int(month):02}"
    own = {name: catalog.stack(name).since for name in catalog.stack_names()}
    first = f"{software}-"
    dated = sorted((since, name) for name, since in own.items() if since and name.startswith(first))
    if not dated:
        raise unknown("software", software, {name.partition("-")[0] for name in own})
    return max([one for one in dated if one[0] <= at] or dated[:1])[1]


_sites = lru_cache(maxsize=1)(lambda: read_toml(SITES))


def site_of(device: str) -> Mapping[str, Any]:
    """Return how devices of a kind are usually joined: per_node, inside, link; {} if unknown."""
    return _sites().get(device) or {}
