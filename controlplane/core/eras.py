"""Eras of a prefix cache: salts under which one start of an engine is asked, so that wrong KV is never hit again. Pure.

KV that a decode engine pulls after its lease has ended may be somebody else's. The engine keeps it under the hash of the
right prompt, and answers with it for as long as it lives (measured on vLLM: docs/vllm-facts.md). Nobody can take it out of
the cache from outside, but blocks are hashed with a request's `cache_salt`: so a cache that may hold such KV is left, and
the engine is asked under a new salt, a new era of its cache. The first era has no salt and costs nothing.

While it is being found out whether an era is spoilt, requests go out under a provisional one; if all was well, the old one
goes on and its blocks are found again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Era:
    """`salt` is "" for the first. A leg keeps the era that it was sent under."""

    number: int = 0
    salt: str = ""
    checks: int = 0
    """How many legs of it are being looked into."""
    lost: bool = False
    """Wrong KV may be in the cache under its salt. Never taken back."""

    @property
    def sound(self) -> bool:
        """Whether an answer given under it may be believed at once."""
        return not (self.lost or self.checks)


FIRST = Era()
"""For what is asked of no engine's cache; always sound."""


class Eras:
    """The eras of one start of an engine, as one router knows them.

    Routers agree on the highest (number, salt), which each may raise: `adopt` what another has found out, and tell others
    the new `base` when a method returns True.
    """

    def __init__(self, new_salt: Callable[[], str], number: int = 0, salt: str = "") -> None:
        """`new_salt` makes a salt that nobody has used before and nobody can guess."""
        self._new_salt = new_salt
        self._chain = [Era(number, salt)]
        """The base, then provisional ones, each for as long as those before it are being looked into."""

    @property
    def base(self) -> Era:
        """The oldest that is not known to be spoilt."""
        return self._chain[0]

    @property
    def current(self) -> Era:
        """What the next leg is sent under."""
        return self._chain[-1]

    def doubt(self, era: Era) -> None:
        """A leg of this era is being looked into; `settle` must follow."""
        era.checks += 1
        self._choose()

    def settle(self, era: Era, kept: bool) -> bool:
        """The end of one `doubt`: `kept` if the leg's KV was right. True if the base has changed."""
        era.checks -= 1
        era.lost |= not kept
        return self._choose()

    def lose(self, era: Era) -> bool:
        """Wrong KV may be in the cache under this era. True if the base has changed."""
        era.lost = True
        return self._choose()

    def adopt(self, number: int, salt: str) -> bool:
        """Another router's base. True if it is newer than ours, which is lost then."""
        base = self.base
        if (number, salt) <= (base.number, base.salt):
            return False
        base.lost = True
        self._chain = [Era(number, salt)]
        return True

    def _choose(self) -> bool:
        before, last = self.base, self.current
        self._chain = [era for era in self._chain if not era.lost] or [self._after(last)]
        sound = next((place for place, era in enumerate(self._chain) if era.sound), None)
        if sound is None:
            self._chain.append(self._after(self.current))
        else:
            del self._chain[sound + 1 :]
        return self.base is not before

    def _after(self, era: Era) -> Era:
        return Era(era.number + 1, self._new_salt())
