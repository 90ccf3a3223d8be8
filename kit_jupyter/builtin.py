"""The built-in tools, put together: one workspace, one runner, one way to the web."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kit_jupyter.errors import UsageError
from kit_jupyter.providers._client import Network, ca_bundle, http_library, tls_context
from kit_jupyter.tools._base import EngineTool
from kit_jupyter.tools.files import file_tools
from kit_jupyter.tools.inspect import InspectTool
from kit_jupyter.tools.python import PythonTool, Runner
from kit_jupyter.tools.shell import ShellTool
from kit_jupyter.tools.web_fetch import Fetcher, FetchResponse, WebFetchTool
from kit_jupyter.tools.workspace import Workspace

__all__ = ["NAMES", "HttpFetcher", "builtin_tools"]

NAMES = ("inspect", "python", "read", "write", "edit", "grep", "glob", "ls", "shell", "web_fetch")
_AGENT = "kit-jupyter (an assistant in a notebook, on behalf of its user)"


def builtin_tools(
    *names: str,
    runner: Runner | None = None,
    workspace: Workspace | Path | str | None = None,
    fetcher: Fetcher | None = None,
    without: Iterable[str] = (),
) -> list[EngineTool]:
    """The built-in tools, or those of them that are named, in a fixed order.

    Parameters
    ----------
    *names : str
        Of `NAMES`; none for all.
    runner : Runner or None
        Whose variables `python` and `inspect` see; None for the ``__main__`` module's.
    workspace : Workspace, path or None
        Where files are worked on; None for the working directory.
    fetcher : Fetcher or None
        Who connects for `web_fetch`; None for an `HttpFetcher`.
    without : names
        Left out.

    Raises
    ------
    UsageError
        For a name that is not known.

    Examples
    --------
    >>> [tool.name for tool in builtin_tools("python", "read")]
    ['python', 'read']
    """
    unknown = (set(names) | set(without)) - set(NAMES)
    if unknown:
        raise UsageError(f"no built-in tool {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    where = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    every: list[EngineTool] = [
        InspectTool(runner),
        PythonTool(runner),
        *file_tools(where),
        ShellTool(where),
        WebFetchTool(fetcher if fetcher is not None else HttpFetcher()),
    ]
    wanted = set(names or NAMES) - set(without)
    return [tool for tool in every if tool.name in wanted]


class _Response:
    """What `web_fetch` reads of an answer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.status: int = inner.status_code
        self.headers: Mapping[str, str] = inner.headers

    def body(self) -> AsyncIterator[bytes]:
        pieces: AsyncIterator[bytes] = self._inner.aiter_bytes(65_536)
        return pieces


class HttpFetcher:
    """Connects for `web_fetch`, to the address that the tool judged; no cookies, no keys, no redirects.

    Parameters
    ----------
    transport : httpx transport or None
        For tests.

    Notes
    -----
    With a proxy in the environment the name goes to the proxy, which finds the address itself.
    """

    def __init__(self, *, transport: Any = None) -> None:
        self._transport = transport

    def by_proxy(self, url: str) -> bool:
        """True when the environment names a proxy for `url`."""
        parts = urlsplit(url)
        proxies = urllib.request.getproxies()
        named = parts.scheme in proxies or "all" in proxies
        return named and not urllib.request.proxy_bypass(parts.hostname or "")

    @contextlib.asynccontextmanager
    async def get(self, url: str, *, address: str | None) -> AsyncIterator[FetchResponse]:
        """GET; the connection is closed when the context is left."""
        httpx = http_library()
        target = httpx.URL(url)
        parts = urlsplit(url)
        headers = {"user-agent": _AGENT, "accept": "text/markdown, text/html;q=0.9, */*;q=0.5", "host": parts.netloc}
        extensions = {"sni_hostname": parts.hostname} if parts.scheme == "https" else {}
        if address is not None:
            target = target.copy_with(host=address)
        async with httpx.AsyncClient(
            verify=tls_context(ca_bundle(Network())) if parts.scheme == "https" else False,
            trust_env=address is None,
            follow_redirects=False,
            timeout=None,
            transport=self._transport,
        ) as client:
            request = client.build_request("GET", target, headers=headers, extensions=extensions)
            response = await client.send(request, stream=True)
            try:
                yield _Response(response)
            finally:
                await response.aclose()
