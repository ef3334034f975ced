"""Asks a pair of engines to hand KV over, and writes on its row what was seen (core.handoff_probe judges it).

A probe runs in a thread of its own beside the worker's tasks: an engine that hangs keeps nothing from a tick. It may die at
any line: the row then stays `asked`, and the loop has it probed again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error as DatabaseError
from django.db import close_old_connections, connection, connections
from django.db.models import F, QuerySet
from django.utils import timezone

from controlplane.config import config
from controlplane.control import commands
from controlplane.control.handoff import DEADLINE_S, QUEUED_S, Asked, Endpoint, Outcome, Turn, ask_pair
from controlplane.core.handoff_probe import make_prompt, word_count
from controlplane.core.signing import engine_key, node_key
from controlplane.fleet import models

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Probes that one worker has in flight. More are dropped: the loop asks again."""
IDLE_S = 30.0
TOGETHER_S = 0.05
TRIES = 2
"""With a fresh prompt each. The first handshake of two engines may fail where the second does not (docs/vllm-facts.md)."""
REASON_LENGTH = 500
TOLD_S = 3.0
"""What a probe waits for is written that often."""
_CLAIMS = 0x70616972
"""Class of PostgreSQL's advisory locks on probes in flight."""


class Prober:
    """The probes of one worker, each in a thread; a thread waits IDLE_S for another, because a new one must connect.

    The loop is woken when there is news and no probe is open any more, at the latest TOGETHER_S later: a move has two, and a
    tick between them would only hold up the one that counts."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._asked: deque[int] = deque()
        self._waiting = 0
        self._news = False
        lock = threading.Lock()
        self._more = threading.Condition(lock)
        self._fewer = threading.Condition(lock)

    @property
    def open(self) -> int:
        return len(self._open)

    def start(self, pair: int) -> bool:
        """Probe the pair with this row id, beside the caller. False: it is being probed, or too many are."""
        with self._more:
            if pair in self._open or len(self._open) >= AT_ONCE:
                return False
            self._open.add(pair)
            self._asked.append(pair)
            begin = self._waiting < len(self._asked)
            self._more.notify()
        if begin:
            # A daemon: a worker that stops waits for no engine.
            threading.Thread(target=self._run, name="probe", daemon=True).start()
        return True

    def _run(self) -> None:
        while (pair := self._next()) is not None:
            news = False
            try:
                close_old_connections()
                news = probe_pair(pair)
            except DatabaseError as error:
                log.warning("pair %d was not probed: PostgreSQL cannot be used: %s", pair, type(error).__name__)
            finally:
                self._ended(pair, news)
        connections.close_all()

    def _ended(self, pair: int, news: bool) -> None:
        with self._fewer:
            self._open.discard(pair)
            self._news |= news
            self._fewer.notify_all()
            if news:
                self._fewer.wait_for(lambda: not (self._open and self._news), TOGETHER_S)
            elif self._open:
                return  # whoever brought news sees to it
            wake, self._news = self._news, False
        if wake:
            commands.wake()

    def _next(self) -> int | None:
        """None: there was nothing to do for long."""
        with self._more:
            self._waiting += 1
            found = self._more.wait_for(lambda: self._asked, IDLE_S)
            self._waiting -= 1
            return self._asked.popleft() if found else None


def probe_pair(pair_id: int) -> bool:
    """Probe one pair now, if its row still asks for it and both engines are of the incarnations it names. Whether something
    was written. Blocks for up to handoff.DEADLINE_S, and QUEUED_S behind others. Raises database errors."""
    pair = _asked(pair_id)
    if pair is None:
        return False
    with _claimed(pair) as mine:
        if not mine:
            return False
        outcome = asyncio.run(_ask(pair, _endpoint(pair.prefill), _endpoint(pair.decode)))
        written = _write(pair, outcome)
    if written:
        told = logging.INFO if outcome.verdict.verified else logging.WARNING
        log.log(told, "pair %s -> %s: %s", pair.prefill_id, pair.decode_id, outcome.verdict.reason)
    return written


def _asked(pair_id: int) -> models.Pair | None:
    return (
        models.Pair.objects.select_related("prefill__model", "decode")
        .filter(
            pk=pair_id,
            state="asked",
            prefill_incarnation=F("prefill__incarnation"),
            decode_incarnation=F("decode__incarnation"),
        )
        .exclude(prefill__url="")
        .exclude(decode__url="")
        .first()
    )


@contextmanager
def _claimed(pair: models.Pair) -> Iterator[bool]:
    """True inside the block if no other worker probes these two incarnations; a worker that dies lets go."""
    what = f"{pair.prefill_id}/{pair.prefill_incarnation}/{pair.decode_id}/{pair.decode_incarnation}"
    key = (_CLAIMS, zlib.crc32(what.encode()) - (1 << 31))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", key)
        mine = bool(cursor.fetchone()[0])
    try:
        yield mine
    finally:
        if mine:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", key)


def _endpoint(engine: models.Engine) -> Endpoint:
    node = engine.ranks.select_related("node").order_by("index").values_list("node__name", flat=True).first() or ""
    secret = config().fleet_keys().of_incarnation(engine.incarnation)
    key = engine_key(node_key(secret, node), engine.id, engine.incarnation)
    return Endpoint(engine.id, engine.url, key)


async def _ask(pair: models.Pair, prefill: Endpoint, decode: Endpoint) -> Outcome:
    """The outcome of the first question that verifies, or of the last, all within the deadline of one."""
    model = pair.prefill.model
    words = word_count(model.block_size, model.max_model_len)
    loop = asyncio.get_running_loop()
    told_at = loop.time() - TOLD_S

    async def tell(what: str) -> None:
        nonlocal told_at
        if loop.time() >= told_at + TOLD_S:
            told_at = loop.time()
            await asyncio.to_thread(_tell, pair, what)

    turn = Turn(loop.time() + DEADLINE_S, loop.time() + QUEUED_S, DEADLINE_S, tell)
    for left in reversed(range(TRIES)):
        prompt, salt = make_prompt(words, secrets.randbelow), secrets.token_hex(8)
        before_others = model.engine_args.get("scheduling_policy") == "priority"
        asked = Asked(model.name, prompt, salt, model.connector == "nixl", before_others)
        outcome = await ask_pair(prefill, decode, asked, turn)
        if outcome.verdict.verified or loop.time() >= turn.deadline or not left:
            break
    return outcome


def _tell(pair: models.Pair, what: str) -> None:
    """What the probe waits for, on its row. In a thread of its own, so with a connection of its own."""
    try:
        _row(pair).update(reason=what[:REASON_LENGTH], at=timezone.now())
    except DatabaseError as error:
        log.warning("what the probe of pair %d waits for was not written: %s", pair.pk, type(error).__name__)
    finally:
        connections.close_all()


def _row(pair: models.Pair) -> QuerySet[models.Pair]:
    """Empty if the row is not what is probed any more."""
    return models.Pair.objects.filter(
        pk=pair.pk,
        state="asked",
        prefill_incarnation=pair.prefill_incarnation,
        decode_incarnation=pair.decode_incarnation,
    )


def _write(pair: models.Pair, outcome: Outcome) -> bool:
    """Whether the row still was what was probed."""
    verdict = outcome.verdict
    changed = _row(pair).update(
        state="verified" if verdict.verified else "failed",
        kv_bytes=verdict.kv_bytes,
        handoff_ms=outcome.handoff_ms,
        reason=verdict.reason[:REASON_LENGTH],
        attempts=F("attempts") + 1,
        at=timezone.now(),
    )
    return bool(changed)
