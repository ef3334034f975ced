"""Frees prefilled KV that nobody will fetch: the client left after the prefill and before a decode engine was asked.

A prefill engine keeps it for a whole lease, and only a decode engine that fetches it can tell that it is done. So one is
asked for a single token, in the background.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from controlplane.core import routing
from controlplane.router import bodies, identity, legs
from controlplane.router.bodies import Body
from controlplane.router.handoff import Handoff
from controlplane.router.legs import Answer
from controlplane.router.upstream import Fault

if TYPE_CHECKING:
    from controlplane.router.exchange import Exchange


def start(x: Exchange, handoff: Handoff) -> bool:
    """True if it was begun; then it ends the handoff. False: nothing to free, or too many at once."""
    router = x.router
    if handoff.kv_params is None or router.stopping or router.releasing >= router.limits.releases:
        return False
    router.releasing += 1
    # The body is taken now: a carried-on stream has its first one back by the time the task runs, and KV that is fetched for
    # another prompt is wrong KV in the decode engine's prefix cache.
    router.spawn(_release(x, handoff, x.body))
    return True


async def _release(x: Exchange, handoff: Handoff, body: Body) -> None:
    fetched = False
    try:
        # Within the time in which a decode leg may start; afterwards the lease will do it.
        async with asyncio.timeout(handoff.prefill_end + handoff.lease_s / 2 - time.monotonic()):
            fetched = await _fetch(x, handoff, body)
    except TimeoutError:
        pass
    finally:
        x.router.releasing -= 1
        handoff.end("pulled" if fetched else "client_gone")


async def _fetch(x: Exchange, handoff: Handoff, body: Body) -> bool:
    """Asks one decode engine after the other until one can be reached; True if it fetched the KV."""
    router, tried = x.router, set[str]()
    forwarded = identity.forwarded({}, identity.request_id({}, router.ids_in_use))
    while True:
        engine = routing.choose("decode", x.engines(), x.need, x.arm, tried, handoff.engine.route).engine
        if engine is None:
            return False
        tried.add(engine.route.id)
        handoff.decode_starts(engine.route.id)
        reserved, era = engine.load.reserve(0, 1), engine.era
        collector = legs.Collector(router.limits.answer_bytes)
        try:
            leg = bodies.one_token_bytes(body, handoff.kv_params, era.salt)
            request = engine.request(x.endpoint.encode(), leg, forwarded)
            outcome = await legs.run(engine.pool, request, collector, handoff.lease_s, router.limits)
        finally:
            if collector.sent and not (collector.answer is not None and handoff.in_time(time.monotonic())):
                router.watches.add(engine, era, handoff)
            reserved.release()
        if not isinstance(outcome, Fault) or outcome.sent:
            return isinstance(outcome, Answer) and outcome.status == 200
