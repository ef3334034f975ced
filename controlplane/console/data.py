"""What all data of pages' scripts has in common: a window of time in the address, an ETag, an end to long queries, and the
same as a table to take away (`?format=csv` or `json`)."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import orjson
from django.db import OperationalError, connection, transaction
from django.db.models import Max
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse, QueryDict
from django.utils.cache import get_conditional_response, patch_vary_headers
from django.utils.translation import get_language, gettext
from django.views.decorators.http import require_safe
from psycopg.errors import QueryCanceled

from controlplane.console.history import View, signed_in
from controlplane.fleet import models
from controlplane.telemetry.queries.exports import Table, csv_file, json_document
from controlplane.telemetry.queries.stored import stored
from controlplane.telemetry.queries.windows import BadWindow, Window

RANGES = {"15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000, "90d": 7_776_000}
"""Spans up to the present that pages offer."""
TIMEOUT_S = 5
FRESH_S = 10
"""A window that reaches to the present is another one after this long."""


class BadQuery(ValueError):
    """What an address asks for cannot be answered; the text says what can."""


def window_of(query: QueryDict, now: float, default: str = "1h") -> Window:
    """`?range=1h`, or `?from=2026-11-30T12:00Z&to=…` (without a zone: UTC; without `to`: until now). Raises BadQuery,
    BadWindow."""
    if "from" in query or "to" in query:
        if "from" not in query:
            raise BadQuery(gettext("A time range needs its beginning (from)."))
        until = min(_moment(query.get("to", "")), now) if query.get("to") else now
        return Window(_moment(query.get("from", "")), until, now)
    span_s = RANGES.get(query.get("range") or default)
    if span_s is None:
        raise BadQuery(gettext("This range is not offered; one of: %(offered)s") % {"offered": ", ".join(RANGES)})
    return Window.last(span_s, now)


def _moment(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise BadQuery(gettext("A time is written like 2026-11-30T12:00Z.")) from error


def data(view: View) -> View:
    """For a view that reads telemetry: for those who are signed in; 304 when nothing was stored since; refusals as JSON
    {"error"}: 400, 401, 404, 503 when PostgreSQL is away or takes longer than TIMEOUT_S."""

    @fresh
    @wraps(view)
    def tagged(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        tag = _tag(request)
        answer = get_conditional_response(request, etag=tag) or view(request, *args, **kwargs)
        answer.headers["ETag"] = tag
        return answer

    return tagged


def fresh(view: View) -> View:
    """The same for a view of what people set, which is read anew every time: a change is seen at once."""

    @require_safe
    @signed_in
    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            with _bounded():
                answer = view(request, *args, **kwargs)
        except (BadQuery, BadWindow) as error:
            return JsonResponse({"error": str(error)}, status=400)
        except Http404:
            return JsonResponse({"error": gettext("There is no such thing here.")}, status=404)
        except OperationalError as error:
            return _late(error)
        answer.headers["Cache-Control"] = "private, no-cache"
        patch_vary_headers(answer, ("Cookie", "Accept-Language"))
        return answer

    return answered


@contextmanager
def _bounded() -> Iterator[None]:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = '{TIMEOUT_S}s'")
        yield


def _late(error: OperationalError) -> JsonResponse:
    if isinstance(error.__cause__, QueryCanceled):
        words = gettext("the query took over %(n)d s: choose a shorter time or more filters") % {"n": TIMEOUT_S}
    else:
        words = gettext("the database does not answer")
    return JsonResponse({"error": words}, status=503)


def _tag(request: HttpRequest) -> str:
    """Changes with what is stored, with what is asked for, with operations and, as windows move, with the time."""
    changed = models.Operation.objects.aggregate(newest=Max("pk"), ended=Max("finished_at"))
    asked = f"{request.get_full_path()} {get_language()} {time.time() // FRESH_S} {changed}"
    return f'"{stored().tag}-{hashlib.sha256(asked.encode()).hexdigest()[:16]}"'


def answer(request: HttpRequest, name: str, page: Callable[[], Any], table: Callable[[], Table]) -> HttpResponse:
    """The page's document, or the table as a file called after `name`. Raises BadQuery for another format."""
    wanted = request.GET.get("format", "")
    if not wanted:
        return HttpResponse(orjson.dumps(page()), content_type="application/json")
    if wanted not in ("csv", "json"):
        raise BadQuery(gettext("A table comes as csv or json."))
    if wanted == "csv":
        file = HttpResponse(csv_file(table()), content_type="text/csv; charset=utf-8")
    else:
        file = HttpResponse(orjson.dumps(json_document(table())), content_type="application/json")
    plain = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)
    file.headers["Content-Disposition"] = f'attachment; filename="twinpool-{plain}.{wanted}"'
    return file
