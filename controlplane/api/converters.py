"""What may stand in an address; everything else is answered 404 before any row is looked for."""

from __future__ import annotations

from controlplane.api.gate import SLASH


class ModelName:
    regex = rf"[A-Za-z0-9][A-Za-z0-9._{SLASH}-]{{0,127}}"

    def to_python(self, value: str) -> str:
        return value.replace(SLASH, "/")

    def to_url(self, value: str) -> str:
        return value.replace("/", SLASH)


class Word:
    """Names of nodes and roles, ids of engines."""

    regex = r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


class UserName(Word):
    """As accounts have them."""

    regex = r"[\w.@+-]{1,150}"


class Number(Word):
    regex = r"[0-9]{1,18}"

    def to_python(self, value: str) -> int:  # type: ignore[override]
        return int(value)
