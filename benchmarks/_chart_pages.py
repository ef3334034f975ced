"""How long a model's charts take through the web process as `up` starts it: every document of its page over HTTP."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping

import httpx

from tests.console_web import Web

MODEL = "llama-70b"
RANGES = {"24 h": "24h", "90 d": "90d"}
CHARTS = ("series", "pool_series", "transfer_series", "engines")
"""What the limits are for."""
REST = ("figures", "pools", "transfers", "pairs", "handoff", "slo", "waste", "markers")


def ask_pages(limits_ms: Mapping[str, float], runs: int) -> bool:
    """Prints a line per document. Whether all charts are within their limits."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    from controlplane.stack.ports import free_port

    client = Client()
    client.force_login(get_user_model().objects.create_user("viewer"), "django.contrib.auth.backends.ModelBackend")
    session = client.cookies["sessionid"].value
    web = Web(free_port())
    web.start()
    try:
        return _ask_documents(web.url, session, limits_ms, runs)
    finally:
        web.stop()


def _addresses() -> Iterator[tuple[str, str, bool]]:
    """Span, address, and whether the limits are for it."""
    for span, asked in RANGES.items():
        yield span, f"/models/{MODEL}?range={asked}", False
        for what in (*CHARTS, *REST):
            yield span, f"/data/models/{MODEL}/{what}?range={asked}", what in CHARTS
    yield "24 h", "/data/requests?range=24h", False


def _ask_documents(url: str, session: str, limits_ms: Mapping[str, float], runs: int) -> bool:
    print(f"\n{'over HTTP':52} {'span':>7} {'kB':>7} {'first':>8} {'median':>8} {'worst':>8}  ms")
    within = True
    with httpx.Client(base_url=url, cookies={"sessionid": session}, timeout=60) as client:
        for span, address, chart in _addresses():
            taken, size = [], 0
            for _ in range(runs + 1):
                began = time.perf_counter()
                answer = client.get(address)
                taken.append((time.perf_counter() - began) * 1000)
                assert answer.status_code == 200, f"{address}: {answer.status_code}"
                size = len(answer.content)
            median = statistics.median(taken[1:])
            limit = limits_ms.get(span) if chart else None
            over = limit is not None and median > limit
            within &= not over
            note = f"  limit {limit:.0f}{', OVER' if over else ''}" if limit else ""
            times = "".join(f" {value:>8.1f}" for value in (taken[0], median, max(taken[1:])))
            print(f"{address.partition('?')[0]:52} {span:>7} {size / 1000:>7.1f}{times}{note}", flush=True)
    return within
