"""The contract's scenarios as each wire says them: bytes for a loopback server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kit_jupyter.testing_contract import Scenario, Unsupported

from .loopback import Reply, hang_up, refuse, silence, stream


def _data(name: str = "", **fields: Any) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(fields, ensure_ascii=False).encode() + b"\n\n"


# ---------------------------------------------------------------- chat completions


def chat(scenario: Scenario) -> tuple[list[bytes], list[bytes]]:
    """What comes, and how it ends."""

    def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return _data(id="chatcmpl-1", object="chat.completion.chunk", model="m", choices=[choice], **more)

    said = [chunk({"role": "assistant", "content": ""})]
    said += [chunk({"reasoning_content": piece}) for piece in scenario.thinking]
    said += [chunk({"content": piece}) for piece in scenario.text]
    if scenario.refusal:
        said += [chunk({"refusal": scenario.refusal[:5]}), chunk({"refusal": scenario.refusal[5:]})]
    for at, call in enumerate(scenario.calls):
        text = json.dumps(call.arguments, ensure_ascii=False)
        said.append(
            chunk({"tool_calls": [{"index": at, "id": call.call_id, "function": {"name": call.name, "arguments": ""}}]})
        )
        said += [
            chunk({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
            for piece in (text[:4], text[4:])
            if piece
        ]
    reason = {"refusal": "stop"}.get(scenario.stop, scenario.stop)
    counts = {"prompt_tokens": scenario.input_tokens, "completion_tokens": scenario.output_tokens}
    end = [chunk({}, reason), _data(id="chatcmpl-1", model="m", choices=[], usage=counts), b"data: [DONE]\n\n"]
    return said, end


def chat_error(_: Scenario) -> bytes:
    return _data(error={"message": "the engine broke", "type": "invalid_request_error", "code": None})


# ---------------------------------------------------------------- responses


def responses(scenario: Scenario) -> tuple[list[bytes], list[bytes]]:
    """What comes, and how it ends."""
    events: list[dict[str, Any]] = []
    output: list[dict[str, Any]] = []

    def say(kind: str, **fields: Any) -> None:
        events.append({"type": kind, "sequence_number": len(events), **fields})

    def response(status: str, **more: Any) -> dict[str, Any]:
        return {"id": "resp_1", "object": "response", "model": "m", "status": status, "output": output, **more}

    say("response.created", response=response("in_progress"))
    if scenario.thinking:
        at, item = len(output), {"id": "rs_1", "type": "reasoning", "summary": []}
        say("response.output_item.added", output_index=at, item=item)
        base = {"item_id": "rs_1", "output_index": at, "summary_index": 0}
        say("response.reasoning_summary_part.added", part={"type": "summary_text", "text": ""}, **base)
        for piece in scenario.thinking:
            say("response.reasoning_summary_text.delta", delta=piece, **base)
        text = "".join(scenario.thinking)
        say("response.reasoning_summary_text.done", text=text, **base)
        done = {**item, "summary": [{"type": "summary_text", "text": text}]}
        say("response.output_item.done", output_index=at, item=done)
        output.append(done)
    if scenario.text or scenario.refusal:
        at, item = (
            len(output),
            {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []},
        )
        say("response.output_item.added", output_index=at, item=item)
        kind = "refusal" if scenario.refusal else "output_text"
        key = "refusal" if scenario.refusal else "text"
        base = {"item_id": "msg_1", "output_index": at, "content_index": 0}
        say("response.content_part.added", part={"type": kind, key: "", "annotations": []}, **base)
        for piece in (scenario.refusal,) if scenario.refusal else scenario.text:
            say(f"response.{kind}.delta", delta=piece, **base)
        if scenario.fault is None:
            whole = scenario.refusal or "".join(scenario.text)
            part = {"type": kind, key: whole, "annotations": []}
            say(f"response.{kind}.done", **{key: whole}, **base)
            say("response.content_part.done", part=part, **base)
            done = {**item, "status": "completed", "content": [part]}
            say("response.output_item.done", output_index=at, item=done)
            output.append(done)
    for number, call in enumerate(scenario.calls):
        at, text = len(output), json.dumps(call.arguments, ensure_ascii=False)
        item = {
            "id": f"fc_{number}",
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": "",
        }
        say("response.output_item.added", output_index=at, item=item)
        base = {"item_id": f"fc_{number}", "output_index": at}
        for piece in (text[:4], text[4:]):
            say("response.function_call_arguments.delta", delta=piece, **base)
        say("response.function_call_arguments.done", arguments=text, **base)
        done = {**item, "arguments": text, "status": "completed"}
        say("response.output_item.done", output_index=at, item=done)
        output.append(done)
    usage = {
        "input_tokens": scenario.input_tokens,
        "output_tokens": scenario.output_tokens,
        "total_tokens": scenario.input_tokens + scenario.output_tokens,
    }
    begun = len(events)
    if scenario.stop == "length":
        details = {"reason": "max_output_tokens"}
        say("response.incomplete", response=response("incomplete", usage=usage, incomplete_details=details))
    else:
        say("response.completed", response=response("completed", usage=usage))
    made = [_data(event["type"], **event) for event in events]
    return made[:begun], made[begun:]


def responses_error(_: Scenario) -> bytes:
    error = {"type": "invalid_request_error", "code": "broken", "message": "the engine broke", "param": None}
    return _data("error", type="error", sequence_number=9, error=error)


# ---------------------------------------------------------------- messages


def anthropic(scenario: Scenario) -> tuple[list[bytes], list[bytes]]:
    """What comes, and how it ends."""
    usage = {"input_tokens": scenario.input_tokens, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    said = [_data("message_start", type="message_start", message=message), _data("ping", type="ping")]
    index = 0

    def block(start: dict[str, Any], deltas: list[dict[str, Any]], *, ends: bool = True) -> None:
        nonlocal index
        said.append(_data("content_block_start", type="content_block_start", index=index, content_block=start))
        said.extend(
            _data("content_block_delta", type="content_block_delta", index=index, delta=delta) for delta in deltas
        )
        if ends:
            said.append(_data("content_block_stop", type="content_block_stop", index=index))
        index += 1

    if scenario.refusal:
        raise Unsupported("this wire says a refusal by its stop reason, not in words of its own")
    if scenario.thinking:
        pieces: list[dict[str, Any]] = [{"type": "thinking_delta", "thinking": piece} for piece in scenario.thinking]
        block(
            {"type": "thinking", "thinking": "", "signature": ""},
            [*pieces, {"type": "signature_delta", "signature": "sig"}],
        )
    if scenario.text:
        block(
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": piece} for piece in scenario.text],
            ends=scenario.fault is None,
        )
    for call in scenario.calls:
        text = json.dumps(call.arguments, ensure_ascii=False) if call.arguments else ""
        block(
            {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}},
            [{"type": "input_json_delta", "partial_json": piece} for piece in ("", text[:4], text[4:])],
        )
    reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[scenario.stop]
    end = [
        _data(
            "message_delta",
            type="message_delta",
            delta={"stop_reason": reason, "stop_sequence": None},
            usage={"output_tokens": scenario.output_tokens},
        ),
        _data("message_stop", type="message_stop"),
    ]
    return said, end


def anthropic_error(_: Scenario) -> bytes:
    return _data("error", type="error", error={"type": "invalid_request_error", "message": "the engine broke"})


# ---------------------------------------------------------------- gemini


def gemini(scenario: Scenario) -> tuple[list[bytes], list[bytes]]:
    """What comes, and how it ends."""
    if scenario.refusal:
        raise Unsupported("this wire has no words of refusal")

    def chunk(*parts: dict[str, Any], **more: Any) -> bytes:
        candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **more.pop("candidate", {})}
        return _data(candidates=[candidate], modelVersion="m", responseId="r1", **more).replace(b"\n", b"\r\n")

    said = [chunk({"text": piece, "thought": True}) for piece in scenario.thinking]
    said += [chunk({"text": piece}) for piece in scenario.text]
    if scenario.calls:
        said.append(
            chunk(*({"functionCall": {"id": c.call_id, "name": c.name, "args": c.arguments}} for c in scenario.calls))
        )
    reason = "MAX_TOKENS" if scenario.stop == "length" else "STOP"
    counts = {
        "promptTokenCount": scenario.input_tokens,
        "candidatesTokenCount": scenario.output_tokens,
        "totalTokenCount": scenario.input_tokens + scenario.output_tokens,
    }
    return said, [chunk({"text": ""}, candidate={"finishReason": reason}, usageMetadata=counts)]


def gemini_error(_: Scenario) -> bytes:
    return _data(error={"code": 400, "status": "INVALID_ARGUMENT", "message": "the engine broke"})


# ---------------------------------------------------------------- all


SERVICES: dict[str, tuple[Callable[[Scenario], tuple[list[bytes], list[bytes]]], Callable[[Scenario], bytes]]] = {
    "openai-chat": (chat, chat_error),
    "openai-responses": (responses, responses_error),
    "anthropic-messages": (anthropic, anthropic_error),
    "gemini": (gemini, gemini_error),
}


def reply_for(protocol: str, scenario: Scenario) -> Reply:
    """How a server of this wire answers."""
    say, fail = SERVICES[protocol]
    said, end = say(scenario)
    match scenario.fault:
        case "refused":
            return refuse(401, {"error": {"message": "invalid key", "type": "authentication_error"}})
        case "error":
            return stream(fail(scenario))
        case "late error":
            return stream(*said, fail(scenario))
        case "cut":
            return stream(*said) if protocol != "gemini" else hang_up(b"".join(said))
        case "hang":
            return silence(b"".join(said))
    body = b"".join((*said, *end))
    if scenario.cut_characters:
        return stream(*(body[at : at + 3] for at in range(0, len(body), 3)))
    return stream(*said, *end)
