"""Formulas of names, numbers and texts, as files of users say them: `2 * (m + 1)`, `op == "bmm"`.

Arithmetic, comparisons, `and`, `or`, `not`, `in`, `a if b else c` and a few functions; nothing that
reaches beyond the values given.
"""

import ast
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

from steptime.core.errors import InputError, shorten, unknown

LONGEST = 500  # characters
_NODES = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Name),
    *(ast.Constant, ast.Tuple, ast.Call, ast.Load, ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Eq, ast.NotEq, ast.Lt),
    *(ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
)


def _item(text: object, place: int) -> int:
    """Return a whole number of a text of several: `item("8 512 64", 1)` is 512."""
    found = re.findall(r"\d+", str(text))
    if place >= len(found):
        raise ValueError(f"{shorten(text)} has {len(found)} numbers, counted from 0")
    return int(found[place])


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "item": _item,
    "max": max,
    "min": min,
}


@dataclass(frozen=True)
class Formula:
    """A formula, ready to be computed again and again. `names` are the values that it reads."""

    text: str
    names: frozenset[str]
    code: CodeType

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Return its value; raises `InputError` where it has none, such as a division by 0."""
        try:
            return eval(self.code, {"__builtins__": {}, **FUNCTIONS}, values)  # noqa: S307  # checked
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
    return Formula(text, frozenset(names - called), compile(tree, "<formula>", "eval"))


_BRACES = re.compile(r"\{([^{}]*)\}")


def filled(text: str, values: Mapping[str, Any]) -> str:
    """Return a text with the value of each formula in braces: `fc:layers={layers + 1}`."""
    return _BRACES.sub(lambda found: str(formula(found[1])(values)), text)


def named(column: str) -> str:
    """Return the name of a column in formulas: `time (ms)` is time_ms, `#params` is params."""
    return re.sub(r"\W+", "_", column.strip()).strip("_")


_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?|[-+]?\.\d+([eE][-+]?\d+)?")


def valued(cell: object) -> Any:
    """Return a cell as formulas take it: a number where it is one, else text; `inf` is a text."""
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if not _NUMBER.fullmatch(text):
        return text
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
