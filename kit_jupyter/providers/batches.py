"""The half-price batch APIs: many requests in one file, answers within a day; translation and calls, no waiting.

Theory of operation
-------------------
The codec encodes each request as ever and decodes each answer as a whole body; this room only packs them.
``submit`` ships packed requests and gives the batch's id, ``look`` says how far it is, ``results`` reads
what came of each request, found by its ``custom_id``, in whatever order. Who waits, and what is kept
meanwhile, is `kit_jupyter.batch.half_price`'s affair.

A batch must not be sent twice, so a call that makes one is tried again only when the service said that it
did nothing. Where a service lets a batch bear a name of ours (``metadata``, ``displayName``), `find` knows
it again after a crash between sending and storing; Anthropic has none, and is asked for a batch of that
time and size.

Sources: the services' references of ``/v1/batches`` and ``/v1/files`` (OpenAI, and Groq's copy),
``/v1/messages/batches`` (Anthropic) and ``models.batchGenerateContent`` (Gemini), as of November 2026;
the typed shapes of their official clients.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from kit_jupyter.deltas import ModelDelta
from kit_jupyter.errors import ProviderError, Rejected, UsageError, WireError
from kit_jupyter.messages import TextPart
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._errors import describe, not_json
from kit_jupyter.providers._json import dumps, loads
from kit_jupyter.providers._wire import WireProvider
from kit_jupyter.providers.codec import HttpCall

__all__ = ["BATCH_PROVIDERS", "BatchService", "BatchState", "Packed", "batch_service"]

MB = 1024 * 1024
_SOMETHING = (PromptMessage("user", (TextPart("-"),)),)  # never sent: a codec refuses to encode nothing


class BatchState(NamedTuple):
    """How far a batch is.

    Parameters
    ----------
    is_done : bool
        No more answers will come.
    word : str
        The service's own word.
    answered : int
        Requests that have their answer.
    fault : str
        Why the batch as a whole came to nothing; empty when it did not.
    """

    is_done: bool
    word: str
    answered: int = 0
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """One request as it goes into a batch."""

    custom_id: str
    line: bytes
    url: str


class BatchService(ABC):
    """One provider's batch API; see the module's text.

    Attributes
    ----------
    max_rows, max_bytes : int
        What one batch may hold; the bytes well below the service's limit, since they are held in memory.
    price_factor : float
        What a batch costs, as a part of the usual price.
    """

    max_rows = 50_000
    max_bytes = 64 * MB
    price_factor = 0.5

    def __init__(self, provider: WireProvider) -> None:
        self.provider = provider
        self.name = provider.name

    # -- one request

    def pack(self, custom_id: str, request: ModelRequest) -> Packed:
        """The request, encoded by its codec, as a batch wants it.

        Raises
        ------
        UsageError
            If the wire cannot carry the request.
        """
        # A session's id would only route to a cache, and makes equal requests differ.
        call = self.provider.codec.encode(replace(request, session_id=""), self.provider.endpoint_for(request))
        body = loads(call.body)
        for name in ("stream", "stream_options"):
            body.pop(name, None)
        return Packed(custom_id=custom_id, line=dumps(self._line(custom_id, body, call.url)), url=call.url)

    def read(self, body: bytes, request: ModelRequest) -> Iterable[ModelDelta]:
        """Deltas of one answer, `Finished` included; a `ProviderError` when the body holds an error."""
        return self.provider.codec.decoder(request, self.provider.endpoint_for(request)).whole(body)

    @abstractmethod
    def _line(self, custom_id: str, body: dict[str, Any], url: str) -> Any:
        """The request as one entry of a batch."""

    def _refused(self, status: int | None, body: Any, request: ModelRequest) -> ProviderError:
        endpoint = self.provider.endpoint_for(request)
        return self.provider.codec.error(status or 400, {}, dumps(body), request, endpoint)

    def unanswered(self, word: str, request: ModelRequest) -> ProviderError:
        """The error of a row that the batch left out."""
        endpoint = self.provider.endpoint_for(request)
        return Rejected(
            describe(endpoint, request, f"the batch ended before this row was answered ({word})", step="run it again"),
            provider=endpoint.name,
            model=request.model.id,
        )

    # -- a whole batch

    @abstractmethod
    async def submit(self, packed: Sequence[Packed], name: str, request: ModelRequest) -> str:
        """Send a batch; its id. `name` is ours, for `find`."""

    @abstractmethod
    async def find(self, name: str, size: int, since: float, known: frozenset[str], request: ModelRequest) -> str:
        """Id of the batch that was sent under this name at that time; empty when there is none."""

    @abstractmethod
    async def look(self, batch_id: str, request: ModelRequest) -> BatchState:
        """How far it is."""

    @abstractmethod
    def results(self, batch_id: str, request: ModelRequest) -> AsyncIterator[tuple[str, bytes | ProviderError]]:
        """What came of each request of a batch that is done: its answer's body, or why there is none."""

    @abstractmethod
    async def cancel(self, batch_id: str, request: ModelRequest) -> None:
        """Stop a batch; what it has answered by then can still be fetched, and is paid for."""

    # -- calls

    def _call(self, like: ModelRequest, path: str, *, body: bytes | None = None, kind: str = "") -> HttpCall:
        """A call to a path of this API, with the headers that a prompt would bear."""
        endpoint = self.provider.endpoint_for(like)
        prompt = self.provider.codec.encode(
            replace(like, messages=_SOMETHING, system="", format=None, tools=(), extra={}), endpoint
        )
        url, _, query = prompt.url.partition("?")
        query = "&".join(part for part in query.split("&") if part and part != "alt=sse")
        address = self._address(url, like) + path
        if query:
            address += ("&" if "?" in address else "?") + query
        headers = {name: value for name, value in prompt.headers.items() if name not in ("content-type", "accept")}
        headers["accept"] = "*/*"
        if body is not None:
            headers["content-type"] = kind or "application/json"
        return HttpCall(
            url=address, headers=headers, body=body or b"", method="GET" if body is None else "POST", stream=False
        )

    @abstractmethod
    def _address(self, url: str, like: ModelRequest) -> str:
        """The API's root, from the address of a prompt."""

    async def _json(self, call: HttpCall, request: ModelRequest, *, is_safe: bool = True) -> dict[str, Any]:
        data = b"".join([piece async for piece in self.provider.fetch(call, request, is_safe=is_safe)])
        try:
            value = loads(data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise not_json(data, request, self.provider.endpoint_for(request), where="the answer")
        return value

    async def _lines(self, call: HttpCall, request: ModelRequest) -> AsyncIterator[dict[str, Any]]:
        """Objects of a file of JSON lines, read as it comes."""
        rest = b""
        async for piece in self.provider.fetch(call, request):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.strip():
                    yield self._object(line, request)
        if rest.strip():
            yield self._object(rest, request)

    def _object(self, line: bytes, request: ModelRequest) -> dict[str, Any]:
        try:
            value = loads(line)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise not_json(line, request, self.provider.endpoint_for(request), where="a line of the batch's results")
        return value

    def _id(self, value: Mapping[str, Any], request: ModelRequest, field: str = "id") -> str:
        ident = value.get(field)
        if not isinstance(ident, str) or not ident:
            endpoint = self.provider.endpoint_for(request)
            raise WireError(describe(endpoint, request, "the service gave the batch no id"), provider=endpoint.name)
        return ident


class _OpenAI(BatchService):
    """Files and batches as OpenAI has them; Groq has the same."""

    def _line(self, custom_id: str, body: dict[str, Any], url: str) -> Any:
        return {"custom_id": custom_id, "method": "POST", "url": _verb(url), "body": body}

    def _address(self, url: str, like: ModelRequest) -> str:
        return url[: -len(_verb(url)) + len("/v1")]

    async def submit(self, packed: Sequence[Packed], name: str, request: ModelRequest) -> str:
        mark = f"kit-{secrets.token_hex(16)}"
        fields = (("purpose", "", b"batch"), ("file", f'; filename="{name}.jsonl"', b""))
        parts: list[bytes] = []
        for field, more, data in fields:
            head = f'--{mark}\r\ncontent-disposition: form-data; name="{field}"{more}\r\n'
            if field == "file":
                parts += [head.encode(), b"content-type: application/jsonl\r\n\r\n"]
                parts += [b"\n".join(each.line for each in packed), b"\n\r\n"]
            else:
                parts += [head.encode(), b"\r\n", data, b"\r\n"]
        parts.append(f"--{mark}--\r\n".encode())
        kind = f"multipart/form-data; boundary={mark}"
        # A file that was sent twice costs nothing.
        file = await self._json(self._call(request, "/files", body=b"".join(parts), kind=kind), request)
        made = {
            "input_file_id": self._id(file, request),
            "endpoint": _verb(packed[0].url),
            "completion_window": "24h",
            "metadata": {"kit_batch": name},
        }
        call = self._call(request, "/batches", body=dumps(made))
        return self._id(await self._json(call, request, is_safe=False), request)

    async def find(self, name: str, size: int, since: float, known: frozenset[str], request: ModelRequest) -> str:
        found = await self._json(self._call(request, "/batches?limit=100"), request)
        for batch in found.get("data") or ():
            if (batch.get("metadata") or {}).get("kit_batch") == name:
                return self._id(batch, request)
        return ""

    async def look(self, batch_id: str, request: ModelRequest) -> BatchState:
        batch = await self._json(self._call(request, f"/batches/{batch_id}"), request)
        word = str(batch.get("status"))
        counts = batch.get("request_counts") or {}
        answered = int(counts.get("completed") or 0) + int(counts.get("failed") or 0)
        faults = [str(f.get("message") or f.get("code")) for f in (batch.get("errors") or {}).get("data") or ()]
        fault = "; ".join(dict.fromkeys(faults[:3])) or "no reason given" if word == "failed" else ""
        return BatchState(word in ("completed", "failed", "expired", "cancelled"), word, answered, fault)

    async def results(self, batch_id: str, request: ModelRequest) -> AsyncIterator[tuple[str, bytes | ProviderError]]:
        batch = await self._json(self._call(request, f"/batches/{batch_id}"), request)
        for field in ("output_file_id", "error_file_id"):
            if not batch.get(field):
                continue
            async for line in self._lines(self._call(request, f"/files/{batch[field]}/content"), request):
                yield str(line.get("custom_id")), self._outcome(line, request)

    def _outcome(self, line: dict[str, Any], request: ModelRequest) -> bytes | ProviderError:
        response, error = line.get("response") or {}, line.get("error")
        status = response.get("status_code")
        if status == 200:
            return dumps(response.get("body"))
        if error and str(error.get("code")) in ("batch_expired", "batch_cancelled"):
            return self.unanswered(str(error["code"]).replace("batch_", ""), request)
        return self._refused(status, response.get("body") or {"error": error}, request)

    async def cancel(self, batch_id: str, request: ModelRequest) -> None:
        await self._json(self._call(request, f"/batches/{batch_id}/cancel", body=b"{}"), request)


class _Anthropic(BatchService):
    """Message batches."""

    max_rows = 100_000
    _STATUS: Mapping[str, int] = {
        "authentication_error": 401,
        "billing_error": 402,
        "permission_error": 403,
        "not_found_error": 404,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "api_error": 500,
        "timeout_error": 504,
        "overloaded_error": 529,
    }

    def _line(self, custom_id: str, body: dict[str, Any], url: str) -> Any:
        return {"custom_id": custom_id, "params": body}

    def _address(self, url: str, like: ModelRequest) -> str:
        return url + "/batches"

    async def submit(self, packed: Sequence[Packed], name: str, request: ModelRequest) -> str:
        body = b'{"requests":[' + b",".join(each.line for each in packed) + b"]}"
        return self._id(await self._json(self._call(request, "", body=body), request, is_safe=False), request)

    async def find(self, name: str, size: int, since: float, known: frozenset[str], request: ModelRequest) -> str:
        found = await self._json(self._call(request, "?limit=100"), request)
        near: list[tuple[float, str]] = []
        for batch in found.get("data") or ():
            ident = self._id(batch, request)
            made = _seconds(batch.get("created_at"))
            total = sum(int(n or 0) for n in (batch.get("request_counts") or {}).values())
            if ident not in known and total == size and made is not None and -120 <= made - since <= 600:
                near.append((abs(made - since), ident))
        return min(near)[1] if near else ""

    async def look(self, batch_id: str, request: ModelRequest) -> BatchState:
        batch = await self._json(self._call(request, f"/{batch_id}"), request)
        counts = {name: int(n or 0) for name, n in (batch.get("request_counts") or {}).items()}
        word = str(batch.get("processing_status"))
        return BatchState(word == "ended", word, sum(counts.values()) - counts.get("processing", 0))

    async def results(self, batch_id: str, request: ModelRequest) -> AsyncIterator[tuple[str, bytes | ProviderError]]:
        # Not the ``results_url`` of the answer: a key goes nowhere but to the address it was given for.
        async for line in self._lines(self._call(request, f"/{batch_id}/results"), request):
            yield str(line.get("custom_id")), self._outcome(line.get("result") or {}, request)

    def _outcome(self, result: dict[str, Any], request: ModelRequest) -> bytes | ProviderError:
        word = str(result.get("type"))
        if word == "succeeded":
            return dumps(result.get("message"))
        if word == "errored":
            error = result.get("error") or {}
            kind = str((error.get("error") or error).get("type"))
            return self._refused(self._STATUS.get(kind, 400), error, request)
        return self.unanswered(word, request)

    async def cancel(self, batch_id: str, request: ModelRequest) -> None:
        await self._json(self._call(request, f"/{batch_id}/cancel", body=b"{}"), request)


class _Gemini(BatchService):
    """``batchGenerateContent`` with the requests inside the call.

    The service also takes a file, for more than 20 MB; here a larger run becomes several batches, which saves
    the upload and the download and resumes in smaller steps.
    """

    max_rows = 10_000
    max_bytes = 16 * MB
    _STATUS: Mapping[int, int] = {3: 400, 4: 504, 5: 404, 7: 403, 8: 429, 13: 500, 14: 503, 16: 401}  # of google.rpc
    _ENDS = ("SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED")

    def _line(self, custom_id: str, body: dict[str, Any], url: str) -> Any:
        return {"request": body, "metadata": {"key": custom_id}}

    def _address(self, url: str, like: ModelRequest) -> str:
        parts = urlsplit(url)
        root = re.sub(r"/(models|tunedModels)/[^/]*$", "", parts.path)
        return urlunsplit(parts._replace(path=root, query=""))

    async def submit(self, packed: Sequence[Packed], name: str, request: ModelRequest) -> str:
        path = urlsplit(packed[0].url).path
        root = urlsplit(self._address(packed[0].url, request)).path
        verb = path.removeprefix(root).rpartition(":")[0] + ":batchGenerateContent"
        body = b"".join(
            (
                b'{"batch":{"displayName":' + dumps(name),
                b',"inputConfig":{"requests":{"requests":[',
                b",".join(each.line for each in packed),
                b"]}}}}",
            )
        )
        made = await self._json(self._call(request, verb, body=body), request, is_safe=False)
        return self._id(made, request, "name")

    async def find(self, name: str, size: int, since: float, known: frozenset[str], request: ModelRequest) -> str:
        found = await self._json(self._call(request, "/batches?pageSize=100"), request)
        for batch in found.get("operations") or found.get("batches") or ():
            facts = batch.get("metadata") or batch
            if facts.get("displayName") == name:
                return self._id(batch, request, "name")
        return ""

    async def look(self, batch_id: str, request: ModelRequest) -> BatchState:
        batch = await self._json(self._call(request, f"/{batch_id}"), request)
        facts = batch.get("metadata") or {}
        stats = facts.get("batchStats") or {}
        word = str(facts.get("state") or ("SUCCEEDED" if batch.get("done") else "PENDING")).removeprefix("BATCH_STATE_")
        answered = sum(int(stats.get(f"{kind}RequestCount") or 0) for kind in ("successful", "failed"))
        error = batch.get("error") or {}
        fault = str(error.get("message") or "no reason given") if word == "FAILED" else ""
        return BatchState(bool(batch.get("done")) or word.endswith(self._ENDS), word.lower(), answered, fault)

    async def results(self, batch_id: str, request: ModelRequest) -> AsyncIterator[tuple[str, bytes | ProviderError]]:
        batch = await self._json(self._call(request, f"/{batch_id}"), request)
        output = batch.get("response") or (batch.get("metadata") or {}).get("output") or {}
        for item in (output.get("inlinedResponses") or {}).get("inlinedResponses") or ():
            key = str((item.get("metadata") or {}).get("key"))
            if item.get("response"):
                yield key, dumps(item["response"])
                continue
            error = item.get("error") or {}
            code = int(error.get("code") or 0)
            yield key, self._refused(self._STATUS.get(code, 400), {"error": error}, request)

    async def cancel(self, batch_id: str, request: ModelRequest) -> None:
        await self._json(self._call(request, f"/{batch_id}:cancel", body=b"{}"), request)


BATCH_PROVIDERS: Mapping[str, type[BatchService]] = {
    "anthropic": _Anthropic,
    "gemini": _Gemini,
    "groq": _OpenAI,
    "openai": _OpenAI,
    "openai-chat": _OpenAI,
}
"""Providers with a batch API at half the price. Not here: services whose batches have another form or need a bucket
(Mistral, Fireworks, Vertex, Bedrock), or a deployment of their own (Azure)."""


def batch_service(provider: object) -> BatchService:
    """The batch API of a provider.

    Raises
    ------
    UsageError
        If it has none, with the names of those that have.
    """
    name = str(getattr(provider, "name", provider))
    made = BATCH_PROVIDERS.get(name)
    if made is None or not isinstance(provider, WireProvider):
        known = ", ".join(f"{each}/" for each in sorted(BATCH_PROVIDERS))
        raise UsageError(f"{name} has no batch API that is known here; leave batch= out, or take one of {known}")
    if provider.is_carried:
        raise UsageError("recordings hold no batches; leave batch= out where notebooks are replayed")
    return made(provider)


def _verb(url: str) -> str:
    """What the line of a batch calls its endpoint, from the address of a prompt."""
    path = urlsplit(url).path
    for verb in ("/responses", "/chat/completions"):
        if path.endswith(verb):
            return "/v1" + verb
    raise UsageError(f"{url} is no endpoint that a batch can name; check base_url")


def _seconds(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
