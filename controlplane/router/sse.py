"""Watches a stream of server-sent events go by: keeps whole events together, reads and removes the usage event, notices
errors and the final [DONE]. Events are only parsed when their bytes show that they matter. No I/O.

A token's text cannot fake what is looked for: inside a JSON string every quote is escaped, so `"prompt_tokens"` with bare
quotes only occurs as a key.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from controlplane.router.usage import with_details

DONE = b"data: [DONE]\n\n"
_DONE = re.compile(rb"^data: ?\[DONE\]\n\n", re.MULTILINE)
END = b"\n\n"
_ERROR = b'"error"'
_ABORT = b'"abort"'
_TELLING = (_ERROR, _ABORT)
"""In every event that reports a failure, but for an `event: error` line. One more look costs each token 0.1 us."""
USAGE_OF_GENERATIONS = b'"prompt_tokens"'
USAGE_OF_OTHERS = b'"output_tokens"'
"""In every event of /v1/responses or /v1/messages that reports usage."""


def gave_up(document: dict[str, Any]) -> bool:
    """Whether an engine says that it failed or gave the request up: status 200 only looks well."""
    if document.get("error") or document.get("object") == "error":
        return True
    choices = document.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict) and choice.get("finish_reason") == "abort":
                return True
    return False


class EventWatch:
    """Feed it de-framed payload; it returns what to pass on. After `error` is set nothing more may be passed on."""

    __slots__ = ("_limit", "_prompt_details", "_rest", "_strip_usage", "_tells_usage", "done", "error", "usage")

    def __init__(
        self,
        strip_usage: bool,
        event_limit: int,
        prompt_details: bytes | None = None,
        tells_usage: bytes = USAGE_OF_GENERATIONS,
    ) -> None:
        self.usage: dict[str, Any] | None = None
        self.done = False
        self.error = False
        self._strip_usage = strip_usage
        self._prompt_details = prompt_details
        self._limit = event_limit
        self._tells_usage = tells_usage
        self._rest = b""

    def feed(self, payload: bytes) -> bytes:
        if self.done:
            return b""  # clients have stopped reading there
        if self._rest:
            payload = self._rest + payload
            self._rest = b""
        if not payload.endswith(END):
            cut = payload.rfind(END) + 2
            if cut < 2:
                if len(payload) > self._limit:
                    return payload
                self._rest = payload
                return b""
            self._rest = payload[cut:]
            payload = payload[:cut]
        if b"[DONE]" in payload:
            payload = self._until_done(payload)
        at = self.tells(payload)
        if at >= 0:
            at = payload.rfind(END, 0, at) + 2
            payload = payload[:at] + self._inspect(payload[at:]) if at > 1 else self._inspect(payload)
        return payload

    def _until_done(self, payload: bytes) -> bytes:
        """Without what comes after the final event, if it is in there."""
        done = _DONE.search(payload)
        if done is None:
            return payload
        self.done, self._rest = True, b""
        return payload[: done.end()]

    def tells(self, payload: bytes) -> int:
        """Where the first event that must be looked into has what tells so; -1: all of it may go by."""
        find = payload.find
        places = [find(self._tells_usage), *map(find, _TELLING)]
        if b"event:" in payload:
            places += [find(b"event: error"), find(b"event:error")]
        return min((place for place in places if place >= 0), default=-1)

    def lets_by(self, events: bytes) -> bool:
        """Whether whole events, in their chunks or not, may go by as they are: the quick look at nearly all of them."""
        if self._rest:
            return False
        # From behind: where it finds nothing it is quicker than from the front.
        return (
            events.rfind(self._tells_usage) < 0
            and events.rfind(_ERROR) < 0
            and events.rfind(_ABORT) < 0
            and events.rfind(b"event:") < 0
        )

    def finish(self) -> bytes:
        """What was kept of an event that never ended."""
        rest, self._rest = self._rest, b""
        return rest

    def _inspect(self, payload: bytes) -> bytes:
        kept: list[bytes] = []
        for event in payload.split(END):
            if not event:
                continue
            document = document_of(event)
            if gave_up(document) or _is_error_event(event):
                self.error, self.done = True, False
                break
            usage = document.get("usage") or _inner_usage(document)
            if isinstance(usage, dict):
                self.usage = usage
                if self._strip_usage and document.get("choices") == []:
                    continue
                event = with_details(event, self._prompt_details)
            kept.append(event + END)
        return b"".join(kept)


def _inner_usage(document: dict[str, Any]) -> Any:
    """Of the events that /v1/responses ends and /v1/messages begins with."""
    inner = document.get("response", document.get("message"))
    return inner.get("usage") if isinstance(inner, dict) else None


def _is_error_event(event: bytes) -> bool:
    return any(line.startswith(b"event:") and line[6:].strip() == b"error" for line in event.split(b"\n"))


def document_of(event: bytes) -> dict[str, Any]:
    """The JSON object of an event's data; {} if there is none."""
    try:
        document = orjson.loads(_data(event))
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _data(event: bytes) -> bytes:
    """Of all its data lines, as the HTML standard puts them together (section 9.2.6)."""
    return b"\n".join([line[5:] for line in event.split(b"\n") if line.startswith(b"data:")])


def is_comment(event: bytes) -> bool:
    return all(line.startswith(b":") for line in event.split(b"\n") if line)


def error_event(document: bytes) -> bytes:
    return b"data: %b\n\n" % document
