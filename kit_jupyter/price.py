"""What tokens cost, by the price table that the pydantic team keeps.

The table takes some 0.4 s to load. So it is loaded on a thread while a model answers, and only for
services that charge: a local, scripted or replayed model never needs it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from typing import Any

from kit_jupyter.messages import ModelRef, Tokens

__all__ = ["has_prices", "load_prices", "price_of"]

# Our name of a service: the table's. None: a reseller, looked up by the model's name alone.
_SERVICES: dict[str, str | None] = {
    "anthropic": "anthropic",
    "anthropic-chat": "anthropic",
    "azure": "azure",
    "baseten": "baseten",
    "bedrock": "aws",
    "cerebras": "cerebras",
    "cloudflare": "cloudflare",
    "cohere": "cohere",
    "dashscope": None,
    "databricks": "databricks",
    "deepinfra": None,
    "deepseek": "deepseek",
    "fireworks": "fireworks",
    "gemini": "google",
    "gemini-chat": "google",
    "groq": "groq",
    "huggingface": None,
    "litellm": None,
    "mistral": "mistral",
    "moonshot": "moonshotai",
    "openai": "openai",
    "openai-chat": "openai",
    "openrouter": "openrouter",
    "perplexity": "perplexity",
    "pydantic-ai": None,
    "together": "together",
    "vercel": None,
    "xai": "x-ai",
    "zai": "zai",
}

_found: dict[ModelRef, tuple[str | None, ...]] = {}  # under which service a model has its price; none: it has none
_searching = threading.Lock()


def has_prices(ref: ModelRef) -> bool:
    """True for a service that charges and is in the table.

    Examples
    --------
    >>> has_prices(ModelRef("openai", "gpt-5")), has_prices(ModelRef("local", "smollm2"))
    (True, False)
    """
    return ref.provider in _SERVICES


async def load_prices(ref: ModelRef) -> None:
    """Load the table and look for `ref` in it on a thread, if it has prices and was not looked for before."""
    if has_prices(ref) and ref not in _found and importlib.util.find_spec("genai_prices"):
        await asyncio.to_thread(price_of, ref, Tokens(input=1, output=1))


def price_of(ref: ModelRef, tokens: Tokens) -> float | None:
    """US dollars; None when the model or its price is unknown, never a false zero.

    Notes
    -----
    Source: the ``genai-prices`` package, where it is installed. Nothing is fetched.
    """
    if not has_prices(ref) or (tokens.input is None and tokens.output is None) or _found.get(ref) == ():
        return None
    try:
        import genai_prices
    except ImportError:
        return None
    usage = genai_prices.Usage(
        input_tokens=tokens.input,
        output_tokens=tokens.output,
        cache_read_tokens=tokens.cache_read,
        cache_write_tokens=tokens.cache_write,
    )
    model = ref.id.rpartition(":")[2] if ref.provider == "pydantic-ai" else ref.id
    if ref not in _found:
        with _searching:  # turns side by side ask for the same price while the table is still being read
            if ref not in _found:
                _found[ref] = _search(genai_prices, usage, ref, model)
    for service in _found[ref]:
        return float(genai_prices.calc_price(usage, model_ref=model, provider_id=service).total_price)
    return None


def _search(genai_prices: Any, usage: Any, ref: ModelRef, model: str) -> tuple[str | None, ...]:
    # The search through all services takes a millisecond; a model that nobody knows is searched for once.
    for service in dict.fromkeys((_SERVICES[ref.provider], None)):
        try:
            genai_prices.calc_price(usage, model_ref=model, provider_id=service)
        except (LookupError, ValueError):
            continue
        return (service,)
    return ()
