"""The corrected model of Paleo: every op of the step, at the device's peaks, one after another.

An op takes the longer of its FLOP / peak and its bytes / bandwidth; ops follow one another and
share no cache; the host issues them ahead of the device where the device file says how fast it is.
Every correction of Paleo is an option, so that its effect can be seen (`steptime.paleo.method`).
"""

from steptime.predict.method import EFFICIENCIES, FUSE, STACK, TF32, Method

METHOD = Method(
    "analytic", "2", options={"fuse": FUSE, "tf32": TF32, "stack": STACK, **EFFICIENCIES}
)
