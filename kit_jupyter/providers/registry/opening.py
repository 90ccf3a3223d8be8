"""A provider made of a model's name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import ModelRef
from kit_jupyter.provider import ModelInfo, Provider
from kit_jupyter.providers._models import info_of
from kit_jupyter.providers.registry.catalogue import Row
from kit_jupyter.providers.registry.endpoint import Given, endpoint_of, network_of
from kit_jupyter.providers.registry.names import check_name, maker_of
from kit_jupyter.providers.registry.wires import codec_for

__all__ = ["open_provider"]


def open_provider(
    ref: ModelRef,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    proxy: str | None = None,
    ca_bundle: str | None = None,
    transport: Any = None,
    limits: Any = None,
    environ: Mapping[str, str] | None = None,
) -> Provider:
    """A provider for this model, with key, address and network settings found.

    Parameters
    ----------
    base_url, api_key, headers, proxy, ca_bundle
        Go before environment and config file.
    transport : httpx transport or None
        Instead of the network; None takes `replay`'s where that is on.
    limits : _watch.Limits or None

    Raises
    ------
    UsageError
        For an unknown provider (with the nearest name), or a base URL that needs a variable which is not set.

    Notes
    -----
    Nothing is sent. A missing key is an error of the first call, not of this one.
    """
    check_name(ref)
    given = Given(base_url=base_url, api_key=api_key, headers=headers or {}, proxy=proxy, ca_bundle=ca_bundle)
    maker = maker_of(ref.provider)
    if maker is None:
        return _open_special(ref, given, transport)
    if not isinstance(maker, Row):
        return maker(ref, base_url=base_url, api_key=api_key)
    return _open_row(maker, given, transport, limits, os.environ if environ is None else environ)


def _open_special(ref: ModelRef, given: Given, transport: Any) -> Provider:
    """Providers that are no row; each room is imported on use."""
    if ref.provider == "local":
        from kit_jupyter.providers.llama_server import LocalProvider

        model_id = None if ref.id in ("default", "auto") else ref.id
        return LocalProvider(model_id, base_url=given.base_url, api_key=given.api_key, transport=transport)
    from kit_jupyter.providers import replay

    if ref.provider == "replay":
        return replay.ReplayProvider(ref.id, lambda inner, transport: open_provider(inner, transport=transport))
    if replay.is_strict():
        raise UsageError(f"{ref} cannot be replayed: pydantic-ai asks by clients of its own; use KIT_REPLAY=off")
    from kit_jupyter.providers.pydantic_ai import open_model

    return open_model(ref.id)


def _open_row(row: Row, given: Given, transport: Any, limits: Any, environ: Mapping[str, str]) -> Provider:
    from kit_jupyter.providers._wire import WireProvider

    network = network_of(row, given, environ)
    if transport is None and os.environ.get("KIT_REPLAY"):
        from kit_jupyter.providers import replay

        transport = replay.transport_for(network)
    return WireProvider(
        codec_for(row.wire),
        endpoint_of(row, given, environ),
        transport=transport,
        limits=limits,
        network=network,
        infos=_infos(row),
        key_hint=_key_hint(row),
        needs_key=row.needs_key,
    )


def _infos(row: Row) -> Callable[[str], ModelInfo]:
    # A server of one's own loads a model with the window it was told to.
    return info_of if row.needs_key else (lambda _: ModelInfo())


def _key_hint(row: Row) -> str:
    names = " or ".join(row.key_env[:1])
    return f"set {names}, or call kit.login({row.name!r})" if names else f"call kit.login({row.name!r})"
