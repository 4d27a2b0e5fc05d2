"""What a device's steps take beyond what its constants say, learnt from those that were measured.

ln(measured / predicted) of steps behind a host is taken as a Gaussian process over the seconds of
host and device: steps that are alike in them miss alike. It is 0 far from what was measured. Of
networks that are only described, those are alike whose names have words in common.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from steptime.calibration.columns import Columns, Floats
from steptime.calibration.fit import logs
from steptime.predict import described
from steptime.predict.host import alike

FEWEST = 10  # steps that show how others miss
SPREAD = 0.2  # of what steps miss by together, in ln
NAMED = 0.15  # the same, of networks of the same name: judged on one device, in draws of its rows
NOISE = 0.1  # of a single one; SPREAD, this and what is alike: judged on devices of three data sets
FREEDOM = 4  # degrees of freedom of Student's noise: a row that is far off counts little
ROUNDS = 3
FARTHEST = 10  # times as far off as a step may be that did not tell the constants


def learnt(
    columns: Columns, constants: Mapping[str, float], off: Floats
) -> tuple[dict[str, Any], Floats]:
    """Return what a calibration keeps of measured steps, and how far cases are off when left out.

    That are `steps`, with their weights, and `networks`, weights of names; none of few steps. `off`
    is ln(measured / predicted) of each case as if it had not told the constants.
    """
    places, host_s, device_s = columns.behind_host(constants)
    if len(places) < FEWEST:
        return {}, off
    names = [columns.cases[i].described for i in places]
    bare = np.array(names) == ""
    misses = logs(columns, constants)[places]
    near = SPREAD**2 * alike(host_s[:, None], device_s[:, None], host_s, device_s)
    near *= bare[:, None] & bare
    near += NAMED**2 * np.array([[described.alike(a, b) for b in names] for a in names])
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
    rows = np.column_stack([host_s, device_s, SPREAD**2 * told])[bare]
    networks: dict[str, float] = defaultdict(float)
    for name, one in zip(names, told, strict=True):
        networks[name] += float(f"{NAMED**2 * one:.4g}")
    networks.pop("", None)
    found = {
        "steps": [[float(f"{one:.4g}") for one in row] for row in rows],
        "networks": dict(networks),
    }
    return {name: some for name, some in found.items() if some}, alone
