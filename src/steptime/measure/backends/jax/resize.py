"""Images of other sizes in JAX: nearest, bilinear and bicubic, as torch interpolates them."""

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

Array = jax.Array
CUBIC = -0.75  # of bicubic interpolation, as torch


def _interpolation_matrix(n: int, m: int, mode: str, corners: bool) -> Any:
    """Return the `[m, n]` matrix that interpolates m elements from n along one axis."""
    matrix = np.zeros((m, n))  # row: element of the output, column: element of the input
    rows = np.arange(m)
    if mode == "nearest":
        matrix[rows, rows * n // m] = 1
        return matrix
    by_corners = rows * ((n - 1) / max(1, m - 1))  # the first and the last elements coincide
    by_cells = (rows + 0.5) * (n / m) - 0.5  # the outer edges of the first and last elements do
    source = by_corners if corners else by_cells
    is_linear = mode == "bilinear"
    if is_linear:
        source = np.maximum(source, 0.0)
    taps = (0, 1) if is_linear else (-1, 0, 1, 2)  # neighbours, counted from the one to the left
    for tap in taps:
        column = np.floor(source).astype(int) + tap
        distance = abs(source - column)
        share = 1 - distance if is_linear else _cubic_share(distance)
        np.add.at(matrix, (rows, column.clip(0, n - 1)), share)
    return matrix


def _cubic_share(distance: Any) -> Any:
    """Return the weights of elements at a distance of 0 to 2 by cubic convolution (Keys 1981)."""
    inner_share = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1
    outer_share = ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC
    return np.where(distance <= 1, inner_share, outer_share)


def resize2d(x: Array, size: tuple[int, int], mode: str, align_corners: bool = False) -> Array:
    """Return an image of another size, by a matrix along each axis as `jax.image.resize` does."""
    height, width = x.shape[2:]
    new_height, new_width = size
    has_integer_factors = new_height % height == 0 and new_width % width == 0
    if mode == "nearest" and has_integer_factors:  # repeats need no matrix
        return x.repeat(new_height // height, 2).repeat(new_width // width, 3)
    height_weights = _interpolation_matrix(height, new_height, mode, align_corners).astype(x.dtype)
    width_weights = _interpolation_matrix(width, new_width, mode, align_corners).astype(x.dtype)
    return jnp.einsum("ah,nchw,bw->ncab", height_weights, x, width_weights)
