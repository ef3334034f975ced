"""Reads the facts that agents and routers keep in Valkey. A bad one is refused and said so once, not every tick."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import redis

from controlplane.core import names
from controlplane.core.accelerators import MAX_KIND_CHARS
from controlplane.core.codec import WrongShape, decode
from controlplane.core.lifecycle import ENGINE
from controlplane.core.protocol import VERSION, AgentFact, RouterFact
from controlplane.core.signing import BadSignature, Secret, node_key, router_key, unseal
from controlplane.core.storable import storable
from controlplane.core.wellformed import url_problem

log = logging.getLogger(__name__)

MAX_FACT_BYTES = 4 * 2**20
MAX_NUMBER = 1 << 62
MAX_URL_CHARS = 255
MAX_BOOT_CHARS = 64
FORGET_S = 24 * 3600.0
"""After so long without a key its newest start is forgotten; a node's is in its row too."""
MAX_TIME = 1e11
"""Unix seconds, in the year 5138."""
TOLD_STATES = ENGINE.keys() - {"planned"}
"""An engine is planned only until its agent hears of it."""
Fact = TypeVar("Fact", AgentFact, RouterFact)


@dataclass(frozen=True)
class Facts:
    """What is believed this tick. Silent, refused and outdated ones are simply not there."""

    agents: dict[str, AgentFact] = field(default_factory=dict)
    routers: tuple[RouterFact, ...] = ()


@dataclass(frozen=True)
class Boot:
    """One start of a source; `at`: Unix seconds on the source's clock, 0 if it does not tell."""

    id: str
    at: float


@dataclass
class _Heard:
    """The newest fact of one source: when its (boot, seq) was first seen tells whether somebody still writes it."""

    boot: Boot
    seq: int
    since: float
    fact: AgentFact | RouterFact | None = None
    """None: known from the node's row alone."""


@dataclass
class FactReader:
    """Keeps what is needed between ticks: which problems were said, and how old each source's fact is."""

    fleet_secret: Secret = field(repr=False)
    _said: dict[str, str] = field(default_factory=dict)
    _heard: dict[str, _Heard] = field(default_factory=dict)
    _opened: dict[str, tuple[bytes, AgentFact | RouterFact]] = field(default_factory=dict)
    """The newest fact of each key that was well signed, as it came: most are the same at the next tick."""

    def read(self, valkey: redis.Redis, nodes: Mapping[str, Boot], now: float) -> Facts:
        """All believed facts. `nodes`: every node with its agent's newest start as recorded. `now`: any clock that only
        rises. In place of a refused fact the one believed before counts, for as long as it would have lived: whoever can
        write to the broker must not silence a node at once. Raises redis.RedisError."""
        agents: dict[str, AgentFact] = {}
        routers: list[RouterFact] = []
        keys = self._keys(valkey, nodes, now)
        values = valkey.mget(keys) if keys else []
        for key, value in zip(keys, values, strict=True):
            if not isinstance(value, bytes):
                continue
            fact = self._believed(key, value, nodes, now)
            if isinstance(fact, AgentFact):
                agents[fact.node] = fact
            elif fact is not None:
                routers.append(fact)
        return Facts(agents, tuple(routers))

    def ages(self, now: float) -> dict[str, float]:
        """Seconds since the newest fact of each source was heard, by "<kind>:<name>". May be asked by any thread."""
        return {key.removeprefix("fact:"): now - heard.since for key, heard in dict(self._heard).items()}

    @property
    def refused(self) -> int:
        """How many keys hold a fact that is not believed now."""
        return len(self._said)

    def _believed(self, key: str, value: bytes, nodes: Mapping[str, Boot], now: float) -> AgentFact | RouterFact | None:
        kind, _, name = key.removeprefix("fact:").partition(":")
        try:
            known = self._opened.get(key)
            if known is not None and known[0] == value:
                fact = known[1]
            else:
                fact = self._agent(name, value) if kind == "agent" else self._router(name, value)
                self._opened[key] = (value, fact)
            self._check_fresh(key, fact, nodes.get(name) if kind == "agent" else None, now)
        except (BadSignature, WrongShape, _Refused) as error:
            self._say(key, str(error))
            heard = self._heard.get(key)
            return heard.fact if heard and now - heard.since <= names.FACT_TTL_S else None
        self._said.pop(key, None)
        return fact

    def _keys(self, valkey: redis.Redis, nodes: Mapping[str, Boot], now: float) -> list[str]:
        """The keys worth reading: of the known nodes and of whatever routers there are. Others are said, never read."""
        present: set[str] = set()
        believed: list[str] = []
        for raw in valkey.scan_iter(match=names.fact_key("*", "*"), count=1000):
            key = raw.decode(errors="backslashreplace")
            present.add(key)
            kind, _, name = key.removeprefix("fact:").partition(":")
            if key.encode() != raw:
                self._say(key, "its name is no text")
            elif kind == "router" or (kind == "agent" and name in nodes):
                believed.append(key)
            elif kind == "agent":
                self._say(key, "no such node: add it first (manage.py add_node)")
        self._forget(present, now)
        return sorted(believed)

    def _agent(self, name: str, value: bytes) -> AgentFact:
        fact = self._open(value, node_key(self.fleet_secret, name), AgentFact)
        if fact.node != name:
            raise _Refused(f"it speaks for node {fact.node!r:.80}")
        _check_agent(fact)
        return fact

    def _router(self, name: str, value: bytes) -> RouterFact:
        fact = self._open(value, router_key(self.fleet_secret), RouterFact)
        if fact.router != name:
            raise _Refused(f"it speaks for router {fact.router!r:.80}")
        if not (0 <= fact.epoch < MAX_NUMBER and 0 <= fact.generation < MAX_NUMBER):
            raise _Refused("its table has a number out of range")
        return fact

    def _open(self, value: bytes, key: Secret, cls: type[Fact]) -> Fact:
        if len(value) > MAX_FACT_BYTES:
            raise _Refused(f"it has {len(value)} bytes, more than {MAX_FACT_BYTES}")
        document = unseal(key, value)
        fact = decode(cls, storable(document) if _SUSPECT.search(value) else document)
        if fact.version != VERSION:
            raise _Refused(f"version {fact.version} is not supported (this control plane reads {VERSION})")
        if len(fact.boot) > MAX_BOOT_CHARS or not 0 <= fact.booted_at < MAX_TIME:
            raise _Refused("its start has a name that is too long or a time out of range")
        return fact

    def _check_fresh(self, key: str, fact: AgentFact | RouterFact, recorded: Boot | None, now: float) -> None:
        """Refuses a fact older than one seen before, or one that nobody has renewed for the life of a fact. One of an
        earlier start counts again once the later start has been silent that long: the sender's clock was set back."""
        boot = Boot(fact.boot, fact.booted_at)
        if key not in self._heard and recorded and recorded.id:
            self._heard[key] = _Heard(recorded, -1, now)
        heard = self._heard.get(key)
        silent = heard is not None and now - heard.since > names.FACT_TTL_S
        if heard is not None and heard.boot.id == boot.id:
            if fact.seq < heard.seq:
                raise _Refused("it is older than one that was read before")
            if fact.seq == heard.seq:
                if silent:
                    raise _Refused(f"nobody has renewed it for {names.FACT_TTL_S} s")
                return
        elif heard is not None and boot.at < heard.boot.at:
            if not silent:
                raise _Refused("it is of an earlier start than one that was heard just now")
            log.warning("%s is believed although a later start was heard before: its clock was set back", key)
        self._heard[key] = _Heard(boot, fact.seq, now, fact)

    def _say(self, key: str, problem: str) -> None:
        if self._said.get(key) != problem:
            self._said[key] = problem
            log.warning("%s is refused: %s", key.encode("unicode_escape").decode()[:120], problem)

    def _forget(self, present: set[str], now: float) -> None:
        for key in self._said.keys() - present:
            del self._said[key]
        for key in self._opened.keys() - present:
            del self._opened[key]
        for key in self._heard.keys() - present:
            if now - self._heard[key].since > FORGET_S:
                del self._heard[key]


class _Refused(ValueError):
    """A fact that is well signed but must not be believed."""


_SUSPECT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])|\xed[\xa0-\xbf]|\x00")
"""Bytes without which no JSON document, nor one inside it, holds a NUL or a lone surrogate."""


def _check_agent(fact: AgentFact) -> None:
    """Raises _Refused for what no row could hold: one node's nonsense must not end every tick."""
    if not 0 <= fact.network_gbps < MAX_NUMBER:
        raise _Refused("its network speed is out of range")
    for gpu in fact.gpus:
        numbers = 0 <= gpu.index < 1 << 15 and 0 <= gpu.memory_bytes < MAX_NUMBER
        if not numbers or not 0 < len(gpu.uuid) <= 80 or not 0 < len(gpu.kind) <= MAX_KIND_CHARS:
            raise _Refused(f"GPU {gpu.uuid!r:.80} has a field that is too long or out of range")
    for engine in fact.engines:
        if engine.state not in TOLD_STATES:
            raise _Refused(f"engine {engine.id!r:.40} is in the unknown state {engine.state!r:.40}")
        if engine.url and (url_problem(engine.url) or len(engine.url) > MAX_URL_CHARS):
            raise _Refused(f"engine {engine.id!r:.40} has no plain http://host:port as its url")
        numbers = all(0 <= number < MAX_NUMBER for number in (engine.incarnation, engine.spec_generation))
        if not numbers or not all(0 <= at < MAX_TIME for at in (engine.started_at, engine.ready_at or 0.0)):
            raise _Refused(f"engine {engine.id!r:.40} has a number or time out of range")
