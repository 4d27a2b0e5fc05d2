"""Tables of steps that others published: a file a layout says what their columns ask.

A table is recognised by its columns, never by its name: the layout all of whose columns it has, the
one with most of them. A row becomes texts (`model`, `device`), numbers (`tensor`, `batch`) and what
was measured, by formulas of its cells, and a kind of `answers.py` answers it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from steptime.calibration import plan_rows
from steptime.calibration.plan_errors import ReadRow
from steptime.calibration.plan_rows import Question, columns_of, files_in, resolve_model
from steptime.core.errors import InputError, shorten
from steptime.core.expressions.formula import fill_braces, formula
from steptime.core.tables.table_files import Words, table_rows
from steptime.core.toml_files import read_toml
from steptime.hardware import catalog
from steptime.hardware.software import newest_in
from validation.answers import KINDS

TABLES = Path(__file__).parent / "tables"
Row = Mapping[str, Any]


class Layout(BaseModel):
    """What the columns of a kind of table mean.

    `key` is the name of its file, by which constants name the set; columns that are `optional` are
    empty where a table lacks them. `kind` says who answers
    (`answers.KINDS`; `ops` and `cases`: `score.py`), by formulas in braces too. `texts` are texts
    with such formulas, `numbers` formulas, `measured` formulas of what was measured by the name of
    the quantity. Rows for which a formula of `refused` is true are not asked, for the reason beside
    it; those that `ran` were in the memory of their devices. `words` translate cells by column.
    `rows` are a mapping file's, where a table is of single ops.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    key: str
    name: str
    source: str
    campaign: str
    draw: int = 1
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    kind: str
    texts: dict[str, str] = {}
    numbers: dict[str, str] = {}
    measured: dict[str, str] = {}
    rows: dict[str, Any] = {}
    words: Words = {}
    refused: tuple[tuple[str, str], ...] = ()
    ran: str = "1"
    set: str = ""


OWN = Layout(
    key="papers",
    name=plan_rows.SET_NAME,
    source="a table in the words of `steptime plan`, as `steptime evaluate` reads it",
    campaign="{set} x its authors",
    columns=plan_rows.COLUMNS,
    kind="step",
)


@lru_cache(maxsize=1)
def layouts() -> tuple[Layout, ...]:
    """Return the layouts that are known, those with most columns first."""
    paths = sorted(TABLES.glob("*.toml"))
    found = [OWN, *(Layout.model_validate({"key": path.stem, **read_toml(path)}) for path in paths)]
    return tuple(sorted(found, key=lambda one: -len(one.columns)))


def layout_of(path: Path) -> Layout | None:
    """Return the layout of a table, None where its columns are those of none."""
    found = columns_of(path)
    return next((one for one in layouts() if found.issuperset(one.columns)), None)


def tables_in(paths: Sequence[Path]) -> tuple[dict[Path, Layout], list[Path]]:
    """Return the tables of files and folders that are recognised, and the files that are not."""
    files = files_in(paths)
    found = {file: one for file in files if (one := layout_of(file))}
    return found, [file for file in files if file not in found]


def questions(path: Path, layout: Layout, stack: str | None = None) -> Iterator[ReadRow]:
    """Yield set and place of each row, and what it asks or why it cannot be asked.

    A `stack` takes the place of that of the rows: "" for none, as where nobody names one.
    """
    if layout is OWN:
        own = {} if stack is None else {"stack": stack}
        for label, place, one in plan_rows.read_questions(path):
            if isinstance(one, Question):
                campaign = fill_braces(layout.campaign, {"set": label})
                yield label, place, replace(one, texts={**one.texts, **own}, campaign=campaign)
            else:
                yield label, place, one
        return
    for line, cells in table_rows(path, layout.words):
        row = dict.fromkeys(layout.optional, "") | cells
        place, label = f"{path.name}:{line}", layout.name
        try:
            label = fill_braces(layout.set, row) or layout.name
            yield label, place, _question(layout, row, label, place, stack)
        except InputError as error:
            yield label, place, error


def _question(layout: Layout, row: Row, label: str, place: str, stack: str | None) -> Question:
    for condition, reason in layout.refused:
        if formula(condition)(row):
            raise InputError(fill_braces(reason, row))
    texts = {name: fill_braces(text, row).strip() for name, text in layout.texts.items()}
    if "model" in texts:
        texts["model"] = resolve_model(texts["model"])
    if "device" in texts:
        texts["device"] = catalog.device(texts["device"]).name
    numbers = {name: formula(text)(row) for name, text in layout.numbers.items()}
    found = {name: formula(text)(row) for name, text in layout.measured.items()}
    known = {name: one for name, one in found.items() if isinstance(one, int | float)}
    measured = {name: float(one) for name, one in known.items() if 0 < one < inf}
    ran = bool(formula(layout.ran)(row))
    if not measured and ran:
        raise InputError(f"no {' or '.join(layout.measured)} is told")
    if stack is not None:
        texts["stack"] = stack
    elif "software" in texts:
        texts["stack"] = stack_at(texts["software"], texts["date"])
    kind, campaign = KINDS[fill_braces(layout.kind, row)], fill_braces(layout.campaign, row)
    return Question(label, place, kind, texts, numbers, measured, ran, campaign)


def stack_at(software: str, date: str) -> str:
    """Return the stack of a software that was the latest at a date (`2024-09`, or `24.09`).

    Before the first it is the first. Raises `InputError` for a software without dated stacks.
    """
    year, month = [*re.findall(r"\d+", date), "1", "1"][:2]
    if not date[:1].isdigit():
        raise InputError(f"{shorten(date)} is no date such as 2024-09 or 24.09")
    return newest_in(software, f"{2000 + int(year) % 100}-{int(month):02}")
