"""FLOP of factorisations and solvers, held against hand arithmetic."""

import pytest

from steptime.core.graph import TensorSpec
from steptime.formats.linear_algebra import count_work

N = 12
SQUARE = (N, N)


def work(op: str, *shapes: tuple[int, ...], made: tuple[int, ...] = SQUARE) -> tuple[int, ...]:
    """Return the FLOP of an op that reads matrices of these shapes, and of its gradient."""
    specs = [TensorSpec(shape, "float32") for shape in shapes]
    counted = count_work(op, specs, [TensorSpec(made, "float32")])
    assert counted is not None
    assert counted.gradient_flop is not None
    return counted.flop, counted.gradient_flop


# n^3 is 1728: an LU takes 1152, a Cholesky factorisation 576, a product 3456, a triangular solve
# of n columns 1728.
@pytest.mark.parametrize(
    ("op", "flop", "gradient_flop"),
    [
        ("_linalg_slogdet", 1152, 3456),
        ("_linalg_det", 1152, 3456),
        ("linalg_inv_ex", 3456, 2 * 3456),
        ("linalg_cholesky_ex", 576, 3456 + 2 * 1728),
        ("linalg_lu_factor_ex", 1152, 2 * 3456 + 2 * 1728),
        ("linalg_qr", 4608, 12096),  # R and Q take 4/3 n^3 each
    ],
)
def test_a_factorisation_counts_the_cube_of_its_matrix(op, flop, gradient_flop):
    assert work(op, SQUARE) == (flop, gradient_flop)
    assert work(op, (5, *SQUARE)) == (5 * flop, 5 * gradient_flop)


def test_solvers_count_two_triangular_solves_for_each_column():
    right_sides = (N, 3)  # a triangular solve of 3 columns takes 144 x 3 = 432
    assert work("_linalg_solve_ex", SQUARE, right_sides, made=right_sides) == (1152 + 864, 2 * 864)
    assert work("linalg_solve_triangular", SQUARE, right_sides, made=right_sides) == (432, 1296)
    assert work("triangular_solve", right_sides, SQUARE, made=right_sides) == (432, 1296)
    factor = work("cholesky_solve", right_sides, SQUARE, made=right_sides)
    assert factor == (864, 2 * 864 + 3456)


def test_an_lu_of_a_tall_matrix_counts_its_pivots():
    # 2 x the integral of (6 - i) (3 - i) over 3 pivots
    assert work("linalg_lu_factor_ex", (6, 3))[0] == 45


def test_an_op_that_solves_nothing_has_no_such_work():
    assert count_work("cumprod", [TensorSpec(SQUARE, "float32")], []) is None
