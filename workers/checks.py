"""What an agent asks a running engine: is it healthy, does it really generate, how is it doing.

All functions raise EngineSilent when the engine does not answer, and NotYet when it answers that it cannot serve now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controlplane.common.engineclient import Answer, EngineClient
from controlplane.core.protocol import EngineSpec
from workers.compat import compat
from workers.metrics import Page, read_page

HEALTH_TIMEOUT_S = 3.0
GENERATION_TIMEOUT_S = 60.0
"""A first generation may compile kernels."""
SCRAPE_TIMEOUT_S = 3.0


class NotYet(ValueError):
    """The engine answers, but not as a serving engine does; asking again may help."""


class NeverRight(ValueError):
    """The engine serves something else than it was started for; asking again will not help."""


@dataclass(frozen=True)
class Verified:
    """What a verified engine said of itself."""

    version: str
    compat: str


async def healthy(client: EngineClient) -> None:
    answer = await client.get("/health", HEALTH_TIMEOUT_S)
    if answer.status != 200:
        raise NotYet(f"/health answers {answer.status}")


async def verify(client: EngineClient, spec: EngineSpec) -> Verified:
    """Has the engine list its model and generate one token with its key. Raises NeverRight for the wrong model."""
    models = _document(await client.get("/v1/models", HEALTH_TIMEOUT_S), "/v1/models")
    served = [each.get("id") for each in _list(models, "data") if isinstance(each, dict)]
    if spec.model not in served:
        raise NeverRight(f"it serves {', '.join(map(str, served)) or 'nothing'} instead of {spec.model}"[:300])
    wanted = {"model": spec.model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    answer = _document(await client.post("/v1/completions", wanted, GENERATION_TIMEOUT_S), "/v1/completions")
    usage = answer.get("usage")
    if not _list(answer, "choices") or not isinstance(usage, dict) or usage.get("completion_tokens") != 1:
        raise NotYet("/v1/completions generated no token")
    version = _document(await client.get("/version", HEALTH_TIMEOUT_S), "/version").get("version")
    page = await client.get("/metrics", SCRAPE_TIMEOUT_S)
    told = str(version)[:80]
    return Verified(told, compat(spec, told, page.body))


async def verify_member(client: EngineClient) -> Verified:
    """A rank beyond 0 answers no requests: rank 0 generates with it, and it is healthy once it has joined. What makes its
    KV exchangeable is told by rank 0."""
    version = _document(await client.get("/version", HEALTH_TIMEOUT_S), "/version").get("version")
    return Verified(str(version)[:80], "")


async def scrape(client: EngineClient) -> Page:
    """Raises ValueError (BadPage) for a page that makes no sense."""
    answer = await client.get("/metrics", SCRAPE_TIMEOUT_S)
    if answer.status != 200:
        raise NotYet(f"/metrics answers {answer.status}")
    return read_page(answer.body)


def _document(answer: Answer, path: str) -> dict[str, Any]:
    if answer.status != 200:
        raise NotYet(f"{path} answers {answer.status}")
    try:
        document = answer.json()
    except (ValueError, RecursionError) as error:
        raise NotYet(f"{path} does not answer JSON") from error
    if not isinstance(document, dict):
        raise NotYet(f"{path} does not answer an object")
    return document


def _list(document: dict[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    return value if isinstance(value, list) else []
