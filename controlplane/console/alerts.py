"""The alerts page: what fires (live), what was, who is silent about what, how rules are set, and who is told. Reads only."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.access.who import actor_of
from controlplane.alerts.models import Alert, AlertState, Channel, Notification, NotificationState
from controlplane.alerts.selectors import FIELDS, read_settings, silences_now
from controlplane.console.data import answer, data
from controlplane.console.history import signed_in
from controlplane.console.live_state import snapshot
from controlplane.console.modules import module_files
from controlplane.console.permissions import refusals
from controlplane.core.alertrules import RULES
from controlplane.fleet import models
from controlplane.telemetry.queries.exports import figures_table
from controlplane.telemetry.topics import ALERTS

PAGE = 50
MOST = 10_000
"""Alerts of one file."""
FILTERS = ("rule", "model")
VERBS = ("silence_alert", "unsilence_alert", "set_alert_rule")
CHANNEL_VERBS = ("add_channel", "update_channel", "remove_channel", "try_channel")


@dataclass(frozen=True)
class Entry:
    """An alert that is over, or (of the page of one) that fires. Times are Unix seconds."""

    number: int
    rule: str
    severity: str
    state: str
    subject: str
    model: str
    label: str
    value: float | None
    peak: float | None
    threshold: float
    fired_at: float | None
    resolved_at: float | None
    reason: str


@require_safe
@never_cache
@login_required
def page(request: HttpRequest, number: int | None = None) -> HttpResponse:
    """?rule=&model=&before=<number>: alerts that are over, PAGE at a time, under those that fire. With `number`: one of
    them, and who was told of it."""
    first = {
        "now": time.time(),
        "frame": snapshot(ALERTS),
        "chosen": _one(number) if number is not None else None,
        "asked": _asked(request),
        "newest": "before" not in request.GET,
        "rules": {key: _rule(key) for key in RULES},
        "models": list(models.Model.objects.values_list("name", flat=True)),
        "mail": bool(settings.EMAIL_HOST),
        **_facts(request),
    }
    return render(request, "console/alerts.html", {"first": first, "modules": module_files("alerts")})


@require_safe
@never_cache
@signed_in
def facts(request: HttpRequest) -> JsonResponse:
    """The page's data anew, after a change."""
    return JsonResponse({"now": time.time(), **_facts(request)})


@data
def history(request: HttpRequest) -> HttpResponse:
    """As the page's list; `?format=csv` or `json`: MOST at most, as a file."""
    found = _entries(_matching(request), MOST if request.GET.get("format") else PAGE)
    return answer(request, "alerts", lambda: [asdict(entry) for entry in found], lambda: figures_table(found))


@require_safe
@never_cache
@signed_in
def notification(_request: HttpRequest, number: Any) -> JsonResponse:
    """How far a message is: its state, and why it failed."""
    row = Notification.objects.filter(pk=number).first()
    if row is None:
        return JsonResponse({"error": "gone"}, status=404)
    return JsonResponse({"state": row.state, "error": row.error})


def _facts(request: HttpRequest) -> dict[str, Any]:
    actor = actor_of(request)
    teams = dict(models.Model.objects.values_list("name", "team"))
    over = _entries(_matching(request), PAGE + 1)
    return {
        "rows": [asdict(entry) for entry in over[:PAGE]],
        "more": len(over) > PAGE,
        "settings": _settings(),
        "silences": [
            {
                "number": each.pk,
                "rule": each.rule,
                "model": each.model,
                "subject": each.subject,
                "reason": each.reason,
                "actor": each.actor,
                "until": each.until.timestamp(),
            }
            for each in silences_now()
        ],
        "channels": _channels(),
        "refused": {name: refusals(actor, VERBS, team, name) for name, team in {"": "", **teams}.items()},
        "channels_refused": refusals(actor, CHANNEL_VERBS),
    }


def _asked(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "")[:128].replace("\x00", "") for name in FILTERS}


def _matching(request: HttpRequest) -> Q:
    before = request.GET.get("before", "")
    which = Q(pk__lt=int(before)) if before.isascii() and before.isdigit() and len(before) < 19 else Q()
    return which & Q(**{name: value for name, value in _asked(request).items() if value})


def _entries(which: Q, limit: int) -> list[Entry]:
    return [_entry(row) for row in Alert.objects.filter(which, state=AlertState.RESOLVED).order_by("-pk")[:limit]]


def _entry(row: Alert) -> Entry:
    return Entry(
        number=row.pk,
        rule=row.rule,
        severity=row.severity,
        state=row.state,
        subject=row.subject,
        model=row.model,
        label=row.label,
        value=row.value,
        peak=row.peak,
        threshold=row.threshold,
        fired_at=row.fired_at.timestamp() if row.fired_at else None,
        resolved_at=row.resolved_at.timestamp() if row.resolved_at else None,
        reason=row.reason,
    )


def _one(number: int) -> dict[str, Any]:
    row = Alert.objects.exclude(state=AlertState.PENDING).filter(pk=number).first()
    if row is None:
        raise Http404
    told = [
        {
            "channel": each.channel.name,
            "event": each.event,
            "state": each.state,
            "attempts": each.attempts,
            "error": each.error,
            "at": (each.sent_at or each.created_at).timestamp(),
        }
        for each in row.notifications.select_related("channel")
    ]
    return {**asdict(_entry(row)), "began_at": row.began_at.timestamp(), "facts": row.facts, "told": told}


def _rule(key: str) -> dict[str, Any]:
    rule = RULES[key]
    return {
        "about": rule.about,
        "unit": rule.unit,
        "above": rule.above,
        "low": rule.low,
        "high": rule.high,
        "of_models": rule.of_models,
        "default": _setting(rule.setting()),
    }


def _setting(setting: Any) -> dict[str, Any]:
    return {name: getattr(setting, name) for name in FIELDS}


def _settings() -> list[dict[str, Any]]:
    """Of each rule what holds for all models, then for those that have settings of their own. `own`: what is set there."""
    known = read_settings()
    found = []
    for rule in RULES:
        for model in ["", *known.models_of(rule)]:
            own = known.own(rule, model)
            found.append({"rule": rule, "model": model, "own": own, **_setting(known.of(rule, model))})
    return found


def _channels() -> list[dict[str, Any]]:
    waiting = Count("notifications", filter=Q(notifications__state=NotificationState.WAITING))
    return [
        {
            "name": each.name,
            "kind": each.kind,
            "to": each.shown,
            "least": each.least,
            "enabled": each.enabled,
            "waiting": each.waiting,
            "sent_at": each.sent_at.timestamp() if each.sent_at else None,
            "error": each.error,
            "error_at": each.error_at.timestamp() if each.error_at else None,
        }
        for each in Channel.objects.annotate(waiting=waiting).order_by("name")
    ]
