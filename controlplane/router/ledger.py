"""The book of handoffs: which prefill engine holds KV for which request, until when, and how each ended. In memory.

An entry is opened when a prefill leg is done. While its decode leg is open it ends by an event, never by time, because
decode engines renew the lease of waiting requests; without a decode leg it ends when the lease does.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

End = Literal["pulled", "stranded", "client_gone", "dropped"]
"""pulled: the decode engine answered. stranded: its leg failed or never started. dropped: late and not to be believed."""


class Entry:
    __slots__ = ("bytes", "deadline", "decode", "lease_s", "owner", "owner_incarnation", "request")

    def __init__(self, request: str, owner: str, owner_incarnation: int, size: int, deadline: float, lease_s: float) -> None:
        self.request = request
        self.owner = owner
        self.owner_incarnation = owner_incarnation
        self.bytes = size
        self.deadline = deadline
        """Unix seconds. Afterwards the owner may have given the KV away."""
        self.lease_s = lease_s
        self.decode = ""


class Ledger:
    def __init__(self) -> None:
        self._open: dict[int, Entry] = {}
        self._held: dict[int, Entry] = {}
        """Ended for the request, but the owner keeps the KV until the deadline."""
        self.totals: Counter[End] = Counter()

    def open(self, request: str, owner: str, incarnation: int, size: int, lease_s: float, now: float) -> Entry:
        entry = Entry(request, owner, incarnation, size, now + lease_s, lease_s)
        self._open[id(entry)] = entry
        return entry

    def end(self, entry: Entry, how: End, now: float) -> None:
        """Ends an entry once; later calls for it do nothing."""
        if self._open.pop(id(entry), None) is None:
            return
        self.totals[how] += 1
        if how != "pulled":
            # A decode engine may have renewed the lease up to now.
            entry.deadline = max(entry.deadline, now + entry.lease_s) if entry.decode else entry.deadline
            self._held[id(entry)] = entry

    def sweep(self, now: float) -> None:
        """Forgets KV whose lease is over."""
        for key in [key for key, entry in self._held.items() if entry.deadline <= now]:
            del self._held[key]

    def open_by_owner(self) -> Counter[tuple[str, int]]:
        """Handoffs not over yet, per (engine, incarnation): open ones and KV that waits for its lease to end."""
        entries = [*self._open.values(), *self._held.values()]
        return Counter((entry.owner, entry.owner_incarnation) for entry in entries)

    def __len__(self) -> int:
        return len(self._open) + len(self._held)
