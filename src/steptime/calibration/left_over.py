"""What products and steps take beyond what a device's constants say, learnt from measured ones.

ln(measured / predicted) is taken as a Gaussian process, of products over their sizes, of steps
behind a host over the seconds of host and device: those that are alike in them miss alike. It is 0
far from what was measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from steptime.calibration.columns import Columns, products_alike
from steptime.calibration.fit import logs, together
from steptime.prediction.host import alike
from steptime.prediction.kernels import Floats

FEWEST = 10  # products, or steps, that show how others miss
SPREAD = 0.2  # of what they miss by together, in ln
NOISE = 0.1  # of one step; SPREAD, this and what is alike: judged on devices of three data sets
OF_PRODUCT = 0.15  # the same of a product: judged on five devices, each by the others
FREEDOM = 4  # degrees of freedom of Student's noise: a row that is far off counts little
ROUNDS = 3
FARTHEST = 10  # times as far off as a case may be that did not tell the constants


def learnt(
    columns: Columns, constants: Mapping[str, float], off: Floats
) -> tuple[dict[str, Any], Floats]:
    """Return what a calibration keeps of measured cases, and how far they are off when left out.

    That are `products` by kind and type and `steps`, with their weights; none of few. `off` is
    ln(measured / predicted) of each case as if its family had not told the constants: cases of one
    family are left out together here, too.
    """
    misses = logs(columns, constants)
    alone = off.copy()
    far = np.divide(off, misses, out=np.ones(len(misses)), where=misses != 0)
    far = far.clip(-FARTHEST, FARTHEST)  # a case that hardly misses may do by chance
    found: dict[str, Any] = {}
    places, felt = columns.products(constants)
    if len(places) >= FEWEST:
        kernels = [columns.cases[i].kernels[0] for i in places]
        kinds = np.array([f"{one.kind} {one.dtype}" for one in kernels])
        sizes = np.array([one.products[0] for one in kernels], dtype=float).T
        near = SPREAD**2 * products_alike(*sizes[:, :, None], *sizes) * np.outer(felt, felt)
        families = [columns.families[i] for i in places]
        told, left = _told(near * (kinds[:, None] == kinds), misses[places], OF_PRODUCT, families)
        alone[places] = left * far[places]
        rows = np.column_stack([sizes.T, SPREAD**2 * felt * told])
        found["products"] = {str(one): _rounded(rows[kinds == one]) for one in np.unique(kinds)}
    places, host_s, device_s = columns.behind_host(constants)
    if len(places) < FEWEST:
        return found, alone
    near = SPREAD**2 * alike(host_s[:, None], device_s[:, None], host_s, device_s)
    told, left = _told(near, misses[places], NOISE, [columns.families[i] for i in places])
    alone[places] = left * far[places]
    found["steps"] = _rounded(np.column_stack([host_s, device_s, SPREAD**2 * told]))
    return found, alone


def _told(
    near: Floats, misses: Floats, single: float, families: Sequence[str]
) -> tuple[Floats, Floats]:
    """Return the weights of cases that go together as `near` says, and their misses left out.

    Cases of one of the `families` are left out together, as in `fit.left_out`.
    """
    noise = np.full(len(misses), single**2)
    for _ in range(ROUNDS):
        inverse = np.linalg.inv(near + np.diag(noise))
        told = inverse @ misses
        rest = (misses - near @ told) / single
        noise = single**2 * (FREEDOM + rest**2) / (FREEDOM + 1)
    left = np.empty(len(told))
    for own in together(families):
        left[own] = np.linalg.solve(inverse[np.ix_(own, own)], told[own])
    return told, left


def _rounded(rows: Floats) -> list[list[float]]:
    return [[float(f"{one:.4g}") for one in row] for row in rows]
