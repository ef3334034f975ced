"""Users to whom a model was given: they may do with it what an owner of its team may."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import openapi
from controlplane.api.resource import Resource, carry_out_on_model
from controlplane.api.selectors import one
from controlplane.api.showing import show_all
from controlplane.api.strict import NoQuery, Reason, Strict, read_body, read_query
from controlplane.control import actions
from controlplane.fleet.models import Grant, Model, good_grants

TAG = "models"


class GrantDocument(serializers.ModelSerializer[Grant]):
    user = serializers.CharField(source="user.username", read_only=True)

    class Meta:
        model = Grant
        fields = ("user", "created_at", "until", "given_by", "reason")
        read_only_fields = fields


class GrantBody(Strict):
    until = serializers.DateTimeField(
        default=None, allow_null=True, help_text="ISO 8601 with a time zone; left out: until it is taken back."
    )
    reason = Reason()


class GrantList(serializers.Serializer[Any]):
    items = GrantDocument(many=True)


class ModelGrants(Resource):
    @openapi.read("list_grants", TAG, GrantList, query=NoQuery)
    def get(self, request: Request, name: str) -> Response:
        """Users who may change this model though they are no owner in its team."""
        read_query(request, NoQuery)
        given = one(Model.objects.only("id"), name=name).grants.filter(good_grants(timezone.now()))
        rows = given.select_related("user")
        return Response({"items": show_all(GrantDocument, rows)})


class OneGrant(Resource):
    @openapi.change("grant_model", TAG, GrantBody, model=True)
    def put(self, request: Request, name: str, user: str) -> Response:
        """Let one user do with this model what an owner may, for a time or until it is taken back. Admins."""
        return carry_out_on_model(request, actions.grant_model, name, user, **read_body(request, GrantBody))

    @openapi.change("ungrant_model", TAG, model=True)
    def delete(self, request: Request, name: str, user: str) -> Response:
        """Take that back. Admins."""
        return carry_out_on_model(request, actions.ungrant_model, name, user)
