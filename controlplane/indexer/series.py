"""Series of an indexer for Prometheus, out of what it counts anyway. Read by a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from controlplane.common.metrics import by, counter, gauge, one
from controlplane.indexer.service import Service


def indexer_series(service: Service) -> Iterator[Metric]:
    counters, caches = service.caches.counters, service.caches
    yield counter("twinpool_indexer_questions_total", "Questions of routers.", one(service.asked))
    yield counter("twinpool_indexer_known_total", "Of those: prompts whose tokens were all known.", one(service.known))
    yield counter("twinpool_indexer_tokenized_total", "Prompts that engines were asked to cut.", one(service.tokens.asked))
    batches = {"heard": counters.batches, "refused": counters.refused}
    yield counter("twinpool_indexer_batches_total", "Batches of KV events.", by(batches), ("result",))
    yield counter("twinpool_indexer_gaps_total", "Batches of an engine that never came.", one(counters.gaps))
    yield counter("twinpool_indexer_restarts_total", "Engines that began anew.", one(counters.restarts))
    yield gauge("twinpool_indexer_routers", "Router processes that are connected.", one(len(service.routers)))
    yield gauge("twinpool_indexer_engines", "Engines that are followed.", one(len(caches.followed)))
    yield gauge("twinpool_indexer_blocks", "KV blocks that are known, of all engines.", one(caches.index.total))
