"""From what a service says when it refuses, to the right class of `ProviderError` and the next step.

Theory of operation
-------------------
Services wrap errors in at least eight shapes (an object, a string, a list, flat fields, HTML) and do
not agree on status codes: a bad key is 401, 403 or 400, an unknown model 404 or 400. So the class is
decided by all that was said: status, type, code and words. Retry hints are read from wherever they
are: ``retry-after`` (seconds or date), ``retry-after-ms``, ``x-should-retry``, ``RetryInfo`` in the
body, and rate-limit reset headers in their four formats.

All wires share this room; a codec's ``error`` is one call of `refusal`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from kit_jupyter.errors import (
    AuthFailed,
    ConnectionFailed,
    ContextOverflow,
    Overloaded,
    ProviderError,
    RateLimited,
    Rejected,
    WireError,
)
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._json import loads
from kit_jupyter.providers.codec import Endpoint
from kit_jupyter.providers.keys import mask

__all__ = [
    "Said",
    "cut",
    "hint_seconds",
    "names_no_model",
    "not_json",
    "read_error",
    "refusal",
    "request_id",
    "said_in_stream",
]

MAX_SHOWN = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a service said of an error, from whatever shape it came in.

    Parameters
    ----------
    message : str
        Its own words; empty when there were none.
    type, code : str, int or None
        As they came: no two services mean the same by them.
    extra : dict
        More facts that help: ``failed_generation``, ``upstream_raw``, ``reason``, ``retry_delay``.
    """

    message: str = ""
    type: str | int | None = None
    code: str | int | None = None
    param: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def read_error(body: bytes | str | Mapping[str, Any] | list[Any]) -> Said:
    """Facts of an error body; for text that is not JSON the text itself, shortened.

    Examples
    --------
    >>> read_error(b'{"error": "no credit"}').message
    'no credit'
    >>> read_error(b'{"detail": [{"loc": ["body", "tools"], "msg": "Field required"}]}').message
    'body.tools: Field required'
    """
    value: Any = body
    if isinstance(body, (bytes, str)):
        try:
            value = loads(body)
        except ValueError:
            text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
            return Said(message=_page_text(text), extra={"is_json": False})
    if isinstance(value, list) and value:  # Gemini's array form of a stream: the error is its only element
        value = value[0]
    if not isinstance(value, Mapping):
        return Said(message=str(value)[:MAX_SHOWN] if value else "")
    error = value.get("error")
    if isinstance(error, Mapping):
        return _of_object(error, value)
    if isinstance(error, str) and error:
        return Said(message=error, type=_word(value.get("type")), code=_word(value.get("code")))
    detail = value.get("detail")
    if isinstance(detail, list):
        return Said(message="; ".join(_fault(entry) for entry in detail))
    if isinstance(detail, str):
        return Said(message=detail, type=_word(value.get("type")), code=_word(value.get("code")))
    if isinstance(value.get("message"), str) or "code" in value:
        return _of_object(value, value)
    return Said(message=str(dict(value))[:MAX_SHOWN] if value else "")


def _of_object(error: Mapping[str, Any], outer: Mapping[str, Any]) -> Said:
    extra: dict[str, Any] = {}
    if "failed_generation" in error:
        extra["failed_generation"] = error["failed_generation"]
    metadata = error.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("raw"):
        extra["upstream_raw"] = metadata["raw"]
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, Mapping):
            if isinstance(detail.get("retryDelay"), str):
                extra["retry_delay"] = detail["retryDelay"]
            if isinstance(detail.get("reason"), str):
                extra.setdefault("reason", detail["reason"])
    if isinstance(outer.get("request_id"), str):
        extra["request_id"] = outer["request_id"]
    kind = error.get("type")
    if kind is None:
        kind = error.get("status")  # Google's word, such as INVALID_ARGUMENT
    message = error.get("message")
    if isinstance(message, Mapping):  # some gateways nest FastAPI's detail list in it
        message = read_error(message).message
    return Said(
        message=message if isinstance(message, str) else "" if message is None else str(message),
        type=_word(kind),
        code=_word(error.get("code")),
        param=error["param"] if isinstance(error.get("param"), str) else None,
        extra=extra,
    )


def _word(value: Any) -> str | int | None:
    return value if isinstance(value, (str, int)) and not isinstance(value, bool) else None


def _fault(entry: Any) -> str:
    if isinstance(entry, Mapping) and "msg" in entry:
        where = ".".join(str(step) for step in entry.get("loc") or ())
        return f"{where}: {entry['msg']}" if where else str(entry["msg"])
    return str(entry)


def _page_text(text: str) -> str:
    """What a person would read of an HTML page or plain text, shortened."""
    if "<" in text and re.search(r"<(!doctype|html|head|body)\b", text, re.IGNORECASE):
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        words = title[1] if title else re.sub(r"(?is)<(script|style).*?</\1>|<[^>]+>", " ", text)
        return "an HTML page: " + " ".join(words.split())[:200]
    return " ".join(text.split())[:MAX_SHOWN]


# ---------------------------------------------------------------- retry hints


def hint_seconds(headers: Mapping[str, str], said: Said = Said(), *, now: datetime | None = None) -> float | None:
    """How long the service asks us to wait, in seconds; None when it did not say.

    Parameters
    ----------
    headers : dict with lower-case names

    Notes
    -----
    Only for a refusal: Anthropic, Hugging Face and Together send ``retry-after`` with good answers too.
    The longest of ``retry-after`` and ``retry-after-ms`` counts: Azure sends ``1`` and ``0`` together.

    Examples
    --------
    >>> hint_seconds({"retry-after": "1", "retry-after-ms": "0"})
    1.0
    >>> hint_seconds({}, Said(extra={"retry_delay": "48s"}))
    48.0
    >>> hint_seconds({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m3.57s"})
    63.57
    """
    now = now or datetime.now(UTC)
    found = [_delay(headers.get("retry-after"), now), _milliseconds(headers.get("retry-after-ms"))]
    found.append(_delay(str(said.extra.get("retry_delay", "")), now))
    known = [seconds for seconds in found if seconds is not None]
    if known:
        return max(known)
    return _reset(headers, now)


def _milliseconds(text: str | None) -> float | None:
    try:
        value = float(text) / 1000 if text else None
    except ValueError:
        return None
    return value if value is not None and 0 <= value < 1e9 else None


_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in ("d", "h", "m(?!s)", "s", "ms")))


def _delay(text: str | None, now: datetime) -> float | None:
    """Seconds from a number, a duration such as ``1h8m26.585s``, an RFC 3339 time or an HTTP date."""
    text = (text or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        pass
    else:
        if value != value or value < 0:
            return None
        # A number this large is a moment, not a length: some services send the epoch second of the reset.
        return max(0.0, value - now.timestamp()) if value > 1e9 else value
    match = _DURATION.fullmatch(text)
    if match:
        day, hour, minute, second, milli = (float(part or 0) for part in match.groups())
        return day * 86400 + hour * 3600 + minute * 60 + second + milli / 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def _reset(headers: Mapping[str, str], now: datetime) -> float | None:
    """The longest wait among the rate limits that are used up."""
    waits: list[float] = []
    for name, value in headers.items():
        if "ratelimit" not in name or "reset" not in name:
            continue
        remaining = headers.get(name.replace("reset", "remaining"))
        if remaining is not None and remaining.strip() not in ("0", "0.0"):
            continue
        seconds = _delay(value, now)
        if seconds is not None:
            waits.append(seconds)
    return max(waits, default=None)


def request_id(headers: Mapping[str, str]) -> str | None:
    """The service's id of the exchange, from the header that holds it."""
    for name in ("request-id", "x-request-id", "apim-request-id", "x-amzn-requestid", "x-generation-id", "cf-ray"):
        if headers.get(name):
            return headers[name]
    return None


# ---------------------------------------------------------------- class and next step

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|prompt is too long|maximum context length|context window"
    r"|exceeds? the (available )?context|input token count.{0,40}exceeds|input is too long|too many input tokens"
    r"|reduce the length of the (messages|prompt)|maximum prompt length|context length.{0,20}(exceed|only)",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(
    r"api[ _-]?key[ _]?(not valid|invalid|expired)|(invalid|incorrect|wrong|missing|expired)[ _x-]{0,4}api[ _-]?key"
    r"|API_KEY_INVALID|API key not found|authentication_error|invalid_api_key|unauthorized",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"model_not_found|model.{0,60}(does not exist|not found|not exist|is not a valid|not supported for generate)"
    r"|(unknown|invalid|no such|not a valid) model|^model: ",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"insufficient_quota|credit|billing|exceeded your current quota", re.IGNORECASE)
_BUSY = re.compile(
    r"overloaded|server_error|internal(_server)?_error|unavailable|timed? ?out|try again later", re.IGNORECASE
)
_LIMIT = re.compile(r"rate[ _-]?limit|too many requests|resource_exhausted|quota", re.IGNORECASE)
_CANNOT = re.compile(r"not supported|unsupported|not implemented", re.IGNORECASE)


def _judge(status: int | None, said: Said) -> tuple[type[ProviderError], str, bool]:
    """Class, next step, and whether trying again can help."""
    facts = (said.type, said.code, said.message, said.extra.get("reason"))
    words = " ".join(str(fact) for fact in facts if fact not in (None, ""))
    if _OVERFLOW.search(words):
        return ContextOverflow, "shorten the history (kit.compact()) or take a model with a larger window", False
    if status in (401, 407) or (_BAD_KEY.search(words) and (status is None or status < 500)):
        return AuthFailed, "check the key", False
    if status == 402 or said.code == "insufficient_quota":
        cls = Rejected if status == 402 else RateLimited
        return cls, "the account has no credit left: see the service's billing page", False
    if status == 403:
        return AuthFailed, "this key may not do that: check its rights, the model and the region", False
    if status == 429 or (status is None and _LIMIT.search(words)):
        if _NO_CREDIT.search(words) and "retry_delay" not in said.extra:
            return RateLimited, "wait, or check the account's plan", True
        return RateLimited, "wait, or ask for a higher limit", True
    if _NO_MODEL.search(words) or (status == 404 and "model" in words.lower()):
        return Rejected, "check the model's name and that the account may use it", False
    if status == 404:
        return Rejected, "check base_url: nothing answers at this path", False
    if status == 408 or status in (409, 425):
        return Overloaded, "try again", True
    if status is not None and status >= 500:
        if _CANNOT.search(words) or status in (501, 505):
            return Rejected, "this service cannot do what was asked", False
        return Overloaded, "the service is busy or broken: try again later, or take another model", True
    is_ours = said.type in ("invalid_request_error", "INVALID_ARGUMENT")  # whatever its words: the request's fault
    if status is None and not is_ours and _BUSY.search(words):
        return Overloaded, "the service is busy or broken: try again later, or take another model", True
    if status is not None and 300 <= status < 400:
        return ConnectionFailed, "check base_url", False
    return Rejected, "change the request", False


def names_no_model(error: ProviderError) -> bool:
    """True when the service says that it has no such model."""
    facts = (error.details.get(name) for name in ("type", "code", "message", "reason"))
    return isinstance(error, Rejected) and any(_NO_MODEL.search(str(fact)) for fact in facts if fact)


def refusal(
    status: int | None,
    headers: Mapping[str, str],
    body: bytes | str | Mapping[str, Any] | list[Any],
    request: ModelRequest,
    endpoint: Endpoint,
    *,
    said: Said | None = None,
) -> ProviderError:
    """The error that a refused answer means, with class, retry hints, request id and next step.

    Parameters
    ----------
    status : int or None
        HTTP status; None for an error inside a 200 answer whose own status is not known.
    headers : dict
        Of the answer, any case.
    body : bytes or parsed JSON
    said : Said or None
        Facts already read, for a wire with a shape of its own.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    said = said or read_error(body)
    cls, step, retryable = _judge(status, said)
    should = lower.get("x-should-retry", "").lower()
    if should in ("true", "false"):
        retryable = should == "true"
    ident = request_id(lower) or said.extra.get("request_id")
    wait = hint_seconds(lower, said) if retryable or cls is RateLimited else None
    facts = {"type": said.type, "code": said.code, "param": said.param, "message": said.message, **said.extra}
    error = cls(
        describe(endpoint, request, said, status=status, request_id=ident, step=step, wait=wait),
        provider=endpoint.name,
        model=request.model.id,
        status=status,
        request_id=ident,
        retry_after_seconds=wait,
        details={name: _masked(value, endpoint.api_key) for name, value in facts.items() if value is not None},
    )
    if error.retryable != retryable:
        error.retryable = retryable
    return error


def _masked(value: Any, key: str) -> Any:
    """A service may echo the key in any of its facts."""
    if isinstance(value, str):
        return mask(value, key)
    if isinstance(value, Mapping):
        return {name: _masked(item, key) for name, item in value.items()}
    return [_masked(item, key) for item in value] if isinstance(value, list) else value


def said_in_stream(payload: Any, request: ModelRequest, endpoint: Endpoint) -> ProviderError:
    """The error object that came inside a 200 answer; its numeric code counts as status if it is one."""
    said = read_error(payload)
    words = [str(word) for word in (said.code, said.type)]
    status = next((int(word) for word in words if word.isdigit() and 400 <= int(word) < 600), None)
    return refusal(status, {}, payload, request, endpoint, said=said)


def describe(
    endpoint: Endpoint,
    request: ModelRequest,
    said: Said | str,
    *,
    status: int | None = None,
    request_id: str | None = None,
    step: str = "",
    wait: float | None = None,
) -> str:
    """One line: who, what, status, request id, next step; never a key."""
    words = said if isinstance(said, str) else said.message
    if isinstance(said, Said):
        raw = said.extra.get("upstream_raw")
        if isinstance(raw, str) and raw and raw not in words:
            words = f"{words} ({raw})" if words else raw
        words = words or " ".join(str(part) for part in (said.type, said.code) if part) or "no reason given"
    words = " ".join(mask(words, endpoint.api_key).split())
    if len(words) > MAX_SHOWN:
        words = words[:MAX_SHOWN] + "…"
    facts = [f"HTTP {status}"] if status is not None else []
    facts += [f"request id {request_id}"] if request_id else []
    facts += [f"asked to wait {wait:.0f} s"] if wait is not None and wait >= 1 else []
    tail = f" ({', '.join(facts)})" if facts else ""
    return f"{endpoint.name}/{request.model.id}: {words.rstrip('. ')}{tail}" + (f"; {step}" if step else "")


def cut(request: ModelRequest, endpoint: Endpoint, what: str = "the answer stopped before its end") -> WireError:
    """The error of a stream that ended too early."""
    return WireError(
        describe(endpoint, request, what, step="run it again"), provider=endpoint.name, model=request.model.id
    )


def not_json(data: bytes | str, request: ModelRequest, endpoint: Endpoint, *, where: str = "the stream") -> WireError:
    """The error of bytes that are not the protocol; shows how they begin."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    host = urlsplit(endpoint.base_url).hostname or endpoint.base_url
    return WireError(
        describe(
            endpoint,
            request,
            f"{where} from {host} holds what is not this protocol's JSON: {_page_text(text)[:160]!r}",
            step="check base_url and that the service speaks this protocol",
        ),
        provider=endpoint.name,
        model=request.model.id,
    )
