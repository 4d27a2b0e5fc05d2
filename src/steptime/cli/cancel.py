"""The command `cancel`: end what waits or runs of a submitted sweep."""

from steptime.cli.status import Where, check_submitted
from steptime.core.question import question
from steptime.core.table import Answer
from steptime.sweeps.cluster import status as cluster


@question()
def cancel(folder: Where) -> Answer:
    """Cancel the jobs of a submitted sweep that wait or run."""
    check_submitted(folder)
    jobs = cluster.cancel(folder)
    what = f"cancelled {', '.join(jobs)}" if jobs else "no job waits or runs"
    return Answer({"out": str(folder), "cancelled": jobs}, notes=[f"{folder}: {what}"])
