"""Tables of any columns, read as a mapping file says: the one reader of `import`, `evaluate`, ...

A text may hold columns and formulas of them in braces (`{device}`); sizes, seconds and quantities
are formulas (`2 * hidden`), of `steptime.core.formula`.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from steptime.build import make_workload, read_model, read_table
from steptime.core.errors import InputError, one_of, shorten, unknown
from steptime.core.formula import column_name, filled, formula, valued
from steptime.core.table_files import ENDINGS, Cells, Words, cells_of, table_cells, values_of
from steptime.core.toml_files import packaged
from steptime.core.units import QUANTITIES
from steptime.core.validated import validated
from steptime.core.values import parse_count
from steptime.core.workload import STAGINGS, STRATEGIES, Workload
from steptime.records.readers.mapping_keys import UNITS, Amount, Keys, RowKeys
from steptime.records.readers.sources import Reading, RecordSource, Unread, platform_of
from steptime.records.record import Quantity, Record, RecordMethod

OLD_KEYS = {"platform": "device"}
OF_CHOICE = {"staging": STAGINGS, "strategy": ("", *STRATEGIES)}  # "": one replica, or not said
LARGEST = 1e300
Model = TypeVar("Model", bound=BaseModel)


class MappedRow(NamedTuple):
    """A row of a table as one entry of a mapping has it.

    Its cells are `raw` as they stand and `cells` in words of ours; formulas take `values`.
    """

    keys: RowKeys
    raw: Cells
    cells: Cells
    values: Mapping[str, Any]
    line: int

    def text(self, template: str) -> str:
        """Return a text with its columns and formulas filled in."""
        return filled(template, self.values, self.cells)

    def size(self, template: str, what: str) -> int:
        """Return the whole number that a formula or a text says; raises `InputError`."""
        if "{" in template:
            return _whole(valued(self.text(template)), what)
        return size_of(template, self.values, what)

    @property
    def outcome(self) -> tuple[str, str]:
        """The status of the row and its cause."""
        for rule in self.keys.status:
            if rule.where:
                holds = formula(rule.where)(self.values)
            else:
                holds = str(self._cell(rule.column)) == rule.equals
            if holds:
                return rule.status, rule.cause
        return "ok", ""

    @property
    def seconds(self) -> float | None:
        """The seconds that were measured, None where there are none."""
        keys = self.keys
        if keys.quantities:
            amount = keys.quantities.get("step_s")
            failed = self.outcome[0] != "ok" or keys.scope
            return None if failed or amount is None else self._amount("step_s", amount)
        seconds = formula(keys.seconds)(self.values)
        if seconds in ("", None) or str(seconds).lower() == "nan":
            return None
        return _positive(seconds, keys.seconds) * UNITS[keys.unit]

    @property
    def quantities(self) -> dict[str, float]:
        """What was measured, in SI."""
        if not self.keys.quantities:
            seconds = self.seconds
            return {} if seconds is None else {"step_s": seconds}
        return {name: self._amount(name, one) for name, one in self.keys.quantities.items()}

    @property
    def rivals(self) -> dict[str, float]:
        """The seconds that others predicted, where they did."""
        keys = self.keys
        scale = 1.0 if keys.quantities else UNITS[keys.unit]
        return {
            name: value * scale
            for name, text in keys.rivals.items()
            if isinstance(value := formula(text)(self.values), int | float) and value > 0
        }

    @property
    def workload(self) -> Workload:
        """The step of the row's network."""
        keys = self.keys
        return make_workload(
            read_model(self.text(keys.model)),
            self.size(keys.batch, "batch") if keys.batch else None,
            self.text(keys.dtype) or "float32",
            self.text(keys.phase),
            self.text(keys.optimizer),
            self.size(keys.replicas, "replicas"),
        )

    @property
    def options(self) -> dict[str, str | int]:
        """What else changes the numbers; what tables and plots read is what these know."""
        found: dict[str, str | int] = {}
        for name, template in self.keys.options.items():
            text = template if isinstance(template, int) else self.text(template)
            if name in OF_CHOICE and text not in OF_CHOICE[name]:
                raise unknown(name, text, filter(None, OF_CHOICE[name]), "options")
            found[name] = parse_count(text, "options.devices") if name == "devices" else text
        return found

    def _cell(self, column: str) -> Any:
        return self.raw[one_of("column", column, self.raw)]

    def _amount(self, name: str, amount: Amount) -> float:
        """Return a quantity in SI; a time is above 0, and so is what is divided by."""
        is_time = QUANTITIES[name][0] == "s"
        if amount.formula:
            value = formula(amount.formula)(self.values)
            return _positive(value, name) if is_time else _number(value, name)
        of_cell = _positive if is_time or amount.inverse else _number
        value = of_cell(valued(self._cell(amount.column)), amount.column) * amount.scale
        if amount.inverse and not value:
            raise InputError(f"{amount.column}: too small: {shorten(self._cell(amount.column))}")
        return 1 / value if amount.inverse else value


def _number(value: object, what: str) -> float:
    if not isinstance(value, int | float) or not abs(value) < LARGEST:
        raise InputError(f"{what}: must be a number, not {shorten(value)}")
    return float(value)


def _positive(value: object, what: str) -> float:
    if not isinstance(value, int | float) or not 0 < value < LARGEST:
        raise InputError(f"{what} must be above 0, not {shorten(value)}")
    return float(value)


def size_of(
    text: int | str, values: Mapping[str, Any], what: str = "a size", below: int = 2**63
) -> int:
    """Return the whole number that a formula says; raises `InputError` for what is none."""
    value = formula(text)(values) if isinstance(text, str) else text
    return _whole(value, what if str(value) == str(text) else str(text), below)


def _whole(value: object, what: str, below: int = 2**63) -> int:
    if not isinstance(value, int | float) or not 0 <= value < below or value != int(value):
        most = f"2^{below.bit_length() - 1}"
        raise InputError(f"{what} is a whole number below {most}, not {shorten(value)}")
    return int(value)


@dataclass(frozen=True)
class TableMapping:
    """A reader of tables as a mapping says: which rows are what.

    `sha256` is of the content of a user's file, "" of those of the house.
    """

    keys: Keys
    rows: tuple[RowKeys, ...]
    where: str
    name: str
    SOURCE: str  # as the readers that are modules have it
    sha256: str = ""

    @cached_property
    def words(self) -> Words:
        """What words of the table mean, by the names of columns in formulas."""
        return {column_name(column): meaning for column, meaning in self.keys.words.items()}

    def recognises(self, source: RecordSource) -> bool:
        """Whether this is a table, by its name, or by its columns where they are known."""
        if self.keys.columns:
            return {*self.keys.columns} <= source.columns
        name = source.name.lower()
        return name.endswith(ENDINGS) and not (
            name.endswith(".json") and source.head.lstrip().startswith("{")
        )

    def read(self, source: RecordSource) -> Reading:
        """Return a record for each step; what is none is unread, with its line."""
        known = {*self.keys.columns, *self.keys.also}
        strange = sorted(source.columns - known) if known else ()
        told = [f"column {shorten(column)} is not known" for column in strange]
        unread = [Unread(source.name, None, reason) for reason in told]
        records: list[Record] = []
        file = source.name.rpartition("/")[2]
        of_file = [one for one in self.rows if one.file.removesuffix(".gz") in ("", file)]
        for line, row in self.rows_of(source, of_file):
            try:
                if isinstance(row, InputError):
                    raise row
                records.append(self._record(row))
            except InputError as error:
                unread.append(Unread(source.name, line, str(error)))
        if not records and len({one.reason for one in unread}) == 1 < len(unread):
            unread = [Unread(source.name, None, unread[0].reason)]
        return Reading(tuple(records), tuple(unread))

    def rows_of(
        self, table: Path | RecordSource | Iterable[Cells], entries: Sequence[RowKeys]
    ) -> Iterator[tuple[int, MappedRow | InputError]]:
        """Yield line and row for each entry that a row of a table fits, or why it is no row."""
        for line, cells in self._cells(table):
            if isinstance(cells, InputError):
                yield line, cells
                continue
            ours = {
                column: self.words.get(column_name(column), {}).get(str(cell), cell)
                for column, cell in cells.items()
            }
            values = values_of(ours, place=f"row {line}")
            for one in entries:
                try:
                    if not one.where or formula(one.where)(values):
                        yield line, MappedRow(one, cells, ours, values, line)
                except InputError as error:
                    yield line, error

    def _cells(
        self, table: Path | RecordSource | Iterable[Cells]
    ) -> Iterator[tuple[int, Cells | InputError]]:
        if not isinstance(table, RecordSource):
            return table_cells(table, self.keys.delimiter)
        file = io.StringIO(table.text, newline="")
        return cells_of(file, table.name, table.name, self.keys.delimiter)

    def _record(self, row: MappedRow) -> Record:
        """Return the record of a row that is a step; raises `InputError` for another."""
        keys = row.keys
        if not keys.model:
            raise InputError("an op, no step of a network; steptime evaluate reads it")
        status, cause = row.outcome
        quantities = row.quantities if status == "ok" else {}
        if status == "ok" and not quantities:
            raise InputError(f"{keys.seconds}: no time is said")
        platform = row.text(keys.device).strip()
        stack = row.text(keys.stack)
        if not platform:
            raise InputError("device: empty")
        env = {name: row.text(text) for name, text in keys.env.items()}
        of_file = {"mapping": self.sha256} if self.sha256 else {}
        return Record(
            origin="published",
            method=RecordMethod(
                self.name,
                row.text(keys.version),
                ({"stack": stack} if stack else {}) | row.options,
            ),
            workload=row.workload,
            platform=platform_of(platform),
            quantities={name: Quantity(value) for name, value in quantities.items()},
            status=status,
            cause=cause,
            note=row.text(keys.note),
            scope=row.text(keys.scope),
            env={"source_entry": row.line, **env, **of_file},
        )


def read_mapping(path: Path) -> TableMapping:
    """Return the mapping of a user's file; raises `InputError` with all faults on one line."""
    table = read_table(str(path), "mapping")
    found = mapping_of(table, str(path), path.stem)
    return replace(found, sha256=sha256(repr(table).encode()).hexdigest())


def shipped(file: str) -> TableMapping:
    """Return a mapping of the house, `data/FILE`."""
    return mapping_of(packaged(file), file)


def mapping_of(table: object, where: str = "mapping", name: str = "mapping") -> TableMapping:
    """Return the mapping that a table says, called `name` if it does not say how.

    Raises `InputError` with all faults on one line.
    """
    if not isinstance(table, dict):
        raise InputError(f"{where}: a mapping is a table, not {shorten(table)}")
    keys = keys_of(table, Keys, where)
    common = {key: value for key, value in table.items() if OLD_KEYS.get(key, key) in ROW_KEYS}
    rows = [keys_of(common | one, RowKeys, f"{where}: rows") for one in keys.rows or ({},)]
    for one in rows:
        if sum(map(bool, (one.kind, one.ops, one.parts, one.model))) != 1:
            raise InputError(f"{where}: rows are one of kind, ops, parts or model")
        if one.model and one.quantities and not one.batch:
            raise InputError(f"{where}: quantities of a model need its 'batch'")
    of = keys.name or name, keys.source or name
    return TableMapping(keys, tuple(rows), where, *of)


def keys_of(table: Mapping[str, Any], model: type[Model], where: str) -> Model:
    """Return a table as the keys of a mapping, of old names, too; raises `InputError`."""
    return validated({OLD_KEYS.get(key, key): value for key, value in table.items()}, model, where)


ROW_KEYS = frozenset(field.alias or name for name, field in RowKeys.model_fields.items())
