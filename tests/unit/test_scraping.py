"""Metrics are scraped from whatever answers at an address, also from what never ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controlplane.physics import scraping
from controlplane.physics.enginemetrics import BadMetrics
from controlplane.physics.scraping import watch

PAGE = (Path(__file__).parents[1] / "data" / "vllm_served_metrics.txt").read_bytes()

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(answer: Answer, protocol: str = "HTTP/1.0") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = protocol

        def do_GET(self) -> None:
            try:
                answer(self)
            except OSError:
                pass  # nobody reads any more

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b"# nothing\n" * 10_000)


def dripping(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    while True:
        request.wfile.write(b"#")
        time.sleep(0.02)


def torn(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "100")
    request.end_headers()
    request.wfile.write(b"vllm:")


def elsewhere(request: BaseHTTPRequestHandler) -> None:
    request.send_response(302)
    request.send_header("Location", "http://127.0.0.1:1/")
    request.end_headers()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (endless, "more than 16,777,216 bytes"),
        (dripping, "does not answer: its page takes longer than"),
        (torn, "does not answer: IncompleteRead"),
        (elsewhere, "answered 302"),
    ],
)
def test_what_is_no_page_is_refused(answer: Answer, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraping, "TIMEOUT_S", 1.0)
    with server(answer) as url, pytest.raises(BadMetrics, match=problem):
        watch(url, 1.0, 0.5)


def test_an_engine_that_keeps_its_connection_open_is_scraped_again_over_it() -> None:
    callers = set()

    def page(request: BaseHTTPRequestHandler) -> None:
        callers.add(request.client_address)
        request.send_response(200)
        request.send_header("Content-Length", str(len(PAGE)))
        request.end_headers()
        request.wfile.write(PAGE)

    with server(page, "HTTP/1.1") as url:
        assert len(watch(url, 0.05, 0.02)) > 1
    assert len(callers) == 1
