"""Inference keys and tokens of this API: listed without what they are, made, rotated and revoked. What is secret is in the
first answer alone: an answer that is replayed has none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.access import tokens
from controlplane.access.scopes import SCOPES, SECRETS
from controlplane.access.who import actor_of
from controlplane.api import openapi
from controlplane.api.documents import OperationDocument, TextsField
from controlplane.api.paging import Listed, page
from controlplane.api.preconditions import require_match
from controlplane.api.resource import Resource, carry_out
from controlplane.api.strict import Number, Reason, Strict, Text, Whole, read_body, read_query
from controlplane.control import keys
from controlplane.control.actions import forbid
from controlplane.control.actor import Actor
from controlplane.control.newkey import ALL_MODELS, MAX_DAYS, MAX_LIMIT, MAX_PRIORITY, NewKey
from controlplane.fleet import models
from controlplane.telemetry.queries.uses import digests_of, last_use, last_uses

TAG = "keys"
STATES = ("valid", "expired", "revoked")


class SecretDocument(OperationDocument):
    """The operation, with what it made."""

    secret = serializers.CharField(read_only=True, help_text="Shown this once; empty in an answer that is replayed.")

    class Meta(OperationDocument.Meta):
        fields = (*OperationDocument.Meta.fields, "secret")
        read_only_fields = fields


class KeyDocument(serializers.Serializer[Any]):
    """An inference key. `former_until`: so long clients may go on with what it was before."""

    name = serializers.CharField()
    team = serializers.CharField()
    state = serializers.ChoiceField(choices=STATES)
    models = TextsField()
    requests_per_minute = serializers.IntegerField(allow_null=True)
    tokens_per_minute = serializers.IntegerField(allow_null=True)
    max_priority = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    former_until = serializers.DateTimeField(allow_null=True)
    used_at = serializers.DateTimeField(allow_null=True, help_text="Within 90 days; to the hour if it is some hours ago.")


class TokenDocument(serializers.Serializer[Any]):
    """A token of this API."""

    user = serializers.CharField()
    name = serializers.CharField()
    scopes = TextsField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    used_at = serializers.DateTimeField(allow_null=True, help_text="To five minutes.")


class TokenList(serializers.Serializer[Any]):
    """All of a user's."""

    items = TokenDocument(many=True)


def _limit(most: int) -> Whole:
    return Whole(min_value=1, max_value=most, default=None, allow_null=True, help_text="Left out: none.")


def _days() -> Whole:
    return Whole(min_value=1, max_value=MAX_DAYS, default=None, allow_null=True)


class KeyBody(Strict):
    name = Text(max_length=63)
    team = Text(max_length=63, help_text="Whose use it counts as.")
    models = serializers.ListField(child=Text(max_length=128), max_length=200, default=[ALL_MODELS], help_text="Or aliases.")
    requests_per_minute = _limit(MAX_LIMIT)
    tokens_per_minute = _limit(MAX_LIMIT)
    max_priority = Whole(min_value=0, max_value=MAX_PRIORITY, default=0)
    days = _days()
    reason = Reason()


class RotateBody(Strict):
    overlap_hours = Number(
        min_value=0, max_value=keys.MAX_OVERLAP_HOURS, default=24, help_text="So long the old one is good still."
    )
    days = _days()
    reason = Reason()


class UserQuery(Strict):
    user = Text(max_length=150, required=False, help_text="An admin's: whose; left out: one's own.")


class TokenBody(Strict):
    name = Text(max_length=63)
    user = Text(max_length=150, required=False, help_text="An admin's: for whom; left out: oneself.")
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=SCOPES), min_length=1, max_length=len(SCOPES))
    days = _days()
    reason = Reason()


class KeysQuery(Listed):
    ORDERS = ("id", "-id")


class Keys(Resource):
    scope = SECRETS

    @openapi.read("list_keys", TAG, openapi.page_of(KeyDocument, "KeyPage"), query=KeysQuery)
    def get(self, request: Request) -> Response:
        """Inference keys, the oldest first: operators see all, others those of their teams."""
        asked = read_query(request, KeysQuery)
        return Response(page(request, keys.keys_seen_by(actor_of(request)), asked, _shown))

    @openapi.change("add_key", TAG, KeyBody, document=SecretDocument)
    def post(self, request: Request) -> Response:
        """Make a key. An owner's is of their team, for models that the team owns."""
        body = read_body(request, KeyBody)
        require_match(request)
        reason, names = body.pop("reason"), tuple(body.pop("models"))
        return _with_secret(request, keys.add_key, NewKey(model_names=names, **body), reason=reason)


class OneKey(Resource):
    scope = SECRETS

    @openapi.change("revoke_key", TAG)
    def delete(self, request: Request, name: str) -> Response:
        """Let clients in with it no more, for good."""
        require_match(request)
        return carry_out(request, keys.revoke_key, name)


class KeyRotate(Resource):
    scope = SECRETS

    @openapi.change("rotate_key", TAG, RotateBody, document=SecretDocument)
    def post(self, request: Request, name: str) -> Response:
        """Give a key a new secret; the old one is good for some hours still."""
        body = read_body(request, RotateBody)
        require_match(request)
        return _with_secret(request, keys.rotate_key, name, **body)


class Tokens(Resource):
    scope = SECRETS

    @openapi.read("list_tokens", "tokens", TokenList, query=UserQuery)
    def get(self, request: Request) -> Response:
        """Tokens of this API that are good still: one's own, or for an admin another user's."""
        user = _whose(request, read_query(request, UserQuery), "revoke_token")
        return Response({"items": [_token(user, row) for row in tokens.tokens_of(user)]})

    @openapi.change("add_token", "tokens", TokenBody, document=SecretDocument)
    def post(self, request: Request) -> Response:
        """Make a token. One made with a token has no scope that this has not."""
        body = read_body(request, TokenBody)
        require_match(request)
        user = _whose(request, {"user": body.pop("user", "")}, "add_token")
        held = getattr(request.auth, "scopes", SCOPES)
        scopes = [scope for scope in body.pop("scopes") if scope in held]
        return _with_secret(request, tokens.add_token, user, body.pop("name"), scopes=scopes, **body)


class OneToken(Resource):
    scope = SECRETS

    @openapi.change("revoke_token", "tokens")
    def delete(self, request: Request, name: str) -> Response:
        """Let nobody in with a token of one's own any more."""
        require_match(request)
        return carry_out(request, tokens.revoke_token, request.user.get_username(), name)


def _with_secret(request: Request, action: Callable[..., tuple[Any, str]], *args: Any, **options: Any) -> Response:
    """`carry_out` for an action that gives a secret beside the operation: it is in this answer and stored nowhere."""
    made: list[str] = []

    def act(actor: Actor, *given: Any, **more: Any) -> Any:
        operation, secret = action(actor, *given, **more)
        made.append(secret)
        return operation

    answer = carry_out(request, act, *args, **options)
    if answer.status_code == 202:
        answer.data = {**answer.data, "secret": made[0] if made else ""}
    return answer


def _whose(request: Request, asked: dict[str, Any], verb: str) -> str:
    """The user that is meant. Raises Refused unless it is oneself, or one may."""
    own = request.user.get_username()
    user = asked.get("user") or own
    if user != own:
        forbid(actor_of(request), verb)
        tokens.user_named(user)
    return str(user)


def _shown(found: list[models.InferenceKey]) -> Any:
    now = timezone.now()
    uses = last_uses(digests_of(found), now.timestamp())
    return [KeyDocument(_key(row, now, last_use(row, uses))).data for row in found]


def _key(row: models.InferenceKey, now: datetime, used_at: float | None) -> dict[str, Any]:
    own = ("name", "team", "requests_per_minute", "tokens_per_minute", "max_priority", "created_at", "expires_at")
    return {
        **{name: getattr(row, name) for name in own},
        "state": keys.state_of(row, now),
        "models": row.model_names,
        "former_until": keys.former_until(row, now),
        "used_at": datetime.fromtimestamp(used_at, UTC) if used_at else None,
    }


def _token(user: str, row: Any) -> Any:
    return TokenDocument(
        {
            "user": user,
            **{name: getattr(row, name) for name in ("name", "scopes", "used_at")},
            "created_at": row.created,
            "expires_at": row.expiry,
        }
    ).data
