"""Request bodies: JSON alone, of a bounded size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import APIException, ParseError
from rest_framework.parsers import BaseParser

from controlplane.core.strictjson import BadJson, read_object

MAX_BYTES = 2 << 20
"""Twice the largest model config that `control.newmodel` takes."""


class TooLarge(APIException):
    status_code = 413
    default_detail = f"The body has more than {MAX_BYTES} bytes."
    default_code = "too_large"


class Json(BaseParser):
    """`application/json` as an object; ParseError says what is wrong and where."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        raw: bytes = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise TooLarge
        try:
            return read_object(raw)
        except BadJson as error:
            raise ParseError(str(error)) from error
