"""Sizes that depend on values: for `x[mask]` the largest, for choices of experts an even share."""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from steptime.core.units import first_of
from steptime.core.values import MAX_COUNT
from steptime.formats.pytorch.program import NO_LIMITS, FxNode, Program, Size
from steptime.formats.pytorch.symbols import SymbolError, evaluate_size, symbols_of

# ops whose first output has at most as many rows as a tensor has elements: that tensor's argument
BOUNDING_ARGUMENT_BY_OP = {
    "nonzero": "self",
    "nonzero_numpy": "self",
    "where": "condition",
    "masked_select": "mask",
    "_unique2": "self",
    "unique_dim": "self",
    "unique_consecutive": "self",
    "index": "indices",
}
SHARE_KEEPING_OPS = frozenset(  # ops whose result has as large a share of ones as what they read
    (
        *("select", "permute", "transpose", "view", "reshape", "unsqueeze", "squeeze", "flatten"),
        *("expand", "slice", "contiguous", "clone", "alias", "detach", "to", "_to_copy"),
    )
)
# ops that give indices on an axis
INDEX_CHOOSING_OPS = frozenset(("topk", "argmax", "argmin", "sort", "argsort"))


class ValueSize(NamedTuple):
    """A size that values decide.

    Attributes:
        value: what is counted.
        choice_count: among how many choices elements are spread evenly; 1 where it is the largest.
    """

    value: int
    choice_count: int = 1


def describe_value_sizes(sizes: Mapping[str, ValueSize]) -> list[str]:
    """Describe sizes that values decide, alike ones together.

    Example: `values decide sizes u0, u1: counted as an even share among 4 choices, 12`.
    """
    symbols_by_size: dict[ValueSize, list[str]] = {}
    for symbol, size in sizes.items():
        symbols_by_size.setdefault(size, []).append(symbol)
    remarks = []
    for size, symbols in symbols_by_size.items():
        share = (
            f"an even share among {size.choice_count} choices"
            if size.choice_count > 1
            else "the largest"
        )
        noun = "size" if len(symbols) == 1 else "sizes"
        remarks.append(
            f"values decide {noun} {first_of(symbols, 3)}: counted as {share}, {size.value}"
        )
    return remarks


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


def estimate_value_sizes(
    program: Program, stated_values: Mapping[str, int]
) -> dict[str, ValueSize]:
    """Return the value of each size that values decide, where the ops or the file limit it.

    Args:
        program: the program.
        stated_values: the symbols that are known: the batch, open sizes, and sizes that the user
            states.
    """
    open_symbols = [symbol for symbol in find_value_symbols(program) if symbol not in stated_values]
    if not open_symbols:
        return {}
    value_by_symbol = dict(stated_values)
    size_by_symbol: dict[str, ValueSize] = {}
    maker_by_tensor = {name: node for node in program.nodes for name in node.outputs}
    for node in program.nodes:  # in order: a size may depend on sizes of earlier nodes
        for symbol in _list_output_symbols(program, node):
            if symbol in value_by_symbol:
                continue
            size = _estimate_size(program, maker_by_tensor, node, symbol, value_by_symbol)
            if size is not None:
                value_by_symbol[symbol] = size.value
                size_by_symbol[symbol] = size
    return size_by_symbol


def _estimate_size(
    program: Program,
    maker_by_tensor: Mapping[str, FxNode],
    node: FxNode,
    symbol: str,
    value_by_symbol: Mapping[str, int],
) -> ValueSize | None:
    """Return the value of a symbol in the output of a node, None if nothing limits it."""
    upper_bounds = _list_stated_bounds(program, symbol)
    choice_count = 1
    for mask in _list_masks(program, node):
        sizes = program.specs[mask].sizes
        try:
            element_count = math.prod(_evaluate(size, value_by_symbol) for size in sizes)
            choice_count = _count_choices(program, maker_by_tensor, mask, value_by_symbol)
        except SymbolError:
            continue  # the size of the mask depends on values that are not known
        upper_bounds.append(element_count)
    if not upper_bounds:
        return None
    # a mask of one of several choices, as of experts, is true for an even share of its elements
    return ValueSize(math.ceil(min(upper_bounds) / choice_count), choice_count)


def _list_stated_bounds(program: Program, symbol: str) -> list[int]:
    """Return the largest value that the file states of a symbol, [] if it states none."""
    highest = program.symbol_limits.get(symbol, NO_LIMITS).highest
    if highest is None or highest > MAX_COUNT:  # torch writes 2^63 for no limit
        return []
    return [highest]


def _list_masks(program: Program, node: FxNode) -> list[str]:
    """Return the tensors whose elements bound the rows of a node's first output."""
    argument = node.args.get(BOUNDING_ARGUMENT_BY_OP.get(node.op, ""))
    # `index` reads a list of masks or indices, the other ops read one tensor
    arguments = argument if isinstance(argument, list) else [argument]
    return [mask for mask in arguments if mask in program.specs]


def _count_choices(
    program: Program,
    maker_by_tensor: Mapping[str, FxNode],
    mask: str,
    value_by_symbol: Mapping[str, int],
) -> int:
    """Return among how many choices a mask is true for each, as that of one expert; else 1.

    Such a mask compares chosen indices with a number, or is a part of their one-hot code.
    """
    node = _find_maker(maker_by_tensor, mask)
    if node is None:
        return 1
    if node.op == "one_hot":
        class_count = node.args.get("num_classes", -1)
        return class_count if isinstance(class_count, int) and class_count > 0 else 1
    # a mask of the tokens whose chosen index is one expert's is true for an even share of them
    operands = [node.args.get("self"), node.args.get("other")] if node.op == "eq" else []
    for operand in operands:
        chooser = _find_maker(maker_by_tensor, operand)
        if chooser is not None and chooser.op in INDEX_CHOOSING_OPS:
            axis = chooser.args.get("dim", -1)
            sizes = program.specs[chooser.args["self"]].sizes
            return _evaluate(sizes[axis], value_by_symbol) if isinstance(axis, int) else 1
    return 1


def _find_maker(maker_by_tensor: Mapping[str, FxNode], tensor: object) -> FxNode | None:
    """Return the node that makes a tensor, or the one whose result is only passed on."""
    node = maker_by_tensor.get(tensor) if isinstance(tensor, str) else None
    while node is not None and node.op in SHARE_KEEPING_OPS:
        node = maker_by_tensor.get(str(node.args.get("self")))
    return node


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
