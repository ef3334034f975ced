"""The canary of a model: a trial of another mode on a part of its sessions."""

from __future__ import annotations

from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api import openapi
from controlplane.api.bodies_canary import CanaryBody, CanaryChangeBody, PromoteBody
from controlplane.api.documents import CanaryDocument
from controlplane.api.resource import Resource, carry_out_on_model
from controlplane.api.selectors import newest_canary
from controlplane.api.strict import NoQuery, read_body, read_query
from controlplane.control import actions

TAG = "models"


class ModelCanary(Resource):
    @openapi.read("get_canary", TAG, CanaryDocument, query=NoQuery)
    def get(self, request: Request, name: str) -> Response:
        """The canary that runs, else the last one, with its verdict so far."""
        read_query(request, NoQuery)
        canary = newest_canary(name)
        if canary is None:
            raise Http404
        return Response(CanaryDocument(canary).data)

    @openapi.change("set_canary", TAG, CanaryBody, model=True)
    def put(self, request: Request, name: str) -> Response:
        """Try another mode on a part of the sessions."""
        return carry_out_on_model(request, actions.set_canary, name, **read_body(request, CanaryBody))

    @openapi.change("update_canary", TAG, CanaryChangeBody, model=True)
    def patch(self, request: Request, name: str) -> Response:
        """Give the running canary other guardrails."""
        return carry_out_on_model(request, actions.update_canary, name, **read_body(request, CanaryChangeBody))

    @openapi.change("end_canary", TAG, model=True)
    def delete(self, request: Request, name: str) -> Response:
        """End the trial without its mode; its engines go back."""
        return carry_out_on_model(request, actions.end_canary, name)


class CanaryPromote(Resource):
    @openapi.change("promote_canary", TAG, PromoteBody, model=True)
    def post(self, request: Request, name: str) -> Response:
        """Go on to the next share; after the last one the canary's mode is the model's."""
        return carry_out_on_model(request, actions.promote_canary, name, **read_body(request, PromoteBody))
