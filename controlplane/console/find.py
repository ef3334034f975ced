"""The search of the top bar: what exists, by name or number. One hit is gone to at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.fleet import models
from controlplane.telemetry.queries import requests

MAX_CHARS = 150
SHOWN = 20
"""Hits of each kind."""
MAX_NUMBER = 1 << 62


@dataclass(frozen=True)
class Hit:
    kind: str
    name: str
    note: str
    url: str
    exact: bool
    """What was typed is its whole name."""


@require_safe
@never_cache
@login_required
def page(request: HttpRequest) -> HttpResponse:
    """?q=: to the one thing of that name, else the list of what has it in its name."""
    asked = request.GET.get("q", "").replace("\x00", "").strip()[:MAX_CHARS]
    hits = find(asked) if asked else []
    certain = [hit for hit in hits if hit.exact] or hits
    if len(certain) == 1:
        return redirect(certain[0].url)
    return render(request, "console/find.html", {"asked": asked, "hits": hits})


def find(asked: str) -> list[Hit]:
    """What matches, exact names first. Raises django.db.Error."""
    hits = [*_models(asked), *_engines(asked), *_nodes(asked), *_operations(asked), *_requests(asked)]
    return sorted(hits, key=lambda hit: not hit.exact)


def _models(asked: str) -> Iterator[Hit]:
    for row in models.Model.objects.filter(name__icontains=asked)[:SHOWN]:
        note = row.get_mode_display()
        yield Hit(gettext("model"), row.name, note, reverse("model", args=[row.name]), row.name == asked)


def _engines(asked: str) -> Iterator[Hit]:
    """By id, by label (P3), or by both parts of "P3 of llama"; those that are there before those that were."""
    label, _, rest = asked.partition(" ")
    which = Q(id__icontains=asked)
    if label[:1].lower() in ("p", "d", "m") and label[1:].isdecimal() and len(label) < 10:
        role = {"p": "prefill", "d": "decode", "m": "mixed"}[label[0].lower()]
        which |= Q(role=role, number=int(label[1:]), wanted=True, model__name__icontains=rest.removeprefix("of ").strip())
    for row in models.Engine.objects.filter(which).select_related("model").order_by("-wanted", "id")[:SHOWN]:
        name = f"{row.label} · {row.id}"
        yield Hit(gettext("engine"), name, row.model.name, reverse("engine", args=[row.id]), row.id == asked)


def _nodes(asked: str) -> Iterator[Hit]:
    for row in models.Node.objects.filter(name__icontains=asked).order_by("name")[:SHOWN]:
        yield Hit(gettext("node"), row.name, row.address, f"{reverse('nodes')}#{row.name}", row.name == asked)


def _operations(asked: str) -> Iterator[Hit]:
    if not (asked.isascii() and asked.isdigit() and int(asked) < MAX_NUMBER):
        return
    for row in models.Operation.objects.filter(pk=int(asked)):
        yield Hit(gettext("operation"), asked, row.reason, reverse("operation", args=[row.pk]), True)


def _requests(asked: str) -> Iterator[Hit]:
    found = requests.find(asked)
    if found is not None:
        yield Hit(
            gettext("request"),
            found.id,
            found.model,
            f"/requests?{urlencode({'range': '7d', 'id': found.id, 'open': found.id})}",
            True,
        )
