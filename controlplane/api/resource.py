"""What all views share. A view parses, calls one thing and shapes the answer; `control.actions` decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import translation
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.access.who import actor_of
from controlplane.api.documents import OperationDocument
from controlplane.api.documents_preview import PreviewDocument
from controlplane.api.idempotency import Answer, once, read_key
from controlplane.api.preconditions import expected_version
from controlplane.api.rendering import stored
from controlplane.api.selectors import operations_with_steps
from controlplane.api.showing import show
from controlplane.api.strict import ChangeQuery, RemovalQuery, read_query
from controlplane.control.actions import preview
from controlplane.fleet import models

REPLAYED = "Idempotency-Replayed"


class Resource(APIView):
    """Speaks English whatever the browser prefers, and is kept by no cache unless it says so."""

    http_method_names = ["get", "head", "post", "put", "patch", "delete"]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with translation.override("en"):
            return super().dispatch(request, *args, **kwargs)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().finalize_response(request, response, *args, **kwargs)
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers.setdefault("Content-Language", "en")
        return response


def carry_out(request: Request, action: Callable[..., models.Operation], *args: Any, **options: Any) -> Response:
    """Run an action of `control.actions` as the request's user: 202 with the operation, the stored answer if this request
    came before, or with `dry_run` 200 with what would be done. Raises Refused and Problem."""
    asked = read_query(request, RemovalQuery if request.method == "DELETE" else ChangeQuery)
    dry_run = asked.pop("dry_run")
    actor, options = actor_of(request), options | asked
    if dry_run:
        return Response(PreviewDocument(preview(action, actor, *args, **options)).data)
    answer = once(read_key(request, actor.name), lambda: _began(action(actor, *args, **options)))
    headers = {"Location": answer.location} | ({REPLAYED: "true"} if answer.replayed else {})
    return Response(answer.body, status=answer.status, headers=headers)


def carry_out_on_model(
    request: Request, action: Callable[..., models.Operation], name: str, *args: Any, **options: Any
) -> Response:
    """The same for an action on a model, which compares the version that `If-Match` asks for."""
    return carry_out(request, action, name, *args, expected_version=expected_version(request, name), **options)


def _began(operation: models.Operation) -> Answer:
    row = operations_with_steps().get(pk=operation.pk)
    return Answer(202, stored(show(OperationDocument, row)), f"/api/v1/operations/{row.pk}")
