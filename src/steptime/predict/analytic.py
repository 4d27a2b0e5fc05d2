"""The corrected model of Paleo: every op of the step, at the device's peaks, one after another.

An op takes the longer of its FLOP / peak and its bytes / bandwidth; ops follow one another and
share no cache; the host issues them ahead of the device where the device file says how fast it is.
Every correction of Paleo is an option, so that its effect can be seen.
"""

from __future__ import annotations

from steptime.predict.settings import (
    CORRECTIONS,
    PPP,
    TF32,
    YES_NO,
    CostModel,
    Settings,
    choice,
    correction,
)

METHOD = CostModel(
    "analytic",
    "1",
    Settings(),
    {
        **{name: correction(name) for name in CORRECTIONS},
        "fuse": choice("elementwise ops run in the kernel before them", "fuse", YES_NO, "no"),
        "tf32": TF32,
        **PPP,
    },
)
