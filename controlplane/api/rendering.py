"""What answers look like on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from rest_framework.renderers import BaseRenderer


class Json(BaseRenderer):
    """`application/json`. Errors bring their own type, `application/problem+json`."""

    media_type = "application/json"
    format = "json"
    charset = None
    render_style = "binary"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        return b"" if data is None else encode(data)


class EventStream(Json):
    """Lets a client ask for `text/event-stream`; what is not streamed, such as an error, is JSON all the same."""

    media_type = "text/event-stream"
    format = "events"


def encode(data: Any) -> bytes:
    return orjson.dumps(data, default=_plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z)


def stored(data: Any) -> Any:
    """The same as a database keeps it: times as texts."""
    return orjson.loads(encode(data))


def _plain(value: Any) -> Any:
    """Texts that are translated late, and the lists and objects of serializers."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return list(value)
    return str(value)
