"""FLOP of factorisations and solvers by the shapes of their matrices, and of their gradients.

The counts are the highest-order terms of LAPACK's algorithms (Golub and Van Loan, Matrix
Computations, 4th ed., sections 3.2, 4.2, 5.2, 7.5, 8.3, 8.6); gradients are those of PyTorch's
autograd, where all inputs need one. A stack of matrices counts as so many matrices.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from steptime.core.graph import TensorSpec

Specs = Sequence[TensorSpec]


class OpWork(NamedTuple):
    """FLOP of an op and of its gradient; None for a gradient of as many FLOP."""

    flop: int
    gradient_flop: int | None = None


def _sum_cubes(spec: TensorSpec) -> int:
    """Return n^3 of square matrices `[..., n, n]`, summed over a stack."""
    return spec.size * spec.shape[-1]


def _count_matrices(spec: TensorSpec) -> int:
    """Return the number of matrices in a stack `[..., rows, columns]`."""
    rows, columns = spec.shape[-2:]
    return spec.size // max(1, rows * columns)


def _count_square_work(
    specs: Specs, _: Specs, *, flop_per_cube: float, gradient_flop_per_cube: float
) -> OpWork:
    """Return the work of an op on one square matrix; both counts are in multiples of n^3."""
    cubes = _sum_cubes(specs[0])
    return OpWork(round(flop_per_cube * cubes), round(gradient_flop_per_cube * cubes))


def _count_lu_work(specs: Specs, _: Specs) -> OpWork:
    """Return the work of an LU factorisation of m x n: the sum of 2 (m - i) (n - i) over pivots.

    Its gradient has two products and two triangular solves.
    """
    matrix = specs[0]
    matrix_count = _count_matrices(matrix)
    rows, columns = matrix.shape[-2:]
    pivot_count = min(rows, columns)
    multiply_adds_per_pivot = (  # the mean of (m - i) (n - i)
        rows * columns - (rows + columns) * pivot_count / 2 + pivot_count**2 / 3
    )
    flop = 2 * matrix_count * pivot_count * multiply_adds_per_pivot
    # two products of 2 n^3 and two triangular solves of n^3
    gradient_flop = 6 * matrix_count * pivot_count**3
    return OpWork(round(flop), gradient_flop)


def _count_qr_work(specs: Specs, _: Specs) -> OpWork:
    """Return the work of a QR factorisation by reflections that forms both R and the reduced Q."""
    matrix = specs[0]
    matrix_count = _count_matrices(matrix)
    shorter_side, longer_side = sorted(matrix.shape[-2:])
    # reflections that make R, 2 n^2 (m - n / 3), and as many that form Q
    flop = matrix_count * shorter_side**2 * (4 * longer_side - 4 / 3 * shorter_side)
    # the gradients are of the products in PyTorch's autograd, where all inputs need one
    gradient_flop = matrix_count * shorter_side**2 * (2 * shorter_side + 5 * longer_side)
    return OpWork(round(flop), gradient_flop)


class _Matrices(NamedTuple):
    """A stack of matrices by their number and sides; a transposed matrix has the same work."""

    stack_size: int
    longer: int
    shorter: int


def _measure_matrices(spec: TensorSpec) -> _Matrices:
    """Return the sides of the matrices in a stack."""
    rows, columns = spec.shape[-2:]
    return _Matrices(_count_matrices(spec), max(rows, columns), min(rows, columns))


def _count_svd_work(specs: Specs, outputs: Specs) -> OpWork:
    """Return the work of singular values, and of the singular vectors where they are made.

    The gradient has the products of PyTorch's `svd_backward` where all outputs have one.
    """
    count, m, n = _measure_matrices(specs[0])
    makes_vectors = len(outputs) >= len(_SVD_OUTPUTS) and outputs[0].size > 0
    if not makes_vectors:
        value_flop = 4 * m * n**2 - 4 / 3 * n**3
        value_gradient_flop = 2 * m * n**2
        return OpWork(round(count * value_flop), count * value_gradient_flop)
    # all m left singular vectors are made, not the first n alone
    is_full = m > n and outputs[0].size + outputs[2].size == count * (m**2 + n**2)
    # Golub and Van Loan, 8.6: all of U and V, else the first n vectors of U
    full_flop = 4 * m**2 * n + 8 * m * n**2 + 9 * n**3
    thin_flop = 14 * m * n**2 + 8 * n**3
    flop = full_flop if is_full else thin_flop
    projection_flop = 4 * m * n**2 if m > n else 0  # of the part of U's gradient outside of U
    gradient_flop = 6 * m * n**2 + 2 * n**3 + projection_flop
    return OpWork(count * flop, count * gradient_flop)


def _count_symmetric_work(specs: Specs, outputs: Specs) -> OpWork:
    """Return the work of eigenvalues of symmetric matrices, and of vectors where they are made.

    The gradient is three products, one for eigenvalues alone.
    """
    cubes = _sum_cubes(specs[0])
    if len(outputs) < len(_EIGEN_OUTPUTS) or not outputs[1].size:
        # eigenvalues alone: 4 / 3 n^3, and one product for the gradient
        return OpWork(round(4 / 3 * cubes), 2 * cubes)
    # Golub and Van Loan, 8.3: 9 n^3 with vectors; the gradient is three products
    return OpWork(9 * cubes, 6 * cubes)


def _count_eigen_work(specs: Specs, outputs: Specs) -> OpWork:
    """Return the work of eigenvalues of any square matrices, and of vectors where they are made.

    The gradient is two products and a solve, in complex numbers, of four times the FLOP.
    """
    # of n^3: a product is 2, a solve 2 / 3 for the LU and 2; complex numbers have four times the
    # FLOP
    cubes = _sum_cubes(specs[0])
    if len(outputs) < len(_EIGEN_OUTPUTS):
        return OpWork(10 * cubes, round(4 * (2 + 2 / 3) * cubes))
    return OpWork(25 * cubes, round(4 * (4 + 2 + 2 / 3) * cubes))


def _count_pseudoinverse_work(specs: Specs, _: Specs) -> OpWork:
    """Return the work of a pseudoinverse by singular vectors and the product that joins them.

    The gradient has the products of PyTorch's `pinv_backward`.
    """
    rows, columns = specs[0].shape[-2:]
    count, m, n = _measure_matrices(specs[0])
    is_tall = rows > columns
    # forward: singular vectors, 14 m n^2 + 8 n^3, and a product, 2 m n^2
    gradient_flop = 8 * m * n**2 + 8 * m**2 * n if is_tall else 16 * m * n**2
    return OpWork(count * (16 * m * n**2 + 8 * n**3), count * gradient_flop)


def _count_solve_work(specs: Specs, outputs: Specs) -> OpWork:
    """Return the work of A X = B: LU of A, and two triangular solves for each element of X.

    The gradient solves for that of B, whose product with X is that of A.
    """
    matrix = specs[0]
    solution = outputs[0]
    factorisation_flop = round(2 / 3 * _sum_cubes(matrix))
    solves_flop = 2 * matrix.shape[-1] * solution.size
    return OpWork(factorisation_flop + solves_flop, 2 * solves_flop)


def _count_triangular_work(specs: Specs, outputs: Specs, *, matrix_index: int) -> OpWork:
    """Return the work of a triangular solve: n multiply-adds of each element, half of them zero."""
    flop = specs[matrix_index].shape[-1] * outputs[0].size
    # the gradient of B is one more solve, and that of A a product of twice the FLOP
    return OpWork(flop, 3 * flop)


def _count_factored_work(
    specs: Specs, outputs: Specs, *, factor_index: int, gradient_flop_per_cube: int
) -> OpWork:
    """Return the work of solves with a factor at hand; its gradient adds so many times n^3."""
    factor = specs[factor_index]
    flop = 2 * factor.shape[-1] * outputs[0].size
    factor_gradient_flop = gradient_flop_per_cube * _sum_cubes(factor)
    return OpWork(flop, 2 * flop + factor_gradient_flop)


def _count_lstsq_work(specs: Specs, outputs: Specs) -> OpWork:
    """Return the work of `min |A X - B|`: QR of A (LQ if it is wide), Q^T B and a triangular solve.

    The gradient makes the pseudoinverse of A and its gradient, and has a product for each of them
    and B.
    """
    matrix = specs[0]
    count, m, n = _measure_matrices(matrix)
    columns = outputs[0].size // max(1, count * matrix.shape[-1])
    factorisation_flop = 2 * m * n**2 - 2 / 3 * n**3
    # for each column the reflections, 4 m n - 2 n^2, then a triangular solve, n^2
    solve_flop = columns * (4 * m * n - 2 * n**2 + n**2)
    pseudoinverse = _count_pseudoinverse_work(specs, outputs)
    inverse_flop = pseudoinverse.flop + (pseudoinverse.gradient_flop or 0)
    flop = round(count * (factorisation_flop + solve_flop))
    # X = A^+ B: the gradient makes A^+ again, and has a product of 2 m n for each of the two
    products_flop = 4 * count * m * n * columns
    return OpWork(flop, inverse_flop + products_flop)


_SVD_OUTPUTS = ("u", "s", "vh")
_EIGEN_OUTPUTS = ("values", "vectors")
# the gradient solves for the inverse by the LU
_DETERMINANT = partial(_count_square_work, flop_per_cube=2 / 3, gradient_flop_per_cube=2)
# the gradient is two products
_INVERSE = partial(_count_square_work, flop_per_cube=2, gradient_flop_per_cube=4)
# the gradient is a product and two triangular solves
_CHOLESKY = partial(_count_square_work, flop_per_cube=1 / 3, gradient_flop_per_cube=4)
# five products of a Taylor polynomial of degree 18, for norms up to 3 (PyTorch's `matrix_exp`);
# the gradient is the exponential of a matrix of twice the rows
_MATRIX_EXPONENTIAL = partial(_count_square_work, flop_per_cube=10, gradient_flop_per_cube=80)
_LU_SOLVE_CUBES = 4  # of the factor's gradient: a product and two triangular solves
_CHOLESKY_SOLVE_CUBES = 2  # of the factor's gradient: a product

WORK: Mapping[str, Callable[[Specs, Specs], OpWork]] = {
    **dict.fromkeys(("_linalg_slogdet", "linalg_slogdet", "slogdet", "logdet"), _DETERMINANT),
    **dict.fromkeys(("_linalg_det", "linalg_det", "det"), _DETERMINANT),
    **dict.fromkeys(("linalg_inv_ex", "linalg_inv", "inverse"), _INVERSE),
    **dict.fromkeys(("linalg_cholesky_ex", "linalg_cholesky", "cholesky"), _CHOLESKY),
    "cholesky_inverse": partial(_count_square_work, flop_per_cube=2 / 3, gradient_flop_per_cube=6),
    **dict.fromkeys(("linalg_lu_factor_ex", "linalg_lu_factor", "linalg_lu"), _count_lu_work),
    "linalg_qr": _count_qr_work,
    **dict.fromkeys(("_linalg_svd", "linalg_svd", "linalg_svdvals", "svd"), _count_svd_work),
    **dict.fromkeys(("_linalg_eigh", "linalg_eigh", "linalg_eigvalsh"), _count_symmetric_work),
    **dict.fromkeys(("linalg_eig", "linalg_eigvals", "_linalg_eigvals"), _count_eigen_work),
    **dict.fromkeys(("linalg_pinv", "pinverse"), _count_pseudoinverse_work),
    **dict.fromkeys(("linalg_matrix_exp", "matrix_exp"), _MATRIX_EXPONENTIAL),
    "linalg_lstsq": _count_lstsq_work,
    **dict.fromkeys(("_linalg_solve_ex", "linalg_solve_ex", "linalg_solve"), _count_solve_work),
    "linalg_solve_triangular": partial(_count_triangular_work, matrix_index=0),
    "triangular_solve": partial(_count_triangular_work, matrix_index=1),
    "linalg_lu_solve": partial(
        _count_factored_work, factor_index=0, gradient_flop_per_cube=_LU_SOLVE_CUBES
    ),
    "cholesky_solve": partial(
        _count_factored_work, factor_index=1, gradient_flop_per_cube=_CHOLESKY_SOLVE_CUBES
    ),
}


def count_work(op: str, specs: Specs, outputs: Specs) -> OpWork | None:
    """Return the work of an op by its ATen name, or None for an op that solves nothing.

    Args:
        op: its name, such as `linalg_inv_ex`.
        specs: what it reads, in the order of its arguments.
        outputs: what it makes.
    """
    count = WORK.get(op)
    return count(specs, outputs) if count else None
