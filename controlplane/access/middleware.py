"""Who a request is from, by its session: nobody if that lacks the second factor it needs or is too old."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.contrib.auth import SESSION_KEY
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.functional import SimpleLazyObject

from controlplane.access import sessions


class SignedIn:
    """After Django's own AuthenticationMiddleware. Nothing is read before somebody asks who it is."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        named: Any = request.user
        request.user = cast(Any, SimpleLazyObject(lambda: sessions.allowed(named, request.session)))
        request.auser = _asynchronously(lambda: sessions.allowed(named, request.session))
        response = self.get_response(request)
        if response.status_code >= 500:
            return response  # with the database away, looking for the session would fail again
        if request.session.accessed and SESSION_KEY in request.session and _by_a_person(request):
            sessions.touch(request.session, time.time())
        return response


def _asynchronously(ask: Callable[[], Any]) -> Any:
    return sync_to_async(ask)


def _by_a_person(request: HttpRequest) -> bool:
    """Whether somebody went to a page or changed something: what an open page fetches by itself keeps no session alive."""
    return request.method not in ("GET", "HEAD") or request.headers.get("Sec-Fetch-Mode", "navigate") == "navigate"
