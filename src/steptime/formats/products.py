"""Einsums, and products of tokens with their experts, for all file formats."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from steptime.formats import elements, lowering
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import require

ELLIPSIS = "..."
FIRST_ELLIPSIS_LETTER = 0x391  # Greek capitals, which no equation uses, name the axes of "..."


class Term(NamedTuple):
    """An operand of an einsum: a tensor and a letter for each of its axes."""

    tensor: str
    letters: str


def einsum(b: Builder, equation: str, tensors: Sequence[str], name: str) -> str:
    """Return the sum of products of tensors that an equation states, two tensors at a time."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    operands = left.split(",")
    require(len(operands) == len(tensors), f"equation {equation!a} of {len(tensors)} operands")
    terms, ellipsis_letters = _name_axes(b, equation, operands, tensors)
    if not arrow:
        result = ELLIPSIS + _imply_result(terms, ellipsis_letters)
    result = result.replace(ELLIPSIS, ellipsis_letters)
    product, *further_terms = terms
    while further_terms:
        term, *further_terms = further_terms
        needed_letters = {*result}.union(*(further.letters for further in further_terms))
        product = _multiply_terms(b, product, term, needed_letters, name)
    x, letters = _sum_letters(b, product, {*result}, name)
    require(sorted(letters) == sorted(result), f"equation {equation!a}")
    order = [letters.index(letter) for letter in result]
    return elements.transpose(b, x, order, f"{name}/order")


def _imply_result(terms: Sequence[Term], ellipsis_letters: str) -> str:
    """Return the result of numpy's implicit form: letters that stand once, in their order."""
    all_letters = "".join(term.letters for term in terms)
    single_letters = {letter for letter in all_letters if all_letters.count(letter) == 1}
    return "".join(sorted(single_letters - {*ellipsis_letters}))


def _name_axes(
    b: Builder, equation: str, operands: Sequence[str], tensors: Sequence[str]
) -> tuple[list[Term], str]:
    """Return the operands with a letter for each axis, and the letters of the ellipsis.

    "..." stands for as many axes as an operand has beyond its letters; operands with fewer such
    axes get the last letters, as broadcasting aligns them.
    """
    ranks = [len(b.shape(x)) for x in tensors]
    ellipsis_axes = [
        _count_ellipsis_axes(operand, rank) for operand, rank in zip(operands, ranks, strict=True)
    ]
    max_axes = max(ellipsis_axes, default=0)
    ellipsis_letters = "".join(chr(FIRST_ELLIPSIS_LETTER + i) for i in range(max_axes))
    terms: list[Term] = []
    for x, operand, rank, axes in zip(tensors, operands, ranks, ellipsis_axes, strict=True):
        letters = operand.replace(ELLIPSIS, ellipsis_letters[max_axes - axes :])
        has_letter_per_axis = len(letters) == len({*letters}) == rank
        require(has_letter_per_axis, f"equation {equation!a}: {operand!a} of {rank} axes")
        terms.append(Term(x, letters))
    return terms, ellipsis_letters


def _count_ellipsis_axes(operand: str, rank: int) -> int:
    """Return the number of axes that "..." stands for in an operand, 0 without one."""
    return rank - len(operand.replace(ELLIPSIS, "")) if ELLIPSIS in operand else 0


def _sum_letters(b: Builder, term: Term, needed_letters: set[str], name: str) -> Term:
    """Return a term summed over the axes whose letters are not needed."""
    summed_axes = [axis for axis, letter in enumerate(term.letters) if letter not in needed_letters]
    if not summed_axes:
        return term
    remaining_letters = "".join(letter for letter in term.letters if letter in needed_letters)
    total = elements.reduce(b, "sum", term.tensor, summed_axes, f"{name}/sum")
    return Term(total, remaining_letters)


def _multiply_terms(
    b: Builder, first: Term, second: Term, needed_letters: set[str], name: str
) -> Term:
    """Return the product of two terms.

    Letters of both terms are batch axes if they are needed, else they are summed over: the product
    is a batched product of matrices. If nothing is summed, it is a product of elements.
    """
    first_sum = _sum_letters(b, first, needed_letters | {*second.letters}, name)
    second_sum = _sum_letters(b, second, needed_letters | {*first.letters}, name)
    axes = _sort_letters(first_sum.letters, second_sum.letters, needed_letters)
    sizes = _size_letters(b, (first_sum, second_sum))
    x = _order_axes(b, first_sum, (axes.batch, axes.rows, axes.summed), sizes, name)
    y = _order_axes(b, second_sum, (axes.batch, axes.summed, axes.columns), sizes, name)
    if not axes.summed:
        return _multiply_elements(b, x, y, axes, sizes, name)
    product = lowering.matmul(b, x, y, name)
    shape = [sizes[letter] for letter in axes.letters]
    return Term(elements.reshape(b, product, shape, f"{name}/apart"), axes.letters)


class _ProductAxes(NamedTuple):
    """The letters of a product of two terms, by what their axes are in it."""

    batch: list[str]
    summed: list[str]
    rows: list[str]
    columns: list[str]

    @property
    def letters(self) -> str:
        """The letters of the product."""
        return "".join([*self.batch, *self.rows, *self.columns])


def _sort_letters(first: str, second: str, needed_letters: set[str]) -> _ProductAxes:
    """Return the axes of a product of terms: rows are of the first alone, columns of the second."""
    common_letters = [letter for letter in first if letter in second]
    return _ProductAxes(
        batch=[letter for letter in common_letters if letter in needed_letters],
        summed=[letter for letter in common_letters if letter not in needed_letters],
        rows=[letter for letter in first if letter not in common_letters],
        columns=[letter for letter in second if letter not in common_letters],
    )


def _multiply_elements(
    b: Builder, x: str, y: str, axes: _ProductAxes, sizes: dict[str, int], name: str
) -> Term:
    """Return a product of elements, each term broadcast over the letters of the other alone."""
    batch_sizes = [sizes[letter] for letter in axes.batch]
    row_sizes = [sizes[letter] for letter in axes.rows]
    column_sizes = [sizes[letter] for letter in axes.columns]
    x_shape = [*batch_sizes, *row_sizes, *[1] * len(column_sizes)]
    y_shape = [*batch_sizes, *[1] * len(row_sizes), *column_sizes]
    x = elements.reshape(b, x, x_shape, f"{name}/rows")
    y = elements.reshape(b, y, y_shape, f"{name}/columns")
    return Term(elements.pointwise(b, "mul", x, y, name=name), axes.letters)


class _ExpertGroup(NamedTuple):
    """Experts behind one another that get the same number of tokens.

    Attributes:
        first_expert: the first of them.
        expert_count: their number.
        first_token: the first of their tokens, which are sorted by expert.
        tokens_per_expert: the tokens of each.
    """

    first_expert: int
    expert_count: int
    first_token: int
    tokens_per_expert: int

    @property
    def token_count(self) -> int:
        """The tokens of all of them."""
        return self.expert_count * self.tokens_per_expert


def _size_letters(b: Builder, terms: Sequence[Term]) -> dict[str, int]:
    """Return the size of each letter; raises `ShapeError` where two axes of a letter differ."""
    sizes: dict[str, int] = {}
    for term in terms:
        for letter, size in zip(term.letters, b.shape(term.tensor), strict=True):
            stated_size = sizes.setdefault(letter, size)
            require(stated_size == size, f"axes {letter} of {stated_size} and {size}")
    return sizes


def _order_axes(
    b: Builder,
    term: Term,
    groups: tuple[list[str], list[str], list[str]],
    sizes: dict[str, int],
    name: str,
) -> str:
    """Return a term as matrices: its batch axes, then one axis for each of two groups."""
    batch, row_letters, column_letters = groups
    order = [term.letters.index(letter) for letter in (*batch, *row_letters, *column_letters)]
    batch_sizes = [sizes[letter] for letter in batch]
    rows = math.prod(sizes[letter] for letter in row_letters)
    columns = math.prod(sizes[letter] for letter in column_letters)
    ordered = elements.transpose(b, term.tensor, order, f"{name}/transpose")
    return elements.reshape(b, ordered, (*batch_sizes, rows, columns), f"{name}/reshape")


def multiply_experts(b: Builder, x: str, w: str, name: str) -> str:
    """Return `x [tokens, d]`, sorted by expert, times `w [experts, d, out]`.

    Tokens are taken to spread evenly: the first `tokens % experts` experts get one more than the
    others. All experts with the same number of tokens are one batched product.
    """
    tokens_per_expert, larger_count = divmod(b.shape(x)[0], b.shape(w)[0])
    larger = _ExpertGroup(0, larger_count, 0, tokens_per_expert + 1)
    smaller_count = b.shape(w)[0] - larger_count
    smaller = _ExpertGroup(larger_count, smaller_count, larger.token_count, tokens_per_expert)
    products = [
        _multiply_group(b, x, w, group, name) for group in (larger, smaller) if group.token_count
    ]
    return elements.concat(b, products, axis=0, name=name)


def _multiply_group(b: Builder, x: str, w: str, group: _ExpertGroup, name: str) -> str:
    """Return the tokens of some experts times their weights, `[tokens, out]`."""
    end_token = group.first_token + group.token_count
    tokens = elements.slice_(b, x, 0, group.first_token, end_token, f"{name}/tokens")
    end_expert = group.first_expert + group.expert_count
    weights = elements.slice_(b, w, 0, group.first_expert, end_expert, f"{name}/experts")
    batched_shape = (group.expert_count, group.tokens_per_expert, b.shape(x)[1])
    batched = elements.reshape(b, tokens, batched_shape, f"{name}/apart")
    y = lowering.matmul(b, batched, weights, name)
    return elements.reshape(b, y, (group.token_count, b.shape(w)[2]), f"{name}/rows")
