"""Prometheus pages (`/metrics`) of our processes: how series are made, and a server for processes that have none.

Series are made when somebody asks, out of what a process counts anyway, so nothing is paid between two scrapes. Whatever
happens here the process goes on: a port that is taken is tried again, a series that cannot be made ends in status 500.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from controlplane.common.places import Place

log = logging.getLogger(__name__)
disable_created_metrics()  # type: ignore[no-untyped-call]  # series that nobody asks for, one per histogram

PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLIENT_S = 5.0
"""How long one client may hold the server up."""
BIND_EVERY_S = 5.0

Samples = Iterable[tuple[Sequence[str], float | None]]
"""(values of the labels, value); None: not known, so the series is left out."""
Collect = Callable[[], Iterable[Metric]]


def gauge(name: str, text: str, samples: Samples, labels: Sequence[str] = ()) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), samples)


def counter(name: str, text: str, samples: Samples, labels: Sequence[str] = ()) -> Metric:
    """`name` ends in _total."""
    return _filled(CounterMetricFamily(name, text, labels=labels), samples)


def one(value: float | None) -> Samples:
    """The sample of a series without labels."""
    return [((), value)]


def by(counts: Mapping[str, float]) -> Samples:
    """Samples by one label. Another thread may be counting."""
    return [((label,), value) for label, value in dict(counts).items()]


def _filled(family: Any, samples: Samples) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    found: Metric = family
    return found


class _Collector:
    def __init__(self, collect: Collect) -> None:
        self.collect = collect

    def describe(self) -> Iterable[Metric]:
        """Nothing: a registry would otherwise collect at start to learn the names."""
        return ()


def registry(*collects: Collect) -> CollectorRegistry:
    """Series of this process (processor time, memory, open files, start), and what `collects` give."""
    found = CollectorRegistry()
    ProcessCollector(registry=found)
    for collect in collects:
        found.register(_Collector(collect))
    return found


def page(series: CollectorRegistry) -> bytes:
    """Prometheus text format 0.0.4."""
    return bytes(generate_latest(series))


def serve(place: Place, series: CollectorRegistry) -> None:
    """Serve the page from a thread of its own until the process ends. Returns at once."""
    threading.Thread(target=_serve, args=(place, series), name="metrics", daemon=True).start()


def _serve(place: Place, series: CollectorRegistry) -> None:
    said = False
    while True:
        try:
            with _Server(place, series) as server:
                server.serve_forever()
        except OSError as error:
            if not said:
                log.warning("%s:%d (/metrics) cannot be served yet: %s", place.host, place.port, error.strerror)
            said = True
        time.sleep(BIND_EVERY_S)


class _Server(HTTPServer):
    """One client at a time: a scrape takes milliseconds, and who opens many connections gets nothing for it."""

    def __init__(self, place: Place, series: CollectorRegistry) -> None:
        self.address_family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        self.series = series
        super().__init__((place.host, place.port), _Handler)

    def server_bind(self) -> None:
        """As HTTPServer's, without asking the name service who we are."""
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients come and go; what is wrong with us is logged by the handler."""


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_S
    server: _Server

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._answer(404, b"the page is /metrics\n")
            return
        try:
            found = page(self.server.series)
        except Exception:
            log.exception("the page /metrics cannot be made")
            self._answer(500, b"the page cannot be made, see the log\n")
            return
        self._answer(200, found)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "twinpool"

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are no news."""
