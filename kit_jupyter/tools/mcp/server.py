"""How an MCP server is reached, and what is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kit_jupyter.errors import UsageError
from kit_jupyter.trifecta import Legs

__all__ = ["Server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How to reach a server, and what is known of it.

    Parameters
    ----------
    name : str
        Small letters, digits, hyphens and underscores, at most 30; the first part of its tools' names.
    command, args, env, cwd
        A program that speaks over stdin and stdout. It sees a clean environment: home, path, language
        and what `env` adds.
    url, headers
        Or a server over streamable HTTP.
    description : str
        For the model: what it is for.
    legs : Legs or None
        What all its tools touch; None: not known, and all legs are assumed.
    tool_legs : dict of str to Legs
        For single tools, by the server's name for them.
    only : sequence of str or None
        Tools to take; None takes all.
    lazy : bool
        Connect only when the model asks for it.
    required : bool
        A Kit cannot be built without it; else a server that does not start is warned of.
    start_timeout_seconds, call_timeout_seconds : float
    max_message_bytes : int
        Longest message that is read.

    Raises
    ------
    UsageError
        If the name is wrong, or there is neither or both of `command` and `url`.
    """

    name: str
    command: str = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    description: str = ""
    legs: Legs | None = None
    tool_legs: Mapping[str, Legs] = field(default_factory=dict)
    only: Sequence[str] | None = None
    lazy: bool = False
    required: bool = False
    start_timeout_seconds: float = 30.0
    call_timeout_seconds: float = 300.0
    max_message_bytes: int = 16_000_000

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+([-_][a-z0-9]+)*", self.name) or len(self.name) > 30:
            raise UsageError(
                f"a server's name is small letters, digits, hyphens and underscores, at most 30, got {self.name!r}"
            )
        if bool(self.command) == bool(self.url):
            raise UsageError(f"server {self.name!r} needs a command or a url, and not both")
