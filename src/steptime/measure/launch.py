"""Workers on this machine: they are started, get requests, and their deaths are explained.

A worker that dies takes only the network in flight with it. Its death is told by its exit: a
signal of ours is a time limit, a kill by the system while its counter of such kills went up is
out-of-memory, anything else is a crash. Replicas are processes that get the same requests and wait
for each other, so the death of one ends all.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

from steptime.core import scratch
from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.measure import registry
from steptime.measure.contract import Options
from steptime.measure.ranks import free_port, local_variables

OnEvent = Callable[[Mapping[str, Any]], object] | None
START_LIMIT_S = 300.0
_GRACE_S = 5.0
_DEATH_WAIT_S = 1.0  # who is killed closes its connections some time before it is gone
_MAX_LINE_LENGTH = 300  # of a reason: a line of a report
_STDERR_BYTES = 2000
_CAUSES: Mapping[int, str] = {signal.SIGKILL: "killed", signal.SIGILL: "illegal-instruction"}
_SAFE_PATH = {"PYTHONSAFEPATH": "1"}  # a file torch.py in the current directory is not PyTorch
_KILL_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))


@dataclass(frozen=True)
class Failure:
    """How a worker ended: a record's status and cause, and a line for people."""

    status: str
    cause: str
    note: str


class _FailedError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.note)
        self.failure = failure


class WorkerDiedError(_FailedError):
    """The worker ended before it answered; `failure` says how."""


class StartError(_FailedError, InputError):
    """No worker came up, or it refused what was asked for; `failure` is what a record says."""


class _Process:
    """One process that takes requests and gives answers, a line each; `name` is that in notes."""

    def __init__(self, name: str, variables: Mapping[str, str]) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile(dir=scratch.scratch_folder())  # noqa: SIM115  # closed with the worker
        self._kill_count_at_start = _count_kills()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "steptime.measure.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the parent; the end of stdin is for the worker
            env={**os.environ, **variables, **_SAFE_PATH},
        )
        self._input = cast("IO[bytes]", self.process.stdin)
        self.output = cast("IO[bytes]", self.process.stdout)
        self._unread = b""

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request; raises `WorkerDiedError` where nobody takes it."""
        try:
            self._input.write(json.dumps(request).encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise WorkerDiedError(self.explain_end()) from None

    def read_lines(self) -> list[JsonObject]:
        """Return the lines that have come; raises `WorkerDiedError` where no more will come."""
        piece = os.read(self.output.fileno(), 1 << 16)
        if not piece:
            raise WorkerDiedError(self.explain_end())
        *lines, self._unread = (self._unread + piece).split(b"\n")  # the last may be incomplete
        return [json.loads(line) for line in lines]

    def ends_within(self, limit_s: float) -> bool:
        """Wait so many seconds for the end of the process; return whether it has ended."""
        try:
            self.process.wait(max(0.0, limit_s))
        except subprocess.TimeoutExpired:
            return False
        return True

    def explain_end(self) -> Failure:
        """Explain the end of the process; kill it if it has only closed its output."""
        if not self.ends_within(_GRACE_S):
            self.kill()
            return Failure("failed", "crashed", f"{self._name} closed its output but did not end")
        last_line = self._last_error_line()
        code = self.process.returncode
        if code >= 0:  # a negative one is the number of the signal that ended it
            return Failure(
                "failed", "crashed", f"{self._name} ended with exit code {code}; {last_line}"
            )
        signal_number = -code
        # The kernel's out-of-memory killer sends SIGKILL, and counts what it kills.
        is_out_of_memory = (
            signal_number == signal.SIGKILL and _count_kills() > self._kill_count_at_start
        )
        if is_out_of_memory:
            return Failure("oom", "killed", f"killed by the system for memory; {last_line}")
        signal_name = signal.Signals(signal_number).name
        cause = _CAUSES.get(signal_number, "crashed")
        return Failure("failed", cause, f"{self._name} ended by {signal_name}; {last_line}")

    def _last_error_line(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _STDERR_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip()[:_MAX_LINE_LENGTH] if lines else "it said nothing"

    def kill(self) -> None:
        """End it now."""
        self.process.kill()
        self.process.wait()

    def close_input(self) -> None:
        """Tell it to end."""
        with suppress(BrokenPipeError):
            self._input.close()

    def close(self) -> None:
        """End it: close its input, and kill it if it does not go."""
        self.close_input()
        self.output.close()
        if not self.ends_within(_GRACE_S):
            self.kill()
        self._errors.close()


class Worker(AbstractContextManager["Worker"]):
    """One worker process, or one for each replica that is a process, which answer as one.

    `greeting` says platform and framework. `variables` are set beside those of this process.
    Raises `StartError` from the start where backend, device or cores are refused.
    """

    def __init__(
        self,
        backend: str,
        options: Options,
        replicas: int = 1,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        is_single_process = registry.backend(backend).is_single_process
        size = 1 if is_single_process else replicas  # processes
        variables_of_ranks = local_variables(size, free_port()) if size > 1 else ({},)
        self._processes: list[_Process] = []
        try:
            for rank, variables_of_rank in enumerate(variables_of_ranks):
                name = f"rank {rank} of {size}" if size > 1 else "the worker"
                environment = {**(variables or {}), **variables_of_rank}
                self._processes.append(_Process(name, environment))
            start = {
                "do": "start",
                "backend": backend,
                "options": asdict(options),
                "replicas": replicas,
            }
            self.greeting = self.ask(start, START_LIMIT_S)
        except WorkerDiedError as died:
            self.close()
            note = f"the {backend} worker did not start: {died}"
            raise StartError(replace(died.failure, note=note)) from died
        except BaseException:  # Ctrl-C, too, must leave no process behind
            self.close()
            raise
        if "refused" in self.greeting:
            self.close()
            raise StartError(Failure("failed", self.greeting["cause"], self.greeting["refused"]))

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, by rank."""
        return tuple(process.process.pid for process in self._processes)

    def ask(
        self, request: Mapping[str, Any], limit_s: float, on_event: OnEvent = None
    ) -> JsonObject:
        """Send a request to all and return the answer of rank 0, when all have answered.

        The first answer that reports a failure is returned at once: the other processes may wait
        for that process in vain.

        Args:
            request: the request.
            limit_s: the seconds in which all must have answered.
            on_event: is called with each report of progress of rank 0.

        Raises:
            WorkerDiedError: if one dies or is not ready in time; all are then killed.
        """
        deadline = time.monotonic() + limit_s
        try:
            for process in self._processes:
                process.send(request)
            return self._collect_answers(deadline, limit_s, on_event)
        except WorkerDiedError:
            self._kill()
            raise

    def _collect_answers(self, deadline: float, limit_s: float, on_event: OnEvent) -> JsonObject:
        answers: dict[int, JsonObject] = {}
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                selector.register(process.output, selectors.EVENT_READ, rank)
            while len(answers) < len(self._processes):
                remaining_s = deadline - time.monotonic()
                readable = selector.select(remaining_s) if remaining_s > 0 else []
                if not readable:
                    note = f"no answer within the time limit of {limit_s:g} s"
                    raise WorkerDiedError(Failure("timeout", "time-limit", note))
                for key, _ in readable:
                    rank = key.data
                    for line in self._processes[rank].read_lines():
                        is_progress = "event" in line
                        if is_progress:
                            if on_event and rank == 0:
                                on_event(line)
                            continue
                        if _is_failure_of_rank(line):
                            return self._name_failed_rank(rank, line)
                        answers[rank] = line
                        selector.unregister(key.fileobj)
        return answers[0]

    def _name_failed_rank(self, rank: int, answer: JsonObject) -> JsonObject:
        """Return a failure of one of several with its rank, and end all; a death comes before."""
        if len(self._processes) == 1:
            return answer
        # If another rank has died, its death is the cause, and this failure only follows from it.
        deadline = time.monotonic() + _DEATH_WAIT_S
        for process in self._processes:
            is_failed_rank = process is self._processes[rank]
            if not is_failed_rank and process.ends_within(deadline - time.monotonic()):
                raise WorkerDiedError(process.explain_end())
        self._kill()
        text_key = "refused" if "refused" in answer else "note"
        return answer | {text_key: f"rank {rank}: {answer[text_key]}"}

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """End the worker: close its input, and kill it if it does not go."""
        for process in self._processes:
            process.close_input()
        for process in self._processes:
            process.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_failure_of_rank(answer: JsonObject) -> bool:
    """Return whether an answer is a failure that the other ranks may not have."""
    status = "refused" if "refused" in answer else answer.get("status", "ok")
    return status not in {"ok", "unsupported"}  # what is unsupported is so for all ranks


def _count_kills() -> int:
    """Count the processes that the system has killed for memory, as far as it tells."""
    total = 0
    for path in _KILL_COUNTERS:
        with suppress(OSError):
            lines = path.read_text(encoding="ascii").splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total
