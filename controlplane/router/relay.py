"""Carries one engine's answer to the client, straight from the read to the write. It decides nothing but what must be
decided per read: is this the first byte, is it late, is it the end or a failure.

Nothing reaches the client before the first event of a stream, or the end of a whole answer: until then another engine can
take over and nobody notices.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Protocol

from controlplane.core.eras import FIRST, Era
from controlplane.core.protocol import ITL_BOUNDS_MS
from controlplane.router import answers, framing, sse
from controlplane.router.client import ClientConnection
from controlplane.router.errors import ApiError, engine_fault
from controlplane.router.gathering import Gathering
from controlplane.router.legs import Answer, WaitingSink
from controlplane.router.limits import Limits
from controlplane.router.seam import Seam
from controlplane.router.upstream import Fault

GAPS_KEPT = 256
_TIMES_KEPT = 512
_END_OF_EVENTS = b"}\n\n\r\n"
"""Of a read of whole events in whole chunks that is not the end of a stream."""

HeadOf = Callable[[bytes, int | None], bytes]
"""Content type and length (None: unknown) -> the head of the client's answer with status 200."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """The answer went to the client. `cut`: it ended with an error."""

    cut: bool = False


@dataclass(frozen=True, slots=True)
class Late:
    """The first bytes came after the lease, or out of a prefix cache that is not to be trusted, and are held: `release` them
    or `abort` the leg."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A stream broke off when the client had a part of it. Another engine may go on, or it is `cut`."""

    fault: Fault


class _State(Enum):
    WAITING = 0
    HELD = 1
    OPEN = 2
    BROKEN = 3
    OVER = 4


_WAITING, _HELD, _OPEN, _BROKEN, _OVER = _State  # looked up for every token: cheaper than the enum's attributes


_NOTHING_TO_WATCH = sse.EventWatch(False, 0)


class Source(Protocol):
    """The engine."""

    produced: int
    """Events that came from it, ever."""


class Relay(WaitingSink[Answer | Streamed | Late | Broken]):
    _counted = False
    """Among the open streams."""
    _state = _WAITING
    _status = 0
    _events = False
    _sized = False
    _size = 0
    _over_early: Fault | Streamed | None = None
    _seam: Seam | None = None
    _kept_bytes = 0
    first_at: float | None = None
    """Monotonic."""
    events = 0
    """Sent to the client: its output tokens, roughly."""

    def __init__(
        self,
        client: ClientConnection,
        head_of: HeadOf,
        limits: Limits,
        source: Source,
        gathering: Gathering,
        *,
        strip_usage: bool,
        prompt_details: bytes | None,
        expects_done: bool,
        http10: bool,
        late_after: float = math.inf,
        era: Era = FIRST,
        keeps: bool = False,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        """`keeps`: what is sent is kept, so that another engine can go on."""
        super().__init__()
        self._client = client
        self._head_of = head_of
        self._limits = limits
        self._source = source
        self._gathering = gathering
        self._strip_usage = strip_usage
        self._prompt_details = prompt_details
        self._expects_done = expects_done  # a generation: [DONE] at the end of a stream, a JSON object as a whole
        self._chunked = not http10
        self._late_after = late_after
        self._era = era
        self._on_first = on_first
        self._headers: dict[bytes, bytes] = {}
        self._parts: list[bytes] = []
        self.kept: list[bytes] | None = [] if keeps else None
        """What the client was sent, in chunks; None: not kept, or too much."""
        self.gaps_ms: list[float] = []
        """Between the first chunks, in order."""
        self.gaps_beyond: list[int] = []
        """Those that came later, counted as RequestRow.itl_counts; empty: none."""
        self._times: list[float] = []
        """When what was sent lately had come, and the last before: gaps that are not counted yet."""
        self.watch: sse.EventWatch = _NOTHING_TO_WATCH
        """Of a stream."""

    def carry_on(self, broken: Relay, seam: Seam) -> None:
        """What comes is the rest of a stream that broke off, behind `seam`."""
        self._seam = seam
        self.kept, self._kept_bytes = broken.kept, broken._kept_bytes
        self.gaps_ms, self.gaps_beyond, self.events = broken.gaps_ms, broken.gaps_beyond, broken.events
        self._times = broken._times

    @property
    def torn(self) -> bool:
        """The engine answered, but not with the rest of the stream."""
        return self._seam is not None and self._seam.torn

    # --- from the engine connection ---

    def flow(self, data: bytes, now: float) -> bool:
        """Takes a read of an open stream that is whole chunks of whole events of which none tells us anything: nearly all
        are, and need nothing but to be sent on."""
        if not data.endswith(_END_OF_EVENTS):
            return False
        line, size = data.find(b"\r\n", 0, 10), len(data)
        payload = data if data[:line] == b"%x" % (size - line - 4) else framing.whole_chunks(data)
        if not payload or not self.watch.lets_by(payload):
            return False
        events = 1 if payload.rfind(b"\n\nd") < 0 else payload.count(sse.END)
        times, kept = self._times, self.kept
        times.append(now)
        self.events += events
        self._source.produced += events
        if kept is not None:
            kept.append(data)
            self._kept_bytes += size
            if self._kept_bytes > self._limits.resume_bytes:
                self.kept = None
        self._client.write(data)
        if not self._gathering.begun:
            self._gathering.begin()
        if len(times) > _TIMES_KEPT:
            self.count_gaps()
        return True

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status, self._headers = status, headers
        content_type = headers.get(b"content-type", b"")
        self._events = status == 200 and content_type.startswith(b"text/event-stream")
        if self._events:
            tells_usage = sse.USAGE_OF_GENERATIONS if self._expects_done else sse.USAGE_OF_OTHERS
            self.watch = sse.EventWatch(self._strip_usage, self._limits.event_bytes, self._prompt_details, tells_usage)

    def body(self, payload: bytes, as_it_came: bytes | None) -> None:
        if not self._events:
            self._whole(payload)
            return
        out = self.watch.feed(payload)
        if self.watch.done and self.connection is not None:
            self.connection.flow = None  # nothing goes by any more
        if self._seam is not None and out and not self.watch.error:
            out = self._seam.rewrite(out)
            if self._seam.torn:
                self.abort()
                self.kept = None
                self._state = _BROKEN
                self.settle(Broken(Fault("stream")))
                return
        if self.watch.error:
            self._engine_gave_up()
        elif out:
            self._pass(out, as_it_came if out is payload else None)

    def end(self) -> None:
        if self._counted and self.connection is not None:
            self._gathering.heed(self.connection.fileno())
        self.connection = None
        self._client.follow(None)
        if self._events:
            if self._expects_done and not self.watch.done:
                self._fail(Fault("stream"))
                return
            rest = self.watch.finish()
            if rest:
                self._pass(rest, None)
            self._ended()
        elif self._state is _WAITING:
            self._settle_whole()
        else:
            self._ended()

    def lost(self, fault: Fault) -> None:
        self.connection = None
        self._client.follow(None)
        if self.watch.done and self._state is not _WAITING:
            self._ended()  # all of it had come
        else:
            self._fail(fault)

    # --- from the exchange ---

    def abort(self) -> None:
        if self._counted:
            self._counted = False
            self._gathering.streams -= 1
        super().abort()

    def count_gaps(self) -> None:
        """Brings `gaps_ms` and `gaps_beyond` up to date."""
        gaps_ms = [(after - before) * 1000.0 for before, after in pairwise(self._times)]
        del self._times[:-1]
        room = GAPS_KEPT - len(self.gaps_ms)
        self.gaps_ms += gaps_ms[:room]
        if len(gaps_ms) > room:
            self.gaps_beyond = self.gaps_beyond or [0] * (len(ITL_BOUNDS_MS) + 1)
            for gap_ms in gaps_ms[room:]:
                self.gaps_beyond[bisect_left(ITL_BOUNDS_MS, gap_ms)] += 1

    def release(self) -> Fault | None:
        """Believes a late answer and sends it on its way. A fault that happened meanwhile is returned instead."""
        if isinstance(self._over_early, Fault):
            return self._over_early
        self._open(b"".join(self._parts))
        self._parts.clear()
        if self.connection is not None:
            self.connection.resume()
        if self._over_early is not None:
            self._ended()
        return None

    def cut(self, error: ApiError) -> bool:
        """Ends a stream that has begun with an error event and a closed connection, never with [DONE]. False if nothing
        has been sent yet."""
        self.abort()
        if self._seam is None and self._state is not _OPEN and self._state is not _BROKEN:
            self._state = _OVER
            return False
        self._state = _OVER
        if not self._events and self._seam is None:
            self._client.abort()  # in the middle of a JSON document only a broken connection is honest
        else:
            if not self.watch.done:
                self._client.write(self._frame(sse.error_event(error.document())))
            if self._chunked:
                self._client.write(framing.LAST_CHUNK)
        return True

    def complete(self, rest: bytes) -> None:
        """Ends a broken stream well: only `rest` was missing."""
        self._state = _OVER
        self._client.write(self._frame(rest))
        if self._chunked:
            self._client.write(framing.LAST_CHUNK)

    # --- inside ---

    def _whole(self, payload: bytes) -> None:
        if self._state is not _WAITING:
            self._pass(payload, None)
            return
        self._parts.append(payload)
        self._size += len(payload)
        if self._size > self._limits.answer_bytes and self._status == 200:
            # Too large to keep: it becomes a stream of its own.
            kept, self._parts = b"".join(self._parts), []
            self._sized = b"content-length" in self._headers
            self._pass(kept, None)
        elif self._size > self._limits.answer_bytes:
            self.abort()
            self._fail(Fault("too_large"))

    def _settle_whole(self) -> None:
        self.first_at = time.monotonic()
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._state = _OVER
        if self._status >= 500 or (self._status < 400 and self._status != 200) or self._status in (401, 403):
            # 401 and 403 speak of the router's key, not of the client's; of other good ones engines know none.
            self.settle(Fault("status", status=self._status))
        elif self._status == 200 and self._expects_done:
            document = answers.sound(body)
            self.settle(Fault("stream") if document is None else Answer(self._status, self._headers, body, document))
        else:
            self.settle(Answer(self._status, self._headers, body))

    def _pass(self, out: bytes, as_it_came: bytes | None) -> None:
        now, events = time.monotonic(), out.count(sse.END)
        self._source.produced += events
        if self._state is _OPEN:
            self._times.append(now)
            if len(self._times) > _TIMES_KEPT:
                self.count_gaps()
            self.events += events
            if self.kept is not None:
                self._keep(as_it_came or framing.chunk(out))
            self._client.write(as_it_came if as_it_came is not None and self._chunked else self._frame(out))
            if self._counted and not self._gathering.begun:
                self._gathering.begin()
        elif self._state is _HELD:
            self._parts.append(out)
        elif self._state is _WAITING:
            self.first_at = now
            if now > self._late_after or not self._era.sound:
                self._state = _HELD
                self._parts = [out]
                if self.connection is not None:
                    self.connection.pause()
                self.settle(Late())
            else:
                self._open(out)

    def _open(self, out: bytes) -> None:
        self._state = _OPEN
        self.events += out.count(sse.END)
        self._on_first()
        if self.first_at is not None:
            self._times.append(self.first_at)
        if self.kept is not None:
            self._keep(framing.chunk(out))
        if self._seam is None:
            length = int(self._headers[b"content-length"]) if self._sized else None
            head = self._head_of(self._headers.get(b"content-type", b"application/octet-stream"), length)
        else:
            head = b""  # the client has it
        if self.connection is not None:
            self.connection.patience_s = self._limits.stream_idle_s
            self.connection.touched = time.monotonic()
            self.connection.streaming = True
            if self._events:
                self._counted = True
                self._gathering.streams += 1
                self._gathering.ignore(self.connection.fileno())
                if self._chunked and self._seam is None and not self.watch.done:
                    self.connection.flow = self.flow
        self._client.follow(self.connection)
        self._client.write(head + self._frame(out))

    def _keep(self, chunks: bytes) -> None:
        assert self.kept is not None
        self.kept.append(chunks)
        self._kept_bytes += len(chunks)
        if self._kept_bytes > self._limits.resume_bytes or not self._events:
            self.kept = None

    def _frame(self, out: bytes) -> bytes:
        return framing.chunk(out) if self._chunked and not self._sized else out

    def _ended(self) -> None:
        if self._state is _HELD:
            self._over_early = Streamed()
        elif self._state is _OPEN:
            self._state = _OVER
            if self._chunked and not self._sized:
                self._client.write(framing.LAST_CHUNK)
            self.settle(Streamed())
        elif self._state is _WAITING:
            self.settle(Fault("stream"))  # a stream without a single event

    def _engine_gave_up(self) -> None:
        """An error event, or `finish_reason: abort`: its text may name addresses, so ours takes its place."""
        self.abort()
        self._fail(Fault("stream"))

    def _fail(self, fault: Fault) -> None:
        if self._state is _OPEN and self.kept is not None:
            self._state = _BROKEN
            self.settle(Broken(fault))
        elif self._state is _OPEN:
            self.cut(engine_fault())
            self.settle(Streamed(cut=True))
        elif self._state is _HELD:
            self._over_early = fault
        elif self._state is _WAITING:
            self.settle(fault)  # still waiting: a stale connection is replaced, and the answer comes on the new one
