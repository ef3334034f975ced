"""YAML beside JSON, for the one document that people write by hand: the whole state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser

from controlplane.api.parsing import MAX_BYTES, TooLarge
from controlplane.api.rendering import Json
from controlplane.common.yamltext import BadYaml, read, write
from controlplane.core.strictjson import BadJson, check_values

MEDIA_TYPE = "application/yaml"


class YamlBody(BaseParser):
    """`application/yaml` as an object; ParseError says what is wrong and where."""

    media_type = MEDIA_TYPE

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        raw: bytes = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise TooLarge
        try:
            value = read(raw.decode())
        except UnicodeDecodeError as error:
            raise ParseError(f"The body is not UTF-8 (byte {error.start}).") from error
        except BadYaml as error:
            raise ParseError(f"The body {error}.") from error
        if not isinstance(value, dict):
            raise ParseError("The body must be a mapping.")
        try:
            check_values(value)
        except BadJson as error:
            raise ParseError(str(error)) from error
        return value


class YamlAnswer(Json):
    """The document as YAML where the client prefers that. Errors are JSON all the same."""

    media_type = MEDIA_TYPE
    format = "yaml"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        response = (renderer_context or {}).get("response")
        if data is None or (response is not None and response.status_code >= 400):
            return super().render(data, accepted_media_type, renderer_context)
        return write(data).encode()
