"""`ETag`, `If-Match` and `If-None-Match` (RFC 9110, section 13). A model's tag is its row and version."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Set
from typing import Any, Literal

from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.problems import Problem
from controlplane.api.rendering import encode
from controlplane.fleet import models

TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
LIST = re.compile(rf"[ \t,]*{TAG}(?:[ \t]*,[ \t,]*{TAG})*[ \t,]*")
MAX_CHARS = 2000
NEVER = 0
"""A version that no model has."""


def model_tag(model: models.Model) -> str:
    """Of what is desired of a model, which is all that its document has. The row is in it because a model may be removed and
    another one registered under its name."""
    return f'"{model.pk}-{model.version}"'


def tag_of(document: Any) -> str:
    """Of a document without a version: a hash of it."""
    return f'"{hashlib.blake2b(encode(document), digest_size=12).hexdigest()}"'


def expected_version(request: Request, name: str) -> int | None:
    """The version that the model must have by `If-Match`; None: any. NEVER if no tag is of this model."""
    tags = _tags(request, "If-Match")
    if tags is None or tags == "*":
        return None
    row = models.Model.objects.filter(name=name).values_list("pk", "version").first()
    if row is None:
        return None  # the action says that there is no such model
    key, current = row
    versions = {int(tag[1]) for tag in map(_parts, tags) if tag is not None and tag[0] == str(key)}
    return current if current in versions else min(versions, default=NEVER)


def require_match(request: Request, current: str = "") -> None:
    """412 unless `If-Match` is absent, `*`, or has the strong tag `current` ("": what this is about has no tag)."""
    tags = _tags(request, "If-Match")
    if tags is not None and tags != "*" and current not in tags:
        raise Problem(412, "stale", "This has changed since you read it: read it again.")


def conditional(request: Request, body: Any, tag: str) -> Response:
    """A read's answer with its tag; 304 if the client has it already."""
    tags = _tags(request, "If-None-Match")
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if tags is not None and (tags == "*" or tag in {each.removeprefix("W/") for each in tags}):
        return Response(None, status=304, headers=headers)
    return Response(body, headers=headers)


def _tags(request: Request, header: str) -> Set[str] | Literal["*"] | None:
    text = request.headers.get(header)
    if text is None:
        return None
    if text.strip() == "*":
        return "*"
    if len(text) > MAX_CHARS or not LIST.fullmatch(text):
        raise ParseError(f'{header}: give "*" or entity tags in double quotes, as in the ETag that you read.')
    return frozenset(re.findall(TAG, text))


def _parts(tag: str) -> tuple[str, str] | None:
    """Row and version of a strong tag that may be a model's."""
    found = re.fullmatch(r'"(\d{1,19})-(\d{1,18})"', tag)
    return (found[1], found[2]) if found else None
