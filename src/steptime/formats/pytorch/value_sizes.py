"""Sizes of a program that values decide, as of `x[mask]`: taken as large as they can be."""

import math
from collections.abc import Iterator, Mapping

from steptime.core.values import MAX_COUNT
from steptime.formats.pytorch.program import NO_LIMITS, FxNode, Program, Size
from steptime.formats.pytorch.symbols import SymbolError, evaluate_size, symbols_of

# ops whose first output has at most as many rows as a tensor has elements: that tensor's argument
BOUNDED_OPS = {
    "nonzero": "self",
    "masked_select": "mask",
    "_unique2": "self",
    "unique_dim": "self",
    "unique_consecutive": "self",
    "index": "indices",
}


def find_value_symbols(program: Program) -> list[str]:
    """Return the symbols of a program's sizes that are in no input's shape: values decide them."""
    input_symbols: set[str] = set()
    for name in program.inputs:
        input_symbols.update(_list_symbols(program.specs[name].sizes))
    value_symbols: dict[str, None] = {}  # a set that keeps the order of the nodes
    for node in program.nodes:
        for symbol in _list_output_symbols(program, node):
            if symbol not in input_symbols:
                value_symbols[symbol] = None
    return list(value_symbols)


def bound_value_sizes(program: Program, bound: Mapping[str, int]) -> dict[str, int]:
    """Return the largest value of each size that values decide, where the ops or the file say it.

    Args:
        program: the program.
        bound: the symbols that are known: the batch, open sizes, and sizes that the user states.
    """
    unknown_symbols = [symbol for symbol in find_value_symbols(program) if symbol not in bound]
    if not unknown_symbols:
        return {}
    value_by_symbol = dict(bound)
    for node in program.nodes:
        for symbol in _list_output_symbols(program, node):
            if symbol not in value_by_symbol:
                largest = _find_largest_value(program, node, symbol, value_by_symbol)
                if largest is not None:
                    value_by_symbol[symbol] = largest
    return {
        symbol: value_by_symbol[symbol] for symbol in unknown_symbols if symbol in value_by_symbol
    }


def _find_largest_value(
    program: Program, node: FxNode, symbol: str, value_by_symbol: Mapping[str, int]
) -> int | None:
    """Return the largest value of a symbol in the output of a node, None if unknown."""
    upper_bounds: list[int] = []
    highest = program.ranges.get(symbol, NO_LIMITS).highest
    if highest is not None and highest <= MAX_COUNT:  # torch writes 2^63 for no limit
        upper_bounds.append(highest)
    argument_name = BOUNDED_OPS.get(node.op, "")
    bounding_argument = node.args.get(argument_name)
    tensors = bounding_argument if isinstance(bounding_argument, list) else [bounding_argument]
    for tensor in tensors:
        if tensor in program.specs:
            sizes = program.specs[tensor].sizes
            try:
                element_count = math.prod(_evaluate(size, value_by_symbol) for size in sizes)
            except SymbolError:
                continue  # its own size is unknown
            upper_bounds.append(element_count)
    return min(upper_bounds, default=None)


def _evaluate(size: Size, value_by_symbol: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else int(evaluate_size(size, value_by_symbol))


def _list_output_symbols(program: Program, node: FxNode) -> Iterator[str]:
    """Yield the symbols in the shapes of a node's outputs."""
    for output in node.outputs:
        if output in program.specs:
            yield from _list_symbols(program.specs[output].sizes)


def _list_symbols(sizes: tuple[Size, ...]) -> Iterator[str]:
    """Yield the symbols in the sizes of a shape."""
    for size in sizes:
        if not isinstance(size, int):
            yield from symbols_of(size)
