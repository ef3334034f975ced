"""One keep-alive connection to an engine: writes a request, reads an answer, hands both to a sink. Decides nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import httptools

from controlplane.router import framing
from controlplane.router.heads import Heads

_GOOD = b"HTTP/1.1 200 OK"
_HEADS = Heads(frozenset({b"content-type", b"content-length", b"transfer-encoding", b"retry-after"}))

_HEAD_LIMIT = 64 * 1024
_INTERIM_LIMIT = 8
_SILENCE_S = 1.0

FaultKind = Literal["connect", "closed", "protocol", "timeout", "status", "stream", "too_large", "hung"]


@dataclass(frozen=True, slots=True)
class Fault:
    """An engine's failure of one leg. `sent`: it may have begun to work on the request."""

    kind: FaultKind
    sent: bool = True
    status: int = 0
    stale: bool = False
    """A reused connection was closed before a byte came: most likely the engine never saw the request."""

    @property
    def hard(self) -> bool:
        """Refused and broken connections say more than a bad answer."""
        return self.kind in ("connect", "closed", "protocol", "hung")


class Sink(Protocol):
    """Where an answer goes. `head`, then `body` for each read, then `end`; or `lost` at any point, and nothing after."""

    def head(self, status: int, headers: dict[bytes, bytes]) -> None: ...
    def body(self, payload: bytes, as_it_came: bytes | None) -> None:
        """`as_it_came`: the same payload in its chunk framing, if the read was nothing else."""
        ...

    def end(self) -> None: ...
    def lost(self, fault: Fault) -> None: ...


Flow = Callable[[bytes, float], bool]
"""A read that begins where a chunk may, and when it came (monotonic) -> whether it was taken; else it is read closely."""


class EngineConnection:
    """An `asyncio.Protocol` by its methods alone: compiled classes have no base classes that are not."""

    def __init__(self, on_idle: Callable[[EngineConnection], None], on_gone: Callable[[EngineConnection], None]) -> None:
        self._on_idle = on_idle
        self._on_gone = on_gone
        self._transport: asyncio.Transport | None = None
        self._sink: Sink | None = None
        self._framing: framing.Framing | None = None
        self._head = b""
        self._headers: dict[bytes, bytes] = {}
        self._keep_alive = True
        self._stale_s = 0.0
        self._interim = 0
        self.closed = False
        self.paused = False
        self.uses = 0
        self.touched = 0.0
        """Monotonic time of the start of the request, the last payload of a stream, or the return to the pool."""
        self.heard = 0.0
        """Monotonic time of the start of the request or the last read of any kind."""
        self.left_silent = False
        """Its leg was given up after a silence."""
        self.patience_s = 0.0
        """How long it may stay untouched while a request is open."""
        self.streaming = False
        """Payload counts as a touch. Until then the whole answer must come within the patience, however it dribbles in."""
        self.flow: Flow | None = None
        """Is asked first, once a stream runs, and takes nearly all of its reads."""

    # --- used by the pool and by legs ---

    @property
    def busy(self) -> bool:
        return self._sink is not None

    def fileno(self) -> int:
        """Of its socket; negative once it is closed."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None and not self.closed else None
        return sock.fileno() if sock is not None else -1

    def start(self, request: bytes, sink: Sink, patience_s: float, stale_s: float) -> None:
        """Sends a request. The connection must be idle."""
        assert self._transport is not None and self._sink is None
        if self.closed:
            sink.lost(Fault("closed", sent=False, stale=self.uses > 0))
            return
        self.uses += 1
        self._sink = sink
        self._framing = None
        self._head = b""
        self._interim = 0
        self.streaming = False
        self.flow = None
        self._stale_s = stale_s
        self.touched = self.heard = time.monotonic()
        self.patience_s = patience_s
        self._transport.write(request)

    def pause(self) -> None:
        if not self.paused and self._transport is not None and not self.closed:
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.paused and self._transport is not None and not self.closed:
            self.paused = False
            self.touched = time.monotonic()
            self._transport.resume_reading()

    def abort(self) -> None:
        """Ends the leg, if one is open, without telling its sink; the engine sees the connection close."""
        self.left_silent = self._sink is not None and time.monotonic() - self.heard > _SILENCE_S
        self._sink = self.flow = None
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def fail(self, fault: Fault) -> None:
        """Ends the leg and tells its sink."""
        sink = self._sink
        self.abort()
        if sink is not None:
            sink.lost(fault)

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        self.touched = time.monotonic()

    def data_received(self, data: bytes) -> None:
        if self._sink is None:
            self.abort()  # an engine has nothing to say unasked
            return
        self.heard = now = time.monotonic()
        if self.flow is not None and self._framing is not None and self._framing.between and self.flow(data, now):
            self.touched = now
            return
        try:
            if self._framing is not None:
                self._body(data)
            else:
                self._read_head(data)
        except (framing.BadFraming, httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(Fault("protocol"))

    def eof_received(self) -> None:
        """The transport closes itself then."""

    def pause_writing(self) -> None:
        """A request is written whole, however slowly an engine takes it."""

    def resume_writing(self) -> None:
        pass

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._on_gone(self)
        sink = self._sink
        self._sink = self.flow = None
        if sink is None:
            return
        fresh_silence = self.uses > 1 and not self._head and self._framing is None
        sink.lost(Fault("closed", stale=fresh_silence and time.monotonic() - self.touched < self._stale_s))

    # --- reading an answer ---

    def _read_head(self, data: bytes) -> None:
        if not self._head and self._read_good(data):
            return
        self._head += data
        while True:
            end = self._head.find(b"\r\n\r\n") + 4
            if end < 4:
                if len(self._head) > _HEAD_LIMIT:
                    raise framing.BadFraming("an endless head")
                return
            self._headers = {}
            parser = httptools.HttpResponseParser(self)
            parser.feed_data(self._head[:end])
            status = parser.get_status_code()
            rest = self._head[end:]
            if status >= 200:
                break
            self._interim += 1
            if self._interim > _INTERIM_LIMIT:
                raise framing.BadFraming("endless interim answers")
            self._head = rest  # 1xx: the real head is still to come
        self._keep_alive = parser.should_keep_alive()
        self._begin(status, self._headers, rest)

    def _read_good(self, data: bytes) -> bool:
        """Reads a head without a parser, as nearly all can be: status 200 and nothing about it that needs a closer look."""
        end = data.find(b"\r\n\r\n")
        if end < 0 or not data.startswith(_GOOD):
            return False
        lines = data[:end].split(b"\r\n")
        if lines[0] != _GOOD:
            return False
        headers = _HEADS.read(lines[1:])
        if headers is None or (b"transfer-encoding" in headers and b"content-length" in headers):
            return False
        self._keep_alive = True
        self._begin(200, headers, data[end + 4 :])
        return True

    def _begin(self, status: int, headers: dict[bytes, bytes], rest: bytes) -> None:
        self._framing = framing.of_head(headers, status)
        assert self._sink is not None
        self._sink.head(status, headers)
        if self._sink is not None and (rest or self._framing.ended):
            self._body(rest)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        before = self._headers.get(name) if name == b"transfer-encoding" else None
        self._headers[name] = value if before is None else before + b", " + value

    def _body(self, data: bytes) -> None:
        reader, sink = self._framing, self._sink
        assert reader is not None and sink is not None
        payload = reader.feed(data) if data else b""
        if payload:
            if self.streaming:
                self.touched = self.heard
            sink.body(payload, data if reader.as_it_came else None)
        if reader.ended and self._sink is sink:
            self._finish(sink)

    def _finish(self, sink: Sink) -> None:
        self._sink = self.flow = None
        if self._keep_alive and not self.closed:
            self.resume()
            self._on_idle(self)
        else:
            self.abort()
        sink.end()
