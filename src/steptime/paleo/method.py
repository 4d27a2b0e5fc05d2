"""Paleo as published (Qi, Sparks, Talwalkar, ICLR 2017), its faults included.

Convolutions, dense layers, pooling and dropout cost time, everything else nothing; compute and
memory time of a layer are added. It is the analytic model with every correction switched off.
"""

from __future__ import annotations

from functools import reduce

from steptime.predict.settings import (
    ALGORITHM,
    CORRECTIONS,
    PPP,
    CostModel,
    Settings,
    choice,
    switched_off,
)

SETTINGS = reduce(switched_off, CORRECTIONS, Settings())

METHOD = CostModel(
    "paleo",
    "1",
    SETTINGS,
    {
        **PPP,
        "pipeline": choice(
            "a layer's compute and memory time overlap: Paleo's lower bound",
            "overlap",
            {"true": "layer", "false": "none", "yes": "layer", "no": "none"},
            "false",
        ),
        "conv": ALGORITHM,
    },
    collective="tree",
    as_published=True,
)
