"""Wire contracts between the processes: versioned, strict on read, unknown fields ignored.

JSON for the routing table, commands and facts (signed, see core.signing); msgpack for telemetry. Read with
`core.codec.decode`, written with `core.codec.encode`. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from controlplane.core import wellformed

VERSION = 1

Role = Literal["prefill", "decode", "mixed"]
Mode = Literal["monolithic", "disaggregated", "conditional"]
Connector = Literal["nixl", "example", "none"]
EngineKind = Literal["vllm", "simulated"]
OnPrefillLoss = Literal["retry", "local", "fail"]

ROLES_OF_MODE: Mapping[str, tuple[str, ...]] = {
    "monolithic": ("mixed",),
    "disaggregated": ("prefill", "decode"),
    "conditional": ("prefill", "decode"),
}
"""The pools a mode needs at least one ready engine in. Any role can serve a whole request when strictness allows it."""


# --- Routing table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slo:
    """A model's targets at p99."""

    ttft_ms: float = 2000.0
    itl_ms: float = 50.0


@dataclass(frozen=True)
class Conditional:
    """Go remote only if both are reached."""

    min_uncached_tokens: int = 512
    min_uncached_ratio: float = 0.3


@dataclass(frozen=True)
class Canary:
    """A trial of a mode on `share` (0 to 1) of a model's sessions. `mode` is that of the trial."""

    arm: str
    mode: Mode
    share: float
    shared: bool = False
    """No engines are in its arm: its sessions are served by main's, in its mode. Only between conditional and disaggregated,
    which need the same engines."""
    id: int = 0
    """Which sessions take part is drawn anew for each; routers tell what those of this one saw."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be from 0 to 1, not {self.share:g}")


@dataclass(frozen=True)
class EngineRoute:
    """One engine as routers see it. `url` is http://host:port without a path."""

    id: str
    url: str
    role: Role
    incarnation: int = 1
    state: Literal["ready", "draining"] = "ready"
    arm: str = "main"
    weight: float = 1.0
    node: str = ""
    gpu: str = ""
    tp: int = 1
    dp: int = 1
    compat: str = ""
    max_num_seqs: int = 256
    peers: tuple[str, ...] = ()
    """Ids of the only engines that it may hand KV to or take KV from, while others are not verified yet; empty: all of equal
    compat. A pair must be allowed by both."""
    engine_key: str = field(default="", repr=False)
    """Only for a `--table` FILE (trusted by its mode) whose engines were not started by an agent; published tables leave it
    empty and routers derive the key (core.signing.engine_key)."""


@dataclass(frozen=True)
class ModelRoute:
    name: str
    mode: Mode
    engines: tuple[EngineRoute, ...] = ()
    aliases: tuple[str, ...] = ()
    canary: Canary | None = None
    connector: Connector = "none"
    kv_lease_s: float = 30.0
    block_size: int = 16
    kv_bytes_per_token: int = 0
    kv_fixed_bytes: int = 0
    """States of hybrid models, once per request."""
    kv_window_bytes_per_token: int = 0
    kv_window_tokens: int = 0
    """Layers with a window: their bytes per token, for the last `kv_window_tokens` of a prompt."""
    max_model_len: int = 0
    """0: not known, the engine decides."""
    on_prefill_loss: OnPrefillLoss = "retry"
    strict: bool = False
    conditional: Conditional = Conditional()
    slo: Slo = Slo()
    share_prefixes: bool = False
    """Teams may use each other's cached prefixes. Else `cache_salt` is prefixed by team."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that all engines of the model serve under these names. Unlike an alias, such a name reaches engines."""

    @property
    def names(self) -> tuple[str, ...]:
        """All under which requests may come."""
        return (self.name, *self.aliases, *self.adapters)

    def served_as(self, name: str) -> str:
        """What engines call what clients call `name`, one of `names`."""
        return name if name in self.adapters else self.name

    def kv_bytes(self, prompt_tokens: int) -> int:
        """What a KV transfer of a prompt moves."""
        windowed = min(prompt_tokens, self.kv_window_tokens)
        return self.kv_bytes_per_token * prompt_tokens + self.kv_fixed_bytes + self.kv_window_bytes_per_token * windowed


@dataclass(frozen=True)
class KeyEntry:
    """An API key and what it allows. Limits are compared with what its whole team used; None: no limit."""

    sha256: str
    team: str
    models: tuple[str, ...] = ("*",)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and answers together."""
    max_priority: int = 0
    """A request's `priority` may be as low as minus this: engines serve lower ones first."""

    @property
    def has_limits(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


@dataclass(frozen=True)
class RoutingTable:
    version: int
    generation: int
    epoch: int = 0
    require_key: bool = False
    keys: tuple[KeyEntry, ...] = ()
    models: tuple[ModelRoute, ...] = ()

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"routing table version {self.version} is not supported (this router reads {VERSION})")
        problem = next(self._problems(), "")
        if problem:
            raise ValueError(problem)

    def _problems(self) -> Iterator[str]:
        names = [name for model in self.models for name in model.names]
        if len(names) != len(set(names)):
            yield "two models share a name, alias or adapter"
        ids = Counter(engine.id for model in self.models for engine in model.engines)
        yield from (f"engine {id!r:.80} is listed twice" for id, times in ids.items() if times > 1)
        for model in self.models:
            if problem := model_problem(model):
                yield f"model {model.name!r:.80}: {problem}"
        yield from filter(None, (wellformed.digest_problem(entry.sha256) for entry in self.keys))

    @cached_property
    def key_of(self) -> Mapping[str, KeyEntry]:
        """Keys by their SHA-256. Who finds a near miss by timing has learnt nothing of a key."""
        return {entry.sha256: entry for entry in self.keys}

    @property
    def stamp(self) -> tuple[int, int]:
        """(epoch, generation): a router never applies a lower one than it has."""
        return (self.epoch, self.generation)


def engine_problem(engine: EngineRoute) -> str:
    """Why routers refuse a table with this engine; empty if they do not."""
    problems = (
        wellformed.id_problem(engine.id),
        wellformed.url_problem(engine.url),
        wellformed.key_problem(engine.engine_key),
    )
    return next(filter(None, problems), "")


def model_problem(model: ModelRoute) -> str:
    """Why routers refuse a table with this model or one of its engines; empty if they do not."""
    for name in model.names:
        if problem := wellformed.name_problem(name):
            return problem
    if model.kv_lease_s <= 0:
        return "kv_lease_s must be more than 0"
    canary = model.canary
    if canary is not None and canary.shared and "monolithic" in (canary.mode, model.mode):
        return "a canary on shared engines tries conditional against disaggregated only"
    return next(filter(None, map(engine_problem, model.engines)), "")


# --- Engine specs and commands: control -> agent -------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    """One process of an engine: a node and the uuids of its GPUs."""

    node: str
    gpus: tuple[str, ...]


@dataclass(frozen=True)
class EngineSpec:
    """Everything an agent needs to start an engine. `env` maps variable name -> name of a node-side secret, never a value.

    `port` and `side_port` 0 mean that the agent chooses free ones and tells them in its fact. `incarnation_floor` keeps
    incarnations rising even if a node lost its disk: the agent starts incarnation max(own last, floor) + 1.
    """

    id: str
    model: str
    source: str
    connector: Connector
    ranks: tuple[Rank, ...]
    kind: EngineKind
    spec_generation: int
    incarnation_floor: int = 0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    port: int = 0
    side_port: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    gpu_kind: str = ""
    kv_lease_s: float = 30.0
    network_gbps: float = 100.0
    model_config: Mapping[str, Any] = field(default_factory=dict)
    """The model's Hugging Face config.json; the simulated engine computes its physics from it."""
    kv_events: Mapping[str, Any] = field(default_factory=dict)
    """Where the engine tells what its prefix cache holds (core.engine_args.KV_EVENTS); empty: nowhere."""
    leader: str = ""
    """Engines of several ranks: host:port of the side port that rank 0 listens on now; empty for rank 0 itself."""
    gang_key: str = ""
    """Engines of several ranks: signing.gang_key, masked for the node that the command goes to, as hex."""


@dataclass(frozen=True)
class Command:
    """The body of every agent task. Idempotent by (engine, spec_generation, rank): an agent ignores a command whose
    generation is lower than the newest it has seen for that engine, and does an equal one at most once.

    start: needs `spec`. stop, drain: need `engine`, `spec_generation`. tail_log: `engine`, `lines`. list_engines: nothing.
    link_listen: `token`; answers `port`. link_send: `token`, and the listener as `peer`. rekey: the node's new key as
    `token`, masked for "rekey:" + `peer`; it is believed beside the others, or `alone`.
    """

    node: str
    verb: Literal["start", "stop", "drain", "undrain", "list_engines", "tail_log", "link_listen", "link_send", "rekey"]
    issued_at: float
    engine: str = ""
    spec_generation: int = 0
    rank: int = 0
    spec: EngineSpec | None = None
    lines: int = 200
    grace_s: float = 30.0
    """stop: how long in-flight requests may finish before the process is killed."""
    peer: str = ""
    """ADDRESS:PORT"""
    token: str = field(default="", repr=False)
    alone: bool = False


# --- Facts: the present state of an agent or a router --------------------------------------------------------------------


@dataclass(frozen=True)
class GpuFact:
    uuid: str
    index: int
    kind: str
    memory_bytes: int
    simulated: bool = False


@dataclass(frozen=True)
class EngineFact:
    """One rank of an engine as its agent sees it. `state` is one of core.lifecycle.ENGINE.

    `ready` is only claimed after a real generation succeeded. `quiet_since`: the engine showed running + waiting = 0 in at
    least two scrapes a second apart, without a break since then. Times are Unix seconds on the node's clock.
    """

    id: str
    model: str
    rank: int
    incarnation: int
    spec_generation: int
    state: str
    kind: EngineKind
    reason: str = ""
    pid: int = 0
    url: str = ""
    side_port: int = 0
    started_at: float = 0.0
    ready_at: float | None = None
    exit_code: int | None = None
    running: int = 0
    waiting: int = 0
    quiet_since: float | None = None
    scraped_at: float | None = None
    compat: str = ""
    version: str = ""
    gpus: tuple[str, ...] = ()
    log_tail: str = ""
    """The last lines of the log of an engine that failed, at most 2 kB; empty otherwise."""


@dataclass(frozen=True)
class AgentFact:
    """fact:agent:<node>"""

    node: str
    boot: str
    """Random per start of the agent."""
    seq: int
    at: float
    address: str
    version: int = VERSION
    gpus: tuple[GpuFact, ...] = ()
    engines: tuple[EngineFact, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    network_gbps: float = 100.0
    booted_at: float = 0.0
    """When this `boot` began, Unix seconds on the node's clock: a fact of an earlier start is not believed again."""


@dataclass(frozen=True)
class EngineLoad:
    """What one router has open on one engine. `last_prefill_end` is Unix seconds on the router's clock."""

    engine: str
    incarnation: int
    in_flight: int = 0
    handoffs: int = 0
    last_prefill_end: float | None = None


@dataclass(frozen=True)
class CacheEra:
    """The salt under which one start of an engine must be asked from now on, because wrong KV may be in its prefix cache
    under earlier ones (core.eras). Routers tell each other in the hash names.ERAS_KEY, one sealed entry each; the highest
    (number, salt) of an engine's start holds until that start ends. An engine without one is asked without a salt."""

    engine: str
    incarnation: int
    number: int
    salt: str

    def __post_init__(self) -> None:
        if problem := wellformed.id_problem(self.engine) or wellformed.salt_problem(self.salt):
            raise ValueError(problem)


@dataclass(frozen=True)
class RouterFact:
    """fact:router:<id>"""

    router: str
    boot: str
    seq: int
    at: float
    epoch: int
    generation: int
    version: int = VERSION
    loads: tuple[EngineLoad, ...] = ()
    set_aside: tuple[str, ...] = ()
    """Engines that this router does not use now because they failed it."""
    eras: tuple[CacheEra, ...] = ()
    """Engines of its table whose prefix cache is not to be trusted under the usual salt. They serve on; a restart heals
    them, and is the only remedy if routers cannot tell each other."""
    booted_at: float = 0.0
    """As in AgentFact."""


@dataclass(frozen=True)
class Reservations:
    """What a router process has open, told to those of other hosts (names.LOADS_CHANNEL); `host` is equal for the processes
    of one router. Per engine ("<id>#<incarnation>"): legs in flight, prompt tokens, output tokens and KV tokens reserved,
    output tokens produced ever."""

    router: str
    host: str
    boot: str
    seq: int
    loads: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    leaving: bool = False

    def __post_init__(self) -> None:
        if any(len(each) != 5 or not 0 <= min(each) <= max(each) < 1 << 53 for each in self.loads.values()):
            raise ValueError("loads must be five counts per engine")


# --- Telemetry: msgpack maps on the Valkey stream names.TELEMETRY_STREAM, field "r" ---------------------------------------

RecordKind = Literal["gpu", "engine", "router", "request", "usage", "node"]


@dataclass(frozen=True)
class Record:
    """One message. `source` is "agent:<node>" or "router:<id>", `seq` rises by one per source and start (`boot`): a hole
    is a gap to be shown. `rows` are maps of the row classes below for `kind`. `at`: Unix seconds on the source's clock."""

    v: int
    source: str
    boot: str
    seq: int
    at: float
    kind: RecordKind
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class GpuRow:
    """A share is 0..1; None means not known, never 0."""

    uuid: str
    engine: str = ""
    tensor: float | None = None
    """Tensor-core activity, average of the last second."""
    tensor_peak: float | None = None
    dram: float | None = None
    memory_used_bytes: int | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class Histogram:
    """Cumulative since the engine started, as Prometheus gives it: `counts[i]` observations <= `bounds[i]` seconds."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float
    count: float


@dataclass(frozen=True)
class EngineRow:
    """Counters and histograms are cumulative per incarnation. Histogram names: ttft, itl, queue, prefill, decode, transfer
    (seconds). Counter names: prompt_tokens, generation_tokens, requests, prefix_queries, prefix_hits, local_tokens,
    external_tokens, transfer_bytes, transfers, transfers_failed, leases_expired, preemptions."""

    engine: str
    model: str
    incarnation: int
    state: str
    running: int
    waiting: int
    kv_usage: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeRow:
    node: str
    cpu: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    dropped: int = 0
    """Records that this agent could not send since it started."""


@dataclass(frozen=True)
class RouterRow:
    router: str
    in_flight: int
    requests: int
    failed: int
    retried: int
    handoffs_open: int
    dropped: int = 0


ITL_BOUNDS_MS = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0, 3000.0)
"""Upper bounds of RequestRow.itl_counts."""

MAX_WEIGHT = 1_000_000


@dataclass(frozen=True)
class Passed:
    """An engine that could have served a leg ("prefill", "decode", "whole") and was not taken, with its score in seconds."""

    leg: str
    engine: str
    score_s: float


@dataclass(frozen=True)
class SessionSeen:
    """What a router saw of one session of a model with a canary since it last told of it. Said twice it means the same."""

    session: str
    """RequestRow.session."""
    canary: bool
    """Its arm; False: main."""
    at: float
    """When the earliest of these requests came: Unix seconds on the router's clock."""
    over: bool = False
    """A request failed, or was over the model's SLO."""
    failed: bool = False
    """An engine failed a request, though another may have served it then."""
    kv_lost: bool = False
    """A decode engine could not take over a prompt's KV."""
    fell_back: bool = False
    """Of the canary, and main served a request because no canary engine (or pair) was usable."""
    ttft_ms: float | None = None
    """The longest; None: no stream began."""
    itl_ms: float | None = None
    """The longest mean time between tokens of a stream."""


@dataclass(frozen=True)
class CanaryReport:
    """Signed with the routers' key; an entry of the stream `names.canary_stream`. `canary`: Canary.id."""

    canary: int
    router: str
    sessions: tuple[SessionSeen, ...]


@dataclass(frozen=True)
class UsageRow:
    """What finished requests without a row of their own used together: those between the rows of a busy router, and those
    whose row found no room. Requests that were the client's error are not counted. `at`: Unix seconds on the router's
    clock, by which a row that comes again is known."""

    at: float
    model: str
    team: str
    api_key: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class RequestRow:
    """One finished request. Never holds prompts or answers. Durations are ms, None where the stage did not happen."""

    id: str
    model: str
    path: str
    reason: str
    status: int
    outcome: Literal["ok", "client_error", "engine_error", "cancelled", "cut"]
    arrived_at: float
    stream: bool = False
    prefill_engine: str = ""
    decode_engine: str = ""
    queue_ms: float | None = None
    """From its arrival until an engine was sent its first leg."""
    prefill_ms: float | None = None
    handoff_ms: float | None = None
    ttft_ms: float | None = None
    total_ms: float | None = None
    itl_ms: tuple[float, ...] = ()
    """Gaps between the first 256 chunks, in order."""
    itl_counts: tuple[int, ...] = ()
    """Gaps between all chunks: how many up to each of ITL_BOUNDS_MS, then how many above the last. Empty: none."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    kv_bytes: int | None = None
    retries: int = 0
    resumes: int = 0
    """How often another engine had to go on with its stream."""
    passed: tuple[Passed, ...] = ()
    """Per leg the two best engines that were not taken, best first."""
    weight: int = 1
    """How many requests this row stands for: a busy router tells every so many of those that went well."""
    session: str = ""
    """A 64-bit hash of the session, else of the request's id, as 16 hex digits."""
    arm: str = "main"
    """Of the engines that served it; with reason canary_unavailable those of main instead of its own."""
    team: str = ""
    """Of the API key it came with; empty: it came without one."""
    api_key: str = ""
    """The first 16 hex digits of that key's SHA-256."""
    traceparent: str = ""
    """The client's W3C trace context; empty: it sent none, or a malformed one."""
    others_told: bool = False
    """What the other requests that this row stands for used is told exactly, in UsageRows."""

    def __post_init__(self) -> None:
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise ValueError(f"weight must be from 1 to {MAX_WEIGHT}")
