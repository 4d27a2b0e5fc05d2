"""A speed that no longer depends on the network: found among the speeds of one platform.

An input pipeline, or another cost that every step has, caps examples a second (or steps a second)
whatever the network does. Then the fastest networks pile up in a narrow band although their FLOP
differ by orders of magnitude, and the device is far from its best FLOP/s there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.records.row import Row
from steptime.records.statistics import rank_correlation
from steptime.records.warmup import Floats

BAND = 0.8  # of the top speed: what is above it is in the band
TOP = 0.98  # quantile of the speeds that is their top: one lucky network is no ceiling
SHARE, LEAST = 0.1, 10  # of the networks, and networks, that the band must hold
PILE = 2.0  # times as many as the band below, equally wide
SPAN = 10.0  # of the FLOP in the band, 5th to 95th percentile
IDLE = 0.5  # of the best FLOP/s: in the band the median is below
FALLS = -0.5  # rank correlation of speed and FLOP: below it, speed still depends on the network


def saturation(
    speed_per_s: Floats, flop: Floats, features: Mapping[str, NDArray[Any]]
) -> tuple[Row, NDArray[np.bool_]] | None:
    """Return at which level speeds saturate and which networks, None where they do not.

    `flop` is that of what the speed counts, an example or a step; NaN where unknown. A feature of
    which three values or more (or just two) occur must have as many in the band: else speed depends
    on it.
    """
    known = np.isfinite(speed_per_s) & np.isfinite(flop) & (flop > 0) & (speed_per_s > 0)
    if known.sum() < LEAST:
        return None
    speed, work = speed_per_s[known], flop[known]
    floor = BAND * np.quantile(speed, TOP)
    band = speed >= floor
    below = (speed >= BAND * floor) & ~band
    if band.sum() < max(LEAST, SHARE * len(speed), PILE * below.sum()):
        return None
    low, high = np.quantile(work[band], (0.05, 0.95))
    used = np.median(speed[band] * work[band]) / (speed * work).max()
    if high < SPAN * low or used > IDLE:
        return None
    if np.ptp(speed[band]) > 0 and rank_correlation(speed[band], work[band]) < FALLS:
        return None
    for column in features.values():
        every, inside = (
            {str(one) for one in part.tolist()} for part in (column[known], column[known][band])
        )
        if len(inside) < min(len(every), 3):
            return None
    ends = np.quantile(speed[band], (0.05, 0.5, 0.95))
    row = dict(zip(("low_per_s", "level_per_s", "high_per_s"), map(float, ends), strict=True))
    row |= {"networks": int(band.sum()), "of": len(speed), "share": float(band.mean())}
    row |= {"flop_span": float(high / low), "best_flop_share": float(used)}
    return row, known & (speed_per_s >= floor)
