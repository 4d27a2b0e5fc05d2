"""A row of a table as a mapping reads it: its network, its device and its measured numbers."""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple, TypeGuard

from steptime.build import make_workload, read_model
from steptime.core.errors import InputError, check_choice, shorten, unknown
from steptime.core.expressions.amounts import (
    CellAmount,
    SIValue,
    amounts_of,
    drop_deviation,
    parse_amount,
)
from steptime.core.expressions.formula import column_name, fill_braces, formula, parse_cell
from steptime.core.tables.table_layout import Cells
from steptime.core.units import QUANTITIES
from steptime.core.values import parse_count
from steptime.core.workload import STAGINGS, STRATEGIES, Workload
from steptime.records.readers.heading_units import seconds_per_unit
from steptime.records.readers.mapping_keys import UNITS, Amount, RowKeys, StatusRule
from steptime.records.record import Quantity

CHOICES = {"staging": STAGINGS, "strategy": ("", *STRATEGIES)}  # "": one replica, or not said
LARGEST = 1e300
SIZE_NAMES = ("batch", "replicas", "line")  # formulas read them like columns


class Measured(NamedTuple):
    """What a row measured: a `value`, or `samples` of one run, or of fresh processes each."""

    value: float | None
    samples: tuple[float, ...] = ()
    are_fresh_runs: bool = False

    @property
    def quantity(self) -> Quantity:
        """The quantity of a record."""
        if not self.samples:
            return Quantity(self.value)
        run = tuple(range(len(self.samples))) if self.are_fresh_runs else (0,) * len(self.samples)
        return Quantity(samples=self.samples, columns={"run": run})


class MappedRow:
    """A row of a table as one entry of a mapping has it.

    Attributes:
        keys: the entry of the mapping.
        raw: the cells as they stand.
        cells: the cells in words of ours.
        values: the values that formulas take.
        line: its line or place in the file.
    """

    def __init__(
        self, keys: RowKeys, raw: Cells, cells: Cells, values: Mapping[str, Any], line: int
    ) -> None:
        self.keys = keys
        self.raw = raw
        self.cells = cells
        self.values = values
        self.line = line

    def text(self, template: str) -> str:
        """Return a text with its columns and formulas filled in."""
        return fill_braces(template, self._values_for(template), self.cells)

    def value(self, text: str) -> Any:
        """Return the value of a formula, or of the column of that heading: `99` of `99%`.

        `batch` and `replicas` are those of the mapping where no column has that name, `line` is
        the line of the row.
        """
        name = text.strip()
        if name.isdigit() and name in self.values:  # a heading such as `99`, not the number
            return self.values[name]
        return formula(text)(self._values_for(text))

    def _values_for(self, text: str) -> Mapping[str, Any]:
        """Return the values that a text may read: columns, and batch, replicas or line."""
        # A size is only read if the text names it, since `batch` may be a formula of its own. The
        # quick `in` comes before the regular expression.
        sizes = {
            name: getattr(self, name)
            for name in SIZE_NAMES
            if name in text and name not in self.values and re.search(rf"\b{name}\b", text)
        }
        return {**sizes, **self.values} if sizes else self.values

    def size(self, template: str, place: str) -> int:
        """Return the whole number that a formula or a text says; raises `InputError`."""
        if "{" in template:
            return to_integer(
                parse_cell(fill_braces(template, self.values, self.cells, has_integers=True)), place
            )
        return size_of(template, self.values, place)

    @cached_property
    def replicas(self) -> int:
        """The number of data-parallel copies."""
        return self.size(self.keys.replicas, "replicas")

    @cached_property
    def batch(self) -> int | None:
        """The batch of one replica, None if the network's text says it."""
        if not self.keys.batch:  # the text of the network says it
            return None
        # The formula of the batch may divide by the replicas, which are no column then.
        if "replicas" not in self.keys.batch or "replicas" in self.values:
            return self.size(self.keys.batch, "batch")
        values = {**self.values, "replicas": self.replicas}
        row = MappedRow(self.keys, self.raw, self.cells, values, self.line)
        return row.size(self.keys.batch, "batch")

    @property
    def outcome(self) -> tuple[str, str]:
        """The status of the row and its cause."""
        for rule in self.keys.status:
            if self._fits_rule(rule):
                return rule.status, self.text(rule.cause)
        return "ok", ""

    def _fits_rule(self, rule: StatusRule) -> bool:
        """Return whether the row fits the formula of a rule, or the value of its column."""
        if rule.row_filter:
            return bool(formula(rule.row_filter)(self.values))
        cell = self._cell(rule.column)
        if isinstance(cell, bool):  # `true` of JSON and `True` are one
            return str(cell).lower() == rule.equals.lower()
        return str(cell) == rule.equals

    @property
    def seconds(self) -> float | None:
        """The seconds that were measured, the median of samples, None where there are none."""
        # A mapping states quantities by name, or a time alone: as `samples`, `runs` or `seconds`.
        keys = self.keys
        if keys.quantities:
            amount = keys.quantities.get("step_s")
            if amount is None:  # the mapping has other quantities only, such as memory
                return None
            status, _ = self.outcome
            is_single_op = bool(keys.scope)  # the scope is the op's path in the network
            if is_single_op or status != "ok":
                return None
            return self._read_amount("step_s", amount)
        measured = self._read_samples()
        if measured is not None:
            return median(measured.samples)
        return self._read_seconds(keys.seconds, self.value(keys.seconds))

    def _read_seconds(self, place: str, value: object) -> float | None:
        """Return a time in s; a cell with a unit of its own has that one."""
        if value in ("", None) or str(value).lower() == "nan":
            return None
        cell = parse_cell(drop_deviation(value))  # 12 of `12 +- 0.3`
        amount = _parse_cell_amount(cell)
        if amount is not None and amount.dimension:  # `12 ms` says its own unit
            return _check_positive(_convert_to_unit("step_s", cell, amount), place)
        return _check_positive(cell, place) * self._unit_of(place)

    def _unit_of(self, formula_text: str) -> float:
        """Return the seconds of the stated unit, else of the unit in the column's heading."""
        unit = self.keys.unit
        return UNITS[unit] if unit else seconds_per_unit(formula_text, self.raw)

    def _read_samples(self) -> Measured | None:
        """Return the samples of the row; None if it has none."""
        # `samples`: the times of one run; `runs`: a time of each of several runs.
        formula_text = self.keys.samples or self.keys.runs
        cell = self.value(formula_text) if formula_text else None
        if cell in ("", None, []):  # one time, under `seconds`
            return None
        texts = cell if isinstance(cell, list) else amounts_of(cell)
        times_s = [self._read_seconds(formula_text, parse_cell(text)) for text in texts]
        samples_s = tuple(time_s for time_s in times_s if time_s is not None)
        has_empty_sample = len(samples_s) < len(times_s)
        if not samples_s or has_empty_sample:
            raise InputError(f"{formula_text}: a sample is empty: {shorten(cell)}")
        return Measured(value=None, samples=samples_s, are_fresh_runs=bool(self.keys.runs))

    @property
    def measured(self) -> dict[str, Measured]:
        """What was measured by quantity, in SI."""
        amounts = self.keys.quantities.items()
        measured = {name: Measured(self._read_amount(name, amount)) for name, amount in amounts}
        samples = self._read_samples()
        if samples is not None:
            measured["step_s"] = samples
        elif not amounts:  # a mapping without `quantities` has one time, under `seconds`
            seconds = self.seconds
            measured = {} if seconds is None else {"step_s": Measured(seconds)}
        return measured

    @property
    def rival_times_s(self) -> dict[str, float]:
        """The seconds that others predicted, where they did."""
        keys = self.keys
        times_s = {}
        for name, text in keys.rivals.items():  # other predictors, and their columns
            value = formula(text)(self.values)
            unit_s = 1.0 if keys.quantities else self._unit_of(text)  # quantities are in SI
            if isinstance(value, int | float) and value > 0:
                times_s[name] = value * unit_s
        return times_s

    @property
    def workload(self) -> Workload:
        """The step of the row's network."""
        keys = self.keys
        # Tables may write whole numbers as 4.0: a setting of the network is 4.
        model = fill_braces(keys.model, self.values, self.cells, has_integers=True)
        try:
            return make_workload(
                read_model(model),
                batch=self.batch,
                dtype=self.text(keys.dtype) or "float32",
                phase=self.text(keys.phase),
                optimizer=self.text(keys.optimizer),
                replicas=self.replicas,
            )
        except InputError as error:
            if not re.match("unknown model .*; known:", str(error)):
                raise
            # Tables often name networks as these libraries do.
            hint = "networks of timm and torchvision are timm:NAME and torchvision:NAME"
            raise InputError(f"{error}; {hint}") from None

    @property
    def options(self) -> dict[str, str | int]:
        """Further settings that change the numbers; `devices` and the like are read by tables."""
        options: dict[str, str | int] = {}
        for name, template in self.keys.options.items():
            text = template if isinstance(template, int) else self.text(template)
            if name in CHOICES and text not in CHOICES[name]:
                raise unknown(name, text, filter(None, CHOICES[name]), "options")
            is_count = name == "device_count"
            options[name] = parse_count(text, "options.device_count") if is_count else text
        return options

    def _cell(self, column: str) -> Any:
        """Return the cell under a heading, or under the heading of that name in formulas."""
        if column not in self.raw:
            for heading, cell in self.raw.items():
                if column_name(heading) == column_name(column):
                    return cell
        return self.raw[check_choice("column", column, self.raw)]

    def _read_amount(self, name: str, amount: Amount) -> float:
        """Return a quantity in SI; a time is above 0, and so is what is divided by."""
        unit, _ = QUANTITIES[name]
        scale = self._scale_of(amount, unit)
        value = self.value(amount.formula) if amount.formula else self._cell_value(amount.column)
        number_text = parse_cell(drop_deviation(value))  # 12 of `12 +- 0.3`
        cell = _parse_cell_amount(number_text)
        if cell is not None and cell.dimension:  # `12 ms`: its unit stands in place of `scale`
            number_text = _convert_to_unit(name, number_text, cell, amount.inverse)
            scale = 1.0
        must_be_positive = unit == "s" or amount.inverse  # no step takes 0 s; 1 / 0 is no number
        check = _check_positive if must_be_positive else _check_number
        number = check(number_text, name if amount.formula else amount.column) * scale
        if amount.inverse and not number:
            raise InputError(f"{amount.column}: too small: {shorten(self._cell(amount.column))}")
        return 1 / number if amount.inverse else number

    def _cell_value(self, column: str) -> Any:
        """Return the value of a cell as formulas take it."""
        return parse_cell(self._cell(column))

    def _scale_of(self, amount: Amount, unit: str) -> float:
        """Return the factor to SI: that of the mapping, else by the unit in a time's heading."""
        if amount.scale is not None:
            return amount.scale
        column = amount.formula or amount.column
        return seconds_per_unit(column, self.raw) if unit == "s" else 1.0


def _parse_cell_amount(value: object) -> CellAmount | None:
    """Return the amount of a text, or of a number that a formula read with its unit, else None."""
    if isinstance(value, SIValue):
        return CellAmount(float(value), value.dimension)
    return parse_amount(value) if isinstance(value, str) else None


def _convert_to_unit(name: str, text: object, cell: CellAmount, is_inverse: bool = False) -> float:
    """Return the amount of a cell; raises `InputError` if its unit is not that of the quantity."""
    unit, _ = QUANTITIES[name]
    expected_unit = "/s" if is_inverse and unit == "s" else unit
    if cell.dimension == expected_unit:
        return cell.value
    is_rate_of_time = unit == "s" and cell.dimension == "/s"
    hint = "; 1 / number(COLUMN) is its time" if is_rate_of_time else ""
    raise InputError(
        f"{name}: {shorten(text)} is in {cell.dimension}, not in {expected_unit}{hint}"
    )


def _check_number(value: object, place: str) -> float:
    if not _is_number(value) or not abs(value) < LARGEST:
        raise InputError(
            f"{place}: must be a number, not {shorten(value)}{_find_number_hint(value)}"
        )
    return float(value)


def _check_positive(value: object, place: str) -> float:
    if not _is_number(value) or not 0 < value < LARGEST:
        raise InputError(f"{place} must be above 0, not {shorten(value)}{_find_number_hint(value)}")
    return float(value)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _find_number_hint(value: object) -> str:
    """Return the remedy for a text that could be a number: `; decimal = ","`."""
    if not isinstance(value, str) or not re.search(r"\d", value):
        return ""
    # `1,234` may be a number of groups of digits, or one with three decimals.
    has_comma_groups = re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?", value)
    if has_comma_groups:
        return "; thousands = ',' in the mapping reads groups of digits, decimal = ',' decimals"
    has_decimal_comma = re.fullmatch(r"[-+]?[\d.\s]*,\d+([eE][-+]?\d+)?(\s*\D+)?", value)
    if has_decimal_comma:
        return "; decimal = ',' in the mapping reads it"
    groups_match = re.fullmatch(r"[-+]?\d{1,3}(?:([\s'\u2019_])\d{3})+(\.\d+)?(\s*\D+)?", value)
    if groups_match:
        separator = groups_match[1]
        mark = " " if separator.isspace() else separator.replace("\u2019", "'")
        return f"; thousands = {json.dumps(mark)} in the mapping reads it"
    return "; number(COLUMN) reads a number with its unit" if parse_amount(value) else ""


def size_of(
    text: int | str, values: Mapping[str, Any], place: str = "a size", below: int = 2**63
) -> int:
    """Return the whole number that a formula says; raises `InputError` for another value."""
    value = formula(text)(values) if isinstance(text, str) else text
    return to_integer(value, place if str(value) == str(text) else str(text), below)


def to_integer(value: object, place: str, below: int = 2**63) -> int:
    """Return a value that is a whole number, 4 for 4.0; raises `InputError` for another one."""
    if not _is_number(value) or not 0 <= value < below or value != int(value):
        limit = f"2^{below.bit_length() - 1}"
        hint = _find_number_hint(value)
        raise InputError(f"{place} is a whole number below {limit}, not {shorten(value)}{hint}")
    return int(value)
