"""Why a cell has no number: one word each, and what tries the cell again."""

from dataclasses import dataclass

REQUEUED = "the scheduler, which starts the job again; else the next sweep"
NEXT = "the next sweep"
MENDED = "the next sweep, in vain until it is mended"
ASKED = "only --retry"


@dataclass(frozen=True)
class Cause:
    """What a word means, and what tries a cell again that failed so."""

    meaning: str
    again: str


CAUSES = {
    "node-fail": Cause("the node went down", REQUEUED),
    "preempted": Cause("another job took the node", REQUEUED),
    "cancelled": Cause("somebody cancelled the job", NEXT),
    "killed": Cause("signal 9: for memory where the status is oom, else by an unknown hand", NEXT),
    "crashed": Cause("the process ended by another signal, or by an exit code", NEXT),
    "exception": Cause("the framework raised an error", NEXT),
    "time-limit": Cause("the cell's time limit; the job's where the status is failed", NEXT),
    "vanished": Cause("the job is gone, and neither it nor the scheduler says why", NEXT),
    "bad-config": Cause("what was asked for is not there, or not allowed", MENDED),
    "import-error": Cause("a library is missing or does not load", MENDED),
    "missing-file": Cause("a file or a program is not there", MENDED),
    "module-conflict": Cause("an environment module did not load", MENDED),
    "illegal-instruction": Cause("a program is built for another CPU", MENDED),
    "no-space": Cause("a disk is full", MENDED),
    "bad-data": Cause("the data set is not what it should be", MENDED),
    "out-of-memory": Cause("the framework got no memory", ASKED),
    "predicted-not-to-fit": Cause("it needs more memory than there is; not tried", ASKED),
    "too-few-cpus": Cause("its processes need more CPUs than there are; not tried", ASKED),
    "unsupported": Cause("the backend cannot run it", ASKED),
}


def again(status: str, cause: str) -> str:
    """Return what tries a cell of this status again, in a few words."""
    if status != "failed":
        return f"{ASKED} {status}"
    return CAUSES[cause].again if cause in CAUSES else NEXT
