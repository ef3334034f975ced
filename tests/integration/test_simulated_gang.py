"""How the ranks of one engine find each other, over real sockets: only with the engine's key, and for life or death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from workers.engines.simulated.activity import Busy
from workers.engines.simulated.gang import Leader, Member
from workers.engines.simulated.wire import Side

KEY, OTHER = b"k" * 32, b"o" * 32
BUSY = Busy(0.25, 0.5, 0.75)


class Stage:
    """Rank 0 of an engine of two on a port of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.lost: list[str] = []
        self.sides: list[Side] = []
        self.leader = Leader(2, KEY, loop, lambda: BUSY, self.lost.append)

    async def open(self) -> tuple[str, int]:
        server = await asyncio.get_running_loop().create_server(self._side, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        return host, port

    def _side(self) -> Side:
        self.sides.append(Side(self.leader.message, self.leader.closed))
        return self.sides[-1]


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not check():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.01)


def test_a_rank_joins_hears_how_busy_it_is_and_ends_with_rank_0() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        stage = Stage(loop)
        member = Member(1, KEY, await stage.open(), loop)
        assert stage.leader.missing() == "waiting for rank 1 of this engine to join"
        life = loop.create_task(member.run())
        await until(lambda: member.together and member.busy == BUSY)
        assert stage.leader.missing() == ""
        second = Member(1, KEY, (await stage.open()), loop)
        twin = loop.create_task(second.run())
        await until(lambda: len(stage.sides) > 2)
        assert not second.joined, "a seat was given twice"
        twin.cancel()
        stage.sides[0].close()
        assert await life == "rank 0 is gone, and an engine ends with any of its ranks"
        await until(lambda: stage.lost == ["rank 1 is gone, and an engine ends with any of its ranks"])

    asyncio.run(scene())


def test_in_good_order_both_end_without_a_word() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        stage = Stage(loop)
        member = Member(1, KEY, await stage.open(), loop)
        life = loop.create_task(member.run())
        await until(lambda: member.together)
        stage.leader.end()
        assert await life == ""
        stage.sides[0].close()
        await until(lambda: stage.leader.missing())
        assert stage.lost == []

    asyncio.run(scene())


def test_nobody_joins_or_leads_without_the_key() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        stage = Stage(loop)
        address = await stage.open()
        assert await Member(1, OTHER, address, loop).run() == "what answers as rank 0 has not the key of this engine"

        for rank, proofs in ((1, ["0" * 64]), (1, []), (2, []), (0, [])):
            closed = asyncio.Event()
            _, side = await loop.create_connection(lambda: Side(lambda *_: None, lambda _: closed.set()), *address)  # noqa: B023
            side.send("join", rank=rank, nonce="n")
            for proof in proofs:
                side.send("proof", proof=proof)
            side.send("proof", proof="ff")
            await asyncio.wait_for(closed.wait(), 60)
        assert stage.leader.missing()
        assert stage.lost == []

    asyncio.run(scene())
