"""The command `mcp`: serve coding agents."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

from steptime.core.answer import Answer
from steptime.core.errors import InputError
from steptime.core.signatures.kinds import text_of
from steptime.core.tables.table import Printout
from steptime.core.values import parse_count
from steptime.questions import kinds

DEFAULT_PORT = 8765
MAX_PORT = 65535


class ServedAnswer(Answer, frozen=True, kw_only=True):
    """The end of a server, of which nothing is printed: stdout is the client's.

    Attributes:
        transport: stdio or http.
    """

    has_output: ClassVar[bool] = False
    transport: str

    def printout(self) -> Printout:
        """Return an answer of which nothing is printed."""
        return Printout(None)  # standard output is the client's


def mcp(http: bool = False, port: kinds.Count | None = None) -> ServedAnswer:
    """Serve coding agents by the Model Context Protocol.

    The client speaks on stdin and stdout. The tools are the questions, with their schemas; the
    resources are devices, links, stacks and pages of the documents.

    Args:
        http: Serve by streamable HTTP on 127.0.0.1 instead of stdin and stdout.
        port: With --http: the port. Default: 8765; 0 for a free one.

    Raises:
        InputError: without the package mcp, and for a port that is taken.
    """
    if port is not None and not http:
        raise InputError("--port goes with --http")
    number = DEFAULT_PORT if port is None else parse_count(text_of(port), "--port", 0, MAX_PORT)
    if find_spec("mcp") is None or find_spec("mcp_types") is None:
        raise InputError("mcp needs the package mcp: pip install 'steptime[mcp]'")
    from steptime.integrations.mcp_server import serve_http, serve_stdio

    if http:
        serve_http(number)
        return ServedAnswer(transport="http")
    serve_stdio()
    return ServedAnswer(transport="stdio")
