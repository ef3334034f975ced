"""Alerts: what fires and what was, and who shall not be told of it."""

from __future__ import annotations

from typing import Any, get_args

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.alerts.models import Alert
from controlplane.alerts.selectors import silences_now
from controlplane.api import openapi
from controlplane.api.documents_alerts import ALERT_STATES, SEVERITIES, AlertDocument, AlertPage
from controlplane.api.paging import Listed, page
from controlplane.api.preconditions import require_match
from controlplane.api.resource import Resource, carry_out
from controlplane.api.selectors import all_alerts, one
from controlplane.api.strict import NoQuery, Reason, Strict, Text, read_body, read_query
from controlplane.control import actions
from controlplane.control.actions.alerts import Scope
from controlplane.core.alertrules import RULES

TAG = "alerts"


class AlertsQuery(Listed):
    ORDERS = ("-id", "id")

    state = serializers.ChoiceField(choices=ALERT_STATES, required=False)
    rule = serializers.ChoiceField(choices=list(RULES), required=False)
    severity = serializers.ChoiceField(choices=SEVERITIES, required=False)
    model = Text(max_length=128, required=False)
    since = serializers.DateTimeField(required=False, help_text="Fired at this time or later.")


class SilenceBody(Strict):
    until = serializers.DateTimeField(help_text="ISO 8601 with a time zone, at most 30 days ahead.")
    scope = serializers.ChoiceField(
        choices=list(get_args(Scope)),
        default="alert",
        help_text="alert: its rule of its subject; rule: its rule of all its model; model: all alerts of its model.",
    )
    reason = Reason(allow_blank=False, required=True, default=serializers.empty)


class Alerts(Resource):
    @openapi.read("list_alerts", TAG, AlertPage, query=AlertsQuery)
    def get(self, request: Request) -> Response:
        """Alerts that fire or did, the newest first; they are kept for 90 days."""
        asked = read_query(request, AlertsQuery)
        filters = {"state": "state", "rule": "rule", "severity": "severity", "model": "model", "since": "fired_at__gte"}
        rows = all_alerts().filter(**{field: asked[name] for name, field in filters.items() if name in asked})
        return Response(page(request, rows, asked, _show))


def _show(found: list[Alert]) -> Any:
    return AlertDocument(found, many=True, context={"silences": silences_now()}).data


class OneAlert(Resource):
    @openapi.read("get_alert", TAG, AlertDocument, query=NoQuery)
    def get(self, request: Request, alert: int) -> Response:
        """One alert."""
        read_query(request, NoQuery)
        return Response(_show([one(all_alerts(), pk=alert)])[0])


class AlertSilence(Resource):
    @openapi.change("silence_alert", TAG, SilenceBody)
    def put(self, request: Request, alert: int) -> Response:
        """Tell no channel of it until then; it fires all the same."""
        body = read_body(request, SilenceBody)
        require_match(request)
        return carry_out(request, actions.silence_alert, alert, **body)

    @openapi.change("unsilence_alert", TAG)
    def delete(self, request: Request, alert: int) -> Response:
        """End every silence that covers it."""
        require_match(request)
        return carry_out(request, actions.unsilence_alert, alert)
