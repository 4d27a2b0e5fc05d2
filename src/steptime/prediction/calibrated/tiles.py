"""Tiles by which a GPU computes a matrix product: waves of tiles over its multiprocessors."""

from math import inf
from typing import Any, NamedTuple

import numpy as np

from steptime.hardware.architectures import SetTiles, Tiles, architectures
from steptime.prediction.calibrated.form import ceil

Shape = tuple[Any, Any, Any, Any]  # batch, m, n, k


class ProductTime(NamedTuple):
    """The arithmetic of matrix products.

    Attributes:
        compute_s: its seconds.
        flop: the executed FLOP, with the padding of tiles.
    """

    compute_s: Any
    flop: Any


class TileTime(NamedTuple):
    """A tile of the result, and its speed on a device.

    Attributes:
        rows: rows of the result.
        columns: columns of the result.
        wave_s: seconds of a wave (a tile on each multiprocessor) for one step of the contraction.
        ramp_steps: steps of the contraction that the first and the last numbers are waited for.
        low_rows: rows that a product has more of if it takes this tile.
        high_rows: the most rows of a product that takes this tile.
    """

    rows: int
    columns: int
    wave_s: float
    ramp_steps: float
    low_rows: float = 0.0
    high_rows: float = inf


class Units(NamedTuple):
    """The units that multiply: multiprocessors with the tiles that libraries offer for them.

    Attributes:
        single_tiles: tiles for a product on its own.
        batch_tiles: tiles for a batch of products.
        multiprocessors: their number.
        memory_bytes_per_s: rate at which the parts of a split contraction are written.
        sum_s: seconds to start the sum of these parts.
        turn_s: least seconds of a step of the contraction, since each waits for its numbers.
        step: columns of the contraction that are multiplied at once; it is padded to a multiple.
        splits: whether the contraction of single products may be split over idle multiprocessors.
        is_persistent: whether blocks of threads stay and take tile after tile, of shapes by which
            the last wave is as full as others.
        has_set_tiles: whether single products take a tile by their rows, not the fastest one.
    """

    single_tiles: tuple[TileTime, ...]
    batch_tiles: tuple[TileTime, ...]
    multiprocessors: int
    memory_bytes_per_s: float
    sum_s: float
    turn_s: float
    step: int = 1
    splits: bool = True
    is_persistent: bool = False
    has_set_tiles: bool = False


def time_tiles(
    tiles: Tiles,
    multiprocessors: int,
    flop_per_s: float,
    half_reuse: float,
    *,
    ramp_steps: float = 0.0,
    ramp_s: float = 0.0,
    sharing: int = 1,
) -> tuple[TileTime, ...]:
    """Return tiles with their speed.

    Args:
        tiles: the tiles.
        multiprocessors: number of multiprocessors that share `flop_per_s`.
        flop_per_s: rate of all of them if numbers were used without end.
        half_reuse: uses of an operand at which half of the rate is reached.
        ramp_steps: steps of the contraction that the first and last numbers are waited for.
        ramp_s: the same in seconds, where `ramp_steps` is 0.
        sharing: multiprocessors whose tiles, one below the other, share the operand of a column.
    """
    times = []
    for rows, columns in tiles:
        wave_flop = 2.0 * rows * columns * multiprocessors
        # A small tile uses each operand seldom, and waits for operands. Multiprocessors that share
        # an operand reuse it like one tile of all their rows.
        shared_tile = (sharing * rows, columns)
        wave_s = wave_flop / flop_per_s * (1 + half_reuse / reuse(shared_tile))
        # The ramp is stated in steps or in seconds, never in both.
        times.append(TileTime(rows, columns, wave_s, ramp_steps or ramp_s / wave_s))
    return tuple(times)


def limit_tiles(tiles: tuple[TileTime, ...], set_tiles: SetTiles) -> tuple[TileTime, ...]:
    """Return tiles with the rows of products that take them, from few rows on."""
    limited_tiles = []
    low_rows = 0.0
    for tile, (max_rows, _, _) in zip(tiles, set_tiles, strict=True):
        high_rows = max_rows or inf
        limited_tiles.append(tile._replace(low_rows=low_rows, high_rows=high_rows))
        low_rows = high_rows
    return tuple(limited_tiles)


def list_set_tiles(family: str) -> SetTiles:
    """Return the tiles that CUTLASS products in 8 bit take by their rows; none for the fastest."""
    return architectures().set_tiles.value_of(family)


def list_tiles(use: str, family: str = "") -> Tiles:
    """Return the tiles that libraries offer for a use on a family of architectures."""
    return architectures().tiles[use].value_of(family)


def contraction_step(family: str) -> int:
    """Return the number of columns of the contraction that matrix units multiply in a turn."""
    return architectures().contraction_step.value_of(family)


def reuse(tile: tuple[int, int]) -> float:
    """Return the number of times a tile uses each number that it reads: 64 for 128 x 128."""
    rows, columns = tile
    return rows * columns / (rows + columns)


def time_fastest_tile(shape: Shape, units: Units, *, in_batch: bool) -> ProductTime:
    """Return the arithmetic of a product with its fastest tile, its contraction split or not.

    A tile reads one row and one column of its operands for each multiply-add of its area, so that
    small tiles keep the arithmetic waiting. A wave is one tile on each multiprocessor. The parts of
    a split contraction are written to memory and summed.
    """
    batch, m, n, k = shape
    padded_k = units.step * ceil(k, units.step)
    padded_area: Any = 0.0
    best_s: Any = np.inf
    for tile in units.batch_tiles if in_batch else units.single_tiles:
        blocks = batch * ceil(m, tile.rows) * ceil(n, tile.columns)
        seconds = _tile_s(padded_k, blocks, tile, units)
        # Only single products with half of the multiprocessors idle are split.
        can_split = units.splits and not in_batch and np.min(blocks) <= units.multiprocessors / 2
        if can_split:
            split_s = _split_s((m, n), padded_k, blocks, tile, units)
            seconds = np.minimum(seconds, split_s)
        if units.has_set_tiles and not in_batch:
            fits_rows = (m > tile.low_rows) & (m <= tile.high_rows)
            seconds = np.where(fits_rows, seconds, np.inf)
        # The fastest tile so far, and the padded result of which it computes all elements.
        padded_area = np.where(seconds < best_s, tile.rows * tile.columns * blocks, padded_area)
        best_s = np.minimum(seconds, best_s)
    return ProductTime(best_s, 2.0 * k * padded_area)


def _tile_s(padded_k: Any, blocks: Any, tile: TileTime, units: Units) -> Any:
    """Return the seconds of a product by a tile, whose contraction is not split.

    `padded_k` is the length of the contraction, `blocks` the tiles that cover the result.
    """
    if units.is_persistent:
        # Only the first tile is waited for: numbers of the next come while one is worked on.
        waves = np.maximum(blocks / units.multiprocessors, 1.0)
        ramps = 1.0
    else:
        waves = ramps = ceil(blocks, units.multiprocessors)
    ramp_s = ramps * tile.wave_s * tile.ramp_steps
    # A step of the contraction takes at least `turn_s`: numbers must arrive first.
    return np.maximum(waves * tile.wave_s, units.turn_s) * padded_k + ramp_s


def _split_s(
    result: tuple[Any, Any], padded_k: Any, blocks: Any, tile: TileTime, units: Units
) -> Any:
    """Return the seconds of a product whose contraction is split over idle multiprocessors.

    Args:
        result: rows and columns of the result.
        padded_k: length of the contraction.
        blocks: tiles that cover the result.
        tile: the tile.
        units: the units that multiply.
    """
    m, n = result
    multiprocessors = units.multiprocessors
    split_count = np.maximum(np.floor(multiprocessors / blocks), 1.0)
    waves_s = ceil(blocks * split_count, multiprocessors) * tile.wave_s
    # Each multiprocessor writes a partial tile in float32, and the sums are written once.
    partial_bytes = 4.0 * (m * n + tile.rows * tile.columns * multiprocessors)
    sum_s = partial_bytes / units.memory_bytes_per_s + units.sum_s
    steps_s = np.maximum(waves_s, units.turn_s) * ceil(padded_k, split_count)
    return steps_s + waves_s * tile.ramp_steps + sum_s
