"""What tokens cost, by the price table that the pydantic team keeps."""

from __future__ import annotations

from kit_jupyter.messages import ModelRef, Tokens

__all__ = ["price_of"]


def price_of(ref: ModelRef, tokens: Tokens) -> float | None:
    """US dollars; None when the model or its price is unknown, never a false zero.

    Notes
    -----
    Source: the ``genai-prices`` package. Nothing is fetched.
    """
    if tokens.input is None and tokens.output is None:
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
    for provider in (ref.provider, None):
        try:
            found = genai_prices.calc_price(usage, model_ref=ref.id, provider_id=provider)
        except (LookupError, ValueError):
            continue
        return float(found.total_price)
    return None
