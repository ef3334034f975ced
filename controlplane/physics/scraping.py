"""Metrics pages for a calibration: from an engine that serves, scraped for a while, or from saved files."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from controlplane.common.files import read_document
from controlplane.physics.enginemetrics import BadMetrics, EnginePage, read_engine_page

TIMEOUT_S = 10.0
MAX_PAGE_BYTES = 16 << 20


def read_pages(paths: Sequence[Path]) -> list[EnginePage]:
    """Saved pages in the order given, which must be that of time. Raises BadMetrics for a file that cannot be used."""
    pages = []
    for path in paths:
        try:
            text = read_document(path)
        except OSError as error:
            raise BadMetrics(f"cannot read {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise BadMetrics(f"{path} is no text; give a saved /metrics page") from None
        pages.append(read_engine_page(text, source=str(path)))
    return pages


def watch(
    url: str,
    seconds: float,
    interval_s: float,
    key: str | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> list[EnginePage]:
    """Scrapes the engine at `url` (its address, or that of its /metrics) every `interval_s` for `seconds`, showing `key` as
    its bearer token. Blocks. Raises BadMetrics when the engine cannot be reached, answers an error, or stops answering."""
    connection, path = _connection(url)
    pages: list[EnginePage] = []
    started = time.monotonic()
    try:
        while not pages or pages[-1].at_s is None or pages[-1].at_s - started < seconds:
            time.sleep(max(0.0, started + len(pages) * interval_s - time.monotonic()))
            text = _scrape(connection, path, key, url)
            pages.append(read_engine_page(text, time.monotonic(), url))
            progress(min(1.0, (time.monotonic() - started) / seconds))
    finally:
        connection.close()
    return pages


def _connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    if not url.isprintable():
        raise BadMetrics(f"{url!r:.200} is no address")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadMetrics(f"{url:.200} is no address: {error}") from None
    if parts.username is not None:
        raise BadMetrics("the address of an engine has no user in it; give the engine's key with --key-file")
    if parts.scheme not in ("http", "https") or not host:
        raise BadMetrics(f"{url:.200} is no http address; give e.g. http://10.0.0.5:8101")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=TIMEOUT_S), parts.path if parts.path.strip("/") else "/metrics"


def _scrape(connection: http.client.HTTPConnection, path: str, key: str | None, url: str) -> str:
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        body = _body(answer, time.monotonic() + TIMEOUT_S)
    except (OSError, http.client.HTTPException) as error:
        raise BadMetrics(f"{url:.200} does not answer: {error or type(error).__name__}") from None
    if answer.status != 200:
        hint = "; give the engine's key with --key-file" if answer.status in (401, 403) else ""
        raise BadMetrics(f"{url:.200} answered {answer.status}{hint}")
    return body.decode(errors="replace")


def _body(answer: http.client.HTTPResponse, until: float) -> bytes:
    """Raises TimeoutError for what comes too slowly, BadMetrics for too much, IncompleteRead for too little."""
    parts: list[bytes] = []
    size = 0
    while part := answer.read1(1 << 16):
        size += len(part)
        parts.append(part)
        if size > MAX_PAGE_BYTES:
            raise BadMetrics(f"the page has more than {MAX_PAGE_BYTES:,} bytes; give the address of an engine's /metrics")
        if time.monotonic() > until:
            raise TimeoutError(f"its page takes longer than {TIMEOUT_S:.0f} s")
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    answer.close()  # read1 leaves it open at the end of a sized body, and the connection then takes no next request
    return b"".join(parts)
