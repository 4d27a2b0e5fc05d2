"""Which batches of a step fit a device, and which one pays."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil

MAX_BATCH = 1 << 20  # the largest batch that a search tries
MAX_TABLE_OPS = 40_000  # of all batches of a table: some seconds
MIN_TABLE_BATCHES = 3
KNEE = 0.9  # share of the best speed that the best batch must reach


def largest_batch(
    memory: Callable[[int], float],
    has_bytes: float,
    max_batch: int = MAX_BATCH,
    growth: int = 2,
) -> int:
    """Return the largest batch whose step needs no more than `has_bytes`, 0 if not even 1 does.

    `memory(batch)` are the bytes of a step, which do not fall as the batch grows. Batches above
    `max_batch` are not tried. 10 bytes and 3 an example fit 100 bytes up to a batch of 30. The
    search begins with powers of `growth`.
    """
    needed_bytes: dict[int, float] = {}

    def fits(batch: int) -> bool:
        needed_bytes[batch] = memory(batch)
        return needed_bytes[batch] <= has_bytes

    # Enlarge the batch by the factor `growth` until it no longer fits, then narrow the gap.
    fitting = 0
    too_large = 1  # a candidate at first; a batch that does not fit after the loop
    while too_large <= max_batch and fits(too_large):
        fitting = too_large
        is_last = too_large == max_batch
        too_large = max_batch + 1 if is_last else min(growth * fitting, max_batch)
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        guess = _guess_largest(needed_bytes, fitting, too_large, has_bytes)
        # The pair at the guess closes the search if the line is exact; the middle halves it if not.
        for batch in (guess, guess + 1, middle):
            is_in_gap = fitting < batch < too_large
            if is_in_gap and fits(batch):
                fitting = batch
            elif is_in_gap:
                too_large = batch
    return fitting


def _guess_largest(
    needed_bytes: Mapping[int, float], fitting: int, too_large: int, has_bytes: float
) -> int:
    """Return the batch between two others where a line through their memory reaches `has_bytes`.

    Memory is nearly linear in the batch. Without the memory of both it is the middle.
    """
    middle = (fitting + too_large) // 2
    if fitting not in needed_bytes or too_large not in needed_bytes:
        return middle
    growth_bytes = needed_bytes[too_large] - needed_bytes[fitting]
    if growth_bytes <= 0:
        return middle
    free_share = (has_bytes - needed_bytes[fitting]) / growth_bytes
    return fitting + int(free_share * (too_large - fitting))


def list_doubling_batches(largest: int, growth: int = 2) -> list[int]:
    """Return 1, 2, 4, ... (powers of `growth`) up to the largest batch, and the largest."""
    batches = [1]
    while growth * batches[-1] <= largest:
        batches.append(growth * batches[-1])
    return sorted({*batches, largest})


def growth_for(op_count: int) -> int:
    """Return from which batch to the next a table of batches goes: by 2, by more for many ops.

    As many batches are predicted as keep their ops below `MAX_TABLE_OPS`: 21 of 1,900 ops each,
    6 (by 16) of 6,400, at least 3.
    """
    # Large networks get fewer batches, as building a graph takes time with each of its ops.
    batch_count = max(MIN_TABLE_BATCHES, MAX_TABLE_OPS // max(1, op_count))
    # The batches of a table lead from 1 to `MAX_BATCH` in equal factors, powers of two.
    all_doublings = MAX_BATCH.bit_length() - 1
    doublings_per_row = ceil(all_doublings / (batch_count - 1))
    return int(2 ** max(1, doublings_per_row))


def find_knee(batches: Sequence[int], step_s: Sequence[float]) -> int:
    """Return the least batch that has 90 % of the best speed, in examples a second.

    Batches of 1, 2, 4 and 8 in 1, 1, 2 and 4 s: at 2 examples a second from 2 on, so 2.
    """
    examples_per_s = {
        batch: batch / batch_s if batch_s else 0.0
        for batch, batch_s in zip(batches, step_s, strict=True)
    }
    enough_per_s = KNEE * max(examples_per_s.values())
    return min(batch for batch, per_s in examples_per_s.items() if per_s >= enough_per_s)
