"""One streamed answer as a client got it, and whether it is what had to come. Pure.

A stream that an error event or a broken connection ends is `failed`: the client knows. `truncated`, `duplicated` and `wrong`
are answers that look complete and are not what the model says: a client would believe them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import httptools
import orjson

from controlplane.proof.questions import Question

Outcome = Literal["exact", "refused", "failed", "truncated", "duplicated", "wrong"]
OUTCOMES: tuple[Outcome, ...] = ("exact", "refused", "failed", "truncated", "duplicated", "wrong")


class Reply:
    """Collects an HTTP answer piece by piece. `whole`: its framing ended in order."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.whole = False
        self.problem = ""
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raises httptools.HttpParserError."""
        self._parser.feed_data(data)

    # --- what httptools calls

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode(errors="replace")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole = True


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    why: str = ""


@dataclass
class _Said:
    text: str = ""
    endings: list[str] = field(default_factory=list)
    tokens: int | None = None
    error: str = ""
    done: bool = False


def judge(question: Question, reply: Reply) -> Verdict:
    """What became of a stream."""
    if reply.status != 200:
        return Verdict(
            "refused", reply.problem or f"status {reply.status}: {bytes(reply.body[:300]).decode(errors='replace')}"
        )
    try:
        said = _read(bytes(reply.body), broken=not reply.whole)
    except (ValueError, KeyError, TypeError) as error:
        return Verdict("wrong", f"an event is not readable: {type(error).__name__}: {error}")
    if not question.text.startswith(said.text):
        return _other_text(question, said.text)
    if said.error:
        return Verdict("failed", f"ended with an error event after {len(said.text)} characters: {said.error}")
    if not reply.whole:
        return Verdict("failed", reply.problem or f"the connection broke after {len(said.text)} characters")
    if said.text != question.text or not said.done:
        return Verdict("truncated", f"{len(said.text)} of {len(question.text)} characters, done: {said.done}")
    if said.endings != ["length"] or said.tokens != question.tokens:
        ended = f"ends {said.endings}, {said.tokens} tokens by its usage"
        return Verdict("duplicated" if len(said.endings) > 1 else "wrong", f"{ended}; {question.tokens} were asked for")
    return Verdict("exact")


def _other_text(question: Question, text: str) -> Verdict:
    same = _common(text, question.text)
    rest = text[same:]
    again = len(text) > len(question.text) or (len(rest) > 4 and rest[:16] in text[:same])
    where = f"from character {same}: {rest[:40]!r} in place of {question.text[same : same + 40]!r}"
    return Verdict("duplicated" if again else "wrong", where)


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (first, second) in enumerate(pairs) if first != second), min(len(one), len(other)))


def _read(body: bytes, *, broken: bool) -> _Said:
    """Raises ValueError, KeyError or TypeError for what is no stream of the OpenAI API."""
    said = _Said()
    events = body.split(b"\n\n")
    for event in events[:-1] if broken else events:
        data = event.removeprefix(b"data: ").strip()
        if not data:
            continue
        if said.done:
            raise ValueError("an event after the end")
        if data == b"[DONE]":
            said.done = True
        else:
            _take(said, orjson.loads(data))
    return said


def _take(said: _Said, event: dict[str, Any]) -> None:
    if error := event.get("error"):
        said.error = str(error.get("message") if isinstance(error, dict) else error)[:200]
    if usage := event.get("usage"):
        said.tokens = int(usage["completion_tokens"])
    for choice in event.get("choices", ()):
        said.text += (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""
        if choice.get("finish_reason"):
            said.endings.append(choice["finish_reason"])
