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

from controlplane.core.eras import FIRST, Era
from controlplane.core.protocol import ITL_BOUNDS_MS
from controlplane.router import answers, framing, sse
from controlplane.router.client import ClientConnection
from controlplane.router.errors import ApiError, engine_fault
from controlplane.router.legs import Answer, WaitingSink
from controlplane.router.limits import Limits
from controlplane.router.seam import Seam
from controlplane.router.upstream import Fault

GAPS_KEPT = 256

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


class Relay(WaitingSink[Answer | Streamed | Late | Broken]):
    def __init__(
        self,
        client: ClientConnection,
        head_of: HeadOf,
        limits: Limits,
        *,
        strip_usage: bool,
        prompt_details: bytes | None,
        expects_done: bool,
        http10: bool,
        late_after: float = math.inf,
        era: Era = FIRST,
        keeps: bool = False,
        rest_of: Relay | None = None,
        seam: Seam | None = None,
        on_first: Callable[[], None] = lambda: None,
        on_event: Callable[[], None] = lambda: None,
    ) -> None:
        """`keeps`: what is sent is kept, so that another engine can go on. `rest_of`: the broken relay whose stream goes on
        here, behind `seam`."""
        super().__init__()
        self._client = client
        self._head_of = head_of
        self._limits = limits
        self._expects_done = expects_done  # a generation: [DONE] at the end of a stream, a JSON object as a whole
        self._chunked = not http10
        self._late_after = late_after
        self._era = era
        self._on_first = on_first
        self._on_event = on_event
        self._state = _WAITING
        self._status = 0
        self._headers: dict[bytes, bytes] = {}
        self._events = False
        self._sized = False
        self._parts: list[bytes] = []
        self._size = 0
        self._over_early: Fault | Streamed | None = None
        self._seam = seam
        self._last_at = 0.0
        self._kept_bytes = 0
        self.kept: list[bytes] | None = [] if keeps else None
        """What the client was sent, framing aside; None: not kept, or too much."""
        tells_usage = sse.USAGE_OF_GENERATIONS if expects_done else sse.USAGE_OF_OTHERS
        self.watch = sse.EventWatch(strip_usage, limits.event_bytes, prompt_details, tells_usage)
        self.first_at: float | None = None
        """Monotonic."""
        self.gaps_ms: list[float] = []
        """Between the first chunks, in order."""
        self.gaps_beyond: list[int] = []
        """Those that came later, counted as RequestRow.itl_counts; empty: none."""
        self.events = 0
        """Sent to the client: its output tokens, roughly."""
        self._before = 0.0
        if rest_of is not None:
            self.kept, self._kept_bytes = rest_of.kept, rest_of._kept_bytes
            self.gaps_ms, self.gaps_beyond, self.events = rest_of.gaps_ms, rest_of.gaps_beyond, rest_of.events
            self._before = max(rest_of._before, rest_of._last_at)

    @property
    def torn(self) -> bool:
        """The engine answered, but not with the rest of the stream."""
        return self._seam is not None and self._seam.torn

    # --- from the engine connection ---

    def head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status, self._headers = status, headers
        content_type = headers.get(b"content-type", b"")
        self._events = status == 200 and content_type.startswith(b"text/event-stream")

    def body(self, payload: bytes, as_it_came: bytes | None) -> None:
        if not self._events:
            self._whole(payload)
            return
        out = self.watch.feed(payload)
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
        self._fail(fault)

    # --- from the exchange ---

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
        body = b"".join(self._parts)
        self._state = _OVER
        if self._status >= 500 or self._status < 200 or 300 <= self._status < 400 or self._status in (401, 403):
            # 401 and 403 speak of the router's key, not of the client's.
            self.settle(Fault("status", status=self._status))
        elif self._status == 200 and self._expects_done and not answers.is_sound(body):
            self.settle(Fault("stream"))
        else:
            self.settle(Answer(self._status, self._headers, body))

    def _pass(self, out: bytes, as_it_came: bytes | None) -> None:
        now = time.monotonic()
        self._on_event()
        if self._state is _OPEN:
            if len(self.gaps_ms) < GAPS_KEPT:
                self.gaps_ms.append((now - self._last_at) * 1000.0)
            else:
                self._gap_beyond((now - self._last_at) * 1000.0)
            self._last_at = now
            self.events += out.count(sse.END)
            if self.kept is not None:
                self._keep(out)
            self._client.write(as_it_came if as_it_came is not None and self._chunked else self._frame(out))
        elif self._state is _HELD:
            self._parts.append(out)
        elif self._state is _WAITING:
            self.first_at = self._last_at = now
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
        if self.kept is not None:
            self._keep(out)
        if self._seam is None:
            length = int(self._headers[b"content-length"]) if self._sized else None
            head = self._head_of(self._headers.get(b"content-type", b"application/octet-stream"), length)
        else:
            head = b""  # the client has it
            if len(self.gaps_ms) < GAPS_KEPT:
                self.gaps_ms.append((self._last_at - self._before) * 1000.0)
        if self.connection is not None:
            self.connection.patience_s = self._limits.stream_idle_s
            self.connection.touched = time.monotonic()
            self.connection.streaming = True
        self._client.follow(self.connection)
        self._client.write(head + self._frame(out))

    def _gap_beyond(self, gap_ms: float) -> None:
        if not self.gaps_beyond:
            self.gaps_beyond += [0] * (len(ITL_BOUNDS_MS) + 1)
        self.gaps_beyond[bisect_left(ITL_BOUNDS_MS, gap_ms)] += 1

    def _keep(self, out: bytes) -> None:
        assert self.kept is not None
        self.kept.append(out)
        self._kept_bytes += len(out)
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
