"""Sizes that torch.export writes as texts: `Mul(Integer(64), Symbol('s77', positive=True))`."""

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

LONGEST_TEXT = 4000
_LARGEST = 2**64


class SymbolError(ValueError):
    """A size that cannot be read or computed; the message says why."""


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > 64:
        raise SymbolError("a power that is not a small whole number")
    return base ** int(exponent)


def _quotient(rounded: Callable[[Fraction], int]) -> Callable[..., int]:
    return lambda a, b=1: rounded(a / b)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: functools.reduce(operator.mul, factors, 1),
    **dict.fromkeys(("Pow", "PowByNatural"), _power),
    "Max": max,
    "Min": min,
    "Abs": abs,
    **dict.fromkeys(("FloorDiv", "CleanDiv", "floor", "FloorToInt"), _quotient(math.floor)),
    **dict.fromkeys(("CeilDiv", "ceiling", "CeilToInt"), _quotient(math.ceil)),
    **dict.fromkeys(("Mod", "PythonMod"), operator.mod),
    **dict.fromkeys(("IntTrueDiv", "Rational"), operator.truediv),
    **dict.fromkeys(("ToFloat", "Integer"), lambda a: a),
    "TruncToInt": math.trunc,
}


@functools.lru_cache(maxsize=10_000)
def parsed(text: str) -> ast.expr:
    """Return a size's text as a tree of calls, of which none is made; raises `SymbolError`."""
    if len(text) > LONGEST_TEXT:
        raise SymbolError(f"a size of {len(text)} characters")
    try:
        return ast.parse(text, "<size>", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise SymbolError(f"{text[:60]!r} is not a size") from None


def symbol_of(tree: Any) -> str:
    """Return the name of a size that is one symbol, else ""."""
    match tree:
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            return name
    return ""


def symbols_of(tree: ast.expr) -> set[str]:
    """Return the names of the symbols in a size."""
    return {name for node in ast.walk(tree) if (name := symbol_of(node))}


def value_of(tree: Any, bound: Mapping[str, int]) -> Fraction:
    """Return what a size is where its symbols are `bound`; raises `SymbolError`."""
    match tree:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value_of(operand, bound)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            symbol = symbol_of(tree)
            if symbol and symbol not in bound:
                raise SymbolError(f"size {symbol} depends on values")
            if symbol:
                return Fraction(bound[symbol])
            if name not in FUNCTIONS:
                raise SymbolError(f"function '{name[:60]}' in a size")
            try:
                result = Fraction(FUNCTIONS[name](*(value_of(one, bound) for one in arguments)))
            except (TypeError, ArithmeticError) as error:
                raise SymbolError(f"{name} in a size: {error}") from None
            if abs(result) > _LARGEST:
                raise SymbolError("a size above 2^64")
            return result
    raise SymbolError("a size that is neither a number nor a function")
