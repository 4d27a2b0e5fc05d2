"""Formulas of names, numbers and texts in files of users: `2 * (m + 1)`, `op == "bmm"`.

Arithmetic of numbers, comparisons, `and`, `or`, `not`, `in`, `a if b else c` and a few functions;
nothing that reads other data than its arguments, or takes much time or memory.
"""

import ast
import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.expressions.amounts import read_number
from steptime.core.expressions.expression import MAX_DIGITS, Evaluate, ExpressionParser
from steptime.core.values import MAX_COUNT, number_of

MAX_CHARACTERS = 500  # of a formula
MAX_REPEATED_CHARACTERS = 10_000  # of the text that `repeat` makes
MAX_ROUNDING_ERROR = 1e-3  # of a whole number computed as a product of rounded numbers


def _find_first_cell(values: Mapping[str, Any], *headings: str) -> Any:
    """Return the first value that is not empty in columns of these headings, else ""."""
    for heading in headings:
        value = values.get(column_name(heading), "")
        if value not in ("", None):
            return value
    return ""


def _repeat(text: str, times: int, end: str) -> str:
    """Return a text repeated, and an end: `repeat("w", 2, "a")` is wwa."""
    if times * len(text) > MAX_REPEATED_CHARACTERS:
        raise ValueError(f"{shorten(text)} {shorten(times)} times is too long")
    return text * times + end


def _round_exactly(value: float) -> int:
    """Return the whole number nearest to a product of rounded numbers: 64 for 63.9997."""
    if abs(value - round(value)) > MAX_ROUNDING_ERROR:
        raise ValueError(f"{value:.6g} is no whole number")
    return round(value)


def _ends_with(text: str, *endings: str) -> bool:
    """Return whether a text has one of the endings."""
    return str(text).endswith(endings)


def _length(value: object) -> int:
    """Return the number of items of a list or of characters of a text, 1 of a number."""
    return len(value) if isinstance(value, list | str) else 1


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "ends_with": _ends_with,
    "floor": math.floor,
    "length": _length,
    "max": max,
    "min": min,
    "number": read_number,
    "repeat": _repeat,
    "whole": _round_exactly,
}


COLUMN = "column"


@dataclass(frozen=True)
class Formula:
    """A parsed formula.

    Attributes:
        text: the formula.
        names: the values that it reads.
        evaluate: the function of all values.
    """

    text: str
    names: frozenset[str]
    evaluate: Evaluate = field(compare=False, repr=False)

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the value of the formula; raises `InputError` if it has none (a division by 0)."""
        try:
            return self.evaluate(values)
        except NameError as error:
            raise unknown("name", error.name, values, f"formula {shorten(self.text)}") from None
        except RecursionError:
            raise InputError(f"formula {shorten(self.text)}: nested too deeply") from None
        except (ArithmeticError, TypeError, ValueError) as error:
            reason = str(error)
            text_names = [name for name in sorted(self.names) if isinstance(values.get(name), str)]
            if isinstance(error, TypeError) and text_names:  # Python's message names no value
                name = text_names[0]
                reason = f"{name} is no number: {shorten(values[name])}"
            raise InputError(f"formula {shorten(self.text)}: {reason}") from None


@lru_cache(maxsize=1024)
def formula(text: str) -> Formula:
    """Return the formula of a text; raises `InputError` if the text is not a formula.

    A text of one heading that Python could not read as a name, `for`, `2nd_step` or `99%`, is the
    column of that heading.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"formula {shorten(text)}: longer than {MAX_CHARACTERS} characters")
    parser = ExpressionParser(FUNCTIONS, {COLUMN: _find_first_cell})
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # A heading such as `2nd step` is no Python, but names a column.
        if _is_heading(text.strip()):
            name = column_name(text)
            return Formula(text, frozenset({name}), parser.read_name(name))
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"formula {shorten(text)}: {reason}") from None
    try:
        evaluate = parser.parse(tree)
    except InputError as error:
        raise InputError(f"formula {shorten(text)}: {error}") from None
    except RecursionError:
        raise InputError(f"formula {shorten(text)}: nested too deeply") from None
    return Formula(text, frozenset(parser.names), evaluate)


def _is_heading(text: str) -> bool:
    """Return whether a text is a keyword of Python, or begins with a digit and has letters or %."""
    return keyword.iskeyword(text) or bool(re.fullmatch(r"\d[\w .]*%|\d+[A-Za-z_][\w ]*", text))


NO_CELLS: Mapping[str, Any] = MappingProxyType({})
_BRACES = re.compile(r"\{([^{}]*)\}")
_INTEGER = re.compile(r"[-+]?\d+")


def fill_braces(
    text: str,
    values: Mapping[str, Any],
    cells: Mapping[str, Any] = NO_CELLS,
    has_integers: bool = False,
) -> str:
    """Return a text with the value of each formula in braces: `fc:layers={layers + 1}`.

    A name of a column of `cells` is replaced by its cell, whatever its name: `{steps per s}`. With
    `has_integers` a cell such as `4.0` or `1.024E+03` is written as a whole number.
    """

    def replace_braces(match: re.Match[str]) -> str:
        content = match[1].strip()  # a column's name or a formula
        # A column is filled in as the file spells it; in formulas cells are numbers.
        # `has_integers`: a cell such as `4.0` is written 4, as a model text or a count needs it.
        if content in cells:
            return _integer_text(cells[content]) if has_integers else str(cells[content])
        try:
            evaluate = formula(content)
        except InputError:
            looks_like_name = re.fullmatch(r"[\w ]+", content) is not None
            if not looks_like_name:
                raise
            raise unknown("column", content, cells or values) from None
        return _integer_text(evaluate(values))

    return _BRACES.sub(replace_braces, text) if "{" in text else text


def _integer_text(value: object) -> str:
    """Return a value as text, a float or text of a whole number without its decimals: 4 for 4.0."""
    number = parse_cell(value)
    is_integer = isinstance(number, float) and number.is_integer() and abs(number) < MAX_COUNT
    return str(int(number)) if is_integer else str(value)


def check_braces(text: str) -> str:
    """Return a text for `filled`; raises `ValueError` for empty and for unpaired braces."""
    if any(not content.strip() for content in _BRACES.findall(text)):
        raise ValueError("a column or a formula stands in braces, {column}")
    if re.search(r"[{}]", _BRACES.sub("", text)):
        raise ValueError("is no text with {columns}: a brace is alone")
    return text


@lru_cache(maxsize=1024)
def column_name(column: str) -> str:
    """Return the name of a column in formulas: `time (ms)` is time_ms, `#params` is params.

    Letters are normalised as Python does in names: the micro sign is a Greek letter.
    """
    return re.sub(r"\W+", "_", unicodedata.normalize("NFKC", column).strip()).strip("_")


class TruthText(str):
    """A cell `True` or `false`: its text, which is true or false where a formula asks."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return self.lower() == "true"

    def __eq__(self, other: object) -> bool:
        return bool(self) is other if isinstance(other, bool) else str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def parse_cell(cell: object) -> Any:
    """Return a cell as a number if it is a finite number, else as text, for formulas."""
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if len(text) <= MAX_DIGITS and _INTEGER.fullmatch(text):
        return int(text)
    number = number_of(text)
    if math.isfinite(number):
        return number
    # The text `False` would be true in a condition: a `TruthText` counts as what it says.
    return TruthText(text) if text.lower() in ("true", "false") else text
