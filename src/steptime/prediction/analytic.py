"""The corrected model of Paleo: every op of the step, at the device's peaks, one after another.

The host issues ops ahead of the device where the device file says how fast it is. Every correction
of Paleo is an option (`steptime.paleo.method`).
"""

from steptime.prediction.method import EFFICIENCIES, FUSE, STACK, TF32, Method

METHOD = Method(
    "analytic",
    "2",
    arrays=True,
    options={"fuse": FUSE, "tf32": TF32, "stack": STACK, **EFFICIENCIES},
)
