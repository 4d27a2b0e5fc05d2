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


def work_of_parts(op: str, matrix: tuple[int, ...], *made: tuple[int, ...]) -> tuple[int, ...]:
    """Return the FLOP of an op with several outputs, and of its gradient."""
    counted = count_work(
        op, [TensorSpec(matrix, "float32")], [TensorSpec(shape, "float32") for shape in made]
    )
    assert counted is not None
    assert counted.gradient_flop is not None
    return counted.flop, counted.gradient_flop


@pytest.mark.parametrize("shape", [(5, 9, 4), (5, 4, 9)])
def test_singular_vectors_count_as_those_of_a_tall_matrix(shape):
    """9 x 4: 14 m n^2 + 8 n^3 with vectors, 4 m n^2 - 4/3 n^3 without; 10 m n^2 + 2 n^3 back."""
    rows, columns = shape[1:]
    thin = work_of_parts("_linalg_svd", shape, (5, rows, 4), (5, 4), (5, 4, columns))
    assert thin == (5 * (14 * 144 + 8 * 64), 5 * (10 * 144 + 2 * 64))
    values = work_of_parts("_linalg_svd", shape, (0,), (5, 4), (0,))
    assert values == (round(5 * (4 * 144 - 4 / 3 * 64)), 5 * 2 * 144)
    full = work_of_parts("_linalg_svd", shape, (5, rows, rows), (5, 4), (5, columns, columns))
    assert full[0] == 5 * (4 * 324 + 8 * 144 + 9 * 64)


@pytest.mark.parametrize(
    ("op", "made", "flop", "gradient_flop"),
    [
        ("_linalg_eigh", [(N,), SQUARE], 9 * 1728, 6 * 1728),
        ("linalg_eigvalsh", [(N,)], 2304, 2 * 1728),
        ("linalg_eig", [(N,), SQUARE], 25 * 1728, 46080),
        ("linalg_eigvals", [(N,)], 10 * 1728, 18432),
        ("linalg_pinv", [SQUARE], 24 * 1728, 16 * 1728),
    ],
)
def test_eigenvalues_and_pseudoinverses_count_the_cube(op, made, flop, gradient_flop):
    assert work_of_parts(op, SQUARE, *made) == (flop, gradient_flop)


def test_the_gradient_of_a_tall_pseudoinverse_multiplies_by_its_longer_side_too():
    assert work_of_parts("linalg_pinv", (6, 4), (4, 6)) == (16 * 96 + 8 * 64, 8 * 96 + 8 * 144)
    assert work_of_parts("linalg_pinv", (4, 6), (6, 4)) == (16 * 96 + 8 * 64, 16 * 96)


@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (4, 6)])
def test_least_squares_count_a_factorisation_and_two_solves(rows, columns):
    """6 x 4 and 3 right sides: QR 2 m n^2 - 2/3 n^3, Q^T B 4 m n - 2 n^2 and R n^2 of a column."""
    specs = [TensorSpec((5, rows, columns), "float32"), TensorSpec((5, rows, 3), "float32")]
    counted = count_work("linalg_lstsq", specs, [TensorSpec((5, columns, 3), "float32")])
    pseudoinverse = count_work("linalg_pinv", specs, [TensorSpec((5, columns, rows), "float32")])
    assert counted is not None
    assert pseudoinverse is not None
    assert counted.flop == round(5 * (2 * 6 * 16 - 2 / 3 * 64 + 3 * (4 * 6 * 4 - 2 * 16 + 16)))
    expected = pseudoinverse.flop + pseudoinverse.gradient_flop + 5 * 2 * 2 * 6 * 4 * 3
    assert counted.gradient_flop == expected


def test_a_matrix_exponential_counts_the_products_that_torch_computes():
    torch = pytest.importorskip("torch")
    matrix = torch.full((N, N), 2 / N, requires_grad=True)  # of norm 2
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, with_flops=True) as forward:
        exponential = torch.linalg.matrix_exp(matrix)
    with torch.profiler.profile(activities=activities, with_flops=True) as backward:
        exponential.mean().backward()
    products = [
        sum(event.flops for event in profile.key_averages() if event.key.endswith("mm"))
        for profile in (forward, backward)
    ]
    assert work("linalg_matrix_exp", SQUARE) == tuple(products)


def test_an_op_that_solves_nothing_has_no_such_work():
    assert count_work("cumprod", [TensorSpec(SQUARE, "float32")], []) is None
