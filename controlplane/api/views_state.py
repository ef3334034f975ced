"""The whole desired state as one document: read, compared, applied."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.access.who import actor_of
from controlplane.api import openapi
from controlplane.api.documents import ANY_OBJECT, ObjectField
from controlplane.api.idempotency import Answer, once, read_key
from controlplane.api.parsing import Json as JsonBody
from controlplane.api.preconditions import conditional, require_match, tag_of
from controlplane.api.rendering import Json
from controlplane.api.resource import REPLAYED, Resource
from controlplane.api.strict import NoQuery, RemovalQuery, Text, read_query
from controlplane.api.yamlbody import MEDIA_TYPE, YamlAnswer, YamlBody
from controlplane.control.state import document
from controlplane.control.state.applying import apply_state, plan_state, shown

MAX_TAKE = 2000


class StateQuery(RemovalQuery):
    """The body is the document, so its reason is a parameter."""

    force = serializers.BooleanField(default=False, help_text="Overwrite all that was changed by hand since the last time.")
    take = Text(
        max_length=MAX_TAKE,
        allow_blank=True,
        default="",
        help_text="Paths as `drift` tells them, separated by commas: overwrite these though they were changed by hand.",
    )


@extend_schema_serializer(component_name="State")
class StateDocument(serializers.Serializer[Any]):
    """What is desired. Left out: not the document's business; null in place of an item: there shall be none."""

    version = serializers.IntegerField(help_text="1")
    teams = ObjectField(required=False)
    models = ObjectField(required=False)
    planners = ObjectField(required=False)
    alert_rules = ObjectField(required=False)
    prices = ObjectField(required=False)


class StepCount(serializers.Serializer[Any]):
    verb = serializers.CharField()
    role = serializers.CharField()
    count = serializers.IntegerField()


class StateChange(serializers.Serializer[Any]):
    path = serializers.CharField()
    change = serializers.ChoiceField(choices=("create", "change", "remove"))
    fields = ObjectField(help_text="{now, wanted} by path.")  # type: ignore[assignment]
    steps = StepCount(many=True)
    operation = serializers.IntegerField(allow_null=True)


class StateDrift(serializers.Serializer[Any]):
    """Changed by hand since it was applied, and left so. Of a whole item the values say whether it is there."""

    path = serializers.CharField()
    applied = serializers.JSONField()
    now = serializers.JSONField()
    wanted = serializers.JSONField()


class AppliedDocument(serializers.Serializer[Any]):
    """What differs and what is done about it. `operation`: null if there is nothing new."""

    changes = StateChange(many=True)
    drift = StateDrift(many=True)
    operation = serializers.IntegerField(allow_null=True)


class State(Resource):
    parser_classes = (JsonBody, YamlBody)
    renderer_classes = (Json, YamlAnswer)

    @openapi.read("get_state", "state", StateDocument, query=NoQuery, etag=True)
    def get(self, request: Request) -> Response:
        """All that is desired, as JSON or, with `Accept: application/yaml`, as YAML. It holds no secret."""
        read_query(request, NoQuery)
        found = document.export()
        return conditional(request, found, tag_of(found))

    @extend_schema(
        operation_id="apply_state",
        tags=["state"],
        request={"application/json": StateDocument, MEDIA_TYPE: ANY_OBJECT},
        parameters=[StateQuery, openapi.KEY, openapi.IF_MATCH],
        responses={
            200: OpenApiResponse(AppliedDocument, description="With `dry_run`: what would be done."),
            202: OpenApiResponse(AppliedDocument, description="Accepted: these operations carry it out."),
            **openapi.problems(openapi.CHANGES),
        },
    )
    def put(self, request: Request) -> Response:
        """Make the desired state what the document says: all of it, or with a refusal nothing."""
        asked = read_query(request, StateQuery)
        wanted = document.read(request.data)
        take = [path.strip() for path in asked["take"].split(",") if path.strip()]
        actor, ways = actor_of(request), {"force": asked["force"], "take": take}
        if asked["dry_run"]:
            return Response(shown(plan_state(actor, wanted, **ways)))

        def act() -> Answer:
            if "If-Match" in request.headers:
                require_match(request, tag_of(document.export()))
            return Answer(202, shown(apply_state(actor, wanted, reason=asked["reason"], **ways)))

        answer = once(read_key(request, actor.name), act)
        headers = {REPLAYED: "true"} if answer.replayed else {}
        return Response(answer.body, status=answer.status, headers=headers)
