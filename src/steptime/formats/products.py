"""Sums of products over letters, and products of tokens with their experts, for all formats."""

import math
from collections.abc import Sequence

from steptime.formats import elements, lowering
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import require

Term = tuple[str, str]  # a tensor and the letters of its axes


def einsum(b: Builder, equation: str, tensors: Sequence[str], name: str) -> str:
    """Return the sum of products of tensors that an equation says, two of them at a time."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    given = left.split(",")
    require(len(given) == len(tensors), f"equation {equation!a} of {len(tensors)} operands")
    ranks = [len(b.shape(x)) for x in tensors]
    most = max(
        (
            rank - len(letters) + 3
            for rank, letters in zip(ranks, given, strict=True)
            if "..." in letters
        ),
        default=0,
    )
    dots = "".join(chr(0x391 + i) for i in range(most))
    terms: list[Term] = []
    for x, letters, rank in zip(tensors, given, ranks, strict=True):
        own = letters.replace("...", dots[most - (rank - len(letters) + 3) :])
        require(
            len(own) == len({*own}) == rank, f"equation {equation!a}: {letters!a} of {rank} axes"
        )
        terms.append((x, own))
    if not arrow:
        every = "".join(letters for _, letters in terms)
        out = "..." + "".join(sorted(c for c in {*every} - {*dots} if every.count(c) == 1))
    out = out.replace("...", dots)
    while len(terms) > 1:
        wanted = {*out}.union(*(letters for _, letters in terms[2:]))
        terms[:2] = [_product(b, terms[0], terms[1], wanted, name)]
    x, letters = _summed(b, terms[0], {*out}, name)
    require(sorted(letters) == sorted(out), f"equation {equation!a}")
    return elements.transpose(b, x, [letters.index(c) for c in out], f"{name}/order")


def _summed(b: Builder, term: Term, wanted: set[str], name: str) -> Term:
    """Return a term without the letters that nothing else has."""
    x, letters = term
    gone = [i for i, c in enumerate(letters) if c not in wanted]
    kept = "".join(c for c in letters if c in wanted)
    return (elements.reduce(b, "sum", x, gone, f"{name}/sum") if gone else x), kept


def _product(b: Builder, first: Term, second: Term, wanted: set[str], name: str) -> Term:
    """Return the product of two terms as one of matrices; letters that both have alone go."""
    terms = [
        _summed(b, one, wanted | {*other[1]}, name)
        for one, other in ((first, second), (second, first))
    ]
    sizes: dict[str, int] = {}
    for x, letters in terms:
        for c, n in zip(letters, b.shape(x), strict=True):
            require(sizes.setdefault(c, n) == n, f"axes {c} of {sizes[c]} and {n}")
    both = [c for c in terms[0][1] if c in terms[1][1]]
    shared, summed = ([c for c in both if (c in wanted) is kept] for kept in (True, False))
    rows, columns = ([c for c in letters if c not in both] for _, letters in terms)
    matrices = []
    for (x, letters), groups in zip(terms, ((rows, summed), (summed, columns)), strict=True):
        order = [letters.index(c) for group in (shared, *groups) for c in group]
        lead = [sizes[c] for c in shared]
        inner = [math.prod(sizes[c] for c in group) for group in groups]
        turned = elements.transpose(b, x, order, f"{name}/transpose")
        matrices.append(elements.reshape(b, turned, (*lead, *inner), f"{name}/reshape"))
    made = [*shared, *rows, *columns]
    if not summed:  # nothing is added up: a product of elements
        upright = [*lead, *[sizes[c] for c in rows], *[1] * len(columns)]
        across = [*lead, *[1] * len(rows), *[sizes[c] for c in columns]]
        x = elements.reshape(b, matrices[0], upright, f"{name}/rows")
        y = elements.reshape(b, matrices[1], across, f"{name}/columns")
        return elements.pointwise(b, "mul", x, y, name=name), "".join(made)
    y = lowering.matmul(b, matrices[0], matrices[1], name)
    return elements.reshape(b, y, [sizes[c] for c in made], f"{name}/apart"), "".join(made)


def multiply_experts(b: Builder, x: str, w: str, name: str) -> str:
    """Return `x [tokens, d]`, sorted by expert, times `w [experts, d, out]`: an even spread."""
    (tokens, width), (experts, _, out) = b.shape(x), b.shape(w)
    few, more = divmod(tokens, experts)
    parts, done = [], 0
    for count, each in ((more, few + 1), (experts - more, few)):
        if count * each:
            at = done and more * (few + 1)
            rows = elements.slice_(b, x, 0, at, at + count * each, f"{name}/tokens")
            own = elements.slice_(b, w, 0, done, done + count, f"{name}/experts")
            rows = elements.reshape(b, rows, (count, each, width), f"{name}/apart")
            y = lowering.matmul(b, rows, own, name)
            parts.append(elements.reshape(b, y, (count * each, out), f"{name}/rows"))
        done += count
    return elements.concat(b, parts, 0, name)
