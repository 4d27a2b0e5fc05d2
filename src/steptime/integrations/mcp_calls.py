"""Worker processes of the MCP server: a cancelled call ends the process that answers it."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import ByteSendStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream

from steptime.core.errors import OutsideError
from steptime.core.json_types import JsonObject
from steptime.integrations.mcp_worker import ANSWER, ERROR, PROGRESS

WORKER_COMMAND = (sys.executable, "-m", "steptime.integrations.mcp_worker")
MAX_REPLY_BYTES = 1 << 28  # of one line
OnProgress = Callable[[str, int, int], Awaitable[None]]


class ToolError(Exception):
    """A call that its question refuses; the message is the one line."""


class CallWorkers:
    """Processes that answer calls; an idle one is kept for the next call."""

    def __init__(self) -> None:
        """Start without any process."""
        self._idle_workers: list[_CallWorker] = []
        self._all_workers: set[_CallWorker] = set()

    async def __aenter__(self) -> Self:
        """Return the workers."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all processes."""
        for worker in [*self._all_workers]:
            await self._end_worker(worker)

    async def call(
        self, tool: str, arguments: Mapping[str, Any], on_progress: OnProgress
    ) -> JsonObject:
        """Return the answer of a tool.

        A cancelled call ends its process, and what that started.

        Args:
            tool: the name of the tool.
            arguments: its arguments.
            on_progress: awaited with the noun, the finished parts and all parts.

        Raises:
            ToolError: for what the question refuses.
            OutsideError: if the process dies.
        """
        worker = self._idle_workers.pop() if self._idle_workers else await self._start_worker()
        try:
            answer = await worker.ask(tool, arguments, on_progress)
        except ToolError:  # refused, but the process is well
            self._idle_workers.append(worker)
            raise
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            await self._end_worker(worker)
            raise OutsideError(f"{tool}: its process ended; out of memory?") from None
        except BaseException:  # a cancelled call must not go on computing
            await self._end_worker(worker)
            raise
        self._idle_workers.append(worker)
        return answer

    async def _start_worker(self) -> _CallWorker:
        process = await anyio.open_process(WORKER_COMMAND, stderr=None)
        worker = _CallWorker(process)
        self._all_workers.add(worker)
        return worker

    async def _end_worker(self, worker: _CallWorker) -> None:
        self._all_workers.discard(worker)
        with anyio.CancelScope(shield=True):
            await worker.end()


class _CallWorker:
    """A process that answers calls."""

    def __init__(self, process: Process) -> None:
        self._process = process
        if process.stdin is None or process.stdout is None:
            raise OutsideError("a worker has no pipes")
        self._calls: ByteSendStream = process.stdin
        self._replies = BufferedByteReceiveStream(process.stdout)

    async def ask(
        self, tool: str, arguments: Mapping[str, Any], on_progress: OnProgress
    ) -> JsonObject:
        """Send a call and return the answer; raises `ToolError`."""
        line = json.dumps({"tool": tool, "arguments": dict(arguments)})
        await self._calls.send(line.encode() + b"\n")
        while True:
            reply = json.loads(await self._replies.receive_until(b"\n", MAX_REPLY_BYTES))
            if PROGRESS in reply:
                await on_progress(*reply[PROGRESS])
            elif ERROR in reply:
                raise ToolError(reply[ERROR])
            else:
                answer: JsonObject = reply[ANSWER]
                return answer

    async def end(self) -> None:
        """Kill the process; the end of its pipes ends the processes that it started."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.aclose()
