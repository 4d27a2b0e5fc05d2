"""Which batches of a step fit a device, and which one pays."""

from collections.abc import Callable, Sequence

MAX_BATCH = 1 << 20  # the largest batch that a search tries
KNEE = 0.9  # share of the best speed that the best batch must reach


def largest_batch(
    memory: Callable[[int], float], has_bytes: float, max_batch: int = MAX_BATCH
) -> int:
    """Return the largest batch whose step needs no more than `has_bytes`, 0 if not even 1 does.

    `memory(batch)` are the bytes of a step, which do not fall as the batch grows. Batches above
    `max_batch` are not tried. 10 bytes and 3 an example fit 100 bytes up to a batch of 30.
    """
    low, high, needs = 0, 1, {}

    def fits(batch: int) -> bool:
        needs[batch] = memory(batch)
        return needs[batch] <= has_bytes

    while high <= max_batch and fits(high):
        low, high = high, 2 * high
    high = min(high, max_batch + 1)
    while high - low > 1:
        middle = (low + high) // 2
        guess = middle
        if low and high in needs and needs[high] > needs[low]:  # memory is nearly a line
            share = (has_bytes - needs[low]) / (needs[high] - needs[low])
            guess = low + int(share * (high - low))
        for batch in (guess, guess + 1, middle):
            if low < batch < high:
                low, high = (batch, high) if fits(batch) else (low, batch)
    return low


def doubling(largest: int) -> list[int]:
    """Return 1, 2, 4, ... up to the largest batch, and the largest."""
    return sorted({1 << i for i in range(largest.bit_length())} | {largest})


def knee(batches: Sequence[int], step_s: Sequence[float]) -> int:
    """Return the least batch that has 90 % of the best speed, in examples a second.

    Batches of 1, 2, 4 and 8 in 1, 1, 2 and 4 s: at 2 examples a second from 2 on, so 2.
    """
    steps = zip(batches, step_s, strict=True)
    speeds = {batch: batch / seconds if seconds else 0.0 for batch, seconds in steps}
    return min(batch for batch, speed in speeds.items() if speed >= KNEE * max(speeds.values()))
