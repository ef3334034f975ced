"""One sequence being generated: its tokens, the digest its text follows from, and when it ends. No I/O, no clock."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from controlplane.common.prefixhash import PrefixHasher, event_hash, salt_keys
from controlplane.core.batching import Request
from workers.engines.simulated import content
from workers.engines.simulated.tokenizer import END


@dataclass(frozen=True)
class Sampling:
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stops: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    seed: int | None = None
    temperature: float = 1.0
    n: int = 1
    """Answers that the request asked for; this is one of them."""


@dataclass(frozen=True)
class RemoteKv:
    """Where a prompt's KV waits to be pulled: the remote_* fields of kv_transfer_params."""

    engine: str
    request: str
    blocks: tuple[int, ...]
    host: str
    port: int


class Ending(NamedTuple):
    reason: str
    stop_reason: str | int | None = None
    kv_transfer_params: dict[str, Any] | None = None


class Sink(Protocol):
    """Who gets a sequence's text. Exactly one `end` or `failed` per index, unless the sequence is aborted by its owner."""

    def piece(self, index: int, text: str, generated: int) -> None: ...

    def end(self, index: int, ending: Ending) -> None: ...

    def failed(self, index: int) -> None: ...


VLLM_HASHES = PrefixHasher()


class Generation:
    """`name` is unique among all engines and starts: what a peer asks for."""

    __slots__ = (
        "_block_size", "_hasher", "_last_hash", "_longest_stop", "_pending", "_reading", "_seed", "arrived", "contents",
        "first_token", "held", "hold", "index", "last_token", "name", "remote", "request", "salt", "sampling",
        "scheduled", "sink", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        name: str,
        prompt: array[int],
        sampling: Sampling,
        sink: Sink,
        *,
        index: int,
        block_size: int,
        salt: str = "",
        hold: bool = False,
        remote: RemoteKv | None = None,
        hasher: PrefixHasher | None = VLLM_HASHES,
    ) -> None:
        """`hasher` None: there is no prefix cache, and nothing to find its blocks by."""
        self.name, self.index, self.sink = name, index, sink
        self.sampling, self.hold, self.remote = sampling, hold, remote
        self.tokens = array("I", prompt)
        self.contents = content.block_contents(prompt, block_size)
        """What the prompt's blocks should contain, the last perhaps partly full."""
        hashes = hasher.chain(prompt, block_size, salt) if hasher else []
        self.request = Request(number, len(prompt), [event_hash(each) for each in hashes], remote is not None)
        self.held = self.contents
        """What they do contain."""
        self._reading = content.Reading(self.contents, len(prompt), block_size)
        self._seed = content.seed_bytes(sampling.seed, sampling.temperature, index)
        self.salt, self._block_size = salt, block_size
        self._hasher, self._last_hash = hasher, hashes[-1] if hashes else None
        self._pending = ""  # text held back, because it may be the start of a stop string
        self._longest_stop = max(map(len, sampling.stops), default=0)
        self.arrived = 0.0
        self.scheduled = self.first_token = self.last_token = 0.0

    @property
    def prompt_tokens(self) -> int:
        return self.request.prompt_tokens

    @property
    def clean(self) -> bool:
        """The KV is what the tokens would give."""
        return self.held is self.contents

    def found(self, wrong: Mapping[int, int]) -> None:
        """The request is admitted, once more perhaps: its prompt's blocks are right, or will be computed so, but those by
        index in `wrong`, which the prefix cache holds with other contents."""
        self._hold([wrong.get(index, right) for index, right in enumerate(self.contents)])

    def pulled(self, contents: list[int]) -> None:
        """The prompt's KV is here: `contents` of the blocks behind the local hits, as the peer held them."""
        self._hold(self.held[: self.request.local_hit_tokens // self._block_size] + contents)

    def _hold(self, held: list[int]) -> None:
        self.held = self.contents if held == self.contents else held
        self._reading = content.Reading(held, self.prompt_tokens, self._block_size)
        for token in self.tokens[self.prompt_tokens :]:
            self._reading.append(token)

    def held_contents(self) -> list[int]:
        """The contents of all computed blocks, in order: what a peer may pull."""
        computed, full = self.request.computed, self.prompt_tokens // self._block_size
        if computed == self.prompt_tokens:
            return self.held
        return self.held[:full] + content.block_contents(self.tokens[:computed], self._block_size)[full:]

    def next_token(self) -> tuple[str, Ending | None]:
        """The next token is generated (already counted in `request.generated`). Returns text to show now, and how the
        sequence ends if it does."""
        sampling, generated = self.sampling, self.request.generated
        drawn = content.draw(self._reading.state(), self._seed)
        natural = generated >= content.SHORTEST_ANSWER_TOKENS and generated > sampling.min_tokens
        if drawn.ends and natural and not sampling.ignore_eos:
            self._append(END)
            return self._flush(), Ending("stop")
        self._append(drawn.token)
        if drawn.token in sampling.stop_tokens and generated > sampling.min_tokens:
            return self._flush(), Ending("stop", drawn.token)
        text, stop = self._show(drawn.text)
        if stop is not None and generated > sampling.min_tokens:
            return text, Ending("stop", stop)
        if generated >= sampling.max_tokens:
            return text + self._flush(), Ending("length")
        return text, None

    def _append(self, token: int) -> None:
        self.tokens.append(token)
        self._reading.append(token)
        if self._hasher and len(self.tokens) % self._block_size == 0:
            self._key_block(self._hasher)

    def _key_block(self, hasher: PrefixHasher) -> None:
        """Generated tokens have filled a block."""
        extra = None if self._last_hash else salt_keys(self.salt)
        self._last_hash = hasher.block(self._last_hash, self.tokens[-self._block_size :], extra)
        self.request.keys.append(event_hash(self._last_hash))

    def _show(self, text: str) -> tuple[str, str | None]:
        """Text that cannot be part of a stop string any more, and the stop string that was found."""
        if not self.sampling.stops:
            return text, None
        pending = self._pending + text
        found = [(at, stop) for stop in self.sampling.stops if (at := pending.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            self._pending = ""
            return pending[:at], stop
        shown = max(0, len(pending) - self._longest_stop + 1)
        self._pending = pending[shown:]
        return pending[:shown], None

    def _flush(self) -> str:
        text, self._pending = self._pending, ""
        return text
