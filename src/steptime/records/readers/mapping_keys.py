"""The keys of a mapping file: the meaning of the columns of somebody's table."""

import re
from collections.abc import Collection
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from steptime.core.errors import InputError, check_choice
from steptime.core.expressions.formula import check_braces, formula
from steptime.core.json_types import JsonObject
from steptime.core.signatures.validated import read_by
from steptime.core.tables.table_layout import TableLayout
from steptime.core.units import QUANTITIES
from steptime.network.ops import OPS
from steptime.records.record import STATUSES

Condition = Literal["isolated", "repeated", "step", "call"]
COPIES = 6  # as AIConfigurator's benchmark of products has; others do not say
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
MAX_PATTERN_CHARACTERS = 500


def _plain_thousands_mark(value: object) -> object:
    """Return a mark between groups of digits as it is typed: any blank as " ", any apostrophe."""
    if isinstance(value, str) and value.isspace():
        return " "
    return "'" if value == "\u2019" else value


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _make_choice_validator(subject: str, valid_names: Collection[str]) -> Any:
    """Return the validator of a text that is one of the valid names."""
    return read_by(partial(check_choice, subject, valid_names=valid_names), AfterValidator)


def _check_pattern(text: str) -> str:
    """Return a regular expression with named groups; raises `InputError` for another text."""
    if len(text) > MAX_PATTERN_CHARACTERS:
        raise InputError(f"is longer than {MAX_PATTERN_CHARACTERS} characters")
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"is no regular expression: {error}") from None
    if not pattern.groupindex:
        raise InputError("names no group: (?P<step>...) is the cell of a column 'step'")
    return text


Size = int | str
Pattern = Annotated[str, read_by(_check_pattern, AfterValidator)]
Quantity = Annotated[str, _make_choice_validator("quantity", QUANTITIES)]
Timing = Annotated[str, _make_choice_validator("timing", ("seen", "pause_s", *OPS))]
Status = Annotated[str, _make_choice_validator("status", STATUSES)]
Formula = Annotated[str, read_by(lambda text: text and formula(text).text, AfterValidator)]
Text = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(check_braces)]


class Checked(BaseModel):
    """A table of a mapping file, of which every key is known."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Amount(Checked):
    """A quantity in SI: a `formula`, or the cell of a `column` times `scale`.

    `inverse` is one over the latter. A text alone is the formula. A column of times without a
    `scale` is in the unit that its heading names.
    """

    formula: Formula = ""
    column: str = ""
    scale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    inverse: bool = False

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: object) -> object:
        return {"formula": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if bool(self.formula) == bool(self.column):
            raise ValueError("says a formula or a column")
        return self


class StatusRule(Checked):
    """A row that fits `where`, or whose `column` holds `equals`, has this `status`."""

    row_filter: Formula = Field(default="", alias="where")
    column: str = ""
    equals: str = ""
    status: Status
    cause: str = ""

    @model_validator(mode="after")
    def _check_condition(self) -> Self:
        if bool(self.row_filter) == bool(self.column):
            raise ValueError("says 'where' or a column")
        return self


class OpOf(Checked):
    """An op of a row: its kind, the shapes of its inputs, attributes, pass, and how often it runs.

    `gradients` are the places of the inputs whose gradients a backward pass makes, all by default.
    """

    kind: Text = ""
    shapes: tuple[tuple[Size, ...], ...] = ()
    attrs: dict[str, bool | Size | float | tuple[Size, ...]] = {}
    pass_: Literal["forward", "backward", "both"] = Field(default="forward", alias="pass")
    gradients: tuple[int, ...] | None = None
    dtype: Text = ""
    count: Size = 1
    row_filter: str = Field(default="", alias="where")


class PartsTable(Checked):
    """A second table that lists the ops of a row's network: those with the same value `by`."""

    file: str
    by: str
    ops: tuple[OpOf, ...] = Field(min_length=1)


class RowKeys(OpOf):
    """The meaning of rows of a table: an op, several `ops`, `parts`, or a `model`.

    The measured numbers are `seconds` in a `unit` (that of the heading, else s), or `quantities`.
    `channels_last` is the layout of a model's images, `host` its host, `tf32` the precision of
    products of float32; the defaults are those of the stack, and any host. `timing` is the way in
    which `isolated` ops were timed, if it is not the usual one (`cases.conditions`). A record has
    also its `origin`, the `date` of the measurement, the `version` of the program that measured,
    `replicas`, `scope`, `options`, `note`, `env`, and the first `status` that fits.

    `samples` are a list of times of one run in the `unit`, `runs` a list of times of fresh
    processes. Rows that differ in nothing but their `repeat` and their numbers are one record.
    """

    file: str = ""
    device: Text = "{device}"
    seconds: str = "seconds"
    unit: Literal["", "s", "ms", "us", "ns"] = ""
    quantities: dict[Quantity, Amount] = {}
    condition: Condition | None = None
    group: Text = ""
    family: Text = ""
    ops: tuple[OpOf, ...] = ()
    parts: PartsTable | None = None
    model: Text = ""
    batch: Text = ""
    phase: Text = "train"
    optimizer: Text = "sgd"
    stack: Text = ""
    channels_last: str = ""
    tf32: Text = ""
    host: Text = ""
    rivals: dict[str, str] = {}
    calibrates: bool = True
    copies: int = Field(COPIES, ge=1)
    timing: dict[Timing, Annotated[float, Field(ge=0)]] = {}
    samples: Formula = ""
    runs: Formula = ""
    repeat: Text = ""
    origin: Literal["published", "measured"] = "published"
    date: Text = ""
    version: Text = "unknown"
    replicas: Text = "1"
    scope: Text = ""
    options: dict[str, int | Text] = {}
    note: Text = ""
    env: dict[str, Text] = {}
    status: tuple[StatusRule, ...] = ()


class Keys(RowKeys):
    """The keys of a mapping file: defaults of all rows, words of the table, and its `rows`.

    A table is recognised by its `columns`, or by the texts in `marks`. Further columns, except
    those in `also`, are named as unknown unless the mapping is `open`. The keys of `TableLayout`
    are the layout of the file. `base` is a mapping of the house that this mapping completes; `asks`
    are keys that the files of a tool lack, and that a command or such a mapping gives.
    """

    name: str = ""
    source: str = ""
    base: str = ""
    required_keys: tuple[str, ...] = Field(default=(), alias="asks")
    words: dict[str, dict[str, str]] = {}
    delimiter: str = Field(default="", max_length=1)
    skip: int = Field(default=0, ge=0, le=1_000_000)
    comment: str = Field(default="", max_length=10)
    decimal: Literal[".", ","] = "."
    thousands: Annotated[
        Literal["", ",", ".", " ", "'", "_"], BeforeValidator(_plain_thousands_mark)
    ] = ""
    rows_path: str = Field(default="", alias="rows_at")
    prefix: str = ""
    facts: Annotated[tuple[str, ...], Field(max_length=2)] = ()
    row_pattern: Pattern | Literal[""] = ""
    fact_patterns: tuple[Pattern, ...] = ()
    columns: tuple[str, ...] = ()
    optional_columns: tuple[str, ...] = Field(default=(), alias="also")
    marks: tuple[str, ...] = ()
    open: bool = False
    rows: tuple[JsonObject, ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.thousands == self.decimal:
            other = "," if self.decimal == "." else "."
            raise ValueError(
                f"thousands and decimal are both {self.decimal!r}; is decimal = {other!r}?"
            )
        if len(self.facts) == 1:
            raise ValueError("facts are two keys: of the name and of the value")
        return self

    @property
    def layout(self) -> TableLayout:
        """How the rows stand in the file."""
        return TableLayout(
            delimiter=self.delimiter,
            skip=self.skip,
            comment=self.comment,
            decimal=self.decimal,
            thousands=self.thousands,
            columns=self.columns,
            rows_path=self.rows_path,
            prefix=self.prefix,
            facts=self.facts,
            row_pattern=self.row_pattern,
            fact_patterns=self.fact_patterns,
            has_names=True,
        )
