"""Updates of weights: the rows of `data/optimizers.toml` as kinds of ops.

A further optimizer is one row there.
"""

from collections.abc import Callable, Mapping
from functools import cache
from math import prod
from typing import NamedTuple

from steptime.core.graph import TensorSpec
from steptime.core.toml_files import read_packaged_toml
from steptime.network.ops.table import OpKind, Products, Specs, example, per_element

MATRIX_AXES = 2
EXAMPLE_SHAPE = (3, 4)  # of the weight of the example that tests run: a small matrix


class OptimizerRow(NamedTuple):
    """An optimizer.

    Args:
        states: tensors of the size of a weight that it keeps.
        scratch: tensors of that size that an update makes and drops.
        flop: operations for each weight.
        is_factored: whether it keeps of a matrix a number for each row and column instead.
        iterations: steps of Newton and Schulz on a matrix.
        other: the optimizer of tables of embeddings, and of what is no matrix; "" for itself.
        source: where its algorithm is from.
    """

    states: int
    scratch: int
    flop: int
    is_factored: bool
    iterations: int
    other: str
    source: str


@cache
def optimizer_rows() -> Mapping[str, OptimizerRow]:
    """Return the optimizers by name."""
    return {
        name: OptimizerRow(
            states=row["states"],
            scratch=row["scratch"],
            flop=row["flop"],
            is_factored=row.get("factored", False),
            iterations=row.get("iterations", 0),
            other=row.get("other", ""),
            source=row["source"],
        )
        for name, row in read_packaged_toml("optimizers.toml").items()
    }


STATES = {name: row.states for name, row in optimizer_rows().items()}  # tensors kept a weight
SCRATCH = {name: row.scratch for name, row in optimizer_rows().items()}  # made to update one


def find_update_kind(optimizer: str, weight: TensorSpec, reader_kind: str) -> str:
    """Return the optimizer that updates a weight: some leave tables and vectors to another.

    Args:
        optimizer: the optimizer of the training.
        weight: the weight.
        reader_kind: the kind of the first op that reads it.
    """
    # Muon and the like update matrices alone, and have another optimizer for all other weights
    optimizer_of_vectors = optimizer_rows()[optimizer].other
    # tables of embeddings are matrices by shape, but are updated as vectors are
    is_matrix = len(weight.shape) >= MATRIX_AXES and reader_kind != "embedding"
    return optimizer if is_matrix or not optimizer_of_vectors else optimizer_of_vectors


def make_states(optimizer: str, weight: TensorSpec) -> tuple[TensorSpec, ...]:
    """Return the states that an optimizer keeps of a weight."""
    row = optimizer_rows()[optimizer]
    if not row.is_factored:
        return (weight,) * row.states
    # a vector has no rows and columns to sum over: its state is as large as it is
    if len(weight.shape) < MATRIX_AXES:
        return (weight,)
    *leading_sizes, rows, columns = weight.shape
    row_states = TensorSpec((*leading_sizes, rows), weight.dtype)
    column_states = TensorSpec((*leading_sizes, columns), weight.dtype)
    return row_states, column_states


def _orthogonal_products(iterations: int) -> Callable[..., Products]:
    """Return the products of steps of Newton and Schulz: X X^T, its square, and a sum times X."""

    def products(weight: TensorSpec, *_states_gradient: TensorSpec) -> Products:
        *leading_sizes, rows, columns = weight.shape
        matrices = prod(leading_sizes)
        count = iterations * matrices
        # Newton-Schulz: A = X X^T over the longer side, A A, and a polynomial in A times X
        short, long = sorted((rows, columns))
        gram = (count, short, short, long)
        square = (count, short, short, short)
        polynomial = (count, short, long, short)
        return (gram, square, polynomial)

    return products


def _scratch(tensors: int) -> Callable[..., int]:
    return lambda weight, *_: tensors * weight.size_bytes


def _make_kind(name: str, row: OptimizerRow) -> OpKind:
    """Return the kind of the updates of an optimizer."""
    weight = TensorSpec(EXAMPLE_SHAPE, "float32")
    # An update reads the weight, its states and its gradient (the example's last input, of the
    # weight's shape), and overwrites all but the gradient.
    inputs = example(weight, *make_states(name, weight), weight)
    # An optimizer that makes its updates orthogonal (Newton and Schulz) does products of matrices,
    # beside which its work on single elements is not counted.
    products = _orthogonal_products(row.iterations) if row.iterations else None

    def outputs(*weight_states_gradient: TensorSpec) -> Specs:
        return weight_states_gradient[:-1]

    def count_products_flop(*specs: TensorSpec) -> int:
        shapes = products(*specs) if products is not None else ()
        return sum(2 * batch * m * n * k for batch, m, n, k in shapes)

    return OpKind(
        outputs=outputs,
        flop=per_element(row.flop) if products is None else count_products_flop,
        example=inputs,
        source=row.source,
        products=products,
        work="" if products is None else "matmul",
        storage="in_place",
        scratch=_scratch(row.scratch),
    )


KINDS = {name: _make_kind(name, row) for name, row in optimizer_rows().items()}
