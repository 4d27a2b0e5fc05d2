"""The roofline: every op takes the longer of its arithmetic and its memory traffic.

Williams, Waterman, Patterson 2009. Ops follow one another and share no cache; the peak is that of
the dtype computed in, for every op of the step.
"""

from steptime.prediction.kernel import Settings
from steptime.prediction.lower import lower_minimal
from steptime.prediction.method import TF32, Method, choice_option

METHOD = Method(
    "roofline",
    "1",
    arrays=True,
    lower=lower_minimal,
    settings=Settings(host="added"),
    options={
        "dispatch": choice_option(
            "add the device's time to issue an op, where it is known",
            "host",
            {"yes": "added", "no": "no"},
            "yes",
        ),
        "tf32": TF32,
    },
)
