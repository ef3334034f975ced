"""The web process for Prometheus: its page /metrics, and where the engines' own pages are.

Whoever asks on this machine may read both; anybody else signs in or brings an API token. A request that a proxy passed on
counts as somebody else's. The page itself needs no database, unless somebody has to prove who they are.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import wraps
from typing import Any
from urllib.parse import urlsplit

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric
from rest_framework.exceptions import AuthenticationFailed

from controlplane.api.tokens import Bearer
from controlplane.common.metrics import CONTENT_TYPE, by, counter, gauge, one, page, registry
from controlplane.control.refused import told
from controlplane.core.lifecycle import SERVING
from controlplane.fleet import models
from controlplane.live.counts import counts as live

AREAS = ("api", "data", "static")
"""First parts of addresses that are counted by themselves; all others are pages."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
PASSED_ON = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_VIA")

_answers = Histogram(
    "twinpool_web_answer_seconds",
    "How long answers took to their last byte; an event stream's lasts as long as it is read.",
    ("area", "status"),
    buckets=SECONDS,
    registry=None,
)

Send = Callable[[Any], Awaitable[None]]


class Timed:
    """ASGI: times every HTTP answer."""

    def __init__(self, app: Callable[[Any, Any, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def note(message: Mapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            area = scope["path"].lstrip("/").partition("/")[0]
            labels = (area if area in AREAS else "page", f"{status // 100}xx" if status else "none")
            _answers.labels(*labels).observe(time.perf_counter() - began)


View = Callable[[HttpRequest], HttpResponse]


def for_readers(view: View) -> View:
    """Refuses with 401 whoever may not read it."""

    @require_safe
    @never_cache
    @wraps(view)
    def checked(request: HttpRequest) -> HttpResponse:
        if _is_local(request) or request.user.is_authenticated or _has_token(request):
            return view(request)
        text = "Ask on the console's own machine, or with `Authorization: Bearer TOKEN` (manage.py add_token makes one).\n"
        return HttpResponse(text, status=401, content_type="text/plain", headers={"WWW-Authenticate": "Bearer"})

    return checked


def _is_local(request: HttpRequest) -> bool:
    try:
        local = ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except ValueError:
        return False
    return local and not any(header in request.META for header in PASSED_ON)


def _has_token(request: HttpRequest) -> bool:
    try:
        return Bearer().authenticate(request) is not None
    except AuthenticationFailed:
        return False


@for_readers
def metrics(_request: HttpRequest) -> HttpResponse:
    return HttpResponse(page(_registry), content_type=CONTENT_TYPE)


@for_readers
def engines(_request: HttpRequest) -> JsonResponse:
    """The engines' own pages, as Prometheus' HTTP service discovery takes them: engines come, go and change roles."""
    rows = models.Engine.objects.filter(state__in=SERVING).exclude(url="").select_related("model")
    targets = [
        {
            "targets": [urlsplit(row.url).netloc],
            "labels": {"process": "engine", "engine": row.id, "model": row.model.name, "role": row.role, "arm": row.arm},
        }
        for row in rows
    ]
    return JsonResponse(targets, safe=False)


def web_series() -> Iterator[Metric]:
    yield from _answers.collect()
    refusals: dict[str, float] = dict(told.counts.items())
    yield counter("twinpool_web_refusals_total", "Changes that were refused, by kind.", by(refusals), ("kind",))
    yield gauge("twinpool_live_sockets", "Open live sockets.", one(live.open))
    yield counter("twinpool_live_frames_total", "Frames and errors sent to live sockets.", one(live.frames))
    yield counter("twinpool_live_frame_bytes_total", "Their text.", one(live.frame_bytes))
    yield counter("twinpool_live_messages_total", "Messages of clients.", one(live.messages))
    yield counter(
        "twinpool_live_closed_total",
        "Live sockets that ended: client, or our close code (4408: the client did not read).",
        by({"client": 0, "4408": 0} | live.closed),
        ("by",),
    )


_registry = registry(web_series)
