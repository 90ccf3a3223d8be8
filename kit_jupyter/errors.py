"""The error tree: who is at fault decides the class, the message says what to do next.

Theory of operation
-------------------
::

    KitError
    ├── UsageError            you: a call or a setting
    ├── ProviderError         them: status, request_id, retry_after_seconds
    │   ├── ConnectionFailed · AuthFailed · RateLimited · Overloaded · ContextOverflow · Rejected
    │   └── WireError         their bytes broke their protocol
    ├── ToolError             the model: told in the result
    │   └── UnknownTool · BadArguments · Denied · ToolTimeout
    ├── SessionError          the disk: file, line
    ├── ExtensionError        a guest: name, hook
    └── ReplayMiss            the recording: nearest request and what differs

A turn that fails raises the class of its cause with a prefix that names the mode
(``generation failed: …``, ``steer failed: …``), the cause chained.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

__all__ = [
    "AuthFailed",
    "BadArguments",
    "ConnectionFailed",
    "ContextOverflow",
    "Denied",
    "ExtensionError",
    "KitError",
    "Overloaded",
    "ProviderError",
    "RateLimited",
    "Rejected",
    "ReplayMiss",
    "SessionError",
    "ToolError",
    "ToolTimeout",
    "UnknownTool",
    "UsageError",
    "WireError",
]


class KitError(Exception):
    """Root of all errors that this package raises on purpose."""

    code = "kit"

    @property
    def message(self) -> str:
        """What happened, with the value, and what to do; never a secret."""
        return str(self.args[0]) if self.args else ""

    def with_prefix(self, prefix: str) -> Self:
        """Copy of this error, same class and facts, whose message begins with `prefix`."""
        twin = copy.copy(self)
        twin.args = (f"{prefix}: {self.message}",)
        twin.__traceback__ = None
        return twin

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(cls: type[KitError], args: tuple[object, ...], facts: dict[str, object]) -> KitError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(facts)
    return error


class UsageError(KitError, ValueError):
    """A call or a setting is wrong: the caller's move."""

    code = "usage"


class ProviderError(KitError):
    """The model service failed or refused.

    Parameters
    ----------
    message : str
        What happened and what to do.
    provider, model : str
        Who was asked; empty when not known.
    status : int or None
        HTTP status, None when no status line came.
    request_id : str or None
        The service's id of the exchange, for its support.
    retry_after_seconds : float or None
        How long the service asked us to wait.
    details : dict
        What the service said, as it said it: ``type``, ``code``, ``param``, ``message`` and the like.
    """

    code = "provider"
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        model: str = "",
        status: int | None = None,
        request_id: str | None = None,
        retry_after_seconds: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.model = model
        self.status = status
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        self.details: dict[str, Any] = dict(details or {})


class ConnectionFailed(ProviderError):
    """No connection, or it broke before an answer was complete."""

    code = "connection_failed"
    retryable = True


class AuthFailed(ProviderError):
    """The key is missing, wrong, or may not do this."""

    code = "auth_failed"


class RateLimited(ProviderError):
    """Too many requests or tokens for now."""

    code = "rate_limited"
    retryable = True


class Overloaded(ProviderError):
    """The service is busy or broken on its side (5xx)."""

    code = "overloaded"
    retryable = True


class ContextOverflow(ProviderError):
    """The request does not fit into the model's context window."""

    code = "context_overflow"


class Rejected(ProviderError):
    """The service understood the request and refuses it: unknown model, bad schema, filter."""

    code = "rejected"


class WireError(ProviderError):
    """The service's bytes broke its own protocol, or the stream was cut."""

    code = "wire"


class ToolError(KitError):
    """A tool call that did not work; the model is told in the result."""

    code = "tool"


class UnknownTool(ToolError):
    """The model called a tool that does not exist."""

    code = "unknown_tool"


class BadArguments(ToolError):
    """The model's arguments do not fit the tool's schema; one line per fault."""

    code = "bad_arguments"


class Denied(ToolError):
    """The policy or a person said no."""

    code = "denied"


class ToolTimeout(ToolError):
    """The tool took longer than its own limit and was stopped."""

    code = "tool_timeout"


class SessionError(KitError):
    """A session file cannot be read or written.

    Parameters
    ----------
    message : str
        What happened and what to do.
    path : Path or None
        The file.
    line : int or None
        Line in it, from 1.
    """

    code = "session"

    def __init__(self, message: str, *, path: Path | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.line = line


class ExtensionError(KitError):
    """A guest's hook failed.

    Parameters
    ----------
    message : str
        What happened.
    extension, hook : str
        Whose hook, and which.
    """

    code = "extension"

    def __init__(self, message: str, *, extension: str = "", hook: str = "") -> None:
        super().__init__(message)
        self.extension = extension
        self.hook = hook


class ReplayMiss(KitError):
    """No recording answers this request.

    Parameters
    ----------
    message : str
        Names the recording file, the nearest request and what differs.
    """

    code = "replay_miss"
