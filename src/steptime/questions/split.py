"""Where to cut a network between two devices: the first part here, the rest there.

After Kang et al. 2017 (Neurosurgeon): each cut costs the ops before it on the first device, the
tensors that cross it over the link, and the ops after it on the second device. The answer's way
back is left out, and so is any overlap of one example's transfer with another's work.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from steptime.hardware.device import Link
from steptime.prediction.lower import Row
from steptime.prediction.step_model import StepModel

KEYS = ["after", "flop", "output_bytes", "crossing_bytes", "first_s", "transfer_s", "second_s"]


def cuts(here: StepModel, there: StepModel, link: Link) -> list[dict[str, Any]]:
    """Return every cut of an inference, in order: first all on `there`, last all on `here`.

    A cut is after an op or layer, "" for the first. `output_bytes` are those of the op itself,
    `crossing_bytes` of all tensors that are made before the cut and read after it; `flop` is the
    work up to the cut. Both are models of one network. Raises `InputError` as a prediction does.
    """
    lowered, counted = here.lowered(), here.counted()
    first, second = ({row.row.name: row for row in one.timeline().rows} for one in (here, there))
    rows = [row for row in lowered.rows if not row.is_input]
    names = ["", *(row.name for row in rows)]
    sizes = [lowered.input_bytes, *(row.output_bytes for row in rows)]
    sent = _crossing(names, sizes, rows)
    joins = here.method.joins(link)
    took = [joins.message_s(moved) if moved else 0.0 for moved in sent]
    before, after = (
        list(accumulate((times[row.name].forward.value for row in rows), initial=0.0))
        for times in (first, second)
    )
    flop = accumulate((counted[row.name]["forward"] for row in rows), initial=0.0)
    later = [after[-1] - until for until in after]
    every = zip(names, flop, sizes, sent, before, took, later, strict=True)
    found: list[dict[str, Any]] = [dict(zip(KEYS, one, strict=True)) for one in every]
    return [
        row | {"total_s": row["first_s"] + row["transfer_s"] + row["second_s"]} for row in found
    ]


def _crossing(names: Sequence[str], sizes: Sequence[int], rows: Sequence[Row]) -> list[int]:
    """Return, for the cut after each row, the bytes of what is made before and read after it."""
    place = {name: i for i, name in enumerate(names)}
    last = {parent: place[row.name] for row in rows for parent in row.parents}
    change = [0] * len(names)
    for i, name in enumerate(names):
        if name in last:
            change[i] += sizes[i]
            change[last[name]] -= sizes[i]
    return list(accumulate(change))
