"""What one run of map goes by, and the prompts of its rows, made as they are pulled."""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import ModuleType
from typing import Any

from kit_jupyter.batch.half_price import BatchOptions, HalfPrice
from kit_jupyter.batch.rows import Rows, rows_of
from kit_jupyter.batch.store import ResultStore, store_of
from kit_jupyter.batch.template import Template, is_missing
from kit_jupyter.errors import KitError, UsageError
from kit_jupyter.kit import Kit
from kit_jupyter.media import as_part
from kit_jupyter.messages import Part
from kit_jupyter.settings import PromptOptions, TurnOptions, refuse_arguments
from kit_jupyter.structured import Format
from kit_jupyter.tool import as_tool

__all__ = ["Ask", "Plan", "asks_of", "check_names", "is_ray", "make_plan", "seed_of", "told"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One prompt, ready to be asked anywhere."""

    position: int
    label: Any
    key: bytes
    text: str
    parts: tuple[Part, ...] = ()
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Plan:
    """All that one run of map goes by."""

    kit: Kit
    rows: Rows
    template: str | Callable[[Any], Any]
    options: PromptOptions
    tools: tuple[Any, ...]
    concurrency: int
    retries: int
    store: ResultStore
    missing: str
    max_tokens_total: int | None
    max_cost: float | None
    max_seconds: float | None
    executor: Any
    chunk: int
    format: Format | None
    seed: bytes = b""
    begun: float = field(default_factory=time.monotonic)
    spent_tokens: int = 0
    spent_cost: float = 0.0
    answered: int = 0
    resume_at: float = 0.0
    stop: str = ""
    batch: BatchOptions | None = None
    half: HalfPrice | None = None
    show: Callable[[str], object] = lambda text: None

    def over_budget(self) -> str:
        """Why no more rows may be asked, else empty."""
        if not self.stop:
            if self.max_tokens_total is not None and self.spent_tokens >= self.max_tokens_total:
                self.stop = f"not asked: the budget of {self.max_tokens_total:,} tokens is used up"
            elif self.max_cost is not None and self.spent_cost >= self.max_cost:
                self.stop = f"not asked: the budget of ${self.max_cost:g} is used up"
            elif self.max_seconds is not None and time.monotonic() - self.begun >= self.max_seconds:
                self.stop = f"not asked: the time limit of {self.max_seconds:g} s is over"
        return self.stop


def make_plan(
    kit: Kit,
    rows: Any,
    template: str | Callable[[Any], Any],
    *,
    schema: Any = None,
    options: PromptOptions | None = None,
    tools: Iterable[Any] = (),
    concurrency: int = 8,
    executor: Any = None,
    chunk: int = 32,
    retries: int = 2,
    store: Any = True,
    missing: str = "error",
    max_tokens_total: int | None = None,
    max_cost: float | None = None,
    max_seconds: float | None = None,
    batch: bool | BatchOptions = False,
) -> Plan:
    """Check what a caller of `map_rows` wrote."""
    if concurrency < 1:
        raise UsageError(f"concurrency must be 1 or more, got {concurrency}")
    if chunk < 1:
        raise UsageError(f"chunk must be 1 or more, got {chunk}")
    if retries < 0:
        raise UsageError(f"retries must be 0 or more, got {retries}")
    if missing not in ("error", "text"):
        raise UsageError(f'missing must be "error" or "text", got {missing!r}')
    if not callable(template) and not isinstance(template, str):
        raise UsageError(
            f"the template must be text with {{column}} marks or a function, got {type(template).__name__}"
        )
    if executor is not None and not (
        is_ray(executor) or any(hasattr(executor, name) for name in ("submit", "executor", "load_balanced_view"))
    ):
        raise UsageError(
            "executor= takes a concurrent.futures executor, a Dask client, an ipyparallel client or the module ray"
        )
    options = options or PromptOptions()
    if schema is not None:
        options = replace(options, schema=schema)
    fmt = Format(options.schema) if options.schema is not None else None
    found = rows_of(rows)
    made_tools = tuple(as_tool(item) for item in tools)
    if executor is not None and made_tools:
        raise UsageError("tools stay on this machine; map with executor= and with tools cannot go together")
    if batch:
        _check_batch(batch, executor, made_tools, store)
    plan = Plan(
        kit=kit,
        rows=found,
        template=template,
        options=replace(options, extra_tools=made_tools),
        tools=made_tools,
        concurrency=concurrency,
        retries=retries,
        store=_store_for(kit, options, store, is_batch=bool(batch)),
        missing=missing,
        max_tokens_total=max_tokens_total,
        max_cost=max_cost,
        max_seconds=max_seconds,
        executor=executor,
        chunk=chunk,
        format=fmt,
        batch=(batch if isinstance(batch, BatchOptions) else BatchOptions()) if batch else None,
    )
    return plan


def check_names(verb: str, given: Iterable[str], besides: Sequence[str] = ()) -> None:
    """Refuse arguments that `make_plan` does not take.

    Parameters
    ----------
    verb : str
        What the person called.
    given : iterable of str
    besides : sequence of str
        What the verb takes for itself.

    Raises
    ------
    UsageError
        Also a `TypeError`: it names the nearest argument, or where an option of a prompt goes.
    """
    known = (*list(inspect.signature(make_plan).parameters)[3:], *besides)
    wrong = [name for name in given if name not in known]
    if wrong:
        refuse_arguments(verb, wrong, sorted(known), first="rows, template")


def _store_for(kit: Kit, options: PromptOptions, store: object, *, is_batch: bool) -> ResultStore:
    """The store of a run: what is recorded or replayed must not be answered by a file of the person's own machine."""
    if is_batch:  # recordings hold no batches, and what is out must be found again
        return store_of(store)
    turn = kit.settings.options(options)
    is_recorded = _is_recorded(turn.model)
    if store is True and (is_recorded or _is_scripted(kit, turn)):
        return store_of(False)
    return store_of(store, own_only=is_recorded)


def _is_recorded(model: str) -> bool:
    """True where recordings are made or played; a word that ``KIT_REPLAY`` does not know is refused."""
    if (model or os.environ.get("KIT_MODEL", "")).startswith("replay/"):
        return True
    if not os.environ.get("KIT_REPLAY"):
        return False  # and what plays recordings need not be loaded
    from kit_jupyter.providers import replay

    return replay.mode() != "off"


def _is_scripted(kit: Kit, turn: TurnOptions) -> bool:
    """True where a test's script answers: what one test was told must not answer another."""
    given = kit._provider_given
    if given is None:
        return False
    from kit_jupyter.testing import ScriptedProvider

    return isinstance(given, ScriptedProvider) and kit._shelf.name_of(turn.model).split("/", 1)[0] == given.name


def is_ray(executor: object) -> bool:
    """True for the module ``ray``: it is given as a whole, since its cluster is the process's own."""
    return isinstance(executor, ModuleType) and executor.__name__ == "ray"


def _check_batch(batch: object, executor: object, tools: tuple[Any, ...], store: object) -> None:
    if batch is not True and not isinstance(batch, BatchOptions):
        raise UsageError(f"batch= takes True or BatchOptions, got {type(batch).__name__}")
    if executor is not None:
        raise UsageError("batch= leaves the work to the service; executor= cannot go with it")
    if tools:
        raise UsageError("batch= asks each row once and tools need an answer in between; leave one of them out")
    if store is False or store is None:
        raise UsageError("batch= needs a store: without one, a stopped run could not find what it has paid for")


def seed_of(plan: Plan) -> bytes:
    """All that decides every answer of this run, but for the prompt itself."""
    kit, options = plan.kit, plan.options
    turn = kit.settings.options(options)
    _, ref = kit._provider_for(turn)
    facts = {
        "model": str(ref),
        "base_url": options.base_url,
        "system": kit.system,
        "system_message": options.system_message,
        "thinking": turn.thinking,
        "temperature": turn.temperature,
        "max_tokens": turn.max_tokens,
        "schema": plan.format.schema if plan.format is not None else None,
        "tools": [tool.spec.name for tool in plan.tools],
        "extra": dict(options.extra),
    }
    return blake2b(json.dumps(facts, sort_keys=True, default=repr).encode(), digest_size=16).digest()


def asks_of(plan: Plan) -> Iterator[Ask]:
    """Prompts of all rows, made as they are pulled; on the caller's thread."""
    template = plan.template
    filled: Template | None = None
    for position, (label, row) in enumerate(plan.rows.items):
        parts: tuple[Part, ...] = ()
        try:
            if callable(template):
                made = template(row)
                text, *attached = made if isinstance(made, tuple | list) else (made,)
                if not isinstance(text, str):
                    raise TypeError(f"the template function gave {type(text).__name__}, not text")
                try:
                    parts = tuple(as_part(part) for part in attached)
                except UsageError as exc:  # of this row: others may have what can be attached
                    raise ValueError(exc.message) from exc
            else:
                record = row if isinstance(row, Mapping) else {"text": row, "row": row}
                if filled is None:
                    filled = Template(template, plan.rows.columns or [str(k) for k in record])
                    if not filled.columns:
                        marks = ", ".join(f"{{{name}}}" for name in plan.rows.columns or ()) or "{text}"
                        raise UsageError(
                            f"the template has no mark, so every row would ask the same; put one in: {marks} "
                            "(or give a function of the row)"
                        )
                for name in filled.columns:
                    if name not in record:
                        raise KeyError(f"the row has no {name!r}")
                    if plan.missing == "error" and is_missing(record[name]):
                        raise ValueError(f"{name} is missing in this row (missing='text' asks all the same)")
                text = filled.fill(record)
            if not text.strip() and not parts:
                raise ValueError("the prompt of this row is empty")
            text.encode()
        except UsageError:
            raise
        except Exception as exc:  # a row's own fault is its answer; the others go on
            hint = ""
            if isinstance(exc, AttributeError) and exc.obj is row and isinstance(row, dict) and exc.name in row:
                hint = f"; the function gets the row as a dict: row[{exc.name!r}]"
            yield Ask(position=position, label=label, key=b"", text="", error=told(exc) + hint)
            continue
        digest = blake2b(plan.seed, digest_size=16)
        digest.update(text.encode())
        for part in parts:
            digest.update(repr(part).encode() + str(getattr(part, "data", "")).encode())
        yield Ask(position=position, label=label, key=digest.digest(), text=text, parts=parts)


def told(exc: BaseException) -> str:
    """An error in one line."""
    if isinstance(exc, KitError):
        return exc.message
    text = str(exc.args[0]) if isinstance(exc, KeyError) and exc.args else str(exc)
    return f"{type(exc).__name__}: {text}"
