"""The load of an engine as this process decides by it: its own reservations and those of the routers it knows of."""

from __future__ import annotations

import struct
from typing import NamedTuple

from controlplane.core import routing

_WRITE = struct.Struct("4q").pack_into  # a third of the time of four assignments


class Reserved(NamedTuple):
    """Amounts as in `routing.Load`."""

    in_flight: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0


NOTHING = Reserved()


class SharedLoad(routing.Load):
    """Its fields are sums; `own` is this process's part."""

    __slots__ = (
        "_cells", "_decode_elsewhere", "_hosts", "_kv_elsewhere", "_prefill_elsewhere", "_siblings", "key",
        "produced_on_hosts",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.key = 0
        """By which siblings know the engine; 0: it is not shared."""
        self._cells: memoryview | None = None
        self._siblings = NOTHING
        self._hosts = NOTHING
        self._prefill_elsewhere = self._decode_elsewhere = self._kv_elsewhere = 0
        self.produced_on_hosts = 0
        """Output tokens that routers of other hosts have had of the engine, ever."""

    @property
    def own(self) -> Reserved:
        return Reserved(
            self.in_flight - self.elsewhere,
            self.prefill_tokens - self._prefill_elsewhere,
            self.decode_tokens - self._decode_elsewhere,
            self.kv_tokens - self._kv_elsewhere,
        )

    def share(self, key: int, cells: memoryview) -> None:
        """From now on this process's part is written there."""
        self.key, self._cells = key, cells
        self.changed()

    def unshare(self) -> None:
        self.key, self._cells = 0, None
        self.see_siblings(NOTHING)

    def tell_produced(self, tokens: int) -> None:
        """What this process has had of the engine, ever."""
        if self._cells is not None:
            self._cells[4] = tokens

    def changed(self) -> None:
        cells = self._cells
        if cells is not None:
            _WRITE(
                cells,
                0,
                self.in_flight - self.elsewhere,
                self.prefill_tokens - self._prefill_elsewhere,
                self.decode_tokens - self._decode_elsewhere,
                self.kv_tokens - self._kv_elsewhere,
            )

    def see_siblings(self, reserved: Reserved) -> None:
        """What the other processes of this router have reserved."""
        if reserved != self._siblings:
            self._add(reserved, self._siblings)
            self._siblings = reserved

    def see_hosts(self, reserved: Reserved) -> None:
        """What the routers of other hosts have reserved."""
        if reserved != self._hosts:
            self._add(reserved, self._hosts)
            self._hosts = reserved

    def _add(self, more: Reserved, less: Reserved) -> None:
        self.in_flight += more.in_flight - less.in_flight
        self.elsewhere += more.in_flight - less.in_flight
        self.prefill_tokens += more.prefill_tokens - less.prefill_tokens
        self._prefill_elsewhere += more.prefill_tokens - less.prefill_tokens
        self.decode_tokens += more.decode_tokens - less.decode_tokens
        self._decode_elsewhere += more.decode_tokens - less.decode_tokens
        self.kv_tokens += more.kv_tokens - less.kv_tokens
        self._kv_elsewhere += more.kv_tokens - less.kv_tokens
