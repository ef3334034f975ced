"""What may happen to any page: an address that nothing can be at, and a database that is away, which is a normal failure:
the viewer is told, and the page tries again by itself."""

from __future__ import annotations

from collections.abc import Callable

from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.translation import gettext

RETRY_AFTER_S = 5


class NulAddress:
    """404 for a page with a NUL in its path: no text in PostgreSQL has one. The API tells by itself."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "\x00" in request.path and not request.path.startswith("/api/"):
            raise Http404
        return self.get_response(request)


class DatabaseAway:
    """503 with Retry-After instead of an error page when PostgreSQL does not answer; to scripts as JSON, like a refusal."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, (OperationalError, InterfaceError)):
            return None
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        if "application/json" in (request.content_type, request.headers.get("Accept")):
            why = gettext("The database does not answer. Look at the operations before you try again.")
            return JsonResponse({"kind": "unavailable", "reasons": [why]}, status=503, headers=headers)
        return HttpResponse(render_to_string("503.html"), status=503, headers=headers)
