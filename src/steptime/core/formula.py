"""Formulas of names, numbers and texts, as files of users say them: `2 * (m + 1)`, `op == "bmm"`.

Arithmetic of numbers, comparisons, `and`, `or`, `not`, `in`, `a if b else c` and a few functions;
nothing that reaches beyond the values given, or takes more time or memory than a line does.
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

LONGEST = 500  # characters
MOST_REPEATED = 10_000  # characters
ROUNDED = 1e-3  # that a whole number may be off, as a product of printed ones
MOST_DIGITS = 300  # of a whole number, as of a float
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


def _number(operation: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """Return what an operation gives of two numbers: `"a" * 10**9` would fill the memory."""
    for value in (one, other):
        if isinstance(value, str | list | tuple | dict):
            raise TypeError(f"{shorten(value)} is no number")
    found = operation(one, other)
    if isinstance(found, int) and found.bit_length() > _MOST_BITS:
        raise OverflowError("a number above 10^300")
    return found


_MOST_BITS = (10**MOST_DIGITS).bit_length()
_CALLED = {f".{kind.__name__}": partial(_number, one) for kind, one in _OPERATIONS.items()}


class _OfNumbers(ast.NodeTransformer):
    """Puts a call of `_number` where a formula has an operation; no cell has a name with a dot."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.Call:  # as ast calls it
        self.generic_visit(node)
        called = ast.Name(f".{type(node.op).__name__}", ast.Load())
        return ast.Call(called, [node.left, node.right], [])


def _item(text: object, place: int) -> int:
    """Return a whole number of a text of several: `item("8 512 64", 1)` is 512."""
    found = re.findall(r"\d+", str(text))
    if not 0 <= place < len(found):
        raise ValueError(f"{shorten(text)} has {len(found)} numbers, counted from 0")
    return int(found[place])


def _repeat(text: str, times: int, end: str) -> str:
    """Return a text so many times, and an end: `repeat("w", 2, "a")` is wwa."""
    if times * len(text) > MOST_REPEATED:
        raise ValueError(f"{shorten(text)} {shorten(times)} times is too long")
    return text * times + end


def _whole(value: float) -> int:
    """Return the whole number that a product of printed ones is: 64 of 63.9997."""
    if abs(value - round(value)) > ROUNDED:
        raise ValueError(f"{value:.6g} is no whole number")
    return round(value)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "item": _item,
    "max": max,
    "min": min,
    "repeat": _repeat,
    "whole": _whole,
}


_GLOBALS = {"__builtins__": {}, **FUNCTIONS, **_CALLED}


@dataclass(frozen=True)
class Formula:
    """A formula, ready to be computed again and again. `names` are the values that it reads."""

    text: str
    names: frozenset[str]
    code: CodeType

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return its value; raises `InputError` where it has none, such as a division by 0."""
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
    """Return the formula that a text says; raises `InputError` for what is none."""
    if len(text) > LONGEST:
        raise InputError(f"formula {shorten(text)}: longer than {LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"formula {shorten(text)}: {reason}") from None
    names, called = set(), set()
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise InputError(f"formula {shorten(text)}: {type(node).__name__} is not allowed")
        if isinstance(node, ast.Name):
            names.add(node.id)
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
                raise InputError(f"formula {shorten(text)}: functions are {', '.join(FUNCTIONS)}")
            called.add(node.func.id)
    try:
        code = compile(ast.fix_missing_locations(_OfNumbers().visit(tree)), "<formula>", "eval")
    except RecursionError:
        raise InputError(f"formula {shorten(text)}: nested too deeply") from None
    return Formula(text, frozenset(names - called), code)


NO_CELLS: Mapping[str, Any] = MappingProxyType({})
_BRACES = re.compile(r"\{([^{}]*)\}")


def filled(text: str, values: Mapping[str, Any], cells: Mapping[str, Any] = NO_CELLS) -> str:
    """Return a text with the value of each formula in braces: `fc:layers={layers + 1}`.

    A column of `cells` stands as it is, whatever it is called: `{steps per s}`.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1].strip()
        if name in cells:
            return str(cells[name])
        try:
            said = formula(name)
        except InputError:
            if not re.fullmatch(r"[\w ]+", name):
                raise
            raise unknown("column", name, cells or values) from None
        return str(said(values))

    return _BRACES.sub(value, text)


def check_braces(text: str) -> str:
    """Return a text of `filled`; raises `ValueError` for braces that hold nothing, or are alone."""
    if any(not one.strip() for one in _BRACES.findall(text)):
        raise ValueError("a column or a formula stands in braces, {column}")
    if re.search(r"[{}]", _BRACES.sub("", text)):
        raise ValueError("is no text with {columns}: a brace is alone")
    return text


@lru_cache(maxsize=1024)
def named(column: str) -> str:
    """Return the name of a column in formulas: `time (ms)` is time_ms, `#params` is params."""
    return re.sub(r"\W+", "_", column.strip()).strip("_")


def valued(cell: object) -> Any:
    """Return a cell as formulas take it: a number where it is a finite one, else text."""
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if len(text) <= MOST_DIGITS and re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    number = number_of(text)
    return number if math.isfinite(number) else text
