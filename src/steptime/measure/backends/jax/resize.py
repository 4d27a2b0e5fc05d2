"""Images of other sizes in JAX: nearest, bilinear and bicubic, as torch interpolates them."""

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

Array = jax.Array
CUBIC = -0.75  # of bicubic interpolation, as torch


def _interpolation_matrix(input_size: int, output_size: int, mode: str, align_corners: bool) -> Any:
    """Return the `[output, input]` matrix that interpolates the elements of one axis."""
    matrix = np.zeros((output_size, input_size))
    rows = np.arange(output_size)
    if mode == "nearest":
        matrix[rows, rows * input_size // output_size] = 1
        return matrix
    # the position of each output element, counted in elements of the input
    if align_corners:  # the centres of the first elements coincide, and those of the last ones
        positions = rows * ((input_size - 1) / max(1, output_size - 1))
    else:  # the outer edges of the first and last elements coincide
        positions = (rows + 0.5) * (input_size / output_size) - 0.5
    is_linear = mode == "bilinear"
    if is_linear:
        positions = np.maximum(positions, 0.0)
    neighbours = (0, 1) if is_linear else (-1, 0, 1, 2)  # counted from the one to the left
    for neighbour in neighbours:
        column = np.floor(positions).astype(int) + neighbour
        distance = abs(positions - column)
        share = 1 - distance if is_linear else _cubic_share(distance)
        # beyond the edge the last element is repeated
        np.add.at(matrix, (rows, column.clip(0, input_size - 1)), share)
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
