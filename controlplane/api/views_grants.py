"""Users to whom a model was given: they may do with it what an owner of its team may."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import openapi
from controlplane.api.resource import Resource, carry_out_on_model
from controlplane.api.selectors import one
from controlplane.api.showing import show_all
from controlplane.api.strict import NoQuery, ReasonBody, read_body, read_query
from controlplane.control import actions
from controlplane.fleet.models import Grant, Model

TAG = "models"


class GrantDocument(serializers.ModelSerializer[Grant]):
    user = serializers.CharField(source="user.username", read_only=True)

    class Meta:
        model = Grant
        fields = ("user", "created_at")
        read_only_fields = fields


class GrantList(serializers.Serializer[Any]):
    items = GrantDocument(many=True)


class ModelGrants(Resource):
    @openapi.read("list_grants", TAG, GrantList, query=NoQuery)
    def get(self, request: Request, name: str) -> Response:
        """Users who may change this model though they are no owner in its team."""
        read_query(request, NoQuery)
        rows = one(Model.objects.only("id"), name=name).grants.select_related("user")
        return Response({"items": show_all(GrantDocument, rows)})


class OneGrant(Resource):
    @openapi.change("grant_model", TAG, ReasonBody, model=True)
    def put(self, request: Request, name: str, user: str) -> Response:
        """Let one user do with this model what an owner may. Admins."""
        return carry_out_on_model(request, actions.grant_model, name, user, **read_body(request, ReasonBody))

    @openapi.change("ungrant_model", TAG, model=True)
    def delete(self, request: Request, name: str, user: str) -> Response:
        """Take that back. Admins."""
        return carry_out_on_model(request, actions.ungrant_model, name, user)
