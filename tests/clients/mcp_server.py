"""A server of MCP on loopback with what the conformance run asks for. Usage: mcp_server.py PORT."""

import base64
import logging
import sys

from mcp.server.mcpserver import Context, Image, MCPServer

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
logging.disable(logging.WARNING)
server = MCPServer("test")


@server.tool()
def test_simple_text() -> str:
    """A text."""
    return "This is a simple text response for testing."


@server.tool()
def test_image_content() -> Image:
    """An image."""
    return Image(data=PIXEL, format="png")


@server.tool()
def test_error_handling() -> str:
    """An error."""
    raise ValueError("This tool intentionally returns an error for testing")


@server.tool()
async def test_tool_with_progress(context: Context) -> str:
    """A text, after its progress."""
    for progress in (0, 50, 100):
        await context.report_progress(progress, 100)
    return "done"


@server.tool(name="größe")
def size() -> str:
    """A tool whose name no header can hold as it is."""
    return "big"


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return PIXEL


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    """A resource of a template."""
    return f'{{"id":"{id}","templateTest":true,"data":"Data for ID: {id}"}}'


@server.prompt()
def test_simple_prompt() -> str:
    """A prompt."""
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments."""
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
