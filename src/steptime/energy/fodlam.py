"""FODLAM as published (Sampson, Buckler; Cornell, November 2017), number for number.

It takes Eyeriss's rows, which are of 4 or 3 images, for those of one image, and brings EIE from 45
to 65 nm by ideal scaling. `energy/accelerator.py` is the same model without the first of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from steptime.energy.accelerator import Chip, Estimate, chips_at
from steptime.energy.accelerators import Accelerator
from steptime.energy.process import Process

PROCESS = Process(65)
SCALING = "dennard"


def published_chips(accelerators: Sequence[Accelerator]) -> tuple[Chip, ...]:
    """Return the chips as FODLAM takes them: at 65 nm, a batch for one image."""
    return chips_at(accelerators, PROCESS, SCALING, whole_batch=True)


def published_form(found: Estimate) -> dict[str, dict[str, float | None]]:
    """Return `energy` in joules and `latency` in seconds of each part and of all, keys sorted."""
    return {
        part: {"energy": sums["energy_j"], "latency": sums["latency_s"]}
        for part, sums in sorted(found.sums().items())
    }
