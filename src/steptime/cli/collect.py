"""The command `collect`: records for cells whose jobs are over without one."""

from collections import Counter

from steptime.cli.status import Where, check_submitted
from steptime.core.progress import note
from steptime.core.question import question
from steptime.core.table import Answer
from steptime.records import store
from steptime.sweeps.cluster import status as cluster


@question()
def collect(folder: Where) -> Answer:
    """Write a record of every cell whose job is over without one."""
    check_submitted(folder)
    with store.exclusive(folder):
        written = cluster.collect(folder, note)
    causes = Counter(record.cause for record in written)
    why = ", ".join(f"{n} {cause}" for cause, n in causes.items())
    return Answer(
        {"out": str(folder), "written": len(written), "causes": dict(causes)},
        notes=[f"{folder}: {len(written)} cells lost by their jobs" + (f": {why}" if why else "")],
    )
