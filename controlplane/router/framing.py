"""The body of an engine's answer, out of its HTTP/1.1 framing (RFC 9112 section 6). No I/O.

The head is parsed by httptools; a stream of small chunks is watched here, because one call per read is far cheaper than
one call per chunk. `feed` also tells when a read was nothing but whole chunks, which may then be passed on as they came.
"""

from __future__ import annotations

_MAX_SIZE_LINE = 256
_PLAIN_SIZE = 10
_MAX_TRAILERS = 8192
_HEX = b"0123456789abcdefABCDEF"

LAST_CHUNK = b"0\r\n\r\n"
_LAST = b"\r\n" + LAST_CHUNK


class BadFraming(ValueError):
    """An engine broke the rules of HTTP. The connection cannot be used any more."""


class Framing:
    def __init__(self) -> None:
        self.ended = False
        self.between = False
        """What comes next begins a chunk."""
        self.as_it_came = False
        """The last `data` was whole chunks and nothing else."""

    def feed(self, data: bytes) -> bytes:
        """The payload in `data`. Raises BadFraming."""
        raise NotImplementedError


class Sized(Framing):
    """content-length."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.left = length
        self.ended = length == 0

    def feed(self, data: bytes) -> bytes:
        if len(data) > self.left:
            raise BadFraming("more bytes than content-length")
        self.left -= len(data)
        self.ended = self.left == 0
        return data


class Chunked(Framing):
    """transfer-encoding: chunked."""

    def __init__(self) -> None:
        super().__init__()
        self.between = True
        self._rest = b""  # an incomplete size line or trailer
        self._need = 0  # bytes of the open chunk still to come, its CRLF included
        self._trailers = False
        self._trailer_size = 0

    def feed(self, data: bytes) -> bytes:
        if self.between:
            payload = whole_chunks(data)
            if payload:
                self.as_it_came = True
                return payload
            if data.endswith(_LAST):
                payload = whole_chunks(data[: -len(LAST_CHUNK)])
                if payload:
                    self.as_it_came, self.between, self.ended = False, False, True
                    return payload
        payload = self._slow(data)
        self.between = not (self._need or self._rest or self._trailers)
        return payload

    def _slow(self, data: bytes) -> bytes:
        self.as_it_came = False
        if self._rest:
            data = self._rest + data
            self._rest = b""
        parts: list[bytes] = []
        at = 0
        while at < len(data) and not self.ended:
            if self._need:
                at = self._take(data, at, parts)
                continue
            line = data.find(b"\r\n", at, at + _MAX_SIZE_LINE)
            if line < 0:
                if len(data) - at >= _MAX_SIZE_LINE:
                    raise BadFraming("a chunk size line without an end")
                self._rest = data[at:]
                break
            self._line(data[at:line])
            at = line + 2
        if self.ended and at < len(data):
            raise BadFraming("bytes after the last chunk")
        return b"".join(parts)

    def _take(self, data: bytes, at: int, parts: list[bytes]) -> int:
        """Moves payload of the open chunk into `parts`, and checks the CRLF that ends it."""
        payload = self._need - 2
        if payload > 0:
            part = data[at : at + payload]
            parts.append(part)
            self._need -= len(part)
            return at + len(part)
        expected = b"\r\n"[-self._need :]
        got = data[at : at + len(expected)]
        if not expected.startswith(got):
            raise BadFraming("a chunk does not end where its size says")
        self._need -= len(got)
        return at + len(got)

    def _line(self, line: bytes) -> None:
        if self._trailers:
            self.ended = not line
            self._trailer_size += len(line) + 2
            if self._trailer_size > _MAX_TRAILERS:
                raise BadFraming("endless trailers")
            return
        size = _size(line)
        if size:
            self._need = size + 2
        else:
            self._trailers = True


def whole_chunks(data: bytes) -> bytes:
    """The payload of a read that is whole plain chunks and nothing else, as nearly all reads of a stream are; empty if it is
    not, or if that is not easy to see."""
    line = data.find(b"\r\n", 0, _PLAIN_SIZE)
    size = len(data) - line - 4
    if size > 0 and data[:line] == b"%x" % size:
        return data[line + 2 : -2] if data.endswith(b"\r\n") else b""
    # Events have no CRLF inside, so it shows where chunks begin and end.
    lines = data.split(b"\r\n")
    if lines.pop():
        return b""
    sizes, payloads = lines[::2], lines[1::2]
    if len(sizes) != len(payloads) or list(map(b"%x".__mod__, map(len, payloads))) != sizes or b"" in payloads:
        return b""
    return b"".join(payloads)


def _size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        if not digits or digits.translate(None, _HEX) or len(digits) > 8:
            raise ValueError
        return int(digits, 16)
    except ValueError:
        raise BadFraming("not a chunk size") from None


def of_head(headers: dict[bytes, bytes], status: int) -> Framing:
    """The framing that an answer's head announces. Raises BadFraming."""
    if status in (204, 304):
        return Sized(0)
    coding = headers.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked":
            raise BadFraming("an unknown transfer coding")
        return Chunked()
    length = headers.get(b"content-length")
    if length is None:
        raise BadFraming("no length: an answer that ends with its connection may have been cut anywhere")
    if not length.isdigit():
        raise BadFraming("not a content-length")
    return Sized(int(length))


def chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)
