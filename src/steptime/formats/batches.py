"""How a view that a file has for its own batch is seen for another one."""

import math
from collections.abc import Sequence

Shape = Sequence[int]


def reseen(before: Shape, actual: Shape, told: Shape, own_batch: int) -> tuple[int, ...] | None:
    """Return the shape that a view of `actual` has, where one of `before` is `told`; None if none.

    A view keeps the order of elements: for each size that has grown one grows that lies around it
    or inside it, by the elements before both. Of several it is the batch of the file, else the
    first; a batch of 1 joins the axis behind it, heads of attention, but not features, the last.
    """
    found = list(told)
    for i, (old, new) in enumerate(zip(before, actual, strict=True)):
        if new == old:
            continue
        start = math.prod(before[:i])
        end = start * old
        leads = [math.prod(told[:j]) for j in range(len(told))]
        around = {j for j, n in enumerate(told) if leads[j] <= start and end <= leads[j] * n}
        inside = {j for j, n in enumerate(told) if start <= leads[j] and leads[j] * n <= end}
        places = sorted(around | inside)
        batches = [j for j in places if told[j] == own_batch]
        behind = [j for j in places if leads[j] == start > 1 == old and j + 1 < len(told)]
        for j in batches if len(batches) == 1 else (behind or places)[:1]:
            found[j] = found[j] * new // old
    return tuple(found) if math.prod(found) == math.prod(actual) else None
