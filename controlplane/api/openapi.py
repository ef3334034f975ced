"""How the API describes itself: who may sign in how, and which answers each kind of request has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers

from controlplane.api.documents import OperationDocument, ProblemDocument
from controlplane.api.documents_preview import PreviewDocument
from controlplane.api.examples import BODIES, REASONS
from controlplane.api.idempotency import MAX_CHARS
from controlplane.api.problems import MEDIA_TYPE
from controlplane.api.problems import document as problem
from controlplane.api.strict import ChangeQuery, RemovalQuery, Strict


class BearerScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "controlplane.api.tokens.Bearer"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "A token of `manage.py add_token`."}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "controlplane.api.tokens.Session"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": "sessionid",
            "description": "The console's; changes need X-CSRFToken.",
        }


READS: Mapping[int, str] = {
    400: "A parameter cannot be used; `errors` names it.",
    401: "Not signed in.",
    403: "Not allowed.",
    404: "There is no such thing.",
    406: "The client accepts no JSON.",
    429: "Too many requests; `Retry-After` says for how long.",
    503: "The database does not answer, or too many wait.",
}
CHANGES: Mapping[int, str] = {
    **READS,
    400: "The body or a parameter cannot be used; `errors` names each wrong field.",
    403: "The user's role does not allow it, or the CSRF token is missing.",
    409: "An operation runs (`operation`), changes are frozen, there are not enough GPUs, or the first request with this "
    "key still runs: see `kind`.",
    412: "It has changed since it was read.",
    413: "The body is too large.",
    415: "The body is not `application/json`.",
    422: "Refused, with `reasons`: it cannot be or would not be safe; or the key was used for another request.",
}
TAGS = {"type": "string", "pattern": r"^(\*|(W/)?\"[!#-~]*\"(, (W/)?\"[!#-~]*\")*)$"}
IF_MATCH = OpenApiParameter(
    "If-Match",
    TAGS,
    OpenApiParameter.HEADER,
    description="ETag of the model as it was read: 412 if it is stale.",
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match", TAGS, OpenApiParameter.HEADER, description="304 if it is still what the client has."
)
KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": MAX_CHARS, "pattern": "^[ -~]+$"},
    OpenApiParameter.HEADER,
    description="Chosen by the client, e.g. a UUID: sent again within 24 hours, the change does not run again and the "
    "first answer comes again.",
)
ETAG = OpenApiParameter(
    "ETag", OpenApiTypes.STR, OpenApiParameter.HEADER, response=[200, 304], description="Of this document."
)
LOCATION = OpenApiParameter(
    "Location", OpenApiTypes.STR, OpenApiParameter.HEADER, response=[202], description="Address of the operation."
)


def read(
    name: str,
    tag: str,
    document: Any,
    *,
    query: type[Strict] | None = None,
    etag: bool = False,
    more: Mapping[int, str] | None = None,
    media_type: str = "application/json",
    csv: bool = False,
) -> Callable[[Any], Any]:
    """Describes a GET. `name` is what generated clients call it."""
    responses: dict[Any, Any] = {(200, media_type): document, **problems({**READS, **(more or {})})}
    parameters: list[Any] = _parameters(query)
    if csv:
        responses[200, "text/csv"] = OpenApiTypes.STR
    if etag:
        parameters += [IF_NONE_MATCH, ETAG]
        responses[304] = OpenApiResponse(description="Not changed.")
    return extend_schema(operation_id=name, tags=[tag], parameters=parameters, responses=responses)


def change(
    name: str, tag: str, body: type[Strict] | None = None, *, model: bool = False, document: Any = OperationDocument
) -> Callable[[Any], Any]:
    """Describes a change; one without a body is a DELETE. `model`: it is of one model, whose ETag may be required.
    `document`: the operation, with what else is answered."""
    responses: dict[Any, Any] = {
        200: OpenApiResponse(PreviewDocument, description="With `dry_run`: what would be done."),
        202: OpenApiResponse(document, description="Accepted: this operation carries it out."),
        **problems(CHANGES),
    }
    parameters: list[Any] = [ChangeQuery if body else RemovalQuery, KEY, LOCATION, *([IF_MATCH] if model else [])]
    shown = [OpenApiExample(name, BODIES[name], request_only=True)] if body and name in BODIES else []
    return extend_schema(
        operation_id=name, tags=[tag], request=body, parameters=parameters, responses=responses, examples=shown
    )


def question(
    name: str, tag: str, body: type[Strict] | None, document: Any, *, more: Mapping[int, str] | None = None
) -> Callable[[Any], Any]:
    """Describes a POST that asks for something and changes nothing, or the GET (without a body) that asks again: 200, or
    202 while the answer is being made."""
    refusals = {**READS, **{status: CHANGES[status] for status in (400, 403, 413, 415) if body}, **(more or {})}
    responses: dict[Any, Any] = {
        (200, "application/json"): document,
        (202, "application/json"): OpenApiResponse(document, description="It is being made: ask again at `Location`."),
        **problems(refusals),
    }
    return extend_schema(operation_id=name, tags=[tag], request=body, responses=responses)


def page_of(document: type[serializers.BaseSerializer[Any]], name: str) -> type[serializers.Serializer[Any]]:
    """The serializer that describes a page of a list."""
    fields = {
        "items": document(many=True),
        "next": serializers.CharField(allow_null=True, help_text="Address of the next page."),
    }
    return type(name, (serializers.Serializer,), {**fields, "__doc__": "A page of a list."})


def _parameters(query: type[Strict] | None) -> list[Any]:
    return [query] if query is not None and query().fields else []


def problems(descriptions: Mapping[int, str]) -> dict[Any, Any]:
    return {
        (status, MEDIA_TYPE): OpenApiResponse(ProblemDocument, description=description, examples=_refusals(status))
        for status, description in descriptions.items()
    }


def _refusals(status: int) -> list[OpenApiExample]:
    if status not in REASONS:
        return []
    kind, reason = REASONS[status]
    errors = [{"field": reason.partition(":")[0], "reason": reason.partition(": ")[2]}] if kind == "invalid_fields" else []
    shown = problem(status, kind, [reason], errors=errors)
    return [OpenApiExample(kind, shown, response_only=True, media_type=MEDIA_TYPE, status_codes=[str(status)])]
