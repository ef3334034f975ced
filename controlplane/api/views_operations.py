"""Operations: what was asked for and how far it is; held, ended or taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import openapi
from controlplane.api.documents import OPERATION_STATES, OperationDocument, OperationSummary
from controlplane.api.paging import Listed, page
from controlplane.api.preconditions import conditional, require_match, tag_of
from controlplane.api.rendering import EventStream, Json
from controlplane.api.resource import Resource, carry_out
from controlplane.api.selectors import all_operations, one, open_operations, operations_with_steps
from controlplane.api.showing import show, show_all
from controlplane.api.strict import NoQuery, ReasonBody, Strict, Text, read_body, read_query
from controlplane.api.watch import Seen, see, watcher
from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.core.lifecycle import ENDED
from controlplane.fleet import models

TAG = "operations"
MAX_WAIT_S = 60
ALIVE_EVERY_S = 15
"""A stream says something that often, so that proxies between keep it open and a client that has gone is noticed."""
RETRY_MS = 2000


class OperationsQuery(Listed):
    ORDERS = ("-id", "id")

    model = Text(max_length=128, required=False)
    verb = Text(max_length=32, required=False)
    actor = Text(max_length=150, required=False)
    state = serializers.ChoiceField(choices=OPERATION_STATES, required=False)
    open = serializers.BooleanField(required=False, allow_null=True, default=None, help_text="Only those that are not over.")
    since = serializers.DateTimeField(required=False, help_text="Made at this time or later.")


class WaitQuery(Strict):
    wait = serializers.IntegerField(
        min_value=0,
        max_value=MAX_WAIT_S,
        default=0,
        help_text="Seconds to wait until it is over or, with If-None-Match, until it is another than the one you have.",
    )


class Operations(Resource):
    @openapi.read("list_operations", TAG, openapi.page_of(OperationSummary, "OperationPage"), query=OperationsQuery)
    def get(self, request: Request) -> Response:
        """Operations, the newest first, without their steps."""
        asked = read_query(request, OperationsQuery)
        filters = {"model": "model__name", "verb": "verb", "actor": "actor", "state": "state", "since": "created_at__gte"}
        rows = all_operations().filter(**{field: asked[name] for name, field in filters.items() if name in asked})
        if asked["open"] is not None:
            rows = rows.filter(open_operations()) if asked["open"] else rows.exclude(open_operations())
        return Response(page(request, rows, asked, lambda found: show_all(OperationSummary, found)))


class OneOperation(Resource):
    @openapi.read("get_operation", TAG, OperationDocument, query=WaitQuery, etag=True)
    def get(self, request: Request, operation: int) -> Response:
        """One operation with its steps."""
        read_query(request, WaitQuery)
        document = show(OperationDocument, one(operations_with_steps(), pk=operation))
        return conditional(request, document, tag_of(document))


def waiting(view: Callable[..., HttpResponseBase]) -> Callable[..., Any]:
    """Long polling around the view of one operation. Who may ask, and what the answer is, the view alone decides: it is
    asked once before the wait and once after it. Nothing holds a database connection meanwhile."""

    @wraps(view)
    def wrapped(request: HttpRequest, operation: int) -> Any:
        first: Any = view(request, operation=operation)
        if request.method != "GET" or "wait" not in request.GET or first.status_code not in (200, 304):
            return first
        if first.status_code == 200 and ("If-None-Match" in request.headers or first.data["state"] in ENDED):
            return first
        connections.close_all()
        until_ended = first.status_code == 200
        async_to_sync(_wait)(operation, first.headers["ETag"], float(request.GET["wait"]), until_ended)
        return view(request, operation=operation)

    return wrapped


async def _wait(operation: int, tag: str, seconds: float, until_ended: bool) -> None:
    try:
        async with asyncio.timeout(seconds), watcher().watching(operation) as since:
            seen = await watcher().changed(operation, tag, seconds, since)
            while seen and until_ended and not seen.ended:
                seen = await watcher().changed(operation, seen.tag, seconds, since)
    except TimeoutError:
        pass


class OperationEvents(Resource):
    renderer_classes = (EventStream, Json)

    @openapi.read("follow_operation", TAG, OpenApiTypes.STR, query=NoQuery, media_type=EventStream.media_type)
    def get(self, request: Request, operation: int) -> HttpResponseBase:
        """The operation as server-sent events: `operation` with the whole document now and at each change, `end` once it is
        over."""
        read_query(request, NoQuery)
        first = see(one(operations_with_steps(), pk=operation))
        watcher().refuse_if_full()
        known = request.headers.get("Last-Event-ID", "")
        connections.close_all()  # a stream lives for minutes; a connection is for queries
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(_events(operation, first, known), content_type="text/event-stream", headers=headers)


async def _events(operation: int, first: Seen, known: str) -> AsyncIterator[bytes]:
    yield f"retry: {RETRY_MS}\n\n".encode()
    seen: Seen | None = first
    tag = known
    async with watcher().watching(operation) as since:
        while True:
            if seen is None:
                yield b": alive\n\n"
            elif seen.tag != tag:
                tag = seen.tag
                yield _event("operation", tag, seen.body)
            if seen is not None and seen.ended:
                yield _event("end", tag, b"{}")
                return
            seen = await watcher().changed(operation, tag, ALIVE_EVERY_S, since)


def _event(name: str, id: str, data: bytes) -> bytes:
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode(), id.encode(), data)


class _Steer(Resource):
    """A verb on an operation."""

    verb: Callable[..., models.Operation]

    def _steer(self, request: Request, operation: int) -> Response:
        body = read_body(request, ReasonBody)

        def steer(actor: Actor, number: int, *, reason: str) -> models.Operation:
            """`If-Match` is compared where the verb runs: neither where the answer is stored already nor before somebody
            else may steer it."""
            with transaction.atomic():
                actions.lock_operation(number)
                row = operations_with_steps().filter(pk=number).first()
                if row is not None:
                    require_match(request, tag_of(show(OperationDocument, row)))
                return self.verb(actor, number, reason=reason)

        return carry_out(request, steer, operation, reason=body["reason"])


class OperationCancel(_Steer):
    verb = staticmethod(actions.cancel)

    @openapi.change("cancel_operation", TAG, ReasonBody)
    def post(self, request: Request, operation: int) -> Response:
        """End a running operation where it is."""
        return self._steer(request, operation)


class OperationPause(_Steer):
    verb = staticmethod(actions.pause)

    @openapi.change("pause_operation", TAG, ReasonBody)
    def post(self, request: Request, operation: int) -> Response:
        """Begin nothing new of a running operation; moves in progress finish."""
        return self._steer(request, operation)


class OperationResume(_Steer):
    verb = staticmethod(actions.resume)

    @openapi.change("resume_operation", TAG, ReasonBody)
    def post(self, request: Request, operation: int) -> Response:
        """Go on with a paused operation."""
        return self._steer(request, operation)


class OperationRollback(_Steer):
    verb = staticmethod(actions.rollback)

    @openapi.change("rollback_operation", TAG, ReasonBody)
    def post(self, request: Request, operation: int) -> Response:
        """Take an operation back: one that runs is turned round, one that is over is undone by a new operation."""
        return self._steer(request, operation)
