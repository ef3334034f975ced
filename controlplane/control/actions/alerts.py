"""When alerts are told, and when they fire: silences, and settings of rules. Nothing here changes the fleet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from django.db import transaction
from django.utils import timezone

from controlplane.alerts.models import (
    Alert,
    AlertState,
    Severity,
    Silence,
)
from controlplane.alerts.models import RuleSetting as RuleSetting
from controlplane.alerts.selectors import FIELDS, set_in
from controlplane.control.actions.change import forbid, record_change
from controlplane.control.actor import Actor
from controlplane.control.refused import Refused, refuse_all
from controlplane.core.alertrules import LEAST_CLEAR_S, MAX_DURATION_S, RULES, Rule
from controlplane.core.storable import shows_nothing, storable_text
from controlplane.fleet import models

Scope = Literal["alert", "rule", "model"]
"""What a silence covers beside the alert that it began with: that alert alone (its rule of its subject), its rule of the
same model, or all alerts of its model."""
LONGEST = timedelta(days=30)


def silence_alert(actor: Actor, number: int, *, until: datetime, scope: str = "alert", reason: str = "") -> models.Operation:
    """Tell nobody of this alert, or of those that `scope` names too, until then. Whoever was told that it fires is told of
    its end all the same."""
    with transaction.atomic():
        alert = _alert(number)
        forbid(actor, "silence_alert", _team(alert.model), alert.model)
        refuse_all("invalid", _bad_silence(alert, until, scope, reason))
        silence = Silence.objects.create(
            rule="" if scope == "model" else alert.rule,
            model="" if scope == "alert" else alert.model,
            subject=alert.subject if scope == "alert" else "",
            reason=storable_text(reason),
            actor=storable_text(actor.name)[:150],
            until=until,
        )
        after = {"silence": silence.pk, "scope": scope, "until": until.isoformat(timespec="seconds"), "rule": alert.rule}
        return record_change("silence_alert", actor, reason, f"alert:{number}", after=after, done=True)


def _bad_silence(alert: Alert, until: datetime, scope: str, reason: str) -> Iterator[str]:
    if shows_nothing(reason):
        yield "a silence needs a reason: whoever finds it must know why"
    if not timezone.now() < until <= timezone.now() + LONGEST:
        yield f"a silence ends in the future and within {LONGEST.days} days"
    if scope not in get_args(Scope):
        yield f"scope {scope!r:.40}: one of {', '.join(get_args(Scope))}"
    elif scope != "alert" and not alert.model:
        yield f"this alert is about no model: silence it with scope alert, not {scope}"


def unsilence_alert(actor: Actor, number: int, *, reason: str = "") -> models.Operation:
    """End every silence that covers this alert now."""
    with transaction.atomic():
        alert = _alert(number)
        forbid(actor, "unsilence_alert", _team(alert.model), alert.model)
        found = [each for each in Silence.objects.filter(until__gt=timezone.now()) if each.covers(alert)]
        return _end(actor, found, f"alert {number} is not silenced", f"alert:{number}", reason)


def end_silence(actor: Actor, silence: int, *, reason: str = "") -> models.Operation:
    """End one silence before its time."""
    with transaction.atomic():
        row = Silence.objects.filter(pk=silence).first()
        model = _model_of(row) if row else ""
        forbid(actor, "unsilence_alert", _team(model), model)
        found = [row] if row and row.until > timezone.now() else []
        return _end(actor, found, f"silence {silence} is over, or there was none", f"silence:{silence}", reason)


def _end(actor: Actor, found: list[Silence], none: str, subject: str, reason: str) -> models.Operation:
    if not found:
        raise Refused("not_found", none)
    Silence.objects.filter(pk__in=[each.pk for each in found]).update(until=timezone.now())
    before = {"silences": [each.pk for each in found]}
    return record_change("unsilence_alert", actor, reason, subject, before=before, done=True)


def _model_of(silence: Silence) -> str:
    """Whose it is, also where it names a subject alone."""
    if silence.model:
        return silence.model
    alert = Alert.objects.filter(rule=silence.rule, subject=silence.subject).first()
    return alert.model if alert else ""


@dataclass(frozen=True)
class RuleChange:
    """How a rule is to be set; None: as it is set more widely, at last by default."""

    threshold: float | None = None
    for_s: float | None = None
    clear_s: float | None = None
    severity: str | None = None
    enabled: bool | None = None


def set_alert_rule(actor: Actor, rule: str, change: RuleChange, *, model: str = "", reason: str = "") -> models.Operation:
    """Set a rule for all models, or for one. A change that says nothing takes the setting back."""
    forbid(actor, "set_alert_rule", _team(model), model)
    known = RULES.get(rule)
    if known is None:
        raise Refused("not_found", f"there is no rule {rule!r:.80}; rules: {', '.join(RULES)}")
    refuse_all("invalid", _bad_rule(known, change, model))
    with transaction.atomic():
        row = RuleSetting.objects.select_for_update().filter(rule=rule, model=model).first()
        before = set_in(row)
        after = {name: value for name in FIELDS if (value := getattr(change, name)) is not None}
        if after:
            values = dict.fromkeys(FIELDS) | {"severity": ""} | after
            RuleSetting.objects.update_or_create(rule=rule, model=model, defaults=values)
        elif row:
            row.delete()
        subject = f"rule:{rule}/{model}" if model else f"rule:{rule}"
        return record_change("set_alert_rule", actor, reason, subject, before=before, after=after, done=True)


def _bad_rule(rule: Rule, change: RuleChange, model: str) -> Iterator[str]:
    if model and not rule.of_models:
        yield "this rule is about no model: set it for all"
    elif model and not models.Model.objects.filter(name=storable_text(model)).exists():
        yield f"there is no model {model!r:.140}"
    limits = (("threshold", rule.low, rule.high), ("for_s", 0.0, MAX_DURATION_S), ("clear_s", LEAST_CLEAR_S, MAX_DURATION_S))
    for name, low, high in limits:
        value = getattr(change, name)
        if value is not None and not (_is_number(value) and low <= value <= high):
            yield f"{name}: {low:g} to {high:g}"
    if change.severity is not None and change.severity not in Severity.values:
        yield f"severity: one of {', '.join(Severity.values)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _alert(number: int) -> Alert:
    alert = Alert.objects.exclude(state=AlertState.PENDING).filter(pk=number).first()
    if alert is None:
        raise Refused("not_found", f"there is no alert {number}")
    return alert


def _team(model: str) -> str:
    """Whose model it is; "" for nobody's."""
    return (
        models.Model.objects.filter(name=storable_text(model)).values_list("team", flat=True).first() or "" if model else ""
    )
