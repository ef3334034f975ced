"""Changes that pages ask for: JSON in, one action of control, JSON out. A plan is the same question with `dry_run`.

202 {"operation", "url"}: it is under way. 200 {"plan"}: what would be done. 4xx {"kind", "reasons", …}: refused, nothing was
changed; `operation` is the one in the way, and of a page that is old `model` is how the model is now and `since` what was
done to it meanwhile. 400 malformed: it is no order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import wraps
from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.urls import reverse
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from controlplane.access.who import actor_of
from controlplane.console.model_facts import model_facts
from controlplane.control import actions
from controlplane.control.auditing.events import note_refusal
from controlplane.control.refused import STATUS_OF_KIND, Refused, told
from controlplane.core.storable import shows_nothing
from controlplane.core.strictjson import BadJson, read_object
from controlplane.fleet import models
from controlplane.telemetry.fleet_view import read_operations

MAX_BODY = 16_384
SHOWN_SINCE = 5

Body = Mapping[str, Any]
Act = Callable[..., models.Operation]


class BadBody(ValueError):
    """What was sent is no order; the text says what would be."""


def order(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """A POST with a JSON object, by somebody who is signed in; CSRF is checked as for every POST."""

    @require_POST
    @never_cache
    @wraps(view)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return _said(401, "signed_out", [gettext("Sign in first.")])
        if len(request.body) > MAX_BODY:
            return _said(400, "malformed", [gettext("The order must be a JSON object.")])
        try:
            body = read_object(request.body)
        except BadJson as error:
            return _said(400, "malformed", [gettext("The order must be a JSON object."), str(error)])
        try:
            return view(request, body, *args, **kwargs)
        except BadBody as error:
            return _said(400, "malformed", [str(error)])
        except Refused as refused:
            match = request.resolver_match
            note_refusal(request.user.get_username(), refused, f"POST {match.route if match else ''}", kwargs)
            return _refused(refused, body, kwargs.get("name"))

    return checked


@order
def rebalance(request: HttpRequest, body: Body, name: str) -> HttpResponseBase:
    """{"sizes": {role: engines}, "version", "reason", "dry_run"}."""
    sizes = sizes_of(body.get("sizes"))
    return change(request, body, actions.rebalance, name, sizes, expected_version=version_of(body))


@order
def set_mode(request: HttpRequest, body: Body, name: str) -> HttpResponseBase:
    """{"mode", "split": {role: engines}, "min_uncached_tokens", "min_uncached_ratio", "version", "reason", "dry_run"}."""
    more = _some(body, "split", "min_uncached_tokens", "min_uncached_ratio")
    sizes_of(more.get("split", {}))
    return change(request, body, actions.set_mode, name, _mode(body), expected_version=version_of(body), **more)


@order
def set_canary(request: HttpRequest, body: Body, name: str) -> HttpResponseBase:
    """{"mode", "share": 0..1, "steps": [share…], "version", "reason", "dry_run"}: try a mode on a part of the sessions."""
    more = _some(body, "share", "steps", "shared")
    return change(request, body, actions.set_canary, name, _mode(body), expected_version=version_of(body), **more)


CANARY: Mapping[str, Act] = {"promote": actions.promote_canary, "end": actions.end_canary}


@order
def canary(request: HttpRequest, body: Body, name: str, verb: str) -> HttpResponseBase:
    """{"version", "reason", "dry_run"}: go on to the canary's next share, after the last one to its mode; or end it."""
    return change(request, body, CANARY[verb], name, expected_version=version_of(body))


ENGINE: Mapping[str, Act] = {
    "hold": actions.drain_engine,
    "readmit": actions.undrain_engine,
    "restart": actions.restart_engine,
    "retry": actions.retry_engine,
}


@order
def engine(request: HttpRequest, body: Body, engine_id: str, verb: str) -> HttpResponseBase:
    """Hold an engine out of the routing table, bring it back, replace it by a fresh one, or try a failed one again."""
    return change(request, body, ENGINE[verb], engine_id)


NODE: Mapping[str, Act] = {"cordon": actions.cordon_node, "uncordon": actions.uncordon_node}


@order
def node(request: HttpRequest, body: Body, node_name: str, verb: str) -> HttpResponseBase:
    """Give a node no new engines, or give it some again."""
    return change(request, body, NODE[verb], node_name)


STEER: Mapping[str, Act] = {
    "pause": actions.pause,
    "resume": actions.resume,
    "cancel": actions.cancel,
    "rollback": actions.rollback,
}


@order
def steer(request: HttpRequest, body: Body, number: int, verb: str) -> HttpResponseBase:
    """Pause, resume, cancel or roll back an operation."""
    return change(request, body, STEER[verb], number)


def change(request: HttpRequest, body: Body, act: Act, *args: Any, **kwargs: Any) -> HttpResponseBase:
    """Carries out one action of control, or says what it would do. Raises BadBody, Refused."""
    actor = actor_of(request)
    if body.get("dry_run"):
        return JsonResponse({"plan": asdict(actions.preview(act, actor, *args, **kwargs))})
    operation = act(actor, *args, reason=reason_of(body), **kwargs)
    return JsonResponse({"operation": operation.pk, "url": reverse("operation", args=[operation.pk])}, status=202)


def reason_of(body: Body) -> str:
    """Raises BadBody without one."""
    reason = body.get("reason", "")
    if not isinstance(reason, str) or shows_nothing(reason):
        raise BadBody(gettext("Say why: the reason is kept with the operation."))
    return reason.strip()


def sizes_of(sizes: Any) -> dict[str, int]:
    """Engines by role. Raises BadBody."""
    if not isinstance(sizes, dict) or not all(_is_count(count) for count in sizes.values()):
        raise BadBody(gettext("sizes: a number of engines for each role"))
    return sizes


def _some(body: Body, *keys: str) -> dict[str, Any]:
    return {key: body[key] for key in keys if body.get(key) is not None}


def _mode(body: Body) -> str:
    return str(body.get("mode", ""))[:40]


def version_of(body: Body) -> int:
    """Of the model. Raises BadBody without one."""
    version = body.get("version")
    if not _is_count(version):
        raise BadBody(gettext("version: of the model as the page was drawn from it"))
    return int(version)  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1 << 31


def _refused(refused: Refused, body: Body, name: str | None) -> JsonResponse:
    told.note(refused)
    more: dict[str, Any] = {}
    if refused.operation is not None:
        more = {"operation": refused.operation, "url": reverse("operation", args=[refused.operation])}
    model = models.Model.objects.filter(name=name).first() if refused.kind == "stale" and name else None
    if model is not None:
        last = body.get("last")
        newer = Q(model=model, pk__gt=last if _is_count(last) else 0)
        more |= {
            "model": model_facts(model),
            "since": _done_since(newer),
        }
    return _said(STATUS_OF_KIND[refused.kind], refused.kind, list(refused.reasons), **more)


def _done_since(newer: Q) -> list[dict[str, Any]]:
    """What was done to the model meanwhile, the newest first."""
    shown = [asdict(row) for row in read_operations(newer, SHOWN_SINCE)]
    changes = {row["number"]: row for row in shown}
    for number, before, after in models.Operation.objects.filter(pk__in=changes).values_list("pk", "before", "after"):
        changes[number] |= {"before": before, "after": after}
    return shown


def _said(status: int, kind: str, reasons: list[str], **more: Any) -> JsonResponse:
    return JsonResponse({"kind": kind, "reasons": reasons, **more}, status=status)
