"""Student's t distribution for whole degrees of freedom, in closed form.

Source: Abramowitz and Stegun 1964, 26.7.3 and 26.7.4. Checked against their table 26.10.
"""

from __future__ import annotations

import math
from functools import lru_cache


def two_sided_p(t: float, freedom: int) -> float:
    """Give the probability that |T| is at least |t|, with `freedom` >= 1 degrees of freedom."""
    if math.isinf(t):
        return 0.0
    angle = math.atan(abs(t) / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= square * (k - 1) / k
        total += term
    inside = math.sin(angle) * total
    if odd:
        inside = 2 / math.pi * (angle + inside)
    return min(1.0, max(0.0, 1.0 - inside))


@lru_cache(maxsize=256)
def two_sided_t(p: float, freedom: int) -> float:
    """Give the t that |T| reaches with probability `p`: 2.776 for 0.05 and 4 degrees."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > p else (low, middle)
    return (low + high) / 2
