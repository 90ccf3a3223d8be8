"""The corpus is the judge: every recorded answer decodes to what it means, however its bytes are cut (law 13)."""

from __future__ import annotations

import importlib.util

import pytest

from kit_jupyter.errors import AuthFailed, ContextOverflow, Overloaded, ProviderError, RateLimited, Rejected

from .wire_cases import CODECS, ROOT, WireCase, all_cases, by_event, bytewise, decode, differences, randomly, whole

CASES = all_cases()

pytestmark = pytest.mark.skipif(not CASES, reason=f"no recorded cases at {ROOT}; set KIT_WIRE_CASES to their folder")


@pytest.fixture(params=CASES or [None], ids=str)
def case(request: pytest.FixtureRequest) -> WireCase:
    """Each case of each wire whose codec exists."""
    found: WireCase = request.param
    module = CODECS[found.protocol].partition(":")[0]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} does not exist")
    return found


def test_the_answer_means_what_was_recorded(case: WireCase) -> None:
    """Text, reasoning, calls, order, stop, usage, secrets and error facts are those of the expectation."""
    assert differences(case, decode(case, whole(case.body))) == []


def test_the_answer_is_the_same_byte_by_byte(case: WireCase) -> None:
    """A network that brings one byte at a time changes nothing."""
    expected = decode(case, whole(case.body)).facts()

    assert decode(case, bytewise(case.body)).facts() == expected


def test_the_answer_is_the_same_event_by_event(case: WireCase) -> None:
    """One whole event a read, the usual case with a road of its own, changes nothing."""
    expected = decode(case, whole(case.body)).facts()

    assert decode(case, by_event(case.body)).facts() == expected


@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_the_same_cut_at_random(case: WireCase, seed: int) -> None:
    """Cuts inside characters, line ends and events, and empty reads, change nothing."""
    expected = decode(case, whole(case.body)).facts()

    assert decode(case, randomly(case.body, seed)).facts() == expected


def test_line_ends_do_not_matter(case: WireCase) -> None:
    """CRLF or CR for LF, and a byte order mark in front, change nothing."""
    body = case.body
    if case.load("response")["status"] >= 400 or not case.load("case")["body"]["file"].endswith(".sse"):
        pytest.skip("not a stream")
    lines = body.replace(b"\r\n", b"\n")
    expected = decode(case, whole(lines)).facts()

    for ends in (b"\r\n", b"\r"):
        assert decode(case, randomly(b"\xef\xbb\xbf" + lines.replace(b"\n", ends), 9)).facts() == expected


# What a person can do about each recorded refusal decides its class.
CLASSES = {
    "openai-chat/azure-200-prompt-filtered-error": Rejected,
    "openai-chat/azure-error-429-retry-after": RateLimited,
    "openai-chat/baseten-error-400-flat": Rejected,
    "openai-chat/cerebras-error-403-flat": AuthFailed,
    "openai-chat/dashscope-stream-error-only": Rejected,
    "openai-chat/deepseek-error-400-tool-choice": Rejected,
    "openai-chat/groq-error-400-tool-use-failed": Rejected,
    "openai-chat/groq-error-401": AuthFailed,
    "openai-chat/groq-stream-tool-use-failed": Rejected,
    "openai-chat/hf-error-402": Rejected,
    "openai-chat/hf-error-502-html": Overloaded,
    "openai-chat/llamacpp-error-400-context": ContextOverflow,
    "openai-chat/llamacpp-error-500-audio": Rejected,
    "openai-chat/mistral-error-401-detail": AuthFailed,
    "openai-chat/mistral-error-422-detail-list": Rejected,
    "openai-chat/ollama-error-401": AuthFailed,
    "openai-chat/openai-error-400-unsupported-param": Rejected,
    "openai-chat/openai-error-401": AuthFailed,
    "openai-chat/openai-error-404-model": Rejected,
    "openai-chat/openai-stream-error-after-audio": Rejected,
    "openai-chat/openrouter-200-error-body": Rejected,
    "openai-chat/openrouter-error-401": AuthFailed,
    "openai-chat/openrouter-error-429": RateLimited,
    "openai-chat/openrouter-stream-error-mid": Rejected,
    "openai-responses/error-400-context": ContextOverflow,
    "openai-responses/error-400-model": Rejected,
    "openai-responses/error-401": AuthFailed,
    "openai-responses/stream-error-quota": RateLimited,
    "openai-responses/xai-error-400-flat": AuthFailed,
    "anthropic-messages/error-400-context-length": ContextOverflow,
    "anthropic-messages/error-400-schema": Rejected,
    "anthropic-messages/error-401-auth": AuthFailed,
    "anthropic-messages/error-404-model": Rejected,
    "gemini/error-400-key": AuthFailed,
    "gemini/error-404-model": Rejected,
    "gemini/error-429-quota": RateLimited,
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_recorded_refusal_says_whose_move_it_is(name: str) -> None:
    """Class, names and next step; what cannot get better is not tried again."""
    protocol, _, case_name = name.partition("/")
    found = next((case for case in CASES if str(case) == name), None)
    if found is None:
        pytest.skip(f"{case_name} of {protocol} is not there")

    error = decode(found, whole(found.body)).error

    assert type(error) is CLASSES[name]
    assert isinstance(error, ProviderError)
    meta = found.load("case")
    assert f"{meta['provider']}/" in error.message
    assert ";" in error.message
    # An account without credit stays so; Google's quota is one of a minute.
    assert error.retryable is (
        CLASSES[name] in (RateLimited, Overloaded) and name != "openai-responses/stream-error-quota"
    )
