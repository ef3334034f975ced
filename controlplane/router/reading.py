"""Reads HTTP/1.1 requests out of a client's bytes, within limits. No I/O, no clock; knows nothing of engines or models."""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

import httptools

from controlplane.core.routing import Reason
from controlplane.router.errors import ApiError, bad_request
from controlplane.router.heads import Heads
from controlplane.router.limits import Limits
from controlplane.router.paths import ENDPOINTS

_KEPT_HEADERS = frozenset({
    b"authorization", b"x-api-key", b"content-encoding", b"content-length", b"expect", b"transfer-encoding",
    b"x-request-id", b"traceparent", b"tracestate", b"x-session-id", b"host",
})  # fmt: skip
"""What the router uses. All else a client sends is dropped: no steering or hop-by-hop header can reach an engine."""

_ONCE = frozenset({b"host", b"authorization", b"x-api-key", b"content-encoding", b"transfer-encoding"})
"""Two of them are two opinions: a proxy before us may have judged by the other one."""


class ClientRequest:
    __slots__ = ("_body", "admitted", "headers", "http10", "keep_alive", "method", "target")

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: dict[bytes, bytes],
        keep_alive: bool,
        http10: bool,
        admitted: bool = False,
        body: bytes = b"",
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.keep_alive = keep_alive
        self.http10 = http10
        self.admitted = admitted
        """A large body was begun and whoever sends it may do so."""
        self._body: bytes | bytearray = body

    @property
    def size(self) -> int:
        return len(self._body)

    def add(self, data: bytes) -> None:
        if not self._body:
            self._body = data  # nearly always all of it
            return
        if isinstance(self._body, bytes):
            self._body = bytearray(self._body)
        self._body += data

    def take_body(self) -> bytes:
        """The body, which is given away."""
        body, self._body = self._body, b""
        return body if isinstance(body, bytes) else bytes(body)


class Stage(Enum):
    IDLE = 0
    HEAD = 1
    BODY = 2


class Reader(Protocol):
    """Who gets what was read."""

    def head_begins(self) -> None: ...
    def expects_continue(self) -> None:
        """The client waits to be asked for its body."""
        ...

    def admit(self, request: ClientRequest) -> None:
        """A large body is being sent. Raises ApiError if it is not worth reading."""
        ...

    def complete(self, request: ClientRequest) -> bool:
        """False: nothing after this request is looked at."""
        ...

    def refused(self, error: ApiError) -> None:
        """What came is no acceptable request; nothing after it is looked at."""
        ...


class _StopParsing(Exception):
    """Raised inside a parser callback: nothing after this point of the stream is looked at."""


_STARTS = {
    b"%b %b HTTP/1.1" % (method.encode(), path.encode()): (method, path.encode())
    for path, (method, _) in ENDPOINTS.items()
    if method == "POST"
}
_HEADS = Heads(_KEPT_HEADERS, frozenset({b"transfer-encoding"}))


class RequestParser:
    """`feed` it what comes; it must not be fed again after it has refused or was told to stop.

    A request that comes in one read and is plain, as nearly all are, is read without a parser."""

    def __init__(self, reader: Reader, limits: Limits) -> None:
        self._reader = reader
        self._limits = limits
        self._parser: Any = httptools.HttpRequestParser(self)
        self.stage = Stage.IDLE
        self._head_size = 0
        self._body_overhead = 0
        """Bytes since the last of a body: chunk sizes, extensions, trailers."""
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._header_count = 0
        self._request: ClientRequest | None = None
        self._upgrade = False

    def forget(self) -> None:
        """Ends the circle of references, so that memory need not wait for the garbage collector."""
        self._parser = None

    def feed(self, data: bytes) -> None:
        if self.stage is Stage.IDLE:
            request = self._plain(data)
            if request is not None:
                self._reader.complete(request)
                return
            self._begin()
        if self.stage is Stage.HEAD:
            self._head_size += len(data)
        else:
            self._body_overhead += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, ApiError):
                self._refuse(error.__context__)
            elif not isinstance(error.__context__, _StopParsing):
                self._refuse(bad_request("This is not a valid HTTP/1.1 request.", code="invalid_http"))
            return
        except ApiError as error:
            self._refuse(error)
            return
        stage = self.stage
        if stage is not Stage.IDLE and self._size_of(stage) > self._limits.head_bytes:
            self._refuse(_head_too_large())

    def _plain(self, data: bytes) -> ClientRequest | None:
        """The request, if `data` is one and nothing else, and there is nothing about it that must be looked at closely."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        lines = data[:end].split(b"\r\n")
        start = _STARTS.get(lines[0])
        if start is None:
            return None
        del lines[0]
        limits = self._limits
        if len(lines) > limits.headers or end + 64 * len(lines) > limits.head_bytes:
            return None
        headers = _HEADS.read(lines)
        if headers is None or b"host" not in headers:
            return None
        size = int(headers.get(b"content-length", b"0"))
        if len(data) != end + 4 + size or size > limits.body_bytes or size > limits.unadmitted_bytes:
            return None
        return ClientRequest(start[0], start[1], headers, True, False, True, data[end + 4 :])

    def _size_of(self, stage: Stage) -> int:
        """Bytes so far that are no body."""
        return self._head_size if stage is Stage.HEAD else self._body_overhead

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade() + data[upgrade.args[0] :]
                self._upgrade = False
                self._parser = httptools.HttpRequestParser(self)

    def _without_upgrade(self) -> bytes:
        """The head without its upgrade, which llhttp stops at: RFC 9110 section 7.8 allows to go on in HTTP/1.1."""
        method = self._parser.get_method()
        if method == b"CONNECT":
            raise bad_request("CONNECT is not supported.", code="invalid_http")
        lines = [b"%b: %b\r\n" % pair for pair in self._headers.items()]
        if not self._parser.should_keep_alive():
            lines.append(b"connection: close\r\n")
        version = self._parser.get_http_version().encode()
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._target, version, b"".join(lines))

    def _begin(self) -> None:
        self.stage = Stage.HEAD
        self._head_size = 0
        self._reader.head_begins()

    def _refuse(self, error: ApiError) -> None:
        self._request = None
        self._reader.refused(error)

    # --- httptools ---

    def on_message_begin(self) -> None:
        self._begin()
        self._target = b""
        self._headers = {}
        self._header_count = 0

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > self._limits.head_bytes:
            raise _head_too_large()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stage is not Stage.HEAD:
            return  # a trailer
        self._header_count += 1
        # 64: about what an entry costs us beyond its bytes.
        self._head_size += 64
        if self._header_count > self._limits.headers or len(name) + len(value) > self._limits.head_bytes:
            raise _head_too_large()
        name = name.lower()
        if name in _KEPT_HEADERS:
            if name in _ONCE and name in self._headers:
                raise bad_request(f"There is more than one {name.decode()} header.", code="invalid_http")
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():
            self._upgrade = True
            return
        self.stage = Stage.BODY
        self._body_overhead = 0
        version = self._parser.get_http_version()
        http10 = version == "1.0"
        if not http10 and (version != "1.1" or b"host" not in self._headers):  # RFC 9112 section 3.2
            raise bad_request("This is not a valid HTTP/1.1 request.", code="invalid_http")
        if self._headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            raise bad_request("Of transfer codings only `chunked` is supported.", code="invalid_http")
        keep_alive = self._parser.should_keep_alive() and not http10
        method = self._parser.get_method().decode("ascii")
        self._request = ClientRequest(method, self._target, self._headers, keep_alive, http10)
        if int(self._headers.get(b"content-length", b"0")) > self._limits.body_bytes:
            raise self._body_too_large()
        if self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._reader.expects_continue()

    def on_body(self, data: bytes) -> None:
        request = self._request
        assert request is not None
        self._body_overhead = 0
        request.add(data)
        if request.size > self._limits.body_bytes:
            raise self._body_too_large()
        if request.size > self._limits.unadmitted_bytes and not request.admitted:
            self._reader.admit(request)
            request.admitted = True

    def on_message_complete(self) -> None:
        if self._upgrade:
            return
        request, self._request = self._request, None
        assert request is not None
        self.stage = Stage.IDLE
        if not self._reader.complete(request):
            raise _StopParsing

    def _body_too_large(self) -> ApiError:
        message = f"The request's body is over the limit of {self._limits.body_bytes} bytes."
        return ApiError(413, message, Reason.TOO_LARGE, code="body_too_large")


def _head_too_large() -> ApiError:
    return ApiError(431, "The request's headers are too large.", Reason.TOO_LARGE, code="headers_too_large")
