"""The process that answers calls of tools: a JSON line for each call, JSON lines for its reply.

The MCP server starts it and kills it where a call is cancelled. A call is
`{"tool": ..., "arguments": {...}}`. The reply is any number of `{"progress": [noun, done, total]}`,
then `{"answer": {...}}` or `{"error": line}`.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from io import FileIO
from typing import Any, BinaryIO

from steptime.core.errors import InputError, OutsideError, escape_controls

PROGRESS, ANSWER, ERROR = "progress", "answer", "error"
STDIN, STDOUT, STDERR = 0, 1, 2  # file descriptors, which native code writes to as well


def main() -> None:
    """Answer calls from stdin until it ends.

    A question that reads stdin finds it empty; whatever it prints goes to stderr.
    """
    source = os.fdopen(os.dup(STDIN), "rb")
    replies = FileIO(os.dup(STDOUT), "w")
    # From here on the descriptors of stdin and stdout are not the pipes to the server: what a
    # library prints must not be taken for a reply.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, STDIN)
    os.close(null)
    os.dup2(STDERR, STDOUT)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_calls, args=(source, calls), daemon=True).start()
    while True:
        call = json.loads(calls.get())
        write_line(replies, answer_call(call, replies))


def _read_calls(source: BinaryIO, calls: queue.SimpleQueue[bytes]) -> None:
    """Pass on the calls of a pipe; its end ends this process, whatever it computes."""
    for line in source:
        calls.put(line)
    os._exit(0)


def answer_call(call: Any, replies: FileIO) -> Any:
    """Return the reply to a call, and write its progress."""
    from steptime.core.progress import report_progress_to
    from steptime.integrations.mcp_tools import call_tool

    def report(noun: str, finished: int, total: int) -> None:
        write_line(replies, {PROGRESS: [noun, finished, total]})

    try:
        with report_progress_to(report):
            return {ANSWER: call_tool(call["tool"], call["arguments"])}
    except (InputError, OutsideError) as error:
        return {ERROR: escape_controls(str(error))}
    except OSError as error:
        return {ERROR: f"{error.filename or 'system'}: {error.strerror or error}"}
    except Exception as error:  # noqa: BLE001  # a fault of steptime, which must not end the server
        line = escape_controls(f"{type(error).__name__}: {error}")
        return {ERROR: f"steptime failed: {line}; the command steptime {call['tool']} says where"}


def write_line(stream: FileIO, value: Any) -> None:
    """Write a value as one line of JSON, whole."""
    data = json.dumps(value, allow_nan=False).encode() + b"\n"
    while data:  # a pipe may take a part of the line at a time
        data = data[stream.write(data) or 0 :]


if __name__ == "__main__":
    main()
