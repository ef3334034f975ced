"""Every answer that is no success, as problem details (RFC 9457): what was refused, and reasons that name the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from rest_framework import exceptions
from rest_framework.response import Response

from controlplane.api.rendering import encode
from controlplane.api.throttles import stranger_wait_s
from controlplane.control.auditing.events import NOBODY, address_of, note_bad_token, note_refusal
from controlplane.control.refused import STATUS_OF_KIND, Refused, told

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
KIND_OF_STATUS = {
    400: "malformed",
    401: "not_signed_in",
    403: "forbidden",
    404: "not_found",
    405: "no_such_method",
    406: "not_acceptable",
    409: "busy",
    412: "stale",
    413: "too_large",
    415: "not_json",
    422: "invalid",
    429: "too_many",
    500: "broken",
    503: "unavailable",
    504: "no_answer",
}


class Problem(exceptions.APIException):
    """A refusal of the API's own."""

    def __init__(self, status: int, kind: str, *reasons: str, retry_after_s: int | None = None) -> None:
        super().__init__(reasons[0], code=kind)
        self.status_code = status
        self.kind = kind
        self.reasons = reasons
        self.wait = retry_after_s


def document(
    status: int,
    kind: str,
    reasons: Sequence[str],
    *,
    errors: Sequence[Mapping[str, str]] = (),
    operation: int | None = None,
) -> dict[str, Any]:
    """One problem. `errors`: fields of the request with what is wrong with each; `operation`: the one in the way."""
    more: dict[str, Any] = {"operation": operation} if operation is not None else {}
    if errors:
        more["errors"] = list(errors)
    return {
        "type": f"urn:twinpool:problem:{kind}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "kind": kind,
        "detail": "; ".join(reasons),
        "reasons": list(reasons),
        **more,
    }


def answer(error: Exception, context: Mapping[str, Any] | None = None) -> Response | None:
    """REST framework's exception handler. None for what nobody foresaw: the server answers 500 and logs it. Refusals and bad
    tokens go into the audit, as far as its bounds allow."""
    request = (context or {}).get("request")
    stranger = isinstance(error, (exceptions.NotAuthenticated, exceptions.AuthenticationFailed))
    if stranger and request is not None and (wait_s := stranger_wait_s(address_of(request))):
        error = exceptions.Throttled(wait_s)
    found = _describe(error)
    if found is None:
        return None
    if isinstance(error, Refused):
        told.note(error)
        if request is not None:
            note_refusal(request.user.get_username() or NOBODY, error, _asked(request), _named(request))
    elif isinstance(error, exceptions.AuthenticationFailed) and request is not None:
        note_bad_token(address_of(request))
    headers = {}
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = error.auth_header  # type: ignore[attr-defined]
    wait = RETRY_AFTER_S if found["status"] == 503 else getattr(error, "wait", None)
    if wait is not None:
        headers["Retry-After"] = str(max(1, round(wait)))
    return Response(found, status=found["status"], headers=headers, content_type=MEDIA_TYPE)


def _asked(request: Any) -> str:
    """The kind of request, without what stands in its address."""
    match = request.resolver_match
    return f"{request.method} {match.route if match else ''}"


def _named(request: Any) -> Mapping[str, Any]:
    return request.resolver_match.kwargs if request.resolver_match else {}


def plain_answer(status: int, kind: str, *reasons: str) -> HttpResponse:
    """For where no view of the API runs."""
    return HttpResponse(encode(document(status, kind, reasons)), status=status, content_type=MEDIA_TYPE)


def broken(_request: HttpRequest) -> HttpResponse:
    """What a client sees of an error that nobody foresaw."""
    return plain_answer(500, "broken", "Something went wrong here. The server's log tells what; nothing was changed.")


def _describe(error: Exception) -> dict[str, Any] | None:
    match error:
        case Refused():
            return document(STATUS_OF_KIND[error.kind], error.kind, error.reasons, operation=error.operation)
        case Problem():
            return document(error.status_code, error.kind, error.reasons)
        case exceptions.ValidationError():
            errors = list(_fields(error.detail))
            reasons = [f"{each['field']}: {each['reason']}" if each["field"] else each["reason"] for each in errors]
            return document(400, "invalid_fields", reasons, errors=errors)
        case exceptions.APIException():
            kind = KIND_OF_STATUS.get(error.status_code, "refused")
            return document(error.status_code, kind, [str(error.detail)])
        case Http404():
            return document(404, "not_found", ["There is nothing at this address."])
        case PermissionDenied():
            return document(403, "forbidden", ["You may not do this."])
        case RequestDataTooBig():
            return document(413, "too_large", ["The body is too large."])
        case OperationalError() | InterfaceError():
            return document(503, "unavailable", ["The database does not answer; nothing was changed. Try again soon."])
    return None


def _fields(detail: Any, at: str = "") -> Iterator[dict[str, str]]:
    """REST framework's nested errors as a flat list: `pools[1].engines`."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            inside = f"[{name}]" if isinstance(name, int) else f".{name}" if at else str(name)
            here = at if name == "non_field_errors" else f"{at}{inside}"
            yield from _fields(inner, here)
    elif isinstance(detail, list | tuple):
        for index, inner in enumerate(detail):
            if isinstance(inner, Mapping):
                yield from _fields(inner, f"{at}[{index}]")
            else:
                yield from _fields(inner, at)
    else:
        yield {"field": at, "reason": str(detail)}
