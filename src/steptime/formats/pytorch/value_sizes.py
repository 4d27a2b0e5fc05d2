"""Sizes of a program that values decide, as of `x[mask]`: taken as large as they can be."""

import math
from collections.abc import Iterator, Mapping

from steptime.core.values import MAX_COUNT
from steptime.formats.pytorch.program import FxNode, Program, Size
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
    input_symbols = {
        symbol for name in program.inputs for symbol in _symbols(program.specs[name].sizes)
    }
    symbols = dict.fromkeys(
        symbol
        for node in program.nodes
        for output in node.outputs
        if output in program.specs
        for symbol in _symbols(program.specs[output].sizes)
    )
    return [symbol for symbol in symbols if symbol not in input_symbols]


def bound_value_sizes(program: Program, bound: Mapping[str, int]) -> dict[str, int]:
    """Return the largest value of each size that values decide, where the ops or the file say it.

    Args:
        program: the program.
        bound: the symbols that are known: the batch, open sizes, and sizes that the user states.
    """
    unknown = [symbol for symbol in find_value_symbols(program) if symbol not in bound]
    if not unknown:
        return {}
    values = dict(bound)
    for node in program.nodes:
        for output in node.outputs:
            sizes = program.specs[output].sizes if output in program.specs else ()
            for symbol in _symbols(sizes):
                if symbol not in values:
                    largest = _largest_value(program, node, symbol, values)
                    if largest is not None:
                        values[symbol] = largest
    return {symbol: values[symbol] for symbol in unknown if symbol in values}


def _largest_value(
    program: Program, node: FxNode, symbol: str, values: Mapping[str, int]
) -> int | None:
    """Return the largest value of a symbol in the output of a node, None if unknown."""
    candidates: list[int] = []
    highest = program.ranges.get(symbol, (0, None))[1]
    if highest is not None and highest <= MAX_COUNT:  # torch writes 2^63 for no limit
        candidates.append(highest)
    argument = node.args.get(BOUNDED_OPS.get(node.op, ""))
    tensors = argument if isinstance(argument, list) else [argument]
    for tensor in tensors:
        if tensor in program.specs:
            try:
                sizes = program.specs[tensor].sizes
                candidates.append(math.prod(_evaluate(size, values) for size in sizes))
            except SymbolError:
                continue  # its own size is unknown
    return min(candidates, default=None)


def _evaluate(size: Size, values: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else int(evaluate_size(size, values))


def _symbols(sizes: tuple[Size, ...]) -> Iterator[str]:
    """Yield the symbols in the sizes of a shape."""
    for size in sizes:
        if not isinstance(size, int):
            yield from symbols_of(size)
