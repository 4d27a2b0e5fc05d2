"""Workers on this machine: start one, ask it, and tell how it died.

A worker that dies takes only the network in flight with it. Its death is told by its exit: a
signal of ours is a time limit, a kill by the system while its counter of such kills went up is
out-of-memory, anything else is a crash.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

from steptime.core.errors import InputError
from steptime.measure.contract import Options

START_LIMIT_S = 300.0
_GRACE_S = 5.0
_STDERR_BYTES = 2000
_KILL_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))


@dataclass(frozen=True)
class Death:
    """How a worker ended: a record's status and cause, and a line for people."""

    status: str
    cause: str
    note: str


class WorkerDiedError(Exception):
    """The worker ended before it answered; `death` says how."""

    def __init__(self, death: Death) -> None:
        super().__init__(death.note)
        self.death = death


class Worker:
    """A worker process that has been greeted; `greeting` says its platform and framework.

    Raises `InputError` from the start where backend or device are refused.
    """

    def __init__(self, backend: str, options: Options) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the worker
        self._kills = _kills_so_far()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "steptime.measure.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the parent; the end of stdin is for the worker
        )
        self._input = cast("IO[bytes]", self._process.stdin)
        self._output = cast("IO[bytes]", self._process.stdout)
        self._unread = b""
        try:
            self.greeting = self.ask(
                {"do": "start", "backend": backend, "options": asdict(options)}, START_LIMIT_S
            )
        except WorkerDiedError as died:
            self.close()
            raise InputError(f"the {backend} worker did not start: {died}") from died
        if "refused" in self.greeting:
            self.close()
            raise InputError(self.greeting["refused"])

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Send a request and give its answer; raises `WorkerDiedError` if none comes in time."""
        try:
            self._input.write(json.dumps(request).encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise WorkerDiedError(self._death()) from None
        line = self._line(time.monotonic() + limit_s)
        if line is None:
            self._kill()
            text = f"no answer within the time limit of {limit_s:g} s"
            raise WorkerDiedError(Death("timeout", "time-limit", text))
        if not line:
            raise WorkerDiedError(self._death())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _line(self, deadline: float) -> bytes | None:
        """Give the next line, b"" at the end of the stream, or None at the deadline."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                piece = os.read(self._output.fileno(), 1 << 16)
                if not piece:
                    return b""
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _death(self) -> Death:
        try:
            code = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._kill()
            return Death("failed", "crashed", "the worker closed its output but did not end")
        said = self._last_words()
        if code < 0:
            name = signal.Signals(-code).name
            if -code == signal.SIGKILL and _kills_so_far() > self._kills:
                return Death("oom", "killed", f"killed by the system for memory; {said}")
            cause = "killed" if -code == signal.SIGKILL else "crashed"
            return Death("failed", cause, f"the worker ended by {name}; {said}")
        return Death("failed", "crashed", f"the worker ended with exit code {code}; {said}")

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _STDERR_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else "it said nothing"

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End the worker: close its input, and kill it if it does not go."""
        with suppress(BrokenPipeError):
            self._input.close()
        self._output.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _kills_so_far() -> int:
    """Give how many processes the system has killed for memory, where it tells."""
    total = 0
    for path in _KILL_COUNTERS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total
