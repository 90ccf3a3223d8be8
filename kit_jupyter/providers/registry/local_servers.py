"""Which model servers answer on this machine, and what they list."""

from __future__ import annotations

import concurrent.futures
import json
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from kit_jupyter.providers.registry.catalogue import ROWS, Row
from kit_jupyter.providers.registry.endpoint import address_of

__all__ = ["listed_models"]

PROBE_SECONDS = 0.2
_NO_CHAT = re.compile(r"embed|rerank|whisper|tts")


def listed_models(environ: Mapping[str, str]) -> list[tuple[Row, str, list[str]]]:
    """Each server's row, address and chat models, none where nothing answers; all are asked at the same time."""
    servers = [row for row in ROWS if row.is_local]
    addresses = [address_of(row, None, environ) for row in servers]
    pool = concurrent.futures.ThreadPoolExecutor(len(servers), thread_name_prefix="kit-probe")
    try:
        jobs = [pool.submit(_models_at, address) for address in addresses]
        concurrent.futures.wait(jobs, timeout=2 * PROBE_SECONDS + 0.1)
        answers = [job.result() if job.done() else [] for job in jobs]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return list(zip(servers, addresses, answers, strict=True))


def _models_at(address: str) -> list[str]:
    """Ids of the chat models that a server on this machine lists; none for any other thing there."""
    import http.client

    from kit_jupyter.providers._client import is_loopback

    parts = urlsplit(address)
    if parts.scheme != "http" or not is_loopback(address):
        return []  # asking around is for this machine only
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", f"{parts.path}/models", headers={"accept": "application/json"})
        answer = connection.getresponse()
        listed = json.loads(answer.read(1_000_000)) if answer.status == 200 else None
        found = [str(model["id"]) for model in listed["data"]] if listed else []
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return []  # a port that is closed, slow, or another program's
    finally:
        connection.close()
    return [name for name in found if not _NO_CHAT.search(name.lower())]
