"""`kit.map(batch=True)`: rows answered by a provider's batch API, within a day and for half the money.

Theory of operation
-------------------
A row's turn is the same as ever; only its provider is another: a `_Letterbox`, which answers from what has
come of a batch, and else sets the row aside and puts its request into the next one. When a batch is done,
the turns of its rows are run again from their beginning and find their answers there; a second question
(an answer that did not fit the schema) goes into a further batch. So a row costs no task while it waits, and
nothing is held but its prompt.

All that must outlive the kernel is in the result store: a batch is written down before it is sent, its id
right after, each answer's body when it has been fetched, each row's result when it has been made. A run that
was killed at any point goes on from there: the same call finds its rows in the batches that are out. A row is
known by its key and the number of the question, whatever the batch.

Stopping a run leaves its batches running, for they are paid for as they are answered; `cancel_batches` stops them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kit_jupyter.batch.faults import TooLarge
from kit_jupyter.batch.rows import MapRow
from kit_jupyter.batch.store import ResultStore, SentBatch, store_of
from kit_jupyter.deltas import ModelDelta
from kit_jupyter.errors import KitError, ProviderError, UsageError
from kit_jupyter.loop import Desk, engine
from kit_jupyter.messages import ModelRef, Tokens, new_id
from kit_jupyter.price import load_prices, price_of
from kit_jupyter.provider import ModelInfo, ModelRequest, Provider
from kit_jupyter.settings import PromptOptions, TurnOptions

if TYPE_CHECKING:
    from kit_jupyter.batch.local import Answers
    from kit_jupyter.batch.plan import Ask, Plan
    from kit_jupyter.kit import Kit
    from kit_jupyter.providers.batches import BatchService, Packed

__all__ = ["Aside", "BatchOptions", "HalfPrice", "cancel_batches", "open_batches"]

_KEPT_SECONDS = 29 * 86400  # how long services keep a batch's answers, and so how long one is asked for
_BYTES_A_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How `kit.map` uses a batch API.

    Parameters
    ----------
    size : int, from 1
        Rows in one batch at most; the service's own limit holds, too.
    first_poll_seconds, last_poll_seconds : float
        Wait between two looks: at first, and at most; it grows by half each time.
    sleep : async callable of seconds
        Waits; for tests.
    """

    size: int = 10_000
    first_poll_seconds: float = 5.0
    last_poll_seconds: float = 120.0
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(f"a batch holds 1 row or more, got size={self.size}")
        if not 0 < self.first_poll_seconds <= self.last_poll_seconds:
            raise UsageError(
                "first_poll_seconds must be above 0 and not above last_poll_seconds, got "
                f"{self.first_poll_seconds} and {self.last_poll_seconds}"
            )


class Aside(Exception):
    """A row waits for a batch; or may not be asked, which `why` says."""

    def __init__(self, name: str, why: str = "") -> None:
        super().__init__(name, why)
        self.name, self.why = name, why

    @staticmethod
    def of(error: BaseException) -> Aside | None:
        """The one that ended a turn, if one did."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, Aside):
            cause = cause.__cause__
        return cause


class _Letterbox:
    """The provider of one row's turn."""

    def __init__(self, post: HalfPrice, provider: Provider, stem: str) -> None:
        self.name = provider.name
        self._post, self._provider, self._stem = post, provider, stem
        self._asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """The answer that came in a batch."""
        self._asked += 1
        for delta in self._post.answer(f"{self._stem}-{self._asked}", request):
            yield delta

    def info(self, model_id: str) -> ModelInfo:
        """As the provider behind it."""
        return self._provider.info(model_id)

    async def close(self) -> None:
        """Nothing was opened."""


@dataclass(slots=True)
class _Spool:
    """The next batch, while it grows."""

    name: str
    packed: list[Packed] = field(default_factory=list)
    size: int = 0


class HalfPrice:
    """What has come, what is out, and what is to be sent.

    Parameters
    ----------
    plan : Plan
    service : BatchService
    model : ModelRef
    """

    def __init__(self, plan: Plan, service: BatchService, model: ModelRef) -> None:
        assert plan.batch is not None
        self.plan, self.service, self.options = plan, service, plan.batch
        self._like = _like(model, plan.options)
        self._size = min(self.options.size, service.max_rows)
        self._waiting: dict[str, list[Ask]] = {}  # rows by the name of their batch
        self._out: dict[str, SentBatch] = {batch.name: batch for batch in plan.store.batches()}
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, ProviderError] = {}
        self._tries: dict[str, int] = {}
        self._reserved: dict[str, tuple[int, float]] = {}
        self._reserved_tokens, self._reserved_cost = 0, 0.0
        self._packing: dict[str, str] = {}  # rows of batches that have not been sent, and which
        self._spool = _Spool(new_id("kit"))
        self._ready: list[_Spool] = []
        self._answered: dict[str, int] = {}
        self._sending: set[str] = set()
        self._lost: set[str] = set()  # sent, perhaps: nobody heard what became of them
        self._is_pulled = False

    @classmethod
    async def open(cls, plan: Plan) -> HalfPrice:
        """For a plan, once its provider is known.

        Raises
        ------
        UsageError
            If the provider has no batch API.
        """
        from kit_jupyter.providers.batches import batch_service

        provider, model = await plan.kit._shelf.find_soon(plan.kit.settings.options(plan.options))
        made = cls(plan, batch_service(provider), model)
        if plan.max_cost is not None:
            await load_prices(model)
        return made

    async def provider(self, options: TurnOptions, stem: str) -> tuple[Provider, ModelRef]:
        """Who answers a row's turn."""
        provider, model = await self.plan.kit._shelf.find_soon(options)
        return _Letterbox(self, provider, stem), model

    # -- one request of one row, on the engine

    def answer(self, custom_id: str, request: ModelRequest) -> Iterable[ModelDelta]:
        """Deltas of an answer that has come.

        Raises
        ------
        Aside
            When it has not come yet, or may not be asked.
        ProviderError
            What the service said of this request.
        """
        found = self.plan.store.row(custom_id)
        if found is not None and found[1] is not None:
            self._release(custom_id)
            return self.service.read(found[1], request)
        if (error := self._failed.pop(custom_id, None)) is not None:
            tries = self._tries[custom_id] = self._tries.get(custom_id, 0) + 1
            if tries > self.plan.retries:
                error.retryable = False
            self._release(custom_id)
            raise error
        packed = self.service.pack(custom_id, request)
        if found is not None and found[0] in self._out:
            self._reserve(custom_id, packed, request)
            raise Aside(found[0])
        if custom_id in self._packing:
            raise Aside(self._packing[custom_id])
        if why := self._over_budget(packed, request):
            raise Aside("", why)
        self._reserve(custom_id, packed, request)
        raise Aside(self._put(packed))

    def _put(self, packed: Packed) -> str:
        room = self.service.max_bytes
        if len(packed.line) > room:
            raise TooLarge(f"the request has {len(packed.line):,} bytes; a batch of {self.service.name} takes {room:,}")
        spool = self._spool
        if spool.packed and (len(spool.packed) >= self._size or spool.size + len(packed.line) > room):
            self._ready.append(spool)
            spool = self._spool = _Spool(new_id("kit"))
        self._packing[packed.custom_id] = spool.name
        spool.packed.append(packed)
        spool.size += len(packed.line) + 1
        return spool.name

    def _guess(self, packed: Packed, request: ModelRequest) -> tuple[int, float]:
        """Tokens and dollars that a request may cost: all of max_tokens, when it was given."""
        tokens = Tokens(input=len(packed.line) // _BYTES_A_TOKEN, output=request.max_tokens or 0)
        cost = price_of(request.model, tokens) if self.plan.max_cost is not None else None
        return tokens.total, (cost or 0.0) * self.service.price_factor

    def _reserve(self, custom_id: str, packed: Packed, request: ModelRequest) -> None:
        if self.plan.max_tokens_total is not None or self.plan.max_cost is not None:
            self._release(custom_id)
            tokens, cost = self._reserved[custom_id] = self._guess(packed, request)
            self._reserved_tokens += tokens
            self._reserved_cost += cost

    def _release(self, custom_id: str) -> None:
        tokens, cost = self._reserved.pop(custom_id, (0, 0.0))
        self._reserved_tokens -= tokens
        self._reserved_cost -= cost

    def _over_budget(self, packed: Packed, request: ModelRequest) -> str:
        plan = self.plan
        if why := plan.over_budget():
            return why
        if plan.max_tokens_total is None and plan.max_cost is None:
            return ""
        tokens, cost = self._guess(packed, request)
        tokens += plan.spent_tokens + self._reserved_tokens
        cost += plan.spent_cost + self._reserved_cost
        if plan.max_tokens_total is not None and tokens > plan.max_tokens_total:
            return f"not asked: with this row the batch might use more than {plan.max_tokens_total:,} tokens"
        if plan.max_cost is not None and cost > plan.max_cost:
            return f"not asked: with this row the batch might cost more than ${plan.max_cost:g}"
        return ""

    # -- the run

    async def run(
        self, answers: Answers, next_ask: Callable[[], Awaitable[Ask | None]], tell: Callable[[MapRow], object]
    ) -> None:
        """Answer all rows; `tell` is called as each is done."""
        async with asyncio.TaskGroup() as group:

            async def pull() -> None:
                while (ask := await next_ask()) is not None:
                    await self._take([ask], answers, tell)
                    await self._send_ready(group, answers, tell)

            pulling = [group.create_task(pull()) for _ in range(self.plan.concurrency)]
            await asyncio.gather(*pulling)
            self._is_pulled = True
            await self._send_ready(group, answers, tell)

    async def _take(self, asks: list[Ask], answers: Answers, tell: Callable[[MapRow], object]) -> None:
        """Equal rows: their result, or their place among those that wait."""
        ask = asks[0]
        try:
            row = await answers.of(ask)
        except Aside as aside:
            if not aside.why:
                self._waiting.setdefault(aside.name, []).extend(asks)
                return
            row = MapRow(position=ask.position, label=ask.label, error=aside.why)
        if ask.key:
            self.plan.store.forget_rows(ask.key.hex())
        tell(row)
        for twin in asks[1:]:
            tell(replace(row, position=twin.position, label=twin.label, tokens=0, cost=0.0, is_stored=not row.error))

    async def _send_ready(self, group: asyncio.TaskGroup, answers: Answers, tell: Callable[[MapRow], object]) -> None:
        """Send full batches, and the last one once all rows were seen; watch whatever rows wait for."""
        if self._is_pulled and self._spool.packed:
            self._ready.append(self._spool)
            self._spool = _Spool(new_id("kit"))
        while self._ready:
            spool = self._ready.pop(0)
            self._sending.add(spool.name)
            await self._send(spool)
            self._sending.discard(spool.name)
            self._watch(spool.name, group, answers, tell)
        for name in list(self._waiting):
            if name != self._spool.name and name not in self._sending:
                self._watch(name, group, answers, tell)

    def _watch(self, name: str, group: asyncio.TaskGroup, answers: Answers, tell: Callable[[MapRow], object]) -> None:
        if name not in self._watched:
            self._watched[name] = group.create_task(self._collect(name, group, answers, tell))

    async def _send(self, spool: _Spool) -> None:
        batch = SentBatch(spool.name, self.service.name, "", len(spool.packed), time.time())
        ids = [packed.custom_id for packed in spool.packed]
        self.plan.store.sending(batch, ids)
        for custom_id in ids:
            self._packing.pop(custom_id, None)
        self._out[spool.name] = batch
        # A stop in the middle of sending would lose the id of what is paid for: the call is let end first.
        sending = asyncio.ensure_future(self._submit(spool, batch))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait([sending], timeout=3)
            sending.cancel()  # what it sent all the same is found again by its name
            raise

    async def _submit(self, spool: _Spool, batch: SentBatch) -> None:
        try:
            ident = await self.service.submit(spool.packed, spool.name, self._like)
        except KitError as exc:
            refused = isinstance(exc, UsageError) or 400 <= (getattr(exc, "status", None) or 0) < 500
            ident = "" if refused else await self._find(batch, soon=True)
            if not ident:
                self._fail(batch, exc)
                if refused:
                    self._end(batch.name)
                else:
                    self._lost.add(batch.name)
                return
        self.plan.store.was_sent(spool.name, ident)
        self._out[spool.name] = batch._replace(id=ident)

    async def _find(self, batch: SentBatch, *, soon: bool = False) -> str:
        """The id of a batch that was sent, though nobody heard what became of it."""
        known = frozenset(each.id for each in self._out.values() if each.id)
        try:
            if soon:
                await self.options.sleep(self.options.first_poll_seconds)
            return await self.service.find(batch.name, batch.size, batch.sent, known, self._like)
        except ProviderError:
            return ""

    def _fail(self, batch: SentBatch, error: KitError) -> None:
        """The batch came to nothing: all its rows say so."""
        for custom_id in self.plan.store.rows_of(batch.name):
            self._failed[custom_id] = _told(error)

    def _end(self, name: str) -> None:
        self.plan.store.end_batch(name)
        self._out.pop(name, None)

    async def _collect(
        self, name: str, group: asyncio.TaskGroup, answers: Answers, tell: Callable[[MapRow], object]
    ) -> None:
        """Wait for a batch, fetch what came of it, and give its rows their answers."""
        batch = self._out.get(name)
        if batch is not None and not batch.id and name not in self._lost:
            ident = await self._find(batch)
            if ident:
                self.plan.store.was_sent(name, ident)
                batch = self._out[name] = batch._replace(id=ident)
            else:
                self._end(name)  # it never went out: its rows are asked as new ones
                batch = None
        if batch is not None and batch.id and not await self._fetch(batch):
            late = self._waiting.pop(name, [])
            del self._watched[name]
            for ask in late:
                tell(MapRow(position=ask.position, label=ask.label, error=self._late(batch)))
            return
        del self._watched[name]
        equal: dict[bytes, list[Ask]] = {}
        for ask in sorted(self._waiting.pop(name, []), key=lambda ask: ask.position):
            equal.setdefault(ask.key, []).append(ask)
        waiting = iter(equal.values())

        async def again() -> None:
            for asks in waiting:
                await self._take(asks, answers, tell)

        await asyncio.gather(*(again() for _ in range(min(self.plan.concurrency, len(equal)))))
        await self._send_ready(group, answers, tell)

    def _late(self, batch: SentBatch) -> str:
        return (
            f"not answered within {self.plan.max_seconds:g} s; batch {batch.id} runs on at {self.service.name}: "
            "the same call fetches its answers"
        )

    async def _fetch(self, batch: SentBatch) -> bool:
        """Wait until the batch is done and store what came of it; False when the time limit comes first."""
        wait = self.options.first_poll_seconds
        while True:
            try:
                state = await self.service.look(batch.id, self._like)
            except ProviderError as exc:
                if exc.retryable:  # a line that is down for an hour must not lose a day's work
                    state = None
                else:
                    self._fail(batch, exc)
                    if time.time() - batch.sent > _KEPT_SECONDS:
                        self._end(batch.name)
                    return True
            if state is not None:
                self._show(batch, state.answered, state.word)
                if state.is_done:
                    break
            left = self._seconds_left()
            if left <= 0:
                return False
            await self.options.sleep(min(wait, left))
            wait = min(wait * 1.5, self.options.last_poll_seconds)
        assert state is not None
        if state.fault:
            self._fail(batch, UsageError(f"{self.service.name} refused the batch: {state.fault}"))
            self._end(batch.name)
            return True
        for is_last in (False, False, True):
            try:
                await self._download(batch, state.word)
            except ProviderError as exc:
                if is_last:
                    self._fail(batch, exc)  # the batch stays known: the next run tries to fetch it again
                    return True
                await self.options.sleep(self.options.first_poll_seconds)
            else:
                break
        self._end(batch.name)
        return True

    async def _download(self, batch: SentBatch, word: str) -> None:
        store, bodies = self.plan.store, []
        async for custom_id, outcome in self.service.results(batch.id, self._like):
            if isinstance(outcome, ProviderError):
                self._failed[custom_id] = outcome
                continue
            bodies.append((custom_id, outcome))
            if len(bodies) >= 500:
                store.put_bodies(bodies)
                bodies = []
        store.put_bodies(bodies)
        for custom_id in store.rows_of(batch.name):
            if custom_id not in self._failed:
                self._failed[custom_id] = self.service.unanswered(word, self._like)

    def _seconds_left(self) -> float:
        limit = self.plan.max_seconds
        return float("inf") if limit is None else limit - (time.monotonic() - self.plan.begun)

    def _show(self, batch: SentBatch, answered: int, word: str) -> None:
        self._answered[batch.name] = answered
        done = sum(n for name, n in self._answered.items() if name in self._out)
        total = sum(each.size for name, each in self._out.items() if name in self._watched)
        self.plan.show(f"{self.service.name}: {word}, {done}/{total} answered")

    def farewell(self) -> str:
        """What a person should know who stops now; empty when nothing is out."""
        out = [batch.id for name, batch in self._out.items() if batch.id and name in self._watched]
        if not out:
            return ""
        which = f"batch {out[0]} runs" if len(out) == 1 else f"{len(out)} batches run"
        return (
            f"{which} on at {self.service.name} and will be paid for; the same call fetches the answers, "
            "kit_jupyter.batch.cancel_batches(kit) stops them"
        )


def _told(error: KitError) -> ProviderError:
    """An error of a whole batch as one of a row; asking that row alone again would not help."""
    if isinstance(error, ProviderError):
        copy = type(error)(error.message, provider=error.provider, model=error.model, status=error.status)
    else:
        copy = ProviderError(error.message)
    copy.retryable = False
    return copy


def _like(model: ModelRef, options: PromptOptions) -> ModelRequest:
    return ModelRequest(model=model, messages=(), base_url=options.base_url, api_key=options.api_key)


def open_batches(store: Any = True) -> list[SentBatch]:
    """Batches that were sent and whose answers have not been fetched.

    Parameters
    ----------
    store : bool or path
        As for `map_rows`.
    """
    kept = store_of(store)
    try:
        return kept.batches()
    finally:
        kept.close()


def cancel_batches(kit: Kit, *, store: Any = True, options: PromptOptions | None = None) -> list[str]:
    """Stop the batches of this Kit's provider that are out; their ids.

    What they have answered by then is paid for, and the same `map_rows` fetches it; the other rows say that
    the batch was cancelled.

    Parameters
    ----------
    kit : Kit
    store : bool or path
        As for `map_rows`.
    options : PromptOptions or None
        As for `map_rows`: model, address and key.

    Raises
    ------
    UsageError
        If the provider has no batch API.
    ProviderError
        What the service says.
    """
    kept = store_of(store)
    try:
        return Desk().serve_blocking(engine.start(_cancel(kit, kept, options or PromptOptions())))
    finally:
        kept.close()


async def _cancel(kit: Kit, store: ResultStore, options: PromptOptions) -> list[str]:
    from kit_jupyter.providers.batches import batch_service

    provider, model = await kit._shelf.find_soon(kit.settings.options(options))
    service, like = batch_service(provider), _like(model, options)
    stopped = []
    for batch in store.batches():
        if batch.service != service.name:
            continue
        ident = batch.id or await service.find(batch.name, batch.size, batch.sent, frozenset(), like)
        if not ident:
            store.end_batch(batch.name)
            continue
        store.was_sent(batch.name, ident)
        await service.cancel(ident, like)
        stopped.append(ident)
    return stopped
