"""Reads header lines that were seen before by looking them up: clients and engines send the same ones over and over.

This is for heads that are plain. One that is anything else (a line that is not clean, a header that changes how the rest is
to be read, one that is wanted and is there twice) is left to a whole HTTP parser. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CLEAN = bytes([*range(0x20, 0x7F), *range(0x80, 0x100), 0x09])
"""What a value may be made of (RFC 9110 section 5.5)."""
_HARD = frozenset({b"connection", b"proxy-connection", b"upgrade", b"expect", b"trailer", b"te"})
_EACH_ITS_OWN = frozenset({b"x-request-id", b"traceparent", b"tracestate", b"x-session-id"})
"""Values that do not come again."""
_LONGEST = 512
_MOST = 1024

Field = tuple[bytes, bytes]
_UNWANTED: Field = (b"", b"")


class Heads:
    """`wanted`: lower-case names of headers whose values are wanted; others are checked and dropped. Those in `hard` make a
    head hard, beside those that always do."""

    def __init__(self, wanted: Set[bytes], hard: Set[bytes] = frozenset()) -> None:
        self._wanted = wanted
        self._hard = _HARD | hard
        self._known: dict[bytes, Field] = {}

    def read(self, lines: Sequence[bytes]) -> dict[bytes, bytes] | None:
        """Values by name, out of header lines without their ends; None if the head is not plain."""
        fields: dict[bytes, bytes] = {}
        for line in lines:
            field = self._known.get(line) or self._look(line)
            if field is None:
                return None
            name, value = field
            if name:
                if name in fields:
                    return None
                fields[name] = value
        return fields

    def _look(self, line: bytes) -> Field | None:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or name in self._hard or not _NAME.fullmatch(name) or value.translate(None, _CLEAN):
            return None
        value = value.lstrip(b" \t")
        if value[-1:].isspace() or (name == b"content-length" and not (value.isdigit() and len(value) <= 10)):
            return None
        field = (name, value) if name in self._wanted else _UNWANTED
        if name not in _EACH_ITS_OWN and len(line) <= _LONGEST:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[line] = field
        return field
