"""Tokens with which nodes join."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.access.scopes import SECRETS
from controlplane.api import openapi
from controlplane.api.documents import OperationDocument
from controlplane.api.paging import Listed, page
from controlplane.api.preconditions import require_match
from controlplane.api.resource import Resource, carry_out
from controlplane.api.selectors import one
from controlplane.api.strict import NoQuery, Number, Reason, Strict, Text, read_body, read_query
from controlplane.common.jointoken import BadToken, join_url
from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.auditing.events import note_secret
from controlplane.control.joined import described, token_text
from controlplane.core.joining import MAX_TOKEN_HOURS, TOKEN_HOURS
from controlplane.fleet import models

TAG = "nodes"
STATES = ("valid", "used", "revoked", "expired")


class JoinTokenDocument(serializers.Serializer[Any]):
    """A token without what makes it one. `used`: a machine joined with it."""

    token = serializers.IntegerField()
    node = serializers.CharField()
    state = serializers.ChoiceField(choices=STATES)
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
    used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)


class IssuedDocument(OperationDocument):
    """The operation, with the token that it made."""

    join_token = serializers.CharField(
        read_only=True, help_text="What the agent joins with, a secret; empty if it was used or revoked meanwhile."
    )

    class Meta(OperationDocument.Meta):
        fields = (*OperationDocument.Meta.fields, "join_token")
        read_only_fields = fields


class JoinTokenBody(Strict):
    node = Text(max_length=63, help_text="Made if there is none of this name.")
    hours = Number(min_value=0, max_value=MAX_TOKEN_HOURS, default=TOKEN_HOURS, help_text="It can be used so long.")
    address = Text(
        max_length=255, default="", allow_blank=True, help_text="HOST or HOST:PORT at which the node reaches Valkey."
    )
    reason = Reason()

    def validate_address(self, address: str) -> str:
        try:
            join_url("redis://valkey:6379/0", address)
        except BadToken as error:
            raise serializers.ValidationError(str(error)) from error
        return address


class TokensQuery(Listed):
    ORDERS = ("-id", "id")

    node = Text(max_length=63, required=False)


class JoinTokens(Resource):
    scope = SECRETS

    @openapi.read("list_join_tokens", TAG, openapi.page_of(JoinTokenDocument, "JoinTokenPage"), query=TokensQuery)
    def get(self, request: Request) -> Response:
        """Tokens with which nodes join or joined, the newest first, without the tokens themselves."""
        asked = read_query(request, TokensQuery)
        rows = models.JoinToken.objects.select_related("node")
        if "node" in asked:
            rows = rows.filter(node__name=asked["node"])
        return Response(page(request, rows, asked, _show))

    @openapi.change("add_join_token", TAG, JoinTokenBody, document=IssuedDocument)
    def post(self, request: Request) -> Response:
        """Make a token with which one machine joins as this node, once. Earlier ones that were not used are revoked."""
        body = read_body(request, JoinTokenBody)
        require_match(request)
        address = body.pop("address")
        answer = carry_out(request, _add, **body)
        if answer.status_code == 202:
            row = models.JoinToken.objects.select_related("node").filter(pk=answer.data["after"]["token"]).first()
            answer.data = {**answer.data, "join_token": token_text(row, address) if row else ""}
            note_secret(request.user.get_username(), f"node:{body['node']}")
        return answer


def _add(actor: Actor, node: str, **options: Any) -> models.Operation:
    return actions.add_join_token(actor, node, **options)[0]


class OneJoinToken(Resource):
    scope = SECRETS

    @openapi.read("get_join_token", TAG, JoinTokenDocument, query=NoQuery)
    def get(self, request: Request, token: int) -> Response:
        """One token."""
        read_query(request, NoQuery)
        return Response(_show([one(models.JoinToken.objects.select_related("node"), pk=token)])[0])

    @openapi.change("revoke_join_token", TAG)
    def delete(self, request: Request, token: int) -> Response:
        """Let nobody join with it any more. To shut out a node that has joined, remove the node."""
        require_match(request)
        return carry_out(request, actions.revoke_join_token, token)


def _show(found: list[models.JoinToken]) -> Any:
    now = timezone.now()
    return [described(row, now) for row in found]
