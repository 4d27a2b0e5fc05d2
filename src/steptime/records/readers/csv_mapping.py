"""CSV files of any columns, read as a mapping file says."""

import hashlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from steptime.build import is_path, make_workload, read_model, validated
from steptime.core.errors import InputError, one_of, shorten, unknown
from steptime.core.ranges import whole_number
from steptime.core.units import QUANTITIES
from steptime.core.workload import STAGINGS, STRATEGIES
from steptime.records.readers.csv_rows import Row, number, positive, read_rows
from steptime.records.readers.sources import Reading, RecordSource, platform_of
from steptime.records.record import STATUSES, Quantity, Record, RecordMethod

ENDINGS = (".csv", ".tsv", ".txt")
WORDS = {"staging": STAGINGS, "strategy": ("", *STRATEGIES)}  # "": one replica, or not said


def _template(text: str) -> str:
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"is no text with {{columns}}: {error}") from None
    if any(name == "" or form or turned for _, name, form, turned in parts):
        raise ValueError("a column stands in braces, {column}, and nothing else does")
    return text


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Template = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_template)]


class Amount(BaseModel):
    """Where a quantity stands: in SI it is the cell times `scale`, `inverse` one over that."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    column: str
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    inverse: bool = False


class StatusRule(BaseModel):
    """A row whose `column` holds the text `equals` has this status."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    column: str
    equals: str
    status: str
    cause: str = ""


class QuantityKeys(BaseModel):
    """The keys of a mapping file; a text may name columns in braces."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    model: Template
    platform: Template
    batch: Template
    quantities: dict[str, Amount] = Field(min_length=1)
    version: Template = "unknown"
    dtype: Template = "float32"
    phase: Template = "train"
    optimizer: Template = "sgd"
    replicas: Template = "1"
    scope: Template = ""
    options: dict[str, Template] = {}
    words: dict[str, dict[str, str]] = {}
    status: tuple[StatusRule, ...] = ()
    delimiter: str = Field(default=",", min_length=1, max_length=1)


@dataclass(frozen=True)
class Mapped:
    """A reader of CSV files by the keys of one file, whose content has the hash `sha256`."""

    keys: QuantityKeys
    sha256: str

    @property
    def SOURCE(self) -> str:  # noqa: N802  # as the readers that are modules have it
        """Who measured what the mapping is for."""
        return self.keys.source

    def recognises(self, source: RecordSource) -> bool:
        """Whether this is a table, by its name."""
        return source.name.lower().endswith(ENDINGS)

    def read(self, source: RecordSource) -> Reading:
        """Return a record for each row; raises `InputError` for a column that the file has not."""
        keys = self.keys
        return read_rows(source, self._record, delimiter=keys.delimiter, needed=self.columns)

    @cached_property
    def columns(self) -> Sequence[str]:
        """The columns that the mapping names."""
        keys = self.keys
        plain = {"name", "source", "delimiter"}  # of the mapping itself, not of a row
        texts = [text for key, text in keys if key not in plain and isinstance(text, str)]
        named = [
            column
            for text in (*texts, *keys.options.values())
            for _, column, _, _ in string.Formatter().parse(text)
            if column
        ]
        named += [one.column for one in keys.quantities.values()]
        named += [one.column for one in keys.status]
        return list(dict.fromkeys([*named, *keys.words]))

    def _record(self, row: Row, line: int) -> Record:
        keys = self.keys
        said = {name: keys.words.get(name, {}).get(cell, cell) for name, cell in row.items()}

        def text(template: str) -> str:
            return template.format_map(said)

        rule = next((one for one in keys.status if row[one.column] == one.equals), None)
        workload = make_workload(
            read_model(_network(text(keys.model))),
            batch=text(keys.batch),
            dtype=text(keys.dtype),
            phase=text(keys.phase),
            optimizer=text(keys.optimizer),
            replicas=text(keys.replicas),
        )
        ok = rule is None or rule.status == "ok"
        return Record(
            origin="published",
            method=RecordMethod(
                keys.name,
                text(keys.version),
                {name: _option(name, text(value)) for name, value in keys.options.items()},
            ),
            workload=workload,
            platform=_platform(text(keys.platform)),
            quantities=_quantities(row, keys.quantities) if ok else {},
            status=rule.status if rule else "ok",
            cause=rule.cause if rule else "",
            scope=text(keys.scope),
            env={"source_entry": line, "mapping": self.sha256},
        )


def _network(text: str) -> str:
    if is_path(text):
        raise InputError(f"model {shorten(text)}: a family or a named network, not a file")
    return text


def _platform(text: str) -> str:
    if not text.strip():
        raise InputError("platform: empty")
    return platform_of(text)


def _option(name: str, text: str) -> str | int:
    """Return an option's value; those that tables and plots read must be what these know."""
    if name == "devices":
        return whole_number(text, "options.devices")
    if name in WORDS and text not in WORDS[name]:
        raise unknown(name, text, filter(None, WORDS[name]), "options")
    return text


def _quantities(row: Row, amounts: Mapping[str, Amount]) -> Mapping[str, Quantity]:
    found = {}
    for name, amount in amounts.items():
        above_zero = amount.inverse or QUANTITIES[name][0] == "s"
        value = (positive if above_zero else number)(row, amount.column) * amount.scale
        if above_zero and not value:
            raise InputError(f"{amount.column}: too small: {shorten(row[amount.column])}")
        found[name] = Quantity(1 / value if amount.inverse else value)
    return found


def check_mapping(table: object, where: str) -> Mapped:
    """Return the reader that a table says; raises `InputError` with all faults on one line."""
    if not isinstance(table, dict):
        raise InputError(f"{where}: a mapping is a table, not {shorten(table)}")
    keys = validated(table, QuantityKeys, where)
    for name in keys.quantities:
        one_of("quantity", name, QUANTITIES, where)
    for rule in keys.status:
        one_of("status", rule.status, STATUSES, where)
    content = hashlib.sha256(keys.model_dump_json().encode()).hexdigest()
    return Mapped(keys, content)
