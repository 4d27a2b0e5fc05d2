"""Expressions of Python's syntax as trees of functions: nothing of Python itself is run.

Arithmetic of numbers, comparisons, `and`, `or`, `not`, `in`, `a if b else c`, tuples, names of
values, and calls of functions that the caller lists.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from steptime.core.errors import InputError, shorten
from steptime.core.expressions.amounts import SIValue, with_dimension

MAX_DIGITS = 300  # of a whole number, as of a float
_MAX_BITS = (10**MAX_DIGITS).bit_length()
_NO_NUMBERS = (str, list, tuple, dict)
Values = Mapping[str, Any]
Evaluate = Callable[[Values], Any]
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
_ALLOWED_NODES = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Name,
    ast.Attribute,
    ast.Constant,
    ast.Tuple,
    ast.Call,
    ast.Load,
    ast.And,
    ast.Or,
    *_ARITHMETIC,
    *_UNARY,
    *_COMPARISONS,
)


class ExpressionParser:
    """Turns a syntax tree into a function of values.

    Attributes:
        names: the values that the parsed expression reads.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Any]],
        value_functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        """List the functions that an expression may call.

        Args:
            functions: functions of their arguments.
            value_functions: functions of all values and of texts, such as names of values.
        """
        self.names: set[str] = set()  # that the expression reads
        self._functions = functions  # of numbers, such as `max`
        self._value_functions = value_functions  # of a row and texts, such as `column("2nd step")`

    def parse(self, tree: ast.Expression) -> Evaluate:
        """Return the function of an expression.

        Raises:
            InputError: for syntax that expressions do not have.
        """
        for node in ast.walk(tree):
            if not isinstance(node, _ALLOWED_NODES):
                raise InputError(f"{type(node).__name__} is not allowed")
        return self._parse_node(tree.body)

    def _parse_node(self, node: ast.expr) -> Evaluate:
        parsers: Mapping[type[ast.expr], Callable[[Any], Evaluate]] = {
            ast.Constant: _parse_constant,
            ast.Name: lambda name: self.read_name(name.id),
            ast.Attribute: lambda attribute: self.read_name(_attribute_name(attribute)),
            ast.BinOp: self._parse_arithmetic,
            ast.UnaryOp: self._parse_unary,
            ast.BoolOp: self._parse_bool,
            ast.Compare: self._parse_comparison,
            ast.IfExp: self._parse_choice,
            ast.Tuple: self._parse_tuple,
            ast.Call: self._parse_call,
        }
        return parsers[type(node)](node)

    def read_name(self, name: str) -> Evaluate:
        """Return the function that reads a value; it raises `NameError` if there is none."""
        self.names.add(name)

        def evaluate(values: Values) -> Any:
            try:
                return values[name]
            except KeyError:
                raise NameError(name=name) from None

        return evaluate

    def _parse_unary(self, node: ast.UnaryOp) -> Evaluate:
        operation = _UNARY[type(node.op)]
        operand = self._parse_node(node.operand)
        return lambda values: operation(operand(values))

    def _parse_tuple(self, node: ast.Tuple) -> Evaluate:
        items = [self._parse_node(element) for element in node.elts]
        return lambda values: tuple([item(values) for item in items])

    def _parse_arithmetic(self, node: ast.BinOp) -> Evaluate:
        operation = _ARITHMETIC[type(node.op)]
        left, right = self._parse_node(node.left), self._parse_node(node.right)
        return lambda values: _apply(operation, left(values), right(values))

    def _parse_bool(self, node: ast.BoolOp) -> Evaluate:
        """Return a function that stops at the operand which decides, as Python does."""
        operands = [self._parse_node(value) for value in node.values]
        deciding_truth = isinstance(node.op, ast.Or)  # a true operand decides `or`, a false `and`

        def evaluate(values: Values) -> Any:
            result = None
            for operand in operands:
                result = operand(values)
                if bool(result) is deciding_truth:
                    break
            return result

        return evaluate

    def _parse_comparison(self, node: ast.Compare) -> Evaluate:
        leftmost = self._parse_node(node.left)
        comparisons = [_COMPARISONS[type(op)] for op in node.ops]
        operands = [self._parse_node(operand) for operand in node.comparators]
        chain = [*zip(comparisons, operands, strict=True)]  # of a < b < c: (<, b) and (<, c)

        def evaluate(values: Values) -> Any:
            left = leftmost(values)
            result: Any = True
            for compare, operand in chain:
                right = operand(values)
                result = compare(left, right)
                if not result:
                    break
                left = right
            return result

        return evaluate

    def _parse_choice(self, node: ast.IfExp) -> Evaluate:
        condition = self._parse_node(node.test)
        if_true, if_false = self._parse_node(node.body), self._parse_node(node.orelse)
        return lambda values: if_true(values) if condition(values) else if_false(values)

    def _parse_call(self, node: ast.Call) -> Evaluate:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in self._value_functions:
            return self._parse_value_call(name, node.args)
        if name not in self._functions:
            all_names = (*self._functions, *self._value_functions)
            raise InputError(f"functions are {', '.join(all_names)}")
        function = self._functions[name]
        arguments = [self._parse_node(argument) for argument in node.args]
        return lambda values: function(*[argument(values) for argument in arguments])

    def _parse_value_call(self, name: str, arguments: list[ast.expr]) -> Evaluate:
        constants = [node.value for node in arguments if isinstance(node, ast.Constant)]
        texts = [constant for constant in constants if isinstance(constant, str)]
        are_texts = len(texts) == len(arguments)
        if not arguments or not are_texts:
            raise InputError(f'{name}: name a heading in quotes, {name}("2nd step")')
        function = self._value_functions[name]
        return lambda values: function(values, *texts)


def _attribute_name(node: ast.Attribute) -> str:
    """Return the name of a value with dots in its heading: `stats.median` is stats_median."""
    parts = [node.attr]
    inner = node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name):
        raise InputError(f"Attribute is not allowed: '.{node.attr}' is of no column")
    return "_".join([inner.id, *reversed(parts)])


def _parse_constant(node: ast.Constant) -> Evaluate:
    constant = node.value
    return lambda _: constant


def _apply(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Apply an operation to two numbers; texts are refused: `"a" * 10**9` would fill the memory."""
    for value in (left, right):
        if isinstance(value, _NO_NUMBERS):
            raise TypeError(f"{shorten(value)} is no number")
    result = operation(left, right)
    if isinstance(result, int) and result.bit_length() > _MAX_BITS:
        raise OverflowError("a number above 10^300")
    if isinstance(left, SIValue) or isinstance(right, SIValue):
        # "?": an operator after which no unit is known.
        return with_dimension(result, _SIGNS.get(operation, "?"), left, right)
    return result
