"""Streams whose engine died go on elsewhere, where that is right (seam.can_resume): another engine is given the prompt and
what the client has, and its answer is made the rest of the same stream. Else the client gets an error event."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import orjson

from controlplane.core import routing
from controlplane.router import errors, legs, seam, usage
from controlplane.router.engines import Engine
from controlplane.router.relay import Relay
from controlplane.router.seam import Seam, Sent
from controlplane.router.upstream import Fault

if TYPE_CHECKING:
    from controlplane.router.exchange import Exchange

RESUMES = 2
"""Of one stream. What breaks engines must not be shown to all of them."""
TOKENIZE_S = 5.0


class StreamBroken(Exception):
    """The engine of a stream failed when the client had a part of it; `Exchange.relay` holds that part."""

    def __init__(self, engine: Engine, relay: Relay) -> None:
        super().__init__(engine.route.id)
        self.engine = engine
        self.relay = relay


async def go_on(x: Exchange, broken: StreamBroken, serve: Callable[[], Awaitable[None]]) -> None:
    """Serves the rest. `serve` carries the request out by its newest body. Raises ApiError: the stream must be cut."""
    original, prompt_tokens, before = x.body, x.need.prompt_tokens, _Story(x)
    counted = prompt_tokens if x.prefill_end is not None else None
    while True:
        x.given_up |= {broken.engine.route.id}
        allowed = x.resumes < RESUMES and x.router.retries.spend()
        sent = seam.read(broken.relay.kept or ()) if allowed else None
        if sent is None:
            raise errors.engine_fault()
        text = sent.text.rstrip()
        tokens, ids = await _count(x, sent, text)
        x.seam = Seam(sent, tokens, counted, sent.text[len(text) :])
        left = [limit - tokens for limit in seam.limits(original.data, x.endpoint).values()]
        if sent.finished or min(left, default=1) <= 0:
            if original.asked_usage and counted is None and sent.usage is None:
                raise errors.engine_fault()
            broken.relay.complete(x.seam.ending(original.asked_usage))
            x.usage = usage.Usage(counted, tokens) if sent.usage is None else usage.of_document(sent.usage)
            return
        body = seam.continued(original, x.endpoint, text, tokens, ids)
        if body is None:
            raise errors.engine_fault()
        x.body, x.need.prompt_tokens = body, prompt_tokens + tokens
        x.resumes += 1
        x.router.counters.resumed += 1
        try:
            await serve()
            return
        except StreamBroken as again:
            broken = again
        finally:
            x.body, x.need.prompt_tokens = original, prompt_tokens
            before.restore(x)


class _Story:
    """How the request came to its first byte, which stays what the record tells."""

    _NAMES = ("path", "reason", "prefill_ms", "prefill_end", "kv_bytes", "cached_tokens")

    def __init__(self, x: Exchange) -> None:
        self._values = {name: getattr(x, name) for name in self._NAMES}

    def restore(self, x: Exchange) -> None:
        for name, value in self._values.items():
            setattr(x, name, value)


async def _count(x: Exchange, sent: Sent, text: str) -> tuple[int, list[int] | None]:
    """How many tokens `text` is, and which: an engine is asked; if it does not tell, each event counts as a token."""
    engine = routing.choose("whole", x.engines(), x.need, x.arm, x.given_up).engine
    events = sent.events if text == sent.text else 0
    if engine is None or not text:
        return events, [] if not text else None
    document = {"model": x.body.model, "prompt": text, "add_special_tokens": False}
    request = engine.request(b"/tokenize", orjson.dumps(document), x.forwarded)
    limits = x.router.limits
    outcome = await legs.run(engine.pool, request, legs.Collector(limits.prefill_answer_bytes), TOKENIZE_S, limits)
    ids = None if isinstance(outcome, Fault) or outcome.status != 200 else _ids(outcome.body)
    if ids is None:
        return sent.events, None
    # Several tokens may have come in one event, and read again a text may be fewer tokens than it was made of.
    return (len(ids) if x.body.data.get("stop") else max(events, len(ids))), ids


def _ids(body: bytes) -> list[int] | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    ids = document.get("tokens") if isinstance(document, dict) else None
    return ids if isinstance(ids, list) and all(type(token) is int for token in ids) else None
