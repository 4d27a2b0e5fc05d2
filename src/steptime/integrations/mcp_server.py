"""The MCP server: questions as tools, what is known as resources, over stdio or HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from steptime import __version__
from steptime.core.errors import InputError, OutsideError
from steptime.core.progress import print_note
from steptime.integrations import mcp_resources, mcp_tools
from steptime.integrations.mcp_calls import CallWorkers, ToolError

HOST = "127.0.0.1"
HTTP_PATH = "/mcp"
SHUTDOWN_S = 1  # that open connections have after the end of the server
INSTRUCTIONS = (
    "How long does a step of a neural network take, how long would it take on other hardware, and "
    "why? Begin with predict, fit or choose; steptime://devices lists devices. Keep answers short "
    "with top and fields. run, sweep and calibrate measure on this machine, for seconds to hours."
)


def build_server(workers: CallWorkers) -> Server[Any]:
    """Return the server whose calls these processes answer."""

    async def call_tool(
        context: ServerRequestContext[Any], parameters: types.CallToolRequestParams
    ) -> types.CallToolResult:
        async def report(noun: str, finished: int, total: int) -> None:
            await context.session.report_progress(finished, total, noun)

        try:
            answer = await workers.call(parameters.name, parameters.arguments or {}, report)
        except (ToolError, OutsideError) as error:
            return types.CallToolResult(content=[_text_content(str(error))], is_error=True)
        return types.CallToolResult(
            content=[_text_content(_format_compact_json(answer))], structured_content=answer
        )

    return Server(
        "steptime",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=_list_tools,
        on_call_tool=call_tool,
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=_read_resource,
    )


async def _list_tools(context: Any, parameters: Any) -> types.ListToolsResult:
    tools = [
        types.Tool(
            name=tool.name,
            description=tool.description,
            input_schema=tool.input,
            output_schema=tool.output,
        )
        for tool in mcp_tools.list_tools()
    ]
    return types.ListToolsResult(tools=tools)


async def _list_resources(context: Any, parameters: Any) -> types.ListResourcesResult:
    resources = [
        types.Resource(
            uri=item.uri,
            name=item.name,
            description=item.description,
            mime_type=item.media_type,
        )
        for item in mcp_resources.list_resources()
    ]
    return types.ListResourcesResult(resources=resources)


async def _list_templates(context: Any, parameters: Any) -> types.ListResourceTemplatesResult:
    templates = [
        types.ResourceTemplate(
            uri_template=item.uri,
            name=item.name,
            description=item.description,
            mime_type=item.media_type,
        )
        for item in mcp_resources.list_templates()
    ]
    return types.ListResourceTemplatesResult(resource_templates=templates)


async def _read_resource(
    context: Any, parameters: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    uri = str(parameters.uri)
    try:
        text, media_type = mcp_resources.read_resource(uri)
    except InputError as error:
        raise MCPError(types.INVALID_PARAMS, str(error)) from None
    contents = types.TextResourceContents(uri=uri, mime_type=media_type, text=text)
    return types.ReadResourceResult(contents=[contents])


def serve_stdio() -> None:
    """Serve one client on stdin and stdout until it leaves."""

    async def serve() -> None:
        async with CallWorkers() as workers, stdio_server() as (reader, writer):
            server = build_server(workers)
            await server.run(reader, writer, server.create_initialization_options())

    anyio.run(serve)


def serve_http(port: int) -> None:
    """Serve clients on the loopback by streamable HTTP until the process ends.

    Args:
        port: the port; 0 for a free one, which a line on stderr says.

    Raises:
        InputError: for a port that is taken.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise InputError(f"--port {port}: {error.strerror}") from None

    # The socket is bound above, so that a taken port is refused before the server starts.
    async def serve() -> None:
        async with CallWorkers() as workers:
            app = build_server(workers).streamable_http_app(
                streamable_http_path=HTTP_PATH, host=HOST
            )
            config = uvicorn.Config(
                app, log_level="warning", timeout_graceful_shutdown=SHUTDOWN_S, lifespan="on"
            )
            await uvicorn.Server(config).serve(sockets=[listener])

    print_note(f"http://{HOST}:{listener.getsockname()[1]}{HTTP_PATH}")
    with listener:
        anyio.run(serve)


def _text_content(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


def _format_compact_json(answer: Mapping[str, Any]) -> str:
    return json.dumps(answer, separators=(",", ":"), ensure_ascii=False)
