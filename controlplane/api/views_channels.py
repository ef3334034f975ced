"""How alerts are set, and who is told of them."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.access.scopes import SECRETS
from controlplane.alerts.models import Channel, ChannelKind
from controlplane.alerts.selectors import FIELDS, Settings, read_settings
from controlplane.api import openapi
from controlplane.api.documents import OperationDocument
from controlplane.api.documents_alerts import SEVERITIES
from controlplane.api.paging import Listed, page
from controlplane.api.preconditions import require_match
from controlplane.api.resource import REPLAYED, Resource, carry_out
from controlplane.api.selectors import one
from controlplane.api.strict import Flag, NoQuery, Number, Reason, Strict, Text, read_body, read_query
from controlplane.control import actions
from controlplane.control.actor import Actor
from controlplane.control.auditing.events import note_secret
from controlplane.core.alertrules import RULES
from controlplane.fleet import models

TAG = "alerts"


class SettingDocument(serializers.Serializer[Any]):
    """How a rule judges, for all models (`model` null) or for one. `own`: what of it is set there and not more widely."""

    model = serializers.CharField(allow_null=True)
    threshold = serializers.FloatField()
    for_s = serializers.FloatField()
    clear_s = serializers.FloatField()
    severity = serializers.ChoiceField(choices=SEVERITIES)
    enabled = serializers.BooleanField()
    own = serializers.ListField(child=serializers.ChoiceField(choices=list(FIELDS)))


class RuleDocument(serializers.Serializer[Any]):
    """A rule, and each of its settings; the threshold may be from `low` to `high`, in `unit`."""

    rule = serializers.ChoiceField(choices=list(RULES))
    title = serializers.CharField()
    unit = serializers.CharField()
    low = serializers.FloatField()
    high = serializers.FloatField()
    of_models = serializers.BooleanField(help_text="Each model may have settings of its own.")
    remedy = serializers.CharField()
    settings = SettingDocument(many=True)


class RuleList(serializers.Serializer[Any]):
    items = RuleDocument(many=True)


class RuleBody(Strict):
    """What is left out follows the wider setting, at last the default; a body without any takes the setting back."""

    model = Text(max_length=128, default="", allow_blank=True, help_text="Empty: for all models.")
    threshold = Number(required=False)
    for_s = Number(required=False)
    clear_s = Number(required=False)
    severity = serializers.ChoiceField(choices=SEVERITIES, required=False)
    enabled = Flag(required=False)
    reason = Reason()


class AlertRules(Resource):
    @openapi.read("list_alert_rules", TAG, RuleList, query=NoQuery)
    def get(self, request: Request) -> Response:
        """Every rule, how it is set for all models and where a model has settings of its own."""
        read_query(request, NoQuery)
        known = read_settings()
        return Response({"items": [_rule(key, known) for key in RULES]})


class OneAlertRule(Resource):
    @openapi.read("get_alert_rule", TAG, RuleDocument, query=NoQuery)
    def get(self, request: Request, rule: str) -> Response:
        """One rule."""
        read_query(request, NoQuery)
        if rule not in RULES:
            raise Http404
        return Response(_rule(rule, read_settings()))

    @openapi.change("set_alert_rule", TAG, RuleBody)
    def put(self, request: Request, rule: str) -> Response:
        """Set it for all models, or for one."""
        body = read_body(request, RuleBody)
        require_match(request)
        wanted = actions.RuleChange(**{name: body.pop(name) for name in FIELDS if name in body})
        return carry_out(request, actions.set_alert_rule, rule, wanted, **body)


def _rule(key: str, known: Settings) -> dict[str, Any]:
    rule = RULES[key]
    return {
        "rule": key,
        **{name: getattr(rule, name) for name in ("title", "unit", "low", "high", "of_models", "remedy")},
        "settings": [_setting(key, model, known) for model in ["", *known.models_of(key)]],
    }


def _setting(key: str, model: str, known: Settings) -> dict[str, Any]:
    holds = known.of(key, model)
    return {
        "model": model or None,
        **{name: getattr(holds, name) for name in FIELDS},
        "own": list(known.own(key, model)),
    }


class ChannelDocument(serializers.ModelSerializer[Channel]):
    """`to`: of a webhook without what may be secret in its address."""

    kind = serializers.ChoiceField(choices=list(ChannelKind.values), read_only=True)
    to = serializers.CharField(source="shown", read_only=True)
    least = serializers.ChoiceField(choices=SEVERITIES, read_only=True, help_text="Told of this severity and above.")

    class Meta:
        model = Channel
        fields = ("name", "kind", "to", "least", "enabled", "created_at", "sent_at", "error", "error_at")
        read_only_fields = fields


class MadeDocument(OperationDocument):
    """The operation, with what the receiver checks signatures with."""

    secret = serializers.CharField(read_only=True, help_text="Of a webhook, a secret; empty for e-mail.")

    class Meta(OperationDocument.Meta):
        fields = (*OperationDocument.Meta.fields, "secret")
        read_only_fields = fields


class ChannelBody(Strict):
    name = Text(max_length=63)
    kind = serializers.ChoiceField(choices=list(ChannelKind.values))
    target = Text(max_length=1000, help_text="A URL, or addresses separated by commas.")
    least = serializers.ChoiceField(choices=SEVERITIES, default="warn", help_text="Told of this severity and above.")
    reason = Reason()


class ChannelChangeBody(Strict):
    enabled = Flag(required=False)
    least = serializers.ChoiceField(choices=SEVERITIES, required=False)
    reason = Reason()


class ChannelsQuery(Listed):
    ORDERS = ("-id", "id")


class Channels(Resource):
    scope = SECRETS

    @openapi.read("list_channels", TAG, openapi.page_of(ChannelDocument, "ChannelPage"), query=ChannelsQuery)
    def get(self, request: Request) -> Response:
        """Who is told of alerts, the newest first."""
        asked = read_query(request, ChannelsQuery)
        return Response(page(request, Channel.objects.all(), asked, _show))

    @openapi.change("add_channel", TAG, ChannelBody, document=MadeDocument)
    def post(self, request: Request) -> Response:
        """Tell somebody of alerts. Admins."""
        body = read_body(request, ChannelBody)
        require_match(request)
        name = body.pop("name")
        answer = carry_out(request, _add, name, body.pop("kind"), body.pop("target"), **body)
        if answer.status_code == 202:
            answer.data = {**answer.data, "secret": actions.channel_secret(name)}
            if REPLAYED in answer.headers:
                note_secret(request.user.get_username(), f"channel:{name}")
        return answer


def _show(found: list[Channel]) -> Any:
    return ChannelDocument(found, many=True).data


def _add(actor: Actor, name: str, kind: str, target: str, **options: Any) -> models.Operation:
    return actions.add_channel(actor, name, kind, target, **options)[0]


class OneChannel(Resource):
    scope = SECRETS

    @openapi.read("get_channel", TAG, ChannelDocument, query=NoQuery)
    def get(self, request: Request, name: str) -> Response:
        """One channel."""
        read_query(request, NoQuery)
        return Response(_show([one(Channel.objects.all(), name=name)])[0])

    @openapi.change("update_channel", TAG, ChannelChangeBody)
    def patch(self, request: Request, name: str) -> Response:
        """Switch it on or off, or change what it is told of. Another target is another channel. Admins."""
        body = read_body(request, ChannelChangeBody)
        require_match(request)
        return carry_out(request, actions.update_channel, name, **body)

    @openapi.change("remove_channel", TAG)
    def delete(self, request: Request, name: str) -> Response:
        """Tell nobody through it any more, also what is still owed. Admins."""
        require_match(request)
        return carry_out(request, actions.remove_channel, name)
