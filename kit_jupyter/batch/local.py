"""Rows answered on this machine's engine: each different prompt once, patience shared by all rows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import partial
from typing import Any

from kit_jupyter.batch.faults import is_of_all_rows
from kit_jupyter.batch.half_price import Aside
from kit_jupyter.batch.plan import Ask, Plan
from kit_jupyter.batch.rows import MapRow
from kit_jupyter.errors import KitError
from kit_jupyter.event_bus import EventBus
from kit_jupyter.extension import ExtensionHost
from kit_jupyter.inbox import Inbox
from kit_jupyter.messages import TextPart
from kit_jupyter.provider import retry_listener
from kit_jupyter.session import Session
from kit_jupyter.structured import Misfit
from kit_jupyter.tool import Toolbox
from kit_jupyter.turn import Opening, Turn

__all__ = ["Answers"]

_PREFIX = "row failed"


class Answers:
    """Asks each different prompt once, and knows what was asked before."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._flying: dict[bytes, asyncio.Future[MapRow]] = {}

    async def of(self, ask: Ask) -> MapRow:
        """The row's result, from the store, from an equal row that is being asked, or from the model."""
        plan = self._plan
        if ask.error:
            return MapRow(position=ask.position, label=ask.label, error=ask.error)
        stored = plan.store.get(ask.key)
        if stored is not None:
            with contextlib.suppress(Misfit, ValueError):
                return self._read(ask, stored, is_stored=True)
        if (twin := self._flying.get(ask.key)) is not None:
            row = await asyncio.shield(twin)
            return replace(row, position=ask.position, label=ask.label, tokens=0, cost=0.0, is_stored=True)
        future: asyncio.Future[MapRow] = asyncio.get_running_loop().create_future()
        self._flying[ask.key] = future
        try:
            row = await self._ask(ask)
        except BaseException as exc:
            future.set_exception(exc if isinstance(exc, Exception) else asyncio.CancelledError())
            future.exception()  # seen, also when no twin waits
            raise
        finally:
            del self._flying[ask.key]
        future.set_result(row)
        return row

    def _read(self, ask: Ask, text: str, *, is_stored: bool, tokens: int = 0, cost: float | None = 0.0) -> MapRow:
        fmt = self._plan.format
        answer = fmt.read(text) if fmt is not None else text
        return MapRow(
            position=ask.position, label=ask.label, answer=answer, tokens=tokens, cost=cost, is_stored=is_stored
        )

    async def _ask(self, ask: Ask) -> MapRow:
        plan = self._plan
        attempt = 0
        while True:
            if plan.half is None and (why := plan.over_budget()):  # what came in a batch is paid for
                return MapRow(position=ask.position, label=ask.label, error=why)
            if (pause := plan.resume_at - time.monotonic()) > 0:
                await asyncio.sleep(pause)
                continue
            try:
                text, tokens, cost = await _one_turn(plan, ask)
            except KitError as exc:
                if (aside := Aside.of(exc)) is not None:
                    raise aside from None
                if self._is_of_all_rows(exc, ask):
                    exc.args = (f"map stopped: {exc.message.removeprefix(_PREFIX + ': ')}",)
                    raise
                attempt += 1
                retryable = bool(getattr(exc, "retryable", False))
                if retryable:
                    wait = getattr(exc, "retry_after_seconds", None) or min(2.0**attempt, 30.0) / 4
                    plan.resume_at = max(plan.resume_at, time.monotonic() + min(wait, 60.0))
                if not retryable or attempt > plan.retries:
                    return MapRow(position=ask.position, label=ask.label, error=exc.message)
                continue
            plan.answered += 1
            plan.spent_tokens += tokens
            plan.spent_cost += cost or 0.0
            plan.store.put(ask.key, text)
            return self._read(ask, text, is_stored=False, tokens=tokens, cost=cost)

    def _is_of_all_rows(self, error: KitError, ask: Ask) -> bool:
        plan = self._plan
        return is_of_all_rows(
            error, has_parts=bool(ask.parts), was_answered=plan.answered > 0, is_batch=plan.half is not None
        )


async def _one_turn(plan: Plan, ask: Ask) -> tuple[str, int, float | None]:
    kit = plan.kit
    frozen = kit.settings.options(plan.options)
    house = replace(
        kit._house(frozen),
        session=Session.memory(),
        inbox=Inbox(),
        host=ExtensionHost(),
        toolbox=Toolbox(),
    )
    if plan.half is not None:
        # A turn that is set aside and run again is no news for who listens to the Kit.
        house = replace(house, provider=partial(plan.half.provider, stem=ask.key.hex()), bus=EventBus())
    parts = (TextPart(ask.text), *ask.parts) if ask.text else ask.parts
    turn = Turn(
        house, frozen, (Opening(role="user", parts=parts),), mode="prompt", label=ask.text[:80], failure=_PREFIX
    )

    def slow_down(notice: Any) -> None:
        plan.resume_at = max(plan.resume_at, time.monotonic() + float(notice.delay_seconds))

    token = retry_listener.set(slow_down)
    try:
        result = await turn.run()
    finally:
        retry_listener.reset(token)
    cost = result.cost
    if plan.half is not None and cost is not None:
        cost *= plan.half.service.price_factor
    return result.text, result.usage.tokens.total, cost
