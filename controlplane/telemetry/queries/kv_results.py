"""What the queries about KV transfers, pairs and handoffs answer with. Pure. Units and sources: docs/telemetry.md."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.telemetry.queries.figures import Figure, Latency, LatencyHeat, LatencySeries, Series


@dataclass(frozen=True)
class TransferFigures:
    """KV transfers as the engines of one pool counted them. `count` of `transfer`: transfers that succeeded."""

    model: str
    role: str
    transfers: Figure
    kv_bytes: Figure
    bytes_per_s: Figure
    """By the clock: bytes moved by the seconds recorded."""
    bytes_per_transfer_s: Figure
    """While something was moved: bytes by the sum of all transfers' durations."""
    failed: Figure
    leases_expired: Figure
    transfer: Latency


@dataclass(frozen=True)
class TransferSeries:
    """Of all pools of one model."""

    model: str
    transfer: LatencySeries
    bytes_per_s: Series
    failed: Series
    leases_expired: Series
    heat: LatencyHeat


@dataclass(frozen=True)
class PairFigures:
    """Handoffs from one prefill to one decode engine as the routers saw them. No engine tells the peer of a transfer, so
    these durations are handoffs: transfer, decode queue and first step together. `count`: handoffs."""

    model: str
    prefill: str
    decode: str
    handoffs: Figure
    failed: Figure
    """Requests that both engines had and that ended by our fault before a first byte."""
    kv_bytes: Figure
    bytes_per_s: Figure
    handoff: Latency


@dataclass(frozen=True)
class PairSeries:
    prefill: str
    decode: str
    handoffs_per_s: Series
    bytes_per_s: Series
    failed: Series
    handoff: LatencySeries


@dataclass(frozen=True)
class HandoffSplit:
    """Where the mean handoff of a model went, in ms. `handoff` is the routers' mean, the parts are the decode engines' means
    of the same window: `transfer`, `decode_queue` (their queue time beyond the transfer), `first_step`; `rest` is what they
    leave (the way there and back). A part that no engine tells is None, and so is the rest."""

    model: str
    handoff: Figure
    transfer: Figure
    decode_queue: Figure
    first_step: Figure
    rest: Figure
