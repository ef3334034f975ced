"""Every bound of the router in one place: sizes in bytes, times in seconds. A test may shorten them."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.core.kvindex import MAX_BLOCKS


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes: int = 32 * 1024 * 1024
    """Of a client's request. Larger: 413 before it is read."""
    head_bytes: int = 32 * 1024
    """Of a client's request line and headers. Larger: 431."""
    headers: int = 100
    unadmitted_bytes: int = 64 * 1024
    """Of a body, before the client must have shown its API key, if one is needed."""
    json_depth: int = 100
    """Engines parse recursively: deeper documents could crash them."""
    json_containers: int = 100_000
    json_values: int = 2_000_000
    """Brackets and commas in a body, those in strings included: reading more would stop all other requests for too long."""
    pipelined: int = 64
    """Requests read ahead on one connection; with more it is closed after answering these."""
    held_bytes: int = 64 * 1024
    """Read ahead of a busy client before its socket is left unread."""
    answer_bytes: int = 1024 * 1024
    """A whole answer up to this size is kept until it is complete, so that a dying engine can still be replaced."""
    resume_bytes: int = 1024 * 1024
    """Of a stream's events, kept so that another engine can go on if this one dies."""
    gather_streams: int = 8
    """With fewer open streams their events are carried as they come, one by one."""
    gather_per_stream_s: float = 0.000_05
    gather_s: float = 0.0015
    """Events of streams are let gather for so long for each open stream, and at the most: a tenth of the time between two
    tokens of a quick engine."""
    event_bytes: int = 256 * 1024
    """An incomplete server-sent event longer than this is passed on as it is."""
    prefill_answer_bytes: int = 8 * 1024 * 1024
    metrics_bytes: int = 8 * 1024 * 1024

    head_s: float = 15.0
    """From a request's first byte to the end of its headers."""
    body_idle_s: float = 30.0
    """Between two reads of a request body."""
    keep_alive_s: float = 75.0
    client_stall_s: float = 300.0
    """A client that takes no bytes for this long is cut off."""
    linger_s: float = 5.0
    """After a refusal, what the client still sends is read and dropped for this long, so that it sees the answer."""

    connect_s: float = 3.0
    prefill_s: float = 300.0
    first_byte_s: float = 600.0
    stream_idle_s: float = 300.0
    """Between two reads from an engine."""
    releases: int = 64
    """Decode legs at a time for clients that have left, which only make prefill engines free their KV."""
    silent_s: float = 5.0
    """An engine that has let a leg hear nothing for this long is asked for its health: it may be hung."""
    health_s: float = 3.0
    metrics_s: float = 5.0
    probe_s: float = 30.0
    engine_idle_s: float = 4.0
    """An unused engine connection is closed after this; uvicorn closes it after 5."""
    idle_per_engine: int = 256
    stale_s: float = 1.0
    """A reused connection that is closed this soon, without a byte, was closed before the engine saw the request."""

    index_blocks: int = MAX_BLOCKS
    """Of prompts, in the index of who holds which prefix."""
    index_s: float = 3600.0
    """A prefix not used for this long is taken to be gone."""
    indexer_s: float = 0.005
    """A request waits so long for the indexer's answer, if there is an indexer."""
    room_s: float = 10.0
    """An engine is asked for the size of its KV cache so long after its first answer, and as often if it does not tell."""

    rows_per_s: float = 200.0
    """Records of requests that went well, told to the telemetry stream: of more, every so many."""
    retry_share: float = 0.2
    """Retries per request, on average over many ..."""
    retry_burst: int = 100
    """... and how many may come at once."""
    retry_jitter_s: float = 0.05
    """A retry waits up to so long, by chance, so that those of one engine's requests do not come to the next all at once."""
    set_aside_s: float = 1.0
    set_aside_max_s: float = 30.0
    soft_faults: int = 3
    """Answers 5xx or out of time, in a row, that set an engine aside. A refused or broken connection does at once."""
    stop_s: float = 10.0
    """How long streams may finish after SIGTERM."""
