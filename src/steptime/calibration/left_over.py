"""What a device's steps take beyond what its constants say, learnt from those that were measured.

ln(measured / predicted) of steps behind a host is taken as a Gaussian process over the seconds of
host and device: steps that are alike in them miss alike. It is 0 far from what was measured.
"""

from collections.abc import Mapping

import numpy as np

from steptime.calibration.columns import Columns, Floats
from steptime.calibration.fit import logs
from steptime.predict.host import alike

FEWEST = 10  # steps that show how others miss
SPREAD = 0.2  # of what steps miss by together, in ln
NOISE = 0.1  # of a single one; these two and what is alike: judged on devices of three data sets
FREEDOM = 4  # degrees of freedom of Student's noise: a row that is far off counts little
ROUNDS = 3
FARTHEST = 10  # times as far off as a step may be that did not tell the constants


def learnt(
    columns: Columns, constants: Mapping[str, float], off: Floats
) -> tuple[list[list[float]], Floats]:
    """Return the measured steps with their weights, and how far cases are off that are left out.

    `off` is ln(measured / predicted) of each case as if it had not told the constants.
    """
    places, host_s, device_s = columns.behind_host(constants)
    if len(places) < FEWEST:
        return [], off
    misses = logs(columns, constants)[places]
    near = SPREAD**2 * alike(host_s[:, None], device_s[:, None], host_s, device_s)
    noise = np.full(len(misses), NOISE**2)
    for _ in range(ROUNDS):
        inverse = np.linalg.inv(near + np.diag(noise))
        told = inverse @ misses
        rest = (misses - near @ told) / NOISE
        noise = NOISE**2 * (FREEDOM + rest**2) / (FREEDOM + 1)
    far = np.divide(off[places], misses, out=np.ones(len(misses)), where=misses != 0)
    far = far.clip(-FARTHEST, FARTHEST)  # a step that hardly misses may do by chance
    alone = off.copy()
    alone[places] = told / np.diag(inverse) * far  # where a step does not tell of itself
    rows = np.column_stack([host_s, device_s, SPREAD**2 * told])
    return [[float(f"{one:.4g}") for one in row] for row in rows], alone
