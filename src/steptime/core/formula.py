"""Formulas of names, numbers and texts in files of users: `2 * (m + 1)`, `op == "bmm"`.

Arithmetic of numbers, comparisons, `and`, `or`, `not`, `in`, `a if b else c` and a few functions;
nothing that reads other data than its arguments, or takes much time or memory.
"""

import ast
import keyword
import math
import operator
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType, MappingProxyType
from typing import Any

from steptime.core.amounts import SIValue, read_number, with_dimension
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.values import MAX_COUNT, number_of

MAX_CHARACTERS = 500  # of a formula
MAX_REPEATED_CHARACTERS = 10_000  # of the text that `repeat` makes
MAX_ROUNDING_ERROR = 1e-3  # of a whole number computed as a product of rounded numbers
MAX_DIGITS = 300  # of a whole number, as of a float
_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"}
_NODES = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Name),
    ast.Attribute,
    *(ast.Constant, ast.Tuple, ast.Call, ast.Load, ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
    *_OPERATIONS,
)


def _apply(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Apply an operation to two numbers; texts are refused: `"a" * 10**9` would fill the memory."""
    for value in (left, right):
        if isinstance(value, str | list | tuple | dict):
            raise TypeError(f"{shorten(value)} is no number")
    result = operation(left, right)
    if isinstance(result, int) and result.bit_length() > _MAX_BITS:
        raise OverflowError("a number above 10^300")
    if isinstance(left, SIValue) or isinstance(right, SIValue):
        return with_dimension(result, _SIGNS.get(operation, "?"), left, right)
    return result


_MAX_BITS = (10**MAX_DIGITS).bit_length()
_FUNCTION_OF_OPERATION = {
    f".{kind.__name__}": partial(_apply, function) for kind, function in _OPERATIONS.items()
}


class _CheckedCalls(ast.NodeTransformer):
    """Replaces operations and functions by names with a dot, which no column has.

    So a column `min` hides no function. `stats.median` and `column("2nd step")` become the names
    of columns.
    """

    def visit_BinOp(self, node: ast.BinOp) -> ast.Call:  # as ast calls it
        self.generic_visit(node)
        function = ast.Name(f".{type(node.op).__name__}", ast.Load())
        return ast.Call(function, [node.left, node.right], [])

    def visit_Call(self, node: ast.Call) -> ast.Call:
        function = node.func
        if not isinstance(function, ast.Name) or function.id not in (*FUNCTIONS, COLUMN):
            raise InputError(f"functions are {', '.join((*FUNCTIONS, COLUMN))}")
        self.generic_visit(node)
        arguments = node.args
        if function.id == COLUMN:
            if not arguments or not all(map(_is_text, arguments)):
                raise InputError('column: name a heading in quotes, column("2nd step")')
            arguments = [ast.Name(_VALUES, ast.Load()), *arguments]
        return ast.Call(ast.Name(f".{function.id}", ast.Load()), arguments, [])

    def visit_Attribute(self, node: ast.Attribute) -> ast.Name:
        parts: list[str] = [node.attr]
        inner = node.value
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if not isinstance(inner, ast.Name):
            raise InputError(f"Attribute is not allowed: '.{node.attr}' is of no column")
        return ast.Name("_".join([inner.id, *reversed(parts)]), ast.Load())


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _first_column(values: Mapping[str, Any], *headings: str) -> Any:
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


def _rounded(value: float) -> int:
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
    "whole": _rounded,
}


COLUMN = "column"
_VALUES = ".values"  # the name by which `column` gets all values
_GLOBALS = {
    "__builtins__": {},
    **{f".{name}": function for name, function in FUNCTIONS.items()},
    **_FUNCTION_OF_OPERATION,
    f".{COLUMN}": _first_column,
}


@dataclass(frozen=True)
class Formula:
    """A compiled formula; `names` are the values that it reads."""

    text: str
    names: frozenset[str]
    code: CodeType
    reads_columns: bool = False

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the value of the formula; raises `InputError` if it has none (a division by 0)."""
        local_values = {**values, _VALUES: values} if self.reads_columns else values
        try:
            return eval(self.code, _GLOBALS, local_values)  # noqa: S307  # checked
        except NameError as error:
            raise unknown("name", error.name, values, f"formula {shorten(self.text)}") from None
        except (ArithmeticError, TypeError, ValueError) as error:
            texts = [name for name in sorted(self.names) if isinstance(values.get(name), str)]
            is_text = isinstance(error, TypeError) and texts  # Python's words say not which
            why = f"{texts[0]} is no number: {shorten(values[texts[0]])}" if is_text else error
            raise InputError(f"formula {shorten(self.text)}: {why}") from None


@lru_cache(maxsize=1024)
def formula(text: str) -> Formula:
    """Return the formula of a text; raises `InputError` if the text is not a formula.

    A text of one heading that Python could not read as a name, `for`, `2nd_step` or `99%`, is the
    column of that heading.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"formula {shorten(text)}: longer than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if _is_heading(text.strip()):
            return _formula_of_heading(text)
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"formula {shorten(text)}: {reason}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise InputError(f"formula {shorten(text)}: {type(node).__name__} is not allowed")
    try:
        tree = ast.fix_missing_locations(_CheckedCalls().visit(tree))
        code = compile(tree, "<formula>", "eval")
    except InputError as error:
        raise InputError(f"formula {shorten(text)}: {error}") from None
    except RecursionError:
        raise InputError(f"formula {shorten(text)}: nested too deeply") from None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    columns = frozenset(name for name in names if not name.startswith("."))
    return Formula(text, columns, code, _VALUES in names)


def _is_heading(text: str) -> bool:
    """Return whether a text is a keyword of Python, or begins with a digit and has letters or %."""
    return keyword.iskeyword(text) or bool(re.fullmatch(r"\d[\w .]*%|\d+[A-Za-z_][\w ]*", text))


def _formula_of_heading(text: str) -> Formula:
    name = column_name(text)
    tree = ast.fix_missing_locations(ast.Expression(ast.Name(name, ast.Load())))
    return Formula(text, frozenset({name}), compile(tree, "<formula>", "eval"))


NO_CELLS: Mapping[str, Any] = MappingProxyType({})
_BRACES = re.compile(r"\{([^{}]*)\}")
_INTEGER = re.compile(r"[-+]?\d+")


def filled(
    text: str,
    values: Mapping[str, Any],
    cells: Mapping[str, Any] = NO_CELLS,
    has_integers: bool = False,
) -> str:
    """Return a text with the value of each formula in braces: `fc:layers={layers + 1}`.

    A name of a column of `cells` is replaced by its cell, whatever its name: `{steps per s}`. With
    `has_integers` a cell such as `4.0` or `1.024E+03` is written as a whole number.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1].strip()
        if name in cells:
            return _integer_text(cells[name]) if has_integers else str(cells[name])
        try:
            compiled = formula(name)
        except InputError:
            if not re.fullmatch(r"[\w ]+", name):
                raise
            raise unknown("column", name, cells or values) from None
        return _integer_text(compiled(values))

    return _BRACES.sub(value, text) if "{" in text else text


def _integer_text(value: object) -> str:
    """Return a value as text, a float or text of a whole number without its decimals: 4 for 4.0."""
    number = valued(value)
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


def valued(cell: object) -> Any:
    """Return a cell as a number if it is a finite number, else as text, for formulas."""
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if len(text) <= MAX_DIGITS and _INTEGER.fullmatch(text):
        return int(text)
    number = number_of(text)
    if math.isfinite(number):
        return number
    return TruthText(text) if text.lower() in ("true", "false") else text
