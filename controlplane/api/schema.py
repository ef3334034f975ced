"""The API's own description, a page to read it on, and addresses where there is nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.problems import plain_answer
from controlplane.api.rendering import Json
from controlplane.api.resource import Resource


class OpenApiJson(Json):
    media_type = "application/vnd.oai.openapi+json"


class Schema(Resource):
    renderer_classes = (Json, OpenApiJson, OpenApiYamlRenderer)

    @extend_schema(exclude=True)
    def get(self, request: Request) -> Response:
        """OpenAPI 3 of this version, as JSON or YAML."""
        return Response(document(), headers={"Cache-Control": "private, max-age=300"})


@cache
def document() -> dict[str, Any]:
    """The same as long as the process lives; making it takes a second."""
    found: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    return found


@require_safe
@never_cache
@login_required
def docs(request: HttpRequest) -> HttpResponse:
    """The description for people, with nothing loaded from elsewhere."""
    return render(request, "api/docs.html")


@csrf_exempt
def nowhere(_request: HttpRequest) -> HttpResponse:
    return plain_answer(404, "not_found", "There is nothing at this address; /api/schema/ lists what there is.")
