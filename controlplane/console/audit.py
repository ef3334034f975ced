"""The audit page: every change that was asked for, by whom, why, and what was there before and after. Reads only."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.console.data import BadQuery, answer, data
from controlplane.console.modules import module_files
from controlplane.fleet import models
from controlplane.telemetry.queries.exports import figures_table

PAGE = 50
MOST = 10_000
"""Entries of one file."""
FILTERS = ("q", "actor", "verb", "kind", "from", "to")
KINDS = (
    *("model", "engine", "node", "operation", "key", "token", "team", "alert", "rule", "silence", "channel", "price"),
    *("proposal", "user", "refusal", "audit", "state"),
)
"""What a subject begins with, before its colon."""
MAX_CHARS = 150


@dataclass(frozen=True)
class Entry:
    """One audit entry; `at` is Unix seconds, `before` and `after` are JSON."""

    number: int
    at: float
    actor: str
    verb: str
    subject: str
    reason: str
    operation: int | None
    before: str
    after: str


@require_safe
@never_cache
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """?q=&actor=&verb=&kind=&from=2026-11-30&to=2026-11-30&before=<number>: the newest that match, PAGE at a time."""
    asked = _asked(request)
    problem = ""
    found: list[Entry] = []
    try:
        found = entries(_matching(asked) & _before(request), PAGE + 1)
    except BadQuery as error:
        problem = str(error)
    first = {
        "now": time.time(),
        "rows": [asdict(entry) for entry in found[:PAGE]],
        "more": len(found) > PAGE,
        "newest": "before" not in request.GET,
        "asked": asked,
        "problem": problem,
        "choices": _choices(),
    }
    return render(request, "console/audit.html", {"first": first, "modules": module_files("audit")})


@data
def rows(request: HttpRequest) -> HttpResponse:
    """As the page's address, and `?after=<number>` for what came since. `?format=csv` or `json`: MOST at most, as a file."""
    which = _matching(_asked(request)) & _before(request)
    after = request.GET.get("after", "")
    if after.isascii() and after.isdigit() and len(after) < 19:
        which &= Q(pk__gt=int(after))
    limit = MOST if request.GET.get("format") else PAGE
    found = entries(which, limit)
    return answer(request, "audit", lambda: [asdict(entry) for entry in found], lambda: figures_table(found))


def entries(which: Q, limit: int) -> list[Entry]:
    """The newest first. Raises django.db.Error."""
    found = models.AuditEntry.objects.filter(which).order_by("-pk")[:limit]
    return [
        Entry(
            number=each.pk,
            at=each.at.timestamp(),
            actor=each.actor,
            verb=each.verb,
            subject=each.subject,
            reason=each.reason,
            operation=each.operation_id,
            before=json.dumps(each.before, sort_keys=True) if each.before else "",
            after=json.dumps(each.after, sort_keys=True) if each.after else "",
        )
        for each in found
    ]


def _asked(request: HttpRequest) -> dict[str, str]:
    return {name: request.GET.get(name, "")[:MAX_CHARS].replace("\x00", "").strip() for name in FILTERS}


def _matching(asked: Mapping[str, str]) -> Q:
    """Every word of `q` must be somewhere in actor, verb, subject or reason. Raises BadQuery."""
    which = Q()
    for word in asked["q"].split():
        which &= Q(actor__icontains=word) | Q(verb__icontains=word) | Q(subject__icontains=word) | Q(reason__icontains=word)
    for name in ("actor", "verb"):
        if asked[name]:
            which &= Q(**{name: asked[name]})
    if asked["kind"] in KINDS:
        which &= Q(subject__startswith=f"{asked['kind']}:")
    if asked["from"]:
        which &= Q(at__gte=_day(asked["from"]))
    if asked["to"]:
        which &= Q(at__lt=_day(asked["to"], 1))
    return which


def _day(text: str, later: int = 0) -> datetime:
    """When that day, or the one so many days later, begins. Raises BadQuery."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC) + timedelta(days=later)
    except (ValueError, OverflowError) as error:
        raise BadQuery(gettext("A day is written like 2026-11-30 (UTC).")) from error


def _before(request: HttpRequest) -> Q:
    before = request.GET.get("before", "")
    return Q(pk__lt=int(before)) if before.isascii() and before.isdigit() and len(before) < 19 else Q()


def _choices() -> dict[str, Any]:
    known = models.AuditEntry.objects.order_by()
    return {
        "verb": sorted(known.values_list("verb", flat=True).distinct()),
        "actor": sorted(known.values_list("actor", flat=True).distinct()),
        "kind": list(KINDS),
    }
