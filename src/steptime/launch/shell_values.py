"""Values of a shell: arithmetic on whole numbers, tests, and the trimming of texts."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

Operation = Callable[[int, int], int]
Comparison = Callable[[int, int], bool]

ARITHMETIC: dict[type[ast.operator], Operation] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b),  # the shell divides whole numbers, towards zero
    ast.Mod: operator.mod,
}
NUMBER_TESTS: dict[str, Comparison] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_TRIMMED = re.compile(r"(%%?|##?)(.*)", re.DOTALL)


def calculate(expression: str) -> str:
    """Return the value of an arithmetic expression of numbers, "" where it has none."""
    try:
        return str(_calculate_node(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return ""


def trim(value: str, operation: str) -> str:
    """Return a value after `${NAME##*/}`, `${NAME%.*}` and the like; others leave it."""
    match = _TRIMMED.fullmatch(operation)
    if match is None:
        return value
    sign, pattern = match.groups()  # `#` cuts at the front, `%` at the end; doubled, the longest
    # Both lists of what remains go from the shortest cut to the longest.
    splits = [(value[:n], value[n:]) for n in range(len(value) + 1)]
    if sign in {"#", "##"}:
        remainders = [tail for head, tail in splits if fnmatchcase(head, pattern)]
    else:
        remainders = [head for head, tail in reversed(splits) if fnmatchcase(tail, pattern)]
    if not remainders:
        return value
    cuts_longest = sign in {"##", "%%"}
    return remainders[-1] if cuts_longest else remainders[0]


def _calculate_node(node: ast.expr) -> int:
    """Return the value of a parsed arithmetic expression; raises `ValueError` for others."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculate_node(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        return ARITHMETIC[type(node.op)](_calculate_node(node.left), _calculate_node(node.right))
    raise ValueError("no arithmetic")


def evaluate_test(words: Sequence[str]) -> bool:
    """Return whether the words of a test hold: of one text, of two texts, or of two numbers.

    Tests of files fail: there are none here.
    """
    match list(words):
        case ["!", *negated_words]:
            return not evaluate_test(negated_words)
        case [text]:
            return text != ""
        case ["-z", text]:
            return text == ""
        case ["-n", text]:
            return text != ""
        case [left, comparison, right]:
            return _compare(left, comparison, right)
    return False


def _compare(left: str, comparison: str, right: str) -> bool:
    """Return whether a comparison of two texts by a pattern, or of two numbers, holds."""
    if comparison in {"=", "=="}:
        return fnmatchcase(left, right)
    if comparison == "!=":
        return not fnmatchcase(left, right)
    are_numbers = left.lstrip("-").isdigit() and right.lstrip("-").isdigit()
    if comparison in NUMBER_TESTS and are_numbers:
        return NUMBER_TESTS[comparison](int(left), int(right))
    return False
