"""Formulas of names, numbers and texts in files of users: `2 * (m + 1)`, `op == "bmm"`.

Arithmetic of numbers, comparisons, `and`, `or`, `not`, `in`, `a if b else c` and a few functions;
nothing that reads other data than its arguments, or takes much time or memory.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CodeType, MappingProxyType
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.values import number_of

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
_NODES = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Name),
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
    return result


_MAX_BITS = (10**MAX_DIGITS).bit_length()
_FUNCTION_OF_OPERATION = {
    f".{kind.__name__}": partial(_apply, function) for kind, function in _OPERATIONS.items()
}


class _OperationCalls(ast.NodeTransformer):
    """Replaces each operation by a call of `_apply`, named with a dot, which no column has."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.Call:  # as ast calls it
        self.generic_visit(node)
        function = ast.Name(f".{type(node.op).__name__}", ast.Load())
        return ast.Call(function, [node.left, node.right], [])


def _item(text: object, place: int) -> int:
    """Return one of the whole numbers in a text, counted from 0: `item("8 512 64", 1)` is 512."""
    numbers = re.findall(r"\d+", str(text))
    if not 0 <= place < len(numbers):
        raise ValueError(f"{shorten(text)} has {len(numbers)} numbers, counted from 0")
    return int(numbers[place])


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


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "item": _item,
    "max": max,
    "min": min,
    "repeat": _repeat,
    "whole": _rounded,
}


_GLOBALS = {"__builtins__": {}, **FUNCTIONS, **_FUNCTION_OF_OPERATION}


@dataclass(frozen=True)
class Formula:
    """A compiled formula; `names` are the values that it reads."""

    text: str
    names: frozenset[str]
    code: CodeType

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return the value of the formula; raises `InputError` if it has none (a division by 0)."""
        try:
            return eval(self.code, _GLOBALS, values)  # noqa: S307  # checked
        except NameError as error:
            raise unknown("name", error.name, values, f"formula {shorten(self.text)}") from None
        except (ArithmeticError, TypeError, ValueError) as error:
            texts = [name for name in sorted(self.names) if isinstance(values.get(name), str)]
            is_text = isinstance(error, TypeError) and texts  # Python's words say not which
            why = f"{texts[0]} is no number: {shorten(values[texts[0]])}" if is_text else error
            raise InputError(f"formula {shorten(self.text)}: {why}") from None


@lru_cache(maxsize=1024)
def formula(text: str) -> Formula:
    """Return the formula of a text; raises `InputError` if the text is not a formula."""
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"formula {shorten(text)}: longer than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"formula {shorten(text)}: {reason}") from None
    names, function_names = set(), set()
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise InputError(f"formula {shorten(text)}: {type(node).__name__} is not allowed")
        if isinstance(node, ast.Name):
            names.add(node.id)
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
                raise InputError(f"formula {shorten(text)}: functions are {', '.join(FUNCTIONS)}")
            function_names.add(node.func.id)
    try:
        code = compile(
            ast.fix_missing_locations(_OperationCalls().visit(tree)), "<formula>", "eval"
        )
    except RecursionError:
        raise InputError(f"formula {shorten(text)}: nested too deeply") from None
    return Formula(text, frozenset(names - function_names), code)


NO_CELLS: Mapping[str, Any] = MappingProxyType({})
_BRACES = re.compile(r"\{([^{}]*)\}")


def filled(text: str, values: Mapping[str, Any], cells: Mapping[str, Any] = NO_CELLS) -> str:
    """Return a text with the value of each formula in braces: `fc:layers={layers + 1}`.

    A name of a column of `cells` is replaced by its cell, whatever its name: `{steps per s}`.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1].strip()
        if name in cells:
            return str(cells[name])
        try:
            compiled = formula(name)
        except InputError:
            if not re.fullmatch(r"[\w ]+", name):
                raise
            raise unknown("column", name, cells or values) from None
        return str(compiled(values))

    return _BRACES.sub(value, text)


def check_braces(text: str) -> str:
    """Return a text for `filled`; raises `ValueError` for empty and for unpaired braces."""
    if any(not content.strip() for content in _BRACES.findall(text)):
        raise ValueError("a column or a formula stands in braces, {column}")
    if re.search(r"[{}]", _BRACES.sub("", text)):
        raise ValueError("is no text with {columns}: a brace is alone")
    return text


@lru_cache(maxsize=1024)
def column_name(column: str) -> str:
    """Return the name of a column in formulas: `time (ms)` is time_ms, `#params` is params."""
    return re.sub(r"\W+", "_", column.strip()).strip("_")


def valued(cell: object) -> Any:
    """Return a cell as a number if it is a finite number, else as text, for formulas."""
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if len(text) <= MAX_DIGITS and re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    number = number_of(text)
    return number if math.isfinite(number) else text
