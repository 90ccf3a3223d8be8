"""Tools of a Model Context Protocol server, over stdio or streamable HTTP, by the official ``mcp`` package.

Theory of operation
-------------------
A `Connection` keeps one server: made without touching anything, started later, so that whoever owns it
can arm its closer in between. All connections live on one loop thread of their own (``kit-mcp``): a Kit
may be built on the engine, which must not wait for a server to start, and the protocol's bytes must not
hold up a turn. Connection, handshake and end belong to one task, `Connection._life`.

A server that dies fails the calls that are open, with its exit code and last words; the next call starts
it again. A call is never repeated by itself: it may have done its work before the server died.

Foreign bytes are kept small at the door: a line above `Server.max_message_bytes` is thrown away while
it is read, and the call that waits for it gets an error. Lines on stdout that are no messages are passed
over and told once.

The ``mcp`` package is imported on first use only.
"""

from __future__ import annotations

from kit_jupyter.tools.mcp.connection import Connection
from kit_jupyter.tools.mcp.server import Server
from kit_jupyter.tools.mcp.tool import McpTool

__all__ = ["Connection", "McpTool", "Server"]
