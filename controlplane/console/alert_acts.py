"""Orders of the alerts page: JSON in, one action of control, JSON out, as `acts` does it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext

from controlplane.access.who import actor_of
from controlplane.console.acts import BadBody, Body, change, order, reason_of
from controlplane.control import actions

MAX_MINUTES = 30 * 24 * 60
LARGEST = 1e12
NUMBERS = ("threshold", "for_s", "clear_s")


@order
def silence(request: HttpRequest, body: Body, number: int) -> HttpResponseBase:
    """{"minutes", "scope": alert|rule|model, "reason"}: tell nobody of an alert for so long."""
    minutes = body.get("minutes")
    if not isinstance(minutes, int) or isinstance(minutes, bool) or not 1 <= minutes <= MAX_MINUTES:
        raise BadBody(gettext("minutes: 1 to %(most)d") % {"most": MAX_MINUTES})
    until = timezone.now() + timedelta(minutes=minutes)
    return change(request, body, actions.silence_alert, number, until=until, scope=_text(body, "scope") or "alert")


@order
def end_silence(request: HttpRequest, body: Body, number: int) -> HttpResponseBase:
    """{"reason"}: tell of what it covers again."""
    return change(request, body, actions.end_silence, number)


@order
def rule(request: HttpRequest, body: Body, key: str) -> HttpResponseBase:
    """{"model", "threshold", "for_s", "clear_s", "severity", "enabled", "reason"}; what is null follows the wider one."""
    numbers = {name: body.get(name) for name in NUMBERS}
    if not all(each is None or _is_number(each) for each in numbers.values()):
        raise BadBody(gettext("threshold and durations are numbers"))
    enabled = body.get("enabled")
    if enabled is not None and not isinstance(enabled, bool):
        raise BadBody(gettext("enabled: true or false"))
    wanted = actions.RuleChange(**_floats(numbers), severity=_text(body, "severity") or None, enabled=enabled)
    return change(request, body, actions.set_alert_rule, key, wanted, model=_text(body, "model"))


@order
def add_channel(request: HttpRequest, body: Body) -> HttpResponseBase:
    """{"name", "kind", "target", "least", "reason"}. 201 {"operation", "secret"}: the secret is shown this once."""
    operation, secret = actions.add_channel(
        actor_of(request),
        _text(body, "name"),
        _text(body, "kind"),
        _text(body, "target"),
        least=_text(body, "least"),
        reason=reason_of(body),
    )
    return JsonResponse({"operation": operation.pk, "secret": secret}, status=201)


@order
def update_channel(request: HttpRequest, body: Body, name: str) -> HttpResponseBase:
    """{"enabled", "least", "reason"}."""
    enabled = body.get("enabled")
    if enabled is not None and not isinstance(enabled, bool):
        raise BadBody(gettext("enabled: true or false"))
    return change(request, body, actions.update_channel, name, enabled=enabled, least=_text(body, "least") or None)


@order
def remove_channel(request: HttpRequest, body: Body, name: str) -> HttpResponseBase:
    """{"reason"}."""
    return change(request, body, actions.remove_channel, name)


@order
def try_channel(request: HttpRequest, _body: Body, name: str) -> HttpResponseBase:
    """202 {"url"}: a test message is on its way; the address tells how far it is."""
    row = actions.try_channel(actor_of(request), name)
    return JsonResponse({"url": reverse("data_notification", args=[row.pk])}, status=202)


def _text(body: Body, name: str) -> str:
    value = body.get(name, "")
    return value[:1100] if isinstance(value, str) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _floats(numbers: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: None if value is None else float(value) for name, value in numbers.items()}
