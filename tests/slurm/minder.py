"""Run one daemon, and end it with everything that it started when standard input ends.

`python minder.py GRACE_S COMMAND ...`. Standard input ends when whoever holds its other end closes
it, or dies. The daemon then gets SIGTERM and GRACE_S seconds; what is left after that, of its
children too, is stopped (so that none can tell of the end of another) and killed. Slurm's job
steps leave their parent; the kernel hands them to the minder, so a node's processes are a tree.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def below(root: int) -> set[int]:
    """Return the processes that descend from `root`, without itself and without the dead."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    found: set[int] = set()
    todo = [root]
    while todo:
        new = [pid for pid in children.get(todo.pop(), []) if pid not in found]
        found.update(new)
        todo += new
    return found


def kill_below(root: int) -> None:
    stopped: set[int] = set()
    while new := below(root) - stopped:
        for pid in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _mind(grace_s: float, daemon: int) -> None:
    while os.read(0, 1):
        pass
    if grace_s > 0:
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon, signal.SIGTERM)
        end = time.monotonic() + grace_s
        while below(os.getpid()) and time.monotonic() < end:
            time.sleep(0.02)
    kill_below(os.getpid())


def main() -> None:
    """Run the command line, and end when nothing of it is left."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    grace_s, *command = sys.argv[1:]
    daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_mind, args=(float(grace_s), daemon.pid), daemon=True).start()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


if __name__ == "__main__":
    main()
