"""KV that may have been given away is never believed: the lease, its half, and the engine's own counter of expiries."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration import router_engine as act
from tests.integration.router_engine import FakeEngine, Leg, words
from tests.integration.router_kit import (
    QUICK,
    TEXT,
    ask_until,
    pair,
    parse_events,
    route_of,
    split_model,
    text_of,
    until,
    with_engines,
)

EXPECTED = "".join(words("hello there", 4))
LEASE_S = 2.0


def wrong(engine: FakeEngine, after_s: float) -> act.Act:
    """Late, and with the text of somebody else's KV."""

    async def answer(decode: FakeEngine, leg: Leg) -> None:
        leg.body["prompt"] = "somebody else's"
        await act.behave(decode, leg)

    return act.later(after_s, answer)


@contextmanager
def never_accepting() -> Iterator[str]:
    """The address of a listener that connecting to takes until its time is over."""
    with socket.socket() as dead, socket.socket() as filler, socket.socket() as more:
        dead.bind(("127.0.0.1", 0))
        dead.listen(0)
        for each in (filler, more):
            each.setblocking(False)
            each.connect_ex(dead.getsockname())
        yield f"http://127.0.0.1:{dead.getsockname()[1]}"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_late_answer_is_dropped_when_a_lease_has_expired_meanwhile(tmp_path: Path, stream: bool) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=LEASE_S) as two:
        two.d1.acts = [wrong(two.p1, LEASE_S + 0.7)]

        expiring = asyncio.ensure_future(act.expire_once_read(two.p1))
        response = await two.kit.post({**TEXT, "stream": stream})
        await expiring
        assert (response.status_code, route_of(response)["reason"]) == (200, "kv_lost")
        if not stream:
            assert response.json()["choices"][0]["text"] == EXPECTED
        else:
            assert text_of(parse_events(response.content)) == EXPECTED
        assert len(two.p1.generations()) == 2
        assert two.kit.router.counters.kv_checks == {"dropped": 1}
        assert two.kit.router.ledger.totals == {"dropped": 1, "pulled": 1}
        await until(two.kit.idle, "idle")


async def test_a_late_answer_is_dropped_when_the_counter_cannot_be_read(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=LEASE_S) as two:
        two.p1.expired = None
        two.d1.acts = [wrong(two.p1, LEASE_S + 0.5)]
        response = await two.kit.post(TEXT)
        assert response.json()["choices"][0]["text"] == EXPECTED
        assert route_of(response)["reason"] == "kv_lost"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_late_answer_is_believed_when_no_lease_expired(tmp_path: Path, stream: bool) -> None:
    async with pair(tmp_path, prefills=1, decodes=1, kv_lease_s=LEASE_S) as two:
        two.d1.acts = [act.later(LEASE_S + 0.5)]
        if stream:
            events = await two.kit.events(TEXT)
            assert (text_of(events), events[-1]) == (EXPECTED, "[DONE]")
        else:
            assert (await two.kit.post(TEXT)).json()["choices"][0]["text"] == EXPECTED
        assert len(two.p1.generations()) == 1
        assert two.kit.router.counters.kv_checks == {"believed": 1}


async def test_no_decode_starts_after_half_the_lease(tmp_path: Path) -> None:
    limits = replace(QUICK, connect_s=3.5)
    async with pair(tmp_path, prefills=1, kv_lease_s=6.0, limits=limits) as two:
        with never_accepting() as url:
            route = split_model([two.p1], [two.d1, two.d2], kv_lease_s=6.0)
            await two.kit.apply(with_engines(route, lambda e: replace(e, url=url) if e.id == "d1" else e))
            answers = await ask_until(two.kit, two.kit.router.set_aside)
            answers += [await two.kit.post(TEXT) for _ in range(3)]
        reasons = [route_of(answer)["reason"] for answer in answers]
        assert reasons.count("kv_lost") == 1, "the one that met the dead engine must have prefilled again"
        assert len(two.p1.generations()) == len(answers) + 1


async def test_fast_requests_read_no_metrics(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, decodes=1) as two:
        for _ in range(5):
            await two.kit.post(TEXT)
        assert not [leg for leg in two.p1.legs if leg.path == "/metrics"]


async def test_kv_of_a_client_that_left_before_the_decode_leg_is_fetched_for_nobody(tmp_path: Path) -> None:
    async with pair(tmp_path, prefills=1, limits=replace(QUICK, connect_s=3.0)) as two:
        with never_accepting() as url:
            route = split_model([two.p1], [two.d1, two.d2])
            await two.kit.apply(with_engines(route, lambda e: replace(e, url=url) if e.id == "d1" else e))
            ledger = two.kit.router.ledger
            while True:  # until one goes to the engine that cannot be reached
                request = asyncio.ensure_future(two.kit.post({**TEXT, "stream": True}))
                await until(lambda request=request: request.done() or (len(ledger) and two.kit.flights("d1")), "sent on")
                if not request.done():
                    break
            before = len(two.d2.generations())
            request.cancel()
            await until(lambda: len(two.d2.generations()) == before + 1, "fetched")
            await until(two.kit.idle, "idle")
        leg = two.d2.generations()[-1]
        assert (leg.body["max_tokens"], leg.body["stream"]) == (1, False)
        assert leg.body["kv_transfer_params"]["remote_engine_id"] == "p1"
        assert len({each.headers["x-request-id"] for each in two.d2.generations()}) == before + 1
        assert len(ledger) == 0
