"""Summarises a session's history with a model, and tells of it.

Where to cut and what to ask is decided in `compaction`; here it is done, once at a time, so that whatever
happens `CompactionStart` has its `CompactionEnd` and the session holds a whole summary or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from kit_jupyter import events as ev
from kit_jupyter.compaction import (
    SUMMARY_SYSTEM,
    Cut,
    Meter,
    context_tokens,
    files_touched,
    find_cut,
    summary_prompt,
)
from kit_jupyter.deltas import MessageBuilder
from kit_jupyter.errors import KitError, ProviderError, UsageError
from kit_jupyter.extension import CompactionPlan, ExtensionHost
from kit_jupyter.messages import (
    Assistant,
    Message,
    ModelRef,
    PathFacts,
    ResultFacts,
    RunFacts,
    TextPart,
    Tokens,
    Usage,
    new_id,
    now,
)
from kit_jupyter.places import project_root, storable, working_dir
from kit_jupyter.price import load_prices, price_of
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.provider import ModelRequest, Provider
from kit_jupyter.session import Session
from kit_jupyter.settings import TurnOptions

__all__ = ["Compactor", "summarise_branch"]

Say = Callable[..., None]


class Compactor:
    """Compaction for one Kit; on the engine."""

    def __init__(self, host: ExtensionHost) -> None:
        self._host = host
        self._meter = Meter()

    def is_needed(self, session: Session, provider: Provider, ref: ModelRef, options: TurnOptions) -> bool:
        """True when the context has come near the end of the model's window."""
        window = provider.info(ref.id).context_window
        if not options.auto_compact or not window:
            return False
        return self._meter.read(session.messages()) > window - _reserve(options, window)

    async def in_turn(
        self, reason: str, session: Session, provider: Provider, ref: ModelRef, options: TurnOptions, say: Say
    ) -> Assistant | None:
        """Make room in the middle of a turn; None when that could not be: the turn goes on as it is."""
        window = provider.info(ref.id).context_window
        keep = options.keep_recent_tokens
        if window:
            keep = min(keep, max(200, (window - _reserve(options, window)) // 4))
        if reason == "overflow":
            keep = min(keep, max(200, context_tokens(session.messages()) // 4))
        try:
            return await self._run(reason, None, session, provider, ref, options, keep, say)
        except KitError:
            return None  # told in CompactionEnd

    async def now(
        self,
        instructions: str | None,
        session: Session,
        provider: Provider,
        ref: ModelRef,
        options: TurnOptions,
        say: Say,
    ) -> Assistant:
        """Summarise because a person asks for it.

        Raises
        ------
        UsageError
            When there is nothing to summarise, or a hook cancels.
        KitError
            What failed.
        """
        keep = min(options.keep_recent_tokens, max(50, context_tokens(session.messages()) // 4))
        summary = await self._run("manual", instructions, session, provider, ref, options, keep, say)
        if summary is None:
            raise UsageError("nothing to compact: the conversation is short, or was just compacted")
        return summary

    async def _run(
        self,
        reason: str,
        instructions: str | None,
        session: Session,
        provider: Provider,
        ref: ModelRef,
        options: TurnOptions,
        keep_recent_tokens: int,
        say: Say,
    ) -> Assistant | None:
        cut = find_cut(session, keep_recent_tokens, is_between_turns=reason == "manual")
        if cut is None or not cut.removed:
            return None
        before = context_tokens(session.messages())
        removed = cut.history + cut.turn_prefix
        plan = await self._host.before_compact(
            CompactionPlan(reason=reason, messages=removed, tokens_before=before, instructions=instructions)
        )
        if plan.cancel:
            why = f"compaction was cancelled: {plan.cancel_reason or 'by a hook'}"
            say(ev.Warned, why, "compaction")
            raise UsageError(why)
        say(ev.CompactionStart, reason, before)
        error = "stopped"
        text = ""
        try:
            if plan.summary is not None:
                text, tokens = plan.summary, Tokens()
            else:
                text, tokens = await self._ask(cut, plan.instructions, provider, ref, options)
            text += _files(removed)
            summary = await _summary(text, tokens, ref, options)
            session.append_compaction(
                summary,
                first_kept=cut.first_kept,
                tokens_before=before,
                reason=reason,
                from_hook=plan.summary is not None,
            )
            error = ""
        except Exception as exc:
            error = exc.message if isinstance(exc, KitError) else f"{type(exc).__name__}: {exc}"
            raise exc if isinstance(exc, KitError) else KitError(error) from exc
        finally:
            say(ev.CompactionEnd, reason, "" if error else text, before, 0 if error else cut.removed, error=error)
        return summary

    @staticmethod
    async def _ask(
        cut: Cut, instructions: str | None, provider: Provider, ref: ModelRef, options: TurnOptions
    ) -> tuple[str, Tokens]:
        asks = []
        if cut.history or cut.previous:
            asks.append(summary_prompt(cut.history, cut.previous, instructions))
        if cut.turn_prefix:
            asks.append(summary_prompt(cut.turn_prefix, "", instructions, prefix=True))
        tasks = [asyncio.ensure_future(_ask_apart(provider, ref, ask, options)) for ask in asks]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        text = answers[0][0]
        if len(answers) > 1:
            text += f"\n\n## The turn that is under way\n{answers[1][0]}"
        tokens = answers[0][1]
        for _, more in answers[1:]:
            tokens = tokens + more
        return text, tokens


async def summarise_branch(
    messages: list[Message], provider: Provider, ref: ModelRef, options: TurnOptions
) -> Assistant:
    """A summary of what is left behind on another branch."""
    ask = summary_prompt(messages, "", "what another branch explored")
    text, tokens = await _ask_apart(provider, ref, ask, options)
    return await _summary(f"Another branch of this conversation was explored:\n\n{text}", tokens, ref, options)


def _reserve(options: TurnOptions, window: int) -> int:
    return min(options.reserve_tokens, window // 4)


def _files(messages: tuple[Message, ...]) -> str:
    read, changed = files_touched(messages)
    return "".join(
        f"\n\n## {title}\n" + "\n".join(f"- {path}" for path in paths)
        for title, paths in (("Files read", read), ("Files changed", changed))
        if paths
    )


async def _summary(text: str, tokens: Tokens, ref: ModelRef, options: TurnOptions) -> Assistant:
    await load_prices(ref)
    return Assistant(
        id=new_id("msg"),
        time=now(),
        parts=(TextPart(text),),
        run=RunFacts(agent=options.agent, model=ref, path=PathFacts(storable(working_dir()), storable(project_root()))),
        usage=Usage(tokens=tokens, cost=price_of(ref, tokens)),
        result=ResultFacts(finish="stop", kind="summary"),
    )


async def _ask_apart(provider: Provider, ref: ModelRef, text: str, options: TurnOptions) -> tuple[str, Tokens]:
    prompt = options.prompt
    request = ModelRequest(
        model=ref,
        messages=(PromptMessage("user", (TextPart(text),), origin="compaction"),),
        system=SUMMARY_SYSTEM,
        base_url=prompt.base_url,
        api_key=prompt.api_key,
    )
    builder = MessageBuilder()
    stream: Any = provider.stream(request)
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            builder.feed(delta)
    if builder.finished is None or not builder.text.strip():
        raise ProviderError(f"{ref}: the summary came back empty or cut; try again or with another model")
    return builder.text, builder.tokens
