"""Sizes that torch.export writes as texts: `Mul(Integer(64), Symbol('s77', positive=True))`."""

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

MAX_TEXT_LENGTH = 4000
_MAX_EXPONENT = 64
_MAX_VALUE = 2**64


class SymbolError(ValueError):
    """A size that cannot be read or computed; the message says why."""


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    has_fraction = exponent.denominator != 1
    if has_fraction or abs(exponent) > _MAX_EXPONENT:
        raise SymbolError("a power that is not a small whole number")
    return base ** int(exponent)


def _round_quotient(round_number: Callable[[Fraction], int]) -> Callable[..., int]:
    """Return a function that divides two numbers and rounds, or rounds one number."""
    return lambda a, b=1: round_number(a / b)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: functools.reduce(operator.mul, factors, 1),
    **dict.fromkeys(("Pow", "PowByNatural"), _power),
    "Max": max,
    "Min": min,
    "Abs": abs,
    **dict.fromkeys(("FloorDiv", "CleanDiv", "floor", "FloorToInt"), _round_quotient(math.floor)),
    **dict.fromkeys(("CeilDiv", "ceiling", "CeilToInt"), _round_quotient(math.ceil)),
    **dict.fromkeys(("Mod", "PythonMod"), operator.mod),
    **dict.fromkeys(("IntTrueDiv", "Rational"), operator.truediv),
    **dict.fromkeys(("ToFloat", "Integer"), lambda a: a),
    "TruncToInt": math.trunc,
}


@functools.lru_cache(maxsize=10_000)
def parse_size(text: str) -> ast.expr:
    """Parse the text of a size into a syntax tree, which is never executed.

    Raises:
        SymbolError: if it is too long or no expression.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise SymbolError(f"a size of {len(text)} characters")
    try:
        return ast.parse(text, "<size>", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SymbolError(f"{text[:60]!r} is not a size") from None


def symbol_of(tree: Any) -> str:
    """Return the symbol that a size consists of, "" for any other size."""
    match tree:
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            return name
    return ""


@functools.lru_cache(maxsize=10_000)
def symbols_of(tree: ast.expr) -> frozenset[str]:
    """Return the names of the symbols in a size; `parse_size` gives equal texts one tree."""
    return frozenset(name for node in ast.walk(tree) if (name := symbol_of(node)))


def evaluate_size(tree: Any, value_by_symbol: Mapping[str, int]) -> Fraction:
    """Compute a size from the values of its symbols.

    Args:
        tree: the syntax tree of `parse_size`.
        value_by_symbol: the value of each symbol.

    Raises:
        SymbolError: if a symbol has no value or a function is unknown.
    """
    match tree:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -evaluate_size(operand, value_by_symbol)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            symbol = symbol_of(tree)
            if symbol and symbol not in value_by_symbol:
                raise SymbolError(f"size {symbol} depends on values")
            if symbol:
                return Fraction(value_by_symbol[symbol])
            return _evaluate_function(name, arguments, value_by_symbol)
    raise SymbolError("a size that is neither a number nor a function")


def _evaluate_function(
    name: str, arguments: Sequence[ast.expr], value_by_symbol: Mapping[str, int]
) -> Fraction:
    """Compute a function of `FUNCTIONS` of sizes; raises `SymbolError`."""
    if name not in FUNCTIONS:
        raise SymbolError(f"function '{name[:60]}' in a size")
    try:
        operands = [evaluate_size(argument, value_by_symbol) for argument in arguments]
        result = Fraction(FUNCTIONS[name](*operands))
    except (TypeError, ArithmeticError) as error:
        raise SymbolError(f"{name} in a size: {error}") from None
    if abs(result) > _MAX_VALUE:
        raise SymbolError("a size above 2^64")
    return result
