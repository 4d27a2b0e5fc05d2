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
    if not arrow:  # numpy's implicit form: the letters that stand once, in alphabetical order
        all_letters = "".join(term.letters for term in terms)
        single_letters = {letter for letter in all_letters if all_letters.count(letter) == 1}
        result = ELLIPSIS + "".join(sorted(single_letters - {*ellipsis_letters}))
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


def _name_axes(
    b: Builder, equation: str, operands: Sequence[str], tensors: Sequence[str]
) -> tuple[list[Term], str]:
    """Return the operands with a letter for each axis, and the letters of the ellipsis.

    "..." stands for as many axes as an operand has beyond its letters; operands with fewer such
    axes get the last letters, as broadcasting aligns them.
    """
    ranks = [len(b.shape(x)) for x in tensors]
    ellipsis_axes = [  # axes that "..." stands for
        rank - len(operand.replace(ELLIPSIS, "")) if ELLIPSIS in operand else 0
        for rank, operand in zip(ranks, operands, strict=True)
    ]
    max_axes = max(ellipsis_axes, default=0)
    ellipsis_letters = "".join(chr(FIRST_ELLIPSIS_LETTER + i) for i in range(max_axes))
    terms: list[Term] = []
    for x, operand, rank, axes in zip(tensors, operands, ranks, ellipsis_axes, strict=True):
        # an ellipsis of fewer axes stands for the last ones, as shapes broadcast from the end
        last_letters = ellipsis_letters[max_axes - axes :]
        letters = operand.replace(ELLIPSIS, last_letters)
        has_letter_per_axis = len(letters) == len({*letters}) == rank
        require(has_letter_per_axis, f"equation {equation!a}: {operand!a} of {rank} axes")
        terms.append(Term(x, letters))
    return terms, ellipsis_letters


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
    """Return the product of two terms, by a batched matrix product.

    Letters of both terms that are needed are batch axes; those that are not are summed over. The
    other letters of the first term are the rows, of the second term the columns.
    """
    first_sum = _sum_letters(b, first, needed_letters | {*second.letters}, name)
    second_sum = _sum_letters(b, second, needed_letters | {*first.letters}, name)
    sizes = _size_letters(b, (first_sum, second_sum))
    # letters of both terms are batch axes if they are needed, else they are summed over
    common_letters = [letter for letter in first_sum.letters if letter in second_sum.letters]
    batch_letters = [letter for letter in common_letters if letter in needed_letters]
    summed_letters = [letter for letter in common_letters if letter not in needed_letters]
    row_letters = [letter for letter in first_sum.letters if letter not in common_letters]
    column_letters = [letter for letter in second_sum.letters if letter not in common_letters]
    x = _order_axes(b, first_sum, (batch_letters, row_letters, summed_letters), sizes, name)
    y = _order_axes(b, second_sum, (batch_letters, summed_letters, column_letters), sizes, name)
    letters = "".join([*batch_letters, *row_letters, *column_letters])
    if summed_letters:
        product = lowering.matmul(b, x, y, name)
        shape = [sizes[letter] for letter in letters]
        return Term(elements.reshape(b, product, shape, f"{name}/apart"), letters)

    # Nothing is added up: a product of elements, each term broadcast over the other's letters.
    batch_sizes = [sizes[letter] for letter in batch_letters]
    row_sizes = [sizes[letter] for letter in row_letters]
    column_sizes = [sizes[letter] for letter in column_letters]
    x_shape = [*batch_sizes, *row_sizes, *[1] * len(column_letters)]
    y_shape = [*batch_sizes, *[1] * len(row_letters), *column_sizes]
    x = elements.reshape(b, x, x_shape, f"{name}/rows")
    y = elements.reshape(b, y, y_shape, f"{name}/columns")
    return Term(elements.pointwise(b, "mul", x, y, name=name), letters)


class _ExpertGroup(NamedTuple):
    """Experts that get the same number of tokens."""

    expert_count: int
    tokens_per_expert: int


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
    token_count, width = b.shape(x)
    expert_count, _, output_width = b.shape(w)
    # tokens spread evenly: the first `remainder` experts get one more
    tokens_per_expert, remainder = divmod(token_count, expert_count)
    groups = (
        _ExpertGroup(remainder, tokens_per_expert + 1),
        _ExpertGroup(expert_count - remainder, tokens_per_expert),
    )
    products: list[str] = []
    first_token = 0
    first_expert = 0
    for group in groups:
        group_tokens = group.expert_count * group.tokens_per_expert
        end_token = first_token + group_tokens
        end_expert = first_expert + group.expert_count
        if group_tokens:
            rows = elements.slice_(
                b, x, axis=0, start=first_token, stop=end_token, name=f"{name}/tokens"
            )
            weights = elements.slice_(
                b, w, axis=0, start=first_expert, stop=end_expert, name=f"{name}/experts"
            )
            batched_shape = (group.expert_count, group.tokens_per_expert, width)
            batched = elements.reshape(b, rows, batched_shape, f"{name}/apart")
            y = lowering.matmul(b, batched, weights, name)
            products.append(elements.reshape(b, y, (group_tokens, output_width), f"{name}/rows"))
        first_token = end_token
        first_expert = end_expert
    return elements.concat(b, products, axis=0, name=name)
