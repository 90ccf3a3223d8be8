"""How a service is reached: address, key, headers, proxy, certificates, from the first place that names one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from kit_jupyter.errors import UsageError
from kit_jupyter.providers import keys
from kit_jupyter.providers.registry.catalogue import Row

if TYPE_CHECKING:
    from kit_jupyter.providers._client import Network
    from kit_jupyter.providers.codec import Endpoint

__all__ = ["Given", "address_of", "endpoint_of", "network_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a caller said himself; it goes before environment and config file."""

    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    proxy: str | None = None
    ca_bundle: str | None = None


def endpoint_of(row: Row, given: Given, environ: Mapping[str, str]) -> Endpoint:
    """Address, key and headers of a row's service.

    Raises
    ------
    UsageError
        If its address needs a variable that is not set, or headers cannot be read.
    """
    from kit_jupyter.providers.codec import Endpoint

    config = keys.provider_config(row.name)
    address = address_of(row, given.base_url, environ)
    variable = keys.own_variable(row.name, "HEADERS")
    return Endpoint(
        name=row.name,
        base_url=address.split("?", 1)[0].rstrip("/"),
        api_key=keys.find_key(row.name, row.key_env, given=given.api_key, environ=environ).value,
        headers={
            **row.headers,
            **{name: environ[env] for name, env in row.headers_env.items() if environ.get(env)},
            **_headers_of(config.get("headers"), f"headers of {row.name} in {keys.config_file()}"),
            **_headers_of(environ.get(variable), variable),
            **given.headers,
        },
        query=dict(parse_qsl(urlsplit(address).query)),
        quirks=row.quirks,
    )


def network_of(row: Row, given: Given, environ: Mapping[str, str]) -> Network:
    """The way to a row's service."""
    from kit_jupyter.providers._client import Network

    config = keys.provider_config(row.name)
    own_proxy, own_bundle = (environ.get(keys.own_variable(row.name, what)) for what in ("PROXY", "CA_BUNDLE"))
    return Network(
        proxy=given.proxy or own_proxy or environ.get("KIT_PROXY") or config.get("proxy"),
        ca_bundle=given.ca_bundle or own_bundle or config.get("ca_bundle"),
    )


def address_of(row: Row, given: str | None, environ: Mapping[str, str]) -> str:
    """The base URL, from the first place that names one.

    Raises
    ------
    UsageError
        If it needs a variable that is not set.
    """
    for name in (keys.own_variable(row.name, "BASE_URL"), *row.url_env):
        given = given or environ.get(name, "").strip() or None
    found = given or keys.provider_config(row.name).get("base_url") or row.base_url
    missing = [name for name in re.findall(r"\{(\w+)\}", found) if not environ.get(name)]
    if missing:
        raise UsageError(f"{row.name} needs its address: set {missing[0]}, or give base_url")
    found = re.sub(r"\{(\w+)\}", lambda m: environ[m[1]].strip().rstrip("/"), found)
    if "://" not in found:
        # OLLAMA_HOST and the like hold host:port, often the one to listen at.
        host = found.replace("0.0.0.0", "127.0.0.1")
        found = f"https://{host}" if row.needs_key else f"http://{host}"
        if row.is_local and not urlsplit(found).port:
            found += f":{urlsplit(row.base_url).port}"
    if row.is_local and urlsplit(found).path in ("", "/"):
        found = found.rstrip("/") + urlsplit(row.base_url).path
    return found.rstrip("/")


def _headers_of(value: Any, where: str) -> dict[str, str]:
    """Extra headers, from a dict, a JSON object, or lines of ``Name: value``."""
    if not value:
        return {}
    if isinstance(value, str):
        if value.lstrip().startswith("{"):
            try:
                value = json.loads(value)
            except ValueError:
                raise UsageError(f"{where} is not a JSON object") from None
        else:
            pairs = [line.partition(":") for line in re.split(r"[\n;]", value) if line.strip()]
            if any(not colon for _, colon, _ in pairs):
                raise UsageError(f"{where} must hold 'Name: value' lines or a JSON object")
            value = {name.strip(): text.strip() for name, _, text in pairs}
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} must hold names and values")
    return {str(name).lower(): str(text) for name, text in value.items()}
